"""Counts sequential waits: how many round trips lie one behind the other between two moments.

    store = CountedStore(connector)
    engine = open_engine(store)
    with store.counting() as waits:
        engine.retrieve(tokens)
    assert waits.depth == 1

A job that is submitted before any answer has depth 1, and one that is submitted behind an answer is
one deeper than that. So what counts is what the engine knew when it asked, and no clock. What was
answered without asking the store counts nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvferry import _native
from kvferry.client.batch import BatchResult
from kvferry.connectors.base import Connector, Ticket


class Waits:
    """What was counted.

    Attributes:
        depth: Round trips one behind the other, as far as somebody had an answer.
        jobs: The verbs that were submitted, each with its depth and how many keys it has.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.jobs: list[tuple[str, int, int]] = []

    def of(self, verb: str) -> list[tuple[int, int]]:
        """Depth and number of keys of each job of a verb."""
        return [(depth, count) for name, depth, count in self.jobs if name == verb]


class _Ticket:
    def __init__(self, ticket: Ticket, waits: Waits, depth: int) -> None:
        self._ticket, self._waits, self._depth = ticket, waits, depth

    def wait(self, timeout_s: float) -> BatchResult | None:
        result = self._ticket.wait(timeout_s)
        if result is not None and result.elapsed_s:
            self._waits.depth = max(self._waits.depth, self._depth)
        return result

    def cancel(self) -> None:
        self._ticket.cancel()

    @property
    def done(self) -> bool:
        return self.wait(0.0) is not None

    @property
    def prefix_len(self) -> int:
        return self._ticket.prefix_len


class CountedStore:
    """A connector that is counted; everything else is the connector's."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._lock = threading.Lock()
        self._waits = Waits()

    @contextmanager
    def counting(self) -> Iterator[Waits]:
        """Count from now on."""
        with self._lock:
            waits = self._waits = Waits()
        yield waits

    def submit_get(self, keys: Any, buffers: Any, **options: Any) -> _Ticket:
        verb = "read" if isinstance(buffers, _native.OnDemandPages) else "get"
        return self._counted(verb, keys, self._connector.submit_get(keys, buffers, **options))

    def submit_exists(self, keys: Any, **options: Any) -> _Ticket:
        return self._counted("ask", keys, self._connector.submit_exists(keys, **options))

    def _counted(self, verb: str, keys: Any, ticket: Ticket) -> _Ticket:
        with self._lock:
            waits = self._waits
            depth = waits.depth + 1
            waits.jobs.append((verb, depth, len(keys)))
        return _Ticket(ticket, waits, depth)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)
