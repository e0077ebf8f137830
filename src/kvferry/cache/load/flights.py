"""Who asks the stores for which chunk: so that ten requests for one prefix ask and load it once.

A chunk that is being loaded is seen in memory. One that is asked for is not yet: who asks for the
same chunk waits for that answer instead of sending reads for the same bytes.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvferry.cache.memory import Memory
from kvferry.cache.steps import Steps

__all__ = ["Flight", "Flights"]


class Flight:
    """A question that is on its way.

    Attributes:
        missed: Why there is nothing behind the chunk before it, for whoever asks; "": there is
            something, or nobody knows.
        until: How long whoever asks waits for the answer, as soon as that is known.
        over: It is over: what comes is seen in memory.
    """

    __slots__ = ("missed", "over", "until")

    def __init__(self) -> None:
        self.missed = ""
        self.until = 0.0
        self.over = False


class Flights:
    """The questions that are on their way, by the hash of the chunk where they begin."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._open: dict[bytes, Flight] = {}

    @contextmanager
    def begin(self, digest: bytes) -> Iterator[tuple[Flight, bool]]:
        """Ask from a chunk on; False: somebody else does already, see `wait`."""
        with self._lock:
            ours = digest not in self._open
            flight = self._open.setdefault(digest, Flight())
        try:
            yield flight, ours
        finally:
            if ours:
                with self._lock:
                    del self._open[digest]
                flight.over = True
                self._memory.announce()

    def wait(self, flight: Flight, until: float, deadline: float) -> Steps[bool]:
        """Wait for what others ask, as long as they do or until then; False: it takes longer."""

        def over() -> bool:
            return flight.over or time.monotonic() >= max(until, flight.until)

        yield from self._memory.await_change(over, deadline)
        return flight.over
