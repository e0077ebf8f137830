"""Sessions of coding agents, woven into one stream of requests.

A session has a clock of its own, so somebody must say who runs at the same time: `users` people,
each of whom begins the next session of the file when their last one has ended. Requests of a
sub-agent run beside those of its session.

Block ids hold inside one session. What sessions have in common, tools and system prompt, is not in
them; a part of it (`warm`) is given ids that all sessions of the same model share.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from kvferry.base.errors import UsageError
from kvferry_lab.trace.sequenced import Sequenced, TraceOptions

__all__ = ["sequenced"]

_BLOCKS_MAX = 1 << 20  # of one request
_IDS_MAX = 1 << 31  # the other half is for what sessions share

_Request = tuple[float, "array[int]"]


def sequenced(
    lines: Iterable[tuple[str, dict[str, Any]]], options: TraceOptions
) -> Iterator[Sequenced]:
    """The requests of all users in the order of time."""
    sessions = _Sessions(lines, options)
    # When, whose, which request of the session, when the session began, its requests.
    queue: list[tuple[float, int, int, float, list[_Request]]] = []
    for user in range(options.users):
        if requests := sessions.next():
            heapq.heappush(queue, (requests[0][0], user, 0, 0.0, requests))
    while queue:
        now, user, index, began, requests = heapq.heappop(queue)
        yield Sequenced(blocks=requests[index][1])
        index += 1
        if index == len(requests):
            index, began, requests = 0, now, sessions.next()
        if requests:
            heapq.heappush(queue, (began + requests[index][0], user, index, began, requests))


class _Sessions:
    """The sessions of a file, each with block ids that no other one has, but for what is warm."""

    def __init__(self, lines: Iterable[tuple[str, dict[str, Any]]], options: TraceOptions) -> None:
        self._lines = iter(lines)
        self._warm = options.warm
        self._base = 0
        self._shared: dict[tuple[str, int], int] = {}

    def next(self) -> list[_Request]:
        """The requests of the next session that has some, by time; empty at the end."""
        for where, session in self._lines:
            block_tokens = int(session.get("block_size") or 64)
            try:
                requests = list(self._requests(session, 0.0, block_tokens))
                own = (one for _, blocks in requests for one in blocks if one < _IDS_MAX)
                self._base = 1 + max(own, default=self._base)
            except (KeyError, TypeError, ValueError, OverflowError):
                raise UsageError(f"{where} is no session with requests and hash_runs") from None
            if self._base >= _IDS_MAX:
                raise UsageError(f"{where}: the sessions have more blocks than can be told apart")
            if requests:
                return sorted(requests, key=lambda request: request[0])
        return []

    def _requests(
        self, holder: dict[str, Any], begin: float, block_tokens: int
    ) -> Iterator[_Request]:
        """Those of a session or of a sub-agent, whose clock begins at `begin`."""
        common = holder.get("tool_tokens", 0) + holder.get("system_tokens", 0)
        shared = int(common * self._warm / block_tokens)
        for item in holder["requests"]:
            time = begin + float(item["t"])
            if "requests" in item:
                yield from self._requests(item, time, block_tokens)
            elif "hash_runs" in item:
                yield time, self._blocks(item, shared)

    def _blocks(self, item: dict[str, Any], shared: int) -> array[int]:
        blocks = array("I")
        for first, count in item["hash_runs"]:
            if first < 0 or not 0 < count <= _BLOCKS_MAX - len(blocks):
                raise ValueError("not a run")
            blocks.extend(range(self._base + first, self._base + first + count))
        for place in range(min(shared, len(blocks))):
            key = (str(item.get("model")), place)
            blocks[place] = _IDS_MAX + self._shared.setdefault(key, len(self._shared))
        return blocks
