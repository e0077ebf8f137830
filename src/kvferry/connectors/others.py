"""Making room among the chunks of other identities that share a store.

Whoever fills a store first would otherwise keep it: each cache knows, and evicts, its own chunks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from kvferry import _native
from kvferry.client.operation import Verb
from kvferry.connectors.base import Connector, Space

__all__ = ["evict_others"]

_EVICTED_TOGETHER = 16  # then the store is asked what it holds
_DELETE_TIMEOUT_S = 5.0


def evict_others(
    connector: Connector,
    open_native: Callable[[Space], _native.Connector],
    size_bytes: int,
    timeout_s: float,
) -> int:
    """`Connector.evict_others` of native drivers, by the descriptions that their stores keep."""
    until = time.monotonic() + timeout_s
    found: list[tuple[float, _native.Connector, bytes]] = []
    others = []
    try:
        for identity in connector.descriptions():
            if identity == connector.space.identity:
                continue
            prefix = f"kvf:{identity.hex()}:"
            space = replace(connector.space, prefix=prefix, identity=identity, description="")
            others.append(open_native(space))
            found += _aged(others[-1], until)
        found.sort(key=lambda entry: entry[0])
        goal, went = connector.usage().used_bytes - size_bytes, 0
        while found and time.monotonic() < until and connector.usage().used_bytes > goal:
            oldest = [found.pop() for _ in range(min(len(found), _EVICTED_TOGETHER))]
            went += sum(_delete(other, key) for _, other, key in oldest)
        return went
    finally:
        for other in others:
            other.close()


def _aged(other: _native.Connector, until: float) -> list[tuple[float, _native.Connector, bytes]]:
    """The keys of a space and how long ago they were used."""
    found, cursor = [], 0
    while time.monotonic() < until:
        entries, cursor = other.scan(cursor)
        found += [(age_s, other, key) for key, age_s in entries]
        if not cursor:
            break
    return found


def _delete(other: _native.Connector, key: bytes) -> bool:
    """Whether it was there."""
    job_id = other.submit(int(Verb.DELETE), (key,), None, _DELETE_TIMEOUT_S, 0, False, True)
    outcome = other.wait(job_id, 2 * _DELETE_TIMEOUT_S)
    return outcome is not None and not outcome[0][0]
