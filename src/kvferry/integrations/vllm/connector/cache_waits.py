"""What part of the time to a request's first token it waited for the cache.

It waits while the cache says what it has, and while that is loaded. What else takes time is the
engine's: the queue, and computing.

Threads: the scheduler's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["RequestWait"]


class RequestWait:
    """Of one request, until its first token.

    Args:
        request: vLLM's; says when it came (``arrival_time``) and how many tokens it has given.
        clock: For tests; as ``time.monotonic``.
        wall: For tests; as ``time.time``.

    Attributes:
        told: Whether `over` has said it.
    """

    __slots__ = ("_began", "_clock", "_request", "_since", "_waited_s", "told")

    def __init__(
        self,
        request: Any,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        now = wall()
        self._request = request
        self._clock = clock
        self._began = clock() - max(0.0, now - getattr(request, "arrival_time", now))
        self._since: float | None = None
        self._waited_s = 0.0
        self.told = False

    def begin(self) -> None:
        """It waits for the cache from now on."""
        if self._since is None:
            self._since = self._clock()

    def end(self) -> None:
        """It does not any more."""
        if self._since is not None:
            self._waited_s += self._clock() - self._since
            self._since = None

    def over(self) -> tuple[float, float] | None:
        """How long it waited for the cache, and for the first token; None: that is not there yet,
        or was told."""
        if self.told or not getattr(self._request, "num_output_tokens", 0):
            return None
        self.told = True
        self.end()
        return self._waited_s, self._clock() - self._began
