"""What the calls of the cache return, and one line in the log for each retrieve and each store.

Tokens count whole chunks; times are in seconds. The lines are the same in all integrations:

    Retrieved 4096 out of 4200 tokens (memory 1024, redis 3072): 0.54 GB in 150 ms, 3.6 GB/s
    Stored 4096 out of 4200 tokens (redis 3072): 0.54 GB in 12 ms, 45.0 GB/s
    Stored 4096 out of 4200 tokens (memory 4096): 0.54 GB in 12 ms, 45.0 GB/s; 4096 wait for redis
    Stored 4096 out of 4200 tokens (memory 4096): 0.54 GB in 12 ms, 45.0 GB/s; redis took none of
        4096: OOM command not allowed when used memory > 'maxmemory'.

In brackets of a retrieve: what each tier gave; of a store: what the stores have acknowledged. What
they have not acknowledged is said behind: what waits, and what was refused, with the store's
reason. A store counts the tokens that it was given: an engine that computes a prompt in steps
stores the prompt in steps.

Where tokens are missing and somebody could do something about it, the line says why. A prompt that
nobody has stored yet is no line. Above ten lines a second, one line sums up the rest of the second.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from kvferry.cache.cost.load_or_compute import Decision

if TYPE_CHECKING:
    import numpy as np


import logging
import threading
import time
from collections import Counter

from kvferry.chunks.layout import KVLayout

__all__ = ["FULL_QUEUE", "Lookup", "RequestLog", "Retrieved", "Stored"]


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """How much of a prompt could be had.

    Attributes:
        tokens: Tokens of the prefix that some tier holds.
        tiers: How many of them each tier would give, in the order in which they follow: "l1", which
            is memory, then stores by name.
        arriving_tokens: Tokens right behind those in memory that are being stored or loaded there
            at this moment: a `retrieve` waits for them.
        worth_tokens: How many of `tokens` are there sooner if they are brought than if they are
            computed; None: nobody knows.
        reason: Why it is not more that can be had and pays, as in `Retrieved`; "": it is all, or
            nobody says.
    """

    tokens: int
    tiers: Mapping[str, int]
    arriving_tokens: int = 0
    worth_tokens: int | None = None
    reason: str = ""

    def behind(self, tokens: int, tier: str) -> Lookup:
        """The same of a prompt that begins with so many tokens more, which this tier has."""
        worth = None if self.worth_tokens is None else self.worth_tokens + tokens
        tiers = {**self.tiers, tier: self.tiers[tier] + tokens}
        return replace(self, tokens=self.tokens + tokens, tiers=tiers, worth_tokens=worth)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What became of the chunks of a `store`.

    Attributes:
        chunks: Chunks that are in memory now because of this call.
        known: Chunks that were there already, or were on their way.
        shed: Chunks that were left out, because there was no page for them.
        queued: For each store, how many chunks wait to be written to it.
        dropped: For each store, how many will not be, because its queue was full.
    """

    chunks: int
    known: int
    shed: int
    queued: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


class Retrieved:
    """A prefix that was brought into memory, and the right to read it.

    Without `into`, `pages` are its chunks, readable until `release`, the end of the ``with`` block,
    or the lease's end: `release` tells whether the lease was in force all the time, and if not,
    whoever can still compute should. (The memory itself stays theirs until `release` in any case.)
    With `into`, the chunks lie in the caller's buffers, and there is nothing to release.

    Attributes:
        tokens: Tokens of the prefix that are there.
        tiers: How many of them each tier gave.
        decision: What was chosen to be loaded and why; None when memory had everything.
        reason: Why it is not more: "" (it is all), "never_stored", "evicted", "deadline",
            "not_worth_loading", "cut", "unavailable", "pool_full", ...
        lookup_s, load_s: Time for asking the stores, and for loading.
    """

    def __init__(
        self,
        *,
        tokens: int,
        tiers: Mapping[str, int],
        decision: Decision | None,
        reason: str,
        lookup_s: float,
        load_s: float,
        pages: Sequence[memoryview] = (),
        release: Callable[[], bool] | None = None,
        shape: tuple[int, ...] = (),
        dtype: str = "",
    ) -> None:
        self.tokens = tokens
        self.tiers = dict(tiers)
        self.decision = decision
        self.reason = reason
        self.lookup_s = lookup_s
        self.load_s = load_s
        self._pages = pages
        self._release = release
        self._shape = shape
        self._dtype = dtype

    @property
    def pages(self) -> Sequence[memoryview]:
        """The chunks, each a read-only buffer of its bytes; it keeps its page as long as it is."""
        return self._pages

    @property
    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """The chunks as read-only NumPy arrays of the layout's shape.

        bfloat16 is seen as uint16 and every fp8 type as uint8: the bit patterns.
        """
        import numpy as np

        shown = []
        for page in self._pages:
            array = np.frombuffer(memoryview(page), self._dtype)
            array.flags.writeable = False
            shown.append(array.reshape(self._shape))
        return shown

    def release(self) -> bool:
        """Give the pages back; whether they were ours all the time. True when called again."""
        release, self._release = self._release, None
        self._pages = ()
        return release() if release is not None else True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if self._release is not None:
            self.release()

    def __repr__(self) -> str:
        where = ", ".join(f"{tokens} from {tier}" for tier, tokens in self.tiers.items() if tokens)
        why = f", then {self.reason}" if self.reason else ""
        return f"<Retrieved {self.tokens} tokens{f' ({where})' if where else ''}{why}>"


FULL_QUEUE = "too much waits for it already"

