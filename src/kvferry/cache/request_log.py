"""One line in the log for each retrieve and each store, the same in all integrations.

    Retrieved 4096 out of 4200 tokens (memory 1024, redis 3072): 0.54 GB in 150 ms, 3.6 GB/s
    Stored 4096 out of 4200 tokens (redis 3072): 0.54 GB in 12 ms, 45.0 GB/s

In brackets of a retrieve: what each tier gave; of a store: what the stores will get behind memory.
A store counts the tokens that it was given: an engine that computes a prompt in steps stores it in
steps.
Where tokens are missing and somebody could do something about it, the line says why. A prompt that
nobody has stored yet is no line. Above ten lines a second one sums up what came then.

Threads: any.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

__all__ = ["RequestLog"]

_LINES_MAX = 10
_WINDOW_S = 1.0
_MEMORY = "l1"
# Why tokens are missing, where that is as it should be, or was said by whoever found out.
_USUAL = ("", "never_stored", "not_worth_loading", "unavailable")


class _Sum:
    """What came behind the tenth line of a second."""

    __slots__ = ("calls", "size_bytes", "tokens", "took_s", "wanted")

    def __init__(self) -> None:
        self.calls = self.tokens = self.wanted = self.size_bytes = 0
        self.took_s = 0.0


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
    ) -> None:
        """So many of the tokens that were given are in memory now, and wait to be written."""
        self._tell("Stored", wanted, stores, tokens, size_bytes, took_s, reason)

    def _tell(
        self,
        verb: str,
        wanted: int,
        tiers: Mapping[str, int],
        tokens: int,
        size_bytes: int,
        took_s: float,
        reason: str,
    ) -> None:
        why = f"; the rest: {reason.replace('_', ' ')}" if reason not in _USUAL else ""
        if not self._log.isEnabledFor(logging.INFO) or (not tokens and not why):
            return
        with self._lock:
            over = self._over()
            self._lines += 1
            told = self._lines <= _LINES_MAX
            if not told:
                total = self._sums.setdefault(verb, _Sum())
                total.calls += 1
                total.tokens += tokens
                total.wanted += wanted
                total.size_bytes += size_bytes
                total.took_s += took_s
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
        """With the lock: a second is over; what came behind its tenth line."""
        now = self._clock()
        if now < self._until:
            return []
        sums, self._sums = self._sums, {}
        self._until, self._lines = now + _WINDOW_S, 0
        return [
            f"{verb} {total.tokens} out of {total.wanted} tokens in {total.calls} more calls: "
            f"{_speed(total.size_bytes, total.took_s)}"
            for verb, total in sums.items()
        ]


def _speed(size_bytes: int, took_s: float) -> str:
    rate = f", {size_bytes / took_s / 1e9:.1f} GB/s" if took_s > 0 and size_bytes else ""
    return f"{size_bytes / 1e9:.2f} GB in {took_s * 1e3:.0f} ms{rate}"
