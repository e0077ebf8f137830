"""One line in the log for each retrieve and each store, the same in all integrations.

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

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from kvferry.cache.results import Stored
from kvferry.chunks.layout import KVLayout

__all__ = ["FULL_QUEUE", "RequestLog"]

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
