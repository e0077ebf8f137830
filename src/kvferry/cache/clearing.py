"""Clears of a cache: which generation is in force, and what ends with the one before.

A clear is over when it returns, whether stores are up or down: from then on the cache makes other
hashes. Requests in flight keep their generation. They may still write: under names that nobody here
looks for.

Chunks that other caches may still look for stay in the stores: those of the first generation, of a
generation with a name, and of generations that others have drawn. Chunks that are stale for
everybody are deleted in the background, within limits: all of before a clear for everybody, and
those of generations that this process has drawn for itself.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from kvferry.base.errors import KVFerryError, UnavailableError, UsageError
from kvferry.cache.memory import Memory
from kvferry.cache.steps import Steps, finish
from kvferry.cache.store.generations import NewestMark
from kvferry.cache.store.store_tiers import StoreTier
from kvferry.chunks.generation import (
    after_clear,
    drawn_here,
    joined,
    named,
    own_of,
    shared_of,
)
from kvferry.chunks.prompt import Prompt

__all__ = ["Clearing", "check_clear", "without_chunks"]

_STALE_MAX = 1000  # halves of this cache that are remembered as stale
_FIRST_S = 1.0  # that a store may take to say its generation when a cache begins; then: a miss


class Clearing:
    """The generation of one cache, and its clears.

    Args:
        memory: Of the cache.
        weights_version: The name of its weights, if it was given one.

    Attributes:
        tiers: Of the cache.
        newest: The mark of everybody's generation.
        own: The half of this engine.
        unopened: Stores of the settings that could not be opened, with the reason.
        sharing: Tells instances of a clear, for some time at most, and says who could not be
            reached, if nobody was.
    """

    def __init__(self, memory: Memory, weights_version: str) -> None:
        self.tiers: Sequence[StoreTier] = ()
        self.newest = NewestMark(self._renewed)
        self.unopened: dict[str, str] = {}
        self.sharing: Callable[[], str] | None = None
        self._memory = memory
        self.own = named(weights_version)
        self._stale: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()
        self._first_until = time.monotonic() + _FIRST_S

    @property
    def shared(self) -> bytes:
        """The half that this engine has in common with all others on its stores."""
        return self.newest.mark.half

    @property
    def generation(self) -> bytes:
        """What prompts are hashed with from now on."""
        return joined(self.own, self.shared)

    def is_current(self, generation: bytes) -> bool:
        """Whether a prompt that was read under this generation may hit, and be stored."""
        return shared_of(generation) == self.shared and own_of(generation) not in self._stale

    def await_generation(self, timeout_s: float | None) -> None:
        """`awaiting_generation`, waiting on the spot."""
        finish(self.awaiting_generation(timeout_s))

    def awaiting_generation(self, timeout_s: float | None) -> Steps[None]:
        """Wait until stores have said their generation: in the first second of the cache, and after
        a time in which this process was stopped."""
        if not self.newest.is_fresh:
            limit_s = float("inf") if timeout_s is None else timeout_s
            yield from self.newest.refreshing(time.monotonic() + limit_s)
        now, until = time.monotonic(), self._first_until
        if timeout_s is not None:
            until = min(until, now + timeout_s)
        if now < until:
            for tier in self.tiers:
                yield from tier.generations.waiting(until)

    # --- Clearing ---

    def clear(self, weights_version: str | None) -> int:
        """Begin another generation of this cache; how many chunks memory forgot."""
        with self._lock:
            ended = self.own
            self.own = after_clear(weights_version)
            own = self.own
        return self.end(ended, own)

    def end(self, ended: bytes, own: bytes) -> int:
        """Take `own` for this cache's half; `ended` is stale. How many chunks memory forgot."""
        with self._lock:
            self.own = own
            if ended != own:
                self._stale[ended] = None
                self._stale.pop(own, None)
            while len(self._stale) > _STALE_MAX:
                self._stale.popitem(last=False)
        count = self._memory.cache.clear()
        if ended != own:
            self.forget(lambda generation: own_of(generation) == ended, delete=drawn_here(ended))
        return count

    def clear_everybody(self) -> int:
        """Begin another generation of all caches on these stores; how many chunks memory forgot.

        Raises:
            UsageError: A store keeps no mark, or an instance does not hear of marks: nothing was
                cleared.
            UnavailableError: A store of the settings could not be opened: likewise.
            KVFerryError: A store does not take the mark, or no instance is reached. All others were
                cleared; that one will be as soon as it answers, while this cache is open.
        """
        self._check_everybody()
        keepers = [tier for tier in self.tiers if tier.generations.keeps]
        there = []
        failed: dict[str, KVFerryError] = {}
        for tier in keepers:
            try:
                there.append(tier.generations.read())
            except KVFerryError as error:
                failed[tier.tier.name] = error
        count = self.newest.renew(*there)
        for tier in keepers:
            try:
                tier.generations.tell(now=tier.tier.name not in failed)
            except KVFerryError as error:
                failed[tier.tier.name] = error
        self.forget(lambda generation: shared_of(generation) != self.shared, delete=True)
        missed = [f"{name} ({error})" for name, error in failed.items()]
        if self.sharing is not None and (problem := self.sharing()):
            missed.append(problem)
        if missed:
            raise UnavailableError(
                f"clear(everybody=True) did not reach {', '.join(missed)}; all others are cleared. "
                "It is told as soon as it is there, while this cache is open; better do it again"
            ) from next(iter(failed.values()), None)
        return count

    def _renewed(self) -> int:
        """Everybody's generation is another one: what memory has, and what waits, is stale."""
        self.forget(lambda generation: shared_of(generation) != self.shared, delete=False)
        return self._memory.cache.clear()

    def _check_everybody(self) -> None:
        """Check that a clear for everybody would be heard by everybody. Raises as it does."""
        tiers = list(self.tiers)
        deaf = [tier.tier.name for tier in tiers if tier.is_deaf]
        if deaf:
            raise UsageError(
                f"clear(everybody=True): {', '.join(deaf)} keeps no generation, so whoever else "
                "uses it would go on with what is there; nothing was cleared"
            )
        unopened = dict(self.unopened)
        if unopened:
            text = "; ".join(f"{name}: {reason}" for name, reason in unopened.items())
            raise UnavailableError(
                f"clear(everybody=True): not everything of this cache is open ({text}), so whoever "
                "else uses it would hear nothing; nothing was cleared"
            )

    def forget(self, which: Callable[[bytes], bool], *, delete: bool) -> None:
        """Nobody here asks for these generations; `delete`: nor does anybody else, so their chunks
        are deleted from the stores in the background."""
        for tier in self.tiers:
            tier.forget(which, delete=delete)

    def without_obsolete(self, prompt: Prompt) -> Prompt:
        """The prompt; without chunks if its generation is over, so that nothing is found."""
        return prompt if self.is_current(prompt.generation) else without_chunks(prompt)


def without_chunks(prompt: Prompt) -> Prompt:
    """The prompt without chunks: a miss."""
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
