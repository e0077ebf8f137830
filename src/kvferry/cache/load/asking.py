"""The questions of one request: what the stores have of a prompt, and what is planned of that.

All stores are asked at the same moment: what the first one lacks another one may have, and asking
it only then would be a second wait. The likeliest store is sent reads of the first chunks along
with the question (`load.window`).

Requests for the same prefix ask once. A chunk that is being loaded is seen in memory, but one that
is asked for is not yet: who would ask for the same chunk waits for that answer (`OpenQuestions`).

Threads: `Asking` one; `OpenQuestions` any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from kvferry.cache.cost.load_or_compute import Decision, Offer
from kvferry.cache.load.window import PendingLoads, Window, open_window
from kvferry.cache.memory import Memory
from kvferry.cache.steps import Steps
from kvferry.cache.store.store_answers import Asked, Probe
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import Prompt

__all__ = [
    "AnswerLimit",
    "Asking",
    "FoundPrefix",
    "Gathered",
    "Loaded",
    "OpenQuestions",
    "Plan",
    "Wanted",
]


@dataclass(frozen=True)
class Wanted:
    """Chunks `start` to `end` (not included) are to come from a tier."""

    tier: Tier
    start: int
    end: int


@dataclass
class FoundPrefix:
    """What stores have behind a prefix that is in memory.

    Attributes:
        pieces: Which chunks, and where; each begins where the one before it ends.
        offers: The same in tokens, with the time that loading them would take.
        reason: Why they are not the rest of the prompt.
    """

    pieces: list[Wanted]
    offers: list[Offer]
    reason: str


@dataclass
class Plan:
    """What of that to load.

    Attributes:
        wanted: What to load, in order.
        decision: The choice, with its numbers.
        reason: Why it is not the rest of the prompt.
        found: What there would be.
    """

    wanted: list[Wanted]
    decision: Decision
    reason: str
    found: FoundPrefix

    @property
    def offers(self) -> list[Offer]:
        """What there would be, with the time that it would take."""
        return self.found.offers


@dataclass
class Loaded:
    """What became of a load.

    Attributes:
        end: The index behind the last chunk of the prefix that is in memory now.
        reason: Why it is not all: "", "pool_full", "cut", "deadline", or a store's reason.
        chunks: How many chunks each tier gave.
        took_s: How long the load took.
        again: It ends where a read and the question that left with it say different things: what
            follows is to be asked for anew, the question first.
    """

    end: int
    reason: str = ""
    chunks: dict[str, int] = field(default_factory=dict)
    took_s: float = 0.0
    again: bool = False

    @property
    def left(self) -> bool:
        """Whether waiting for it did not pay, or its time was up."""
        return self.reason in ("cut", "deadline")


@dataclass
class Gathered:
    """What a retrieve did; see `kvferry.cache.results.Retrieved`.

    Attributes:
        memory_chunks: Leading chunks that were in memory when it began.
        copied: A flag for each chunk: it lies in the caller's buffer.
        waited: Whether it waited for somebody else's chunks.
        chunks: How many chunks each tier gave.
        plan: Of its first load.
        reason: Why it is not the whole prompt.
        lookup_s, load_s: Time for asking the stores, and for loading.
        loads: What became of each load.
        ends: Where what stores have ends, as they said when they were asked; -1: nobody was.
        plain: Nothing is read any more before a store has said that it is there.
    """

    memory_chunks: int
    copied: bytearray
    waited: bool = False
    chunks: dict[str, int] = field(default_factory=dict)
    plan: Plan | None = None
    reason: str = ""
    lookup_s: float = 0.0
    load_s: float = 0.0
    loads: list[Loaded] = field(default_factory=list)
    ends: int = -1
    plain: bool = False

    def count(self, loaded: Loaded) -> None:
        """A load is over."""
        self.load_s += loaded.took_s
        self.loads.append(loaded)
        self.reason = loaded.reason or self.reason
        self.plain |= loaded.again
        for tier, chunks in loaded.chunks.items():
            self.chunks[tier] = self.chunks.get(tier, 0) + chunks


# A store is as good as one that is likelier by no more than this factor and comes behind it.
_LIKELY_SHARE = 0.5
# A store that has its chunks at hand, and needs no reads in advance, has a prefix at these odds.
_LIKELY_ODDS = 0.5


class AnswerLimit(NamedTuple):
    """How long to wait for a store to say what it has.

    Attributes:
        until: A moment.
        declined: Why the store is not asked at all; "": it is.
    """

    until: float
    declined: str = ""


class _Declined(NamedTuple):
    """A store was not asked for what it has from a chunk on."""

    start: int
    why: str


class Asking:
    """Asks the stores about a prompt, for as long as `with` lasts.

    Args:
        memory, pending: Of the cache.
        tiers: The stores, in their order.
        prompt: Which.
        limit: How long to wait for what a store has behind a chunk.
        measure: Called for a store that was not asked, or did not answer, and the chunk.
        deadline: Of the request.
        touch: What is there counts as used.

    Attributes:
        tiers: The stores, the one first that was sent reads.
        window: What was asked for before anybody knows that it is there.
    """

    def __init__(
        self,
        memory: Memory,
        pending: PendingLoads,
        tiers: Iterable[Tier],
        prompt: Prompt,
        limit: Callable[[Tier, int], AnswerLimit],
        measure: Callable[[Tier, int], object],
        deadline: float,
        *,
        touch: bool = True,
    ) -> None:
        self._memory = memory
        self._pending = pending
        self.tiers = list(tiers)
        self._prompt = prompt
        self._limit = limit
        self._measure = measure
        self._deadline = deadline
        self._touch = touch
        self._asked: dict[Tier, Asked] = {}
        self._declined: dict[Tier, _Declined] = {}
        self.window: Window | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        window, self.window = self.window, None
        if window is not None:
            window.drop(self._pending)
        for tier, asked in self._asked.items():
            tier.leave(asked)

    @property
    def until(self) -> float:
        """Until when the last of the answers is waited for."""
        return max((asked.until for asked in self._asked.values()), default=0.0)

    def begin(self, start: int, *, reads: bool) -> Steps[None]:
        """Ask all stores about the chunks from `start` on; `reads`: one of them for bytes too."""
        for tier in self.tiers:
            yield from self._send(tier, start)
            asked = self._asked.get(tier)
            if asked is not None and asked.probe is not None and self._ends(asked.probe):
                return  # nobody else need be asked
        waiting = [tier for tier in self.tiers if self._waits(tier)]
        if not reads or not waiting:
            return
        likely = self._likeliest(waiting)
        if likely is None:
            return
        self.window = open_window(self._memory, likely, self._prompt, start, self._deadline)
        if self.window is not None:  # what comes from it comes first
            self.tiers.remove(likely)
            self.tiers.insert(0, likely)

    def found(self, start: int) -> Steps[FoundPrefix]:
        """What the stores have from `start` on, where each goes on where another one ends."""
        found = FoundPrefix([], [], "never_stored")
        while start < self._prompt.chunks:
            before = start
            for tier in list(self.tiers):
                probe = yield from self._about(tier, start)
                found.reason = probe.reason
                if probe.end > start:
                    found.pieces.append(Wanted(tier, start, probe.end))
                    found.offers.append(self._offer(tier, start, probe.end))
                    start = probe.end
                if probe.reason == "deadline":
                    self._measure(tier, start)
                if start == self._prompt.chunks:
                    break
            if start == before or len(self.tiers) == 1:
                break
        return found

    def take(self, piece: Wanted) -> Window | None:
        """The reads that are on their way, for who loads these chunks."""
        window = self.window
        if window is None or window.tier is not piece.tier or window.start != piece.start:
            return None
        self.window = None
        return window

    def _offer(self, tier: Tier, start: int, end: int) -> Offer:
        load_s, position = tier.predict_s(end - start), self._prompt.position
        if self.window is not None and self.window.tier is tier:  # its first bytes are here by now
            load_s = max(0.0, load_s - tier.question_s())
        return Offer(tier.name, position(start), position(end), load_s)

    def _about(self, tier: Tier, start: int) -> Steps[Probe]:
        """What a store has from `start` on; nothing, if it is not asked."""
        declined = self._declined.get(tier)
        asked = self._asked.get(tier)
        if asked is not None:
            yield from tier.answer(asked)
            probe = asked.behind(start)
            if probe is not None:
                return probe
        elif declined is not None and declined.start == start:
            return Probe(start, declined.why)
        yield from self._send(tier, start)
        asked = self._asked.get(tier)
        if asked is None:
            return Probe(start, self._declined[tier].why)
        return (yield from tier.answer(asked))

    def _send(self, tier: Tier, start: int) -> Steps[None]:
        self._asked.pop(tier, None)
        tier.look(self._prompt, start)
        limit = self._limit(tier, start)
        if limit.declined:
            self._declined[tier] = _Declined(start, limit.declined)
            self._measure(tier, start)
            return
        several = len(self.tiers) > 1
        sending = tier.send(self._prompt, start, limit.until, touch=self._touch, whole=several)
        self._asked[tier] = yield from sending

    def _likeliest(self, tiers: Sequence[Tier]) -> Tier | None:
        """The store to be sent reads; None: what is close by has it, and needs none."""
        most = max((tier.odds for tier in tiers if tier.pages_on_demand), default=0.0)
        for tier in tiers:
            if tier.pages_on_demand and tier.odds >= _LIKELY_SHARE * most:
                return tier
            if not tier.pages_on_demand and tier.odds > _LIKELY_ODDS:
                return None
        return None

    def _waits(self, tier: Tier) -> bool:
        asked = self._asked.get(tier)
        return asked is not None and asked.ticket is not None and not asked.sure

    def _ends(self, probe: Probe) -> bool:
        return probe.end == self._prompt.chunks


class OpenQuestion:
    """A question that is on its way, for who would ask the same.

    Attributes:
        missed: Why there is nothing behind the chunk before it, for whoever asks; "": there is
            something, or nobody knows.
        until: Until when who asks waits for the answer, as soon as that is known.
        over: It is answered, and loads that follow it are seen in memory.
    """

    __slots__ = ("missed", "over", "until")

    def __init__(self) -> None:
        self.missed = ""
        self.until = 0.0
        self.over = False


class Begun(NamedTuple):
    """A question, and whether the caller is the one who asks it."""

    question: OpenQuestion
    is_ours: bool


class OpenQuestions:
    """The questions that are on their way, by the hash of the chunk where they begin."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._open: dict[bytes, OpenQuestion] = {}

    @contextmanager
    def begin(self, digest: bytes) -> Iterator[Begun]:
        """Ask from a chunk on, unless somebody else does already: see `wait`."""
        with self._lock:
            is_ours = digest not in self._open
            question = self._open.setdefault(digest, OpenQuestion())
        try:
            yield Begun(question, is_ours)
        finally:
            if is_ours:
                with self._lock:
                    del self._open[digest]
                question.over = True
                self._memory.announce()

    def wait(self, question: OpenQuestion, until: float, deadline: float) -> Steps[bool]:
        """Wait for what others ask, as long as they do or until then; False: it takes longer."""

        def over() -> bool:
            return question.over or time.monotonic() >= max(until, question.until)

        yield from self._memory.await_change(over, deadline)
        return question.over
