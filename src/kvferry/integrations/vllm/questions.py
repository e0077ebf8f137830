"""Questions to a finder that nobody waits for: asked in threads, given up after a limit.

An answer often comes within a fraction of a millisecond, and another step of the engine costs more.
So whoever asks waits for a moment, all questions of a step together no longer than one.

Threads: those who ask are one; the answers come from others.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError

from kvferry.engine.prompt import Prompt
from kvferry.integrations.vllm.backend import Finder

__all__ = ["Question", "Questions"]

_log = logging.getLogger("kvferry.integrations.vllm")

_THREADS = 4
# What the questions of one step are waited for, together.
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
        self, answer: Future[int] | int | None, limit_s: float, patience: _Patience
    ) -> None:
        self._future = answer if isinstance(answer, Future) else None
        self._asked_at = time.monotonic()
        self._until = self._asked_at + limit_s
        self._patience = patience
        self._result: int | None = answer if isinstance(answer, int) else None
        self.answered = self._result is not None

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
            if time.monotonic() < self._until:
                return None
            self.forget()
            self._result = 0
        except Exception:  # ours: the engine goes on without the cache
            _log.exception("a look-up failed")
            self._result = 0
        return self._result

    def forget(self) -> None:
        """Nobody wants to know any more."""
        if self._future is not None:
            self._future.cancel()


class Questions:
    """Asks a finder.

    Args:
        finder: Is asked in up to four threads at a time.
        limit_s: How long an answer may take.
    """

    def __init__(self, finder: Finder, limit_s: float) -> None:
        self._finder = finder
        self._limit_s = limit_s
        self._patience = _Patience()
        self._threads = ThreadPoolExecutor(_THREADS, "kvferry-ask")

    def ask(self, prompt: Prompt) -> Question:
        """Ask; the answer comes some time, or is there at once."""
        try:
            found = self._finder.now(prompt)
            if found is not None:
                return Question(found, 0.0, self._patience)
            future = self._threads.submit(self._finder.find, prompt)
        except RuntimeError:  # closed
            return Question(None, 0.0, self._patience)
        except Exception:  # ours: the engine goes on without the cache
            _log.exception("a look-up failed")
            return Question(None, 0.0, self._patience)
        return Question(future, self._limit_s, self._patience)

    def next_step(self) -> None:
        """A step has ended: the next one may wait for a moment again."""
        self._patience.left_s = _MOMENT_S

    def close(self) -> None:
        """What was not asked yet is not asked."""
        self._threads.shutdown(wait=False, cancel_futures=True)
