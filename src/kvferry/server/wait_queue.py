"""Work that waits for stores, and holds no thread meanwhile.

Work that has come to a `Wait` is parked here. It goes on when the awaited thing announces that it
is done, or at the deadline of the wait. An awaited thing that cannot announce is polled.

Threads: one, that of the loop. The announcement may come from any.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from kvferry.cache.steps import Awaited, Wait

__all__ = ["WaitQueue"]

T = TypeVar("T")

# How often awaited things that cannot announce are polled.
_POLL_S = 0.005


class _Parked(Generic[T]):
    """Parked work, what it waits for (None: it goes on), and its deadline."""

    __slots__ = ("of", "until", "work")

    def __init__(self, work: T, of: Awaited, until: float) -> None:
        self.work = work
        self.of: Awaited | None = of
        self.until = until


class WaitQueue(Generic[T]):
    """See the module.

    Args:
        wake: Has the loop come and call `ready`. Threads: any.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._announced: deque[_Parked[T]] = deque()
        self._timers: list[tuple[float, int, _Parked[T]]] = []
        self._numbers = itertools.count()
        self._loop = 0
        self._parked: set[_Parked[T]] = set()

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def next_at(self) -> float | None:
        """When `ready` has to be called at the latest, by ``time.monotonic``."""
        return self._timers[0][0] if self._timers else None

    def park(self, work: T, wait: Wait) -> None:
        """Park work until what it waits for is done, or its deadline."""
        now, self._loop = time.monotonic(), threading.get_ident()
        parked = _Parked(work, wait.of, now + wait.timeout_s)
        self._parked.add(parked)
        self._look_at(parked, parked.until if self._arm(parked, wait.of) else now + _POLL_S)

    def ready(self, now: float) -> list[T]:
        """The work that goes on now."""
        found = []
        while self._announced:
            parked = self._announced.popleft()
            if parked.of is not None and parked.of.done:
                found.append(self._taken(parked))
            elif parked.of is not None:
                self._arm(parked, parked.of)
        while self._timers and self._timers[0][0] <= now:
            parked = heapq.heappop(self._timers)[2]
            if parked.of is None:
                continue
            if parked.until <= now or parked.of.done:
                found.append(self._taken(parked))
            else:
                self._look_at(parked, now + _POLL_S)
        return found

    def close(self) -> list[T]:
        """All parked work; none of it goes on."""
        left = [parked.work for parked in self._parked]
        self._parked.clear()
        self._timers.clear()
        return left

    def _taken(self, parked: _Parked[T]) -> T:
        parked.of = None
        self._parked.discard(parked)
        if not self._parked:
            self._timers.clear()  # what is left is of work that went on
        return parked.work

    def _arm(self, parked: _Parked[T], of: Awaited) -> bool:
        """Have the awaited thing announce that it is done; whether it can."""
        tell = getattr(of, "tell", None)
        if tell is None:
            return False

        def told() -> None:
            self._announced.append(parked)
            if threading.get_ident() != self._loop:
                self._wake()

        tell(told)
        if of.done:  # it was before we asked
            told()
        return True

    def _look_at(self, parked: _Parked[T], at: float) -> None:
        entry = (min(parked.until, at), next(self._numbers), parked)
        heapq.heappush(self._timers, entry)
