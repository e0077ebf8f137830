"""How much of a prompt should be loaded: asked of a cache, in threads that nobody waits for.

A cache waits for its stores as long as an answer can pay, and not at all for one that does not
answer (`kvferry.cache.store.tier`). `CacheFinder` asks it; `Questions` asks any `Finder`.

The finder knows how long waiting can pay. The limit here is for a finder that does not return, and
counts from the call: many requests at once may have to wait for a thread.

An answer often comes within a fraction of a millisecond, and another step of the engine costs more.
So the scheduler waits for a moment (`_MOMENT_S`), which all questions of a step share.

Threads: of `CacheFinder` any; of `Questions` one asks, and the answers come from others.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress

from kvferry.base.errors import KVFerryError
from kvferry.base.threads import Workers, noticed
from kvferry.cache.interface import Cache
from kvferry.chunks.generation import shared_of
from kvferry.chunks.prompt import Prompt
from kvferry.integrations.vllm.connector.interfaces import Finder

__all__ = ["CacheFinder", "Question", "Questions"]


class CacheFinder:
    """Asks one cache; see `Finder`.

    Args:
        cache: Closed by its owner.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def find(self, prompt: Prompt) -> int:
        """See `Finder`."""
        return self._ask(prompt, None)

    def now(self, prompt: Prompt) -> int | None:
        """See `Finder`: what memory has, while there is nobody to ask who answers, and the prompt
        names no node."""
        return None if prompt.source or self._cache.asks_stores else self._ask(prompt, 0.0)

    @property
    def shared(self) -> bytes:
        """See `Finder`."""
        return shared_of(self._cache.generation)

    def renewed(self, ended: bytes, own: bytes) -> None:
        """See `Finder`."""
        with suppress(KVFerryError):  # it is being closed
            self._cache.renewed(ended, own)

    def close(self) -> None:
        """The cache stays open."""

    def _ask(self, prompt: Prompt, limit_s: float | None) -> int:
        try:
            found = self._cache.lookup(prompt, timeout_s=limit_s, lease=True)
        except KVFerryError:  # it is being closed
            return 0
        tokens = found.tokens if found.worth_tokens is None else found.worth_tokens
        return tokens // prompt.chunk_size


_log = logging.getLogger("kvferry.integrations.vllm")

_THREADS = 32  # a look-up waits for stores, and costs no processor meanwhile
# What the questions of one step are waited for, together: an answer that comes meanwhile saves the
# request a step, which takes longer than this.
_MOMENT_S = 0.001


class _Patience:
    """What is left of the moment that the questions of a step are waited for."""

    def __init__(self) -> None:
        self.left_s = _MOMENT_S

    def wait(self, future: Future[int]) -> int:
        """The result; `LateError` if it is not there in what is left."""
        if future.done() or self.left_s <= 0:
            return future.result(0)
        began = time.monotonic()
        try:
            return future.result(self.left_s)
        finally:
            self.left_s -= time.monotonic() - began


class Question:
    """How much of a prompt can be loaded?

    Attributes:
        answered: Whether the answer is one; else the limit has passed.
    """

    def __init__(
        self, finder: Finder, prompt: Prompt, patience: _Patience, limit_s: float, threads: Workers
    ) -> None:
        self._finder, self._prompt = finder, prompt
        self._patience, self._limit_s = patience, limit_s
        self._asked_at = time.monotonic()
        self._began: float | None = None  # in a thread, which had to be waited for
        self._future: Future[int] | None = None
        self._result: int | None = None
        try:
            self._result = finder.now(prompt)
            if self._result is None:
                self._future = threads.submit(self._find)
        except RuntimeError:  # closed
            pass
        except Exception as error:  # ours: the engine goes on without the cache
            noticed("ask", error)
        self.answered = self._result is not None

    def _find(self) -> int:
        self._began = time.monotonic()
        return self._finder.find(self._prompt)

    @property
    def age_s(self) -> float:
        """Since it was asked."""
        return time.monotonic() - self._asked_at

    def answer(self) -> int | None:
        """Chunks; 0 when the limit has passed; None: not yet. Waits for a moment at most."""
        if self._result is not None or self._future is None:
            return self._result or 0
        try:
            self._result = self._patience.wait(self._future)
            self.answered = True
        except LateError:
            if self._began is None or time.monotonic() < self._began + self._limit_s:
                return None
            self.forget()
            self._result = 0
        except Exception:  # noticed where it was raised: the engine goes on without the cache
            self._result = 0
        return self._result

    def forget(self) -> None:
        """Nobody wants to know any more."""
        if self._future is not None:
            self._future.cancel()


class Questions:
    """Asks a finder.

    Args:
        finder: Is asked in up to 32 threads at a time.
        limit_s: How long the finder may take for an answer.
    """

    def __init__(self, finder: Finder, limit_s: float) -> None:
        self._finder = finder
        self._limit_s = limit_s
        self._patience = _Patience()
        self._threads = Workers(_THREADS, "ask")

    def ask(self, prompt: Prompt) -> Question:
        """Ask; the answer comes some time, or is there at once."""
        return Question(self._finder, prompt, self._patience, self._limit_s, self._threads)

    def next_step(self) -> None:
        """A step has ended: the next one may wait for a moment again."""
        self._patience.left_s = _MOMENT_S

    def close(self) -> None:
        """What was not asked yet is not asked."""
        self._threads.shutdown(wait=False, cancel_futures=True)
