"""Clears of a cache: which generation is in force, and what ends with the one before.

A clear is over when it returns, whether stores are up or down: from then on the cache makes other
hashes. What was under way keeps its generation. It may still write: under a name that nobody looks
for. What is obsolete is deleted in the background, within limits.

Threads: any.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from kvferry.cache.memory import Memory
from kvferry.cache.prompt import Prompt
from kvferry.cache.steps import Steps, finish
from kvferry.cache.store_tiers import StoreTier
from kvferry.chunks.generation import after_clear, drawn, joined, named, own_of, shared_of
from kvferry.errors import KVFerryError, UsageError

__all__ = ["Clearing", "check_clear"]

_REMEMBERED = 1000
# What a store may take to say its generation when a cache begins, before that is a miss.
_FIRST_S = 1.0


class Clearing:
    """See the module.

    Args:
        memory: Of the cache.
        weights_version: The name of its weights, if it was given one.
    """

    def __init__(self, memory: Memory, weights_version: str) -> None:
        self.tiers: Sequence[StoreTier] = ()
        self._memory = memory
        self._own = named(weights_version)
        self._local = bytes(8)  # the shared half where no store keeps one
        self._over: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()
        self._first_until = time.monotonic() + _FIRST_S

    @property
    def shared(self) -> bytes:
        """The half that this engine has in common with all others on its stores."""
        if not self.tiers:
            return self._local
        halves = [tier.generations.shared for tier in self.tiers if tier.generations.keeps]
        if len(halves) == 1:
            return halves[0]
        if not any(map(any, halves)):
            return self._local
        return hashlib.sha256(b"".join(halves)).digest()[:8]

    @property
    def generation(self) -> bytes:
        """What prompts are hashed with from now on."""
        return joined(self._own, self.shared)

    def is_current(self, generation: bytes) -> bool:
        """Whether a prompt that was read under it may find something, and be stored."""
        return shared_of(generation) == self.shared and own_of(generation) not in self._over

    def await_generation(self, timeout_s: float | None) -> None:
        """`awaiting_generation`, waiting on the spot."""
        finish(self.awaiting_generation(timeout_s))

    def awaiting_generation(self, timeout_s: float | None) -> Steps[None]:
        """Wait until stores have said their generation, in the first second of the cache."""
        now, until = time.monotonic(), self._first_until
        if timeout_s is not None:
            until = min(until, now + timeout_s)
        if now < until:
            for tier in self.tiers:
                yield from tier.generations.waiting(until)

    def cleared_by_others(self) -> None:
        """A store has another generation now: what memory has is of before."""
        self._memory.cache.clear()

    # --- Clearing ---

    def clear(self, weights_version: str | None) -> int:
        """Begin another generation of this cache; how many chunks memory forgot."""
        with self._lock:
            ended = self._own
            self._own = after_clear(weights_version)
            own = self._own
        return self.end(ended, own)

    def end(self, ended: bytes, own: bytes) -> int:
        """Take `own` for this cache's half; `ended` is obsolete. How many chunks memory forgot."""
        with self._lock:
            self._own = own
            if ended != own:
                self._over[ended] = None
                self._over.pop(own, None)
            while len(self._over) > _REMEMBERED:
                self._over.popitem(last=False)
        count = self._memory.cache.clear()
        if ended != own:
            self.forget(lambda generation: own_of(generation) == ended)
        return count

    def clear_everybody(self) -> int:
        """Begin another generation of all caches on these stores; how many chunks memory forgot.

        Raises:
            UnavailableError, DeadlineExceeded, ServerError: A store does not take it. Others were
                cleared; do it again.
        """
        failed: KVFerryError | None = None
        keepers = [tier for tier in self.tiers if tier.generations.keeps]
        for tier in keepers:
            try:
                tier.generations.renew()
            except KVFerryError as error:
                failed = error
        if not keepers:
            self._local = drawn()
        count = self._memory.cache.clear()
        shared = self.shared
        self.forget(lambda generation: shared_of(generation) != shared)
        if failed is not None:
            raise failed
        return count

    def forget(self, which: Callable[[bytes], bool]) -> None:
        """Have the stores delete what they have of these generations, some time."""
        for tier in self.tiers:
            tier.forget(which)

    def without_obsolete(self, prompt: Prompt) -> Prompt:
        """The prompt; without chunks if its generation is over, so that nothing is found."""
        if self.is_current(prompt.generation):
            return prompt
        return Prompt(b"", prompt.tokens, prompt.chunk_size, prompt.generation)


def check_clear(*, stores: bool, everybody: bool, weights_version: str | None) -> None:
    """Whether a clear does all that it is asked for.

    Raises:
        UsageError: A part of it would be left out.
    """
    asked = {
        "weights_version": bool(weights_version),
        "everybody": everybody,
        "stores=False": not stores,
    }
    together = [name for name, is_asked in asked.items() if is_asked]
    if len(together) > 1:
        raise UsageError(
            f"clear: {' and '.join(together)} are different clears; ask for one after the other"
        )
