"""How much of a prompt can be loaded: caches that are asked within a limit, and not in vain.

A store that is away says so at once. One that is silent does not: asking it takes as long as the
limit, each time. So after one such answer it is not waited for any more: only memory is asked, and
answers at once. The store is tried in the background, until it answers in time again.

Threads: any.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from kvferry.engine.prompt import Prompt
from kvferry.errors import KVFerryError
from kvferry.integrations.vllm.backend import Backend

__all__ = ["BackendFinder"]

_log = logging.getLogger("kvferry.integrations.vllm")

# How often a silent store is tried, and how long it may take then.
_TRY_EVERY_S = 0.5
_TRY_S = 2.0


class _Cache(Backend, Protocol):
    """A cache that knows its stores: `kvferry.Engine`."""

    @property
    def asks_stores(self) -> bool: ...


class BackendFinder:
    """Asks caches of this process, one for each rank; the smallest answer counts.

    Args:
        backends: Closed by whoever opened them.
        limit_s: How long their stores may take to answer.
        clock: For tests; as ``time.monotonic``.
    """

    def __init__(
        self,
        backends: Sequence[_Cache],
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backends = list(backends)
        self._limit_s = limit_s
        self._clock = clock
        self._lock = threading.Lock()
        self._silent = False
        self._trying = False
        self._try_at = 0.0
        self._closed = False
        threads = max(1, len(self._backends))
        self._threads = ThreadPoolExecutor(threads, "kvferry-find")

    @property
    def silent(self) -> bool:
        """Whether a store did not answer in time the last time it was waited for."""
        return self._silent

    def find(self, prompt: Prompt) -> int:
        """See `Finder`. Takes the limit at most, plus what memory needs."""
        if not self._silent:
            found, in_time = self._ask(prompt, self._limit_s)
            if in_time:
                return found
            with self._lock:
                told, self._silent = self._silent, True
                self._try_at = self._clock() + _TRY_EVERY_S
            if not told:
                _log.warning(
                    "a store did not answer in %.0f ms; prompts are computed without waiting for "
                    "it until it does",
                    self._limit_s * 1e3,
                )
            return found
        self._try(prompt)
        return self._ask(prompt, 0.0)[0]

    def now(self, prompt: Prompt) -> int | None:
        """See `Finder`: what memory has, while no store is up or one is silent."""
        if self._silent:
            self._try(prompt)
        elif any(backend.asks_stores for backend in self._backends):
            return None
        return self._ask(prompt, 0.0)[0]

    def clear(self) -> bool:
        """Forget everything of this model, in memory and in stores; whether that was done."""
        done = True
        for backend in self._backends:
            try:
                backend.clear()
            except KVFerryError as error:
                _log.warning("the cache was not cleared: %s", error)
                done = False
        return done

    def close(self) -> None:
        """Ask nobody any more; the backends stay open."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, prompt: Prompt, limit_s: float) -> tuple[int, bool]:
        """The smallest answer, and whether all came in time."""
        until = self._clock() + limit_s
        found = prompt.chunks
        for backend in self._backends:
            left_s = max(0.0, until - self._clock())
            try:
                tokens = backend.lookup(prompt, timeout_s=left_s).tokens
            except KVFerryError:  # it is being closed
                return 0, True
            found = min(found, tokens // prompt.chunk_size)
            if not found:
                break
        return found, found == prompt.chunks or self._clock() < until

    def _try(self, prompt: Prompt) -> None:
        """Ask in the background, now and then, with patience."""
        with self._lock:
            if self._trying or self._closed or self._clock() < self._try_at:
                return
            self._trying = True
        try:
            self._threads.submit(self._try_now, prompt)
        except RuntimeError:  # closed between the check and here
            self._trying = False

    def _try_now(self, prompt: Prompt) -> None:
        began = self._clock()
        try:
            self._ask(prompt, _TRY_S)
        finally:
            with self._lock:
                self._trying = False
                self._try_at = self._clock() + _TRY_EVERY_S
                if self._clock() - began < self._limit_s:
                    self._silent = False
                    _log.info("the store answers in time again")
