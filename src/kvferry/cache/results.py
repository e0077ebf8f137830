"""What the calls of the cache return. Tokens count whole chunks; times are in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from kvferry.cache.cost.load_or_compute import Decision

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Lookup", "Retrieved", "Stored"]


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