_LINES_MAX = 10  # of a window; the rest is summed up
_WINDOW_S = 1.0
_MEMORY = "l1"
_WHY_MAX = 200  # letters of a store's own reason
# Reasons for missing tokens that need no line: as it should be, or logged by whoever found out.
_USUAL = ("", "never_stored", "not_worth_loading", "unavailable")


class _Sum:
    """The calls of a window that had no line of their own."""

    __slots__ = ("calls", "missing", "size_bytes", "tokens", "took_s", "wanted")

    def __init__(self) -> None:
        self.calls = self.tokens = self.wanted = self.size_bytes = 0
        self.took_s = 0.0
        self.missing: Counter[str] = Counter()  # tokens that a store has not, by its name


class RequestLog:
    """See the module.

    Args:
        log: Where lines go, at INFO.
        clock: For tests; as ``time.monotonic``.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._until = 0.0
        self._lines = 0
        self._sums: dict[str, _Sum] = {}

    def retrieved(
        self,
        wanted: int,
        tiers: Mapping[str, int],
        size_bytes: int,
        took_s: float,
        reason: str = "",
    ) -> None:
        """So many tokens of a prompt came.

        Args:
            wanted: Tokens of the prompt.
            tiers: How many of them each tier gave.
            size_bytes: Of all of them.
            took_s: All in all.
            reason: Why it is not more.
        """
        self._tell("Retrieved", wanted, tiers, sum(tiers.values()), size_bytes, took_s, reason)

    def stored(
        self,
        wanted: int,
        tokens: int,
        stores: Mapping[str, int],
        size_bytes: int,
        took_s: float,
        reason: str = "",
        *,
        memory: int = 0,
        waiting: Mapping[str, int] | None = None,
        refused: Mapping[str, tuple[int, str]] | None = None,
    ) -> None:
        """So many of the tokens that were given are kept.

        Args:
            wanted: Tokens that were given.
            tokens: Those that are kept somewhere.
            stores: How many each store has acknowledged.
            size_bytes: Of those that are kept.
            took_s: Until the last store had answered.
            reason: Why memory has not more.
            memory: How many memory has; said where a store has not the same.
            waiting: How many each store has still to get.
            refused: How many each store did not take, and why.
        """
        waiting, refused = waiting or {}, refused or {}
        lacking = Counter(waiting) + Counter({name: count for name, (count, _) in refused.items()})
        rest = [f"{count} wait for {name}" for name, count in waiting.items()]
        for name, (count, why) in refused.items():
            taken = stores.get(name, 0)
            how_many = f"{taken}" if taken else "none"
            rest.append(f"{name} took {how_many} of {taken + count}: {why[:_WHY_MAX]}")
        given = {_MEMORY: memory, **stores} if lacking else stores
        self._tell(
            "Stored", wanted, given, tokens, size_bytes, took_s, reason, "; ".join(rest), lacking
        )

    def offered(self, wanted: int, stored: Stored, layout: KVLayout, took_s: float) -> None:
        """So many of these tokens are in memory; who writes them to stores logs the rest."""
        size, done = layout.chunk_size, stored.chunks
        self.stored(
            *(wanted, done * size, {}, done * layout.chunk_bytes, took_s),
            memory=done * size,
            waiting={name: count * size for name, count in stored.queued.items()},
            refused={name: (count * size, FULL_QUEUE) for name, count in stored.dropped.items()},
        )

    def _tell(
        self,
        verb: str,
        wanted: int,
        tiers: Mapping[str, int],
        tokens: int,
        size_bytes: int,
        took_s: float,
        reason: str,
        rest: str = "",
        lacking: Mapping[str, int] | None = None,
    ) -> None:
        why = f"; the rest: {reason.replace('_', ' ')}" if reason not in _USUAL else ""
        why += f"; {rest}" if rest else ""
        if not self._log.isEnabledFor(logging.INFO) or (not tokens and not why):
            return
        with self._lock:
            over = self._over()
            self._lines += 1
            told = self._lines <= _LINES_MAX
            if not told:
                total = self._sums.get(verb) or self._sums.setdefault(verb, _Sum())
                total.calls += 1
                total.tokens += tokens
                total.wanted += wanted
                total.size_bytes += size_bytes
                total.took_s += took_s
                if lacking:
                    total.missing.update(lacking)
        for line in over:
            self._log.info("%s", line)
        if told:
            given = ", ".join(
                f"{'memory' if name == _MEMORY else name} {count}"
                for name, count in tiers.items()
                if count
            )
            self._log.info(
                "%s %d out of %d tokens%s: %s%s",
                verb,
                tokens,
                wanted,
                f" ({given})" if given else "",
                _speed(size_bytes, took_s),
                why,
            )

    def _over(self) -> list[str]:
        """With the lock: the lines that sum up the window before, if it is over."""
        now = self._clock()
        if now < self._until:
            return []
        sums, self._sums = self._sums, {}
        self._until, self._lines = now + _WINDOW_S, 0
        return [
            f"{verb} {total.tokens} out of {total.wanted} tokens in {total.calls} more calls: "
            f"{_speed(total.size_bytes, total.took_s)}"
            + "".join(f"; {count} not in {name}" for name, count in total.missing.items())
            for verb, total in sums.items()
        ]


def _speed(size_bytes: int, took_s: float) -> str:
    rate = f", {size_bytes / took_s / 1e9:.1f} GB/s" if took_s > 0 and size_bytes else ""
    return f"{size_bytes / 1e9:.2f} GB in {took_s * 1e3:.0f} ms{rate}"
