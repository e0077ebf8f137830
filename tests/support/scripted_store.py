"""A store whose answers and bytes come at moments that a script has, on a clock that tests turn.

    store = ScriptedStore(clock, "one", chunk_bytes, Flowing.steady(1e9), rtt_s=0.01, say=print)
    store.has(prompt, range(prompt.chunks))

Values have no bytes: what is simulated is when they are there, and what counters say of them until
then. All reads share one link and come in order; a null reply takes none of its time. Whatever the
store is asked is told to `say`, by the names of the chunks.

Nothing here moves the clock but `ScriptedTicket.wait`, and that only where it is given time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvferry.base.errors import UnavailableError
from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import BatchResult, Status
from support.timed_store import FakeClock

SEGMENT_BYTES = 10 * 1448.0  # of a first round trip of TCP, on each connection


@dataclass(frozen=True)
class Flowing:
    """How bytes flow: from these seconds on, behind the first one, so many a second."""

    steps: tuple[tuple[float, float], ...]

    @classmethod
    def steady(cls, bytes_s: float) -> Flowing:
        return cls(((0.0, bytes_s),))

    @classmethod
    def growing(cls, bytes_s: float, rtt_s: float, connections: int) -> Flowing:
        """TCP doubles what it sends with each round trip, until the link is full."""
        steps, rate, at = [], connections * SEGMENT_BYTES / rtt_s, 0.0
        while rate < bytes_s:
            steps.append((at, rate))
            rate, at = 2 * rate, at + rtt_s
        return cls((*steps, (at, bytes_s)))

    def came(self, seconds: float) -> float:
        """How many bytes flow in the first seconds."""
        total = 0.0
        for (begin, rate), (end, _) in pairwise((*self.steps, (math.inf, 0.0))):
            if seconds <= begin:
                break
            total += rate * (min(seconds, end) - begin)
        return total

    def takes_s(self, size_bytes: float) -> float:
        """In how many seconds so many bytes have come; infinite: never."""
        before = 0.0
        for (begin, rate), (end, _) in pairwise((*self.steps, (math.inf, 0.0))):
            more = rate * (end - begin) if rate else 0.0
            if rate and before + more >= size_bytes:
                return begin + (size_bytes - before) / rate
            before += more
        return math.inf


class ScriptedTicket:
    """A job whose values are there at moments that are known.

    Args:
        ends: The moment of each value.
        limit_at: When the job is over in any case.
        release_s: How long the store holds on to buffers that were withdrawn.
        cancelled: Called when it is.
    """

    def __init__(
        self,
        clock: FakeClock,
        statuses: Sequence[Status],
        ends: Sequence[float],
        *,
        limit_at: float = math.inf,
        release_s: float = 0.0,
        error: str | None = None,
        on_demand: Any = None,
        cancelled: Callable[[ScriptedTicket], object] = id,
    ) -> None:
        self._clock, self._statuses, self._ends = clock, statuses, ends
        self._began = clock.now
        self._release_s = release_s
        self._error = error
        self._pages = on_demand
        self._cancelled = cancelled
        self._result: BatchResult | None = None
        self._is_cancelled = False
        self._over = Status.TIMEOUT
        self.ends_at = min(max(ends, default=clock.now), limit_at)

    def wait(self, timeout_s: float) -> BatchResult | None:
        if self._result is not None:
            return self._result
        clock = self._clock
        if self.ends_at > clock.now + timeout_s:
            clock.now += timeout_s
            return None
        clock.now = max(clock.now, self.ends_at)
        pairs = zip(self._statuses, self._ends, strict=True)
        statuses = bytearray(int(s if end <= self.ends_at else self._over) for s, end in pairs)
        sizes = [int(status == Status.OK) for status in statuses]
        for index, size in enumerate(sizes):
            if size and self._pages is not None and not self._pages.place(index):
                statuses[index] = Status.CANCELLED
        took_s = self.ends_at - self._began
        self._result = BatchResult(bytes(statuses), sizes, took_s, self._error)
        return self._result

    def cancel(self) -> None:
        if self._is_cancelled or self.ends_at <= self._clock.now:
            return
        self._is_cancelled, self._over = True, Status.CANCELLED
        self.ends_at = min(self.ends_at, self._clock.now + self._release_s)
        self._cancelled(self)

    @property
    def done(self) -> bool:
        return self.ends_at <= self._clock.now

    @property
    def prefix_len(self) -> int:
        now, count = min(self._clock.now, self.ends_at), 0
        for status, end in zip(self._statuses, self._ends, strict=True):
            if status is not Status.OK or end > now:
                break
            count += 1
        return count


@dataclass
class _Piece:
    """A value on the link, by what flows until it begins and until it ends."""

    begin: float
    end: float
    of: list[float]  # the moments of its job, which stand for it


class ScriptedStore:
    """A connector as a tier sees it. All attributes may change at any moment.

    Attributes:
        flowing: How its link flows, from the first byte behind a pause on.
        rtt_s: How far away it is.
        answer_s: How much longer an answer takes; infinite: it never comes.
        hangs: Nothing comes of reads.
        available, refuses: It is known to be away; it takes no more work.
        fails: What it says of each key instead of whether it has it.
        sees: It has a view of what is there, so that nobody asks.
        pages_on_demand: Reads may leave with the question.
        together: The chunks of a job come side by side, and are whole at its end.
        lump_bytes: So many are seen to come at a time.
        release_s: How long it holds on to the buffers of what was withdrawn.
        drops: What was withdrawn does not come any more.
    """

    def __init__(
        self,
        clock: FakeClock,
        name: str,
        chunk_bytes: int,
        flowing: Flowing,
        rtt_s: float,
        say: Callable[[str], object],
    ) -> None:
        self.clock, self.name, self.chunk_bytes = clock, name, chunk_bytes
        self.flowing, self.rtt_s, self._say = flowing, rtt_s, say
        self.answer_s = self.release_s = 0.0
        self.available = True
        self.hangs = self.refuses = self.sees = self.pages_on_demand = self.together = False
        self.drops = False
        self.fails: Status | None = None
        self.lump_bytes = 1
        self._has: dict[str, Status] = {}
        self._names: dict[str, str] = {}
        self._flows = flowing  # those on the link
        self._begins = self._free_at = self._end = 0.0
        self._came = 0.0
        self._link: deque[_Piece] = deque()

    def has(
        self, prompt: Prompt, chunks: Collection[int], name: str = "", told: Status = Status.OK
    ) -> None:
        """It has these; `told`: what reading them comes to."""
        for chunk, key in enumerate(prompt.keys(0, prompt.chunks)):
            self._names.setdefault(key, f"{name}{chunk}")
            if chunk in chunks:
                self._has[key] = told

    # --- Of a connector ---

    def leading(self, keys: Sequence[str]) -> int | None:
        if not self.sees:
            return None
        return next((at for at, key in enumerate(keys) if key not in self._has), len(keys))

    def submit_exists(
        self, keys: Sequence[str], *, prefix: bool = False, touch: bool = False, **_: Any
    ) -> ScriptedTicket:
        how = f"{', the first ones' if prefix else ''}{', used' if touch else ''}"
        self._tell(f"asked for {self._span(keys)}{how}")
        statuses = [Status.OK if key in self._has else Status.MISS for key in keys]
        if self.fails is not None:
            statuses = [self.fails] * len(keys)
        end = self.clock.now + self.rtt_s + self.answer_s
        return ScriptedTicket(self.clock, statuses, [end] * len(keys))

    def submit_get(
        self, keys: Sequence[str], buffers: Any, *, timeout_s: float, **_: Any
    ) -> ScriptedTicket:
        on_demand = None if isinstance(buffers, list | tuple) else buffers
        how = ", pages on demand" if on_demand is not None else ""
        self._tell(f"reads {self._span(keys)}, {1e3 * timeout_s:.4f} ms at most{how}")
        statuses = [self.fails or self._has.get(key, Status.MISS) for key in keys]
        ends: list[float] = []
        self._send(statuses, ends)
        if self.together and ends:
            ends[:] = [max(ends)] * len(ends)
        return ScriptedTicket(
            self.clock,
            statuses,
            ends,
            limit_at=self.clock.now + timeout_s,
            release_s=self.release_s,
            error="key" if Status.CORRUPT in statuses else None,
            on_demand=on_demand,
            cancelled=lambda _: self._withdrawn(ends, self._span(keys)),
        )

    def submit_delete(self, keys: Sequence[str]) -> ScriptedTicket:
        self._tell(f"deletes {self._span(keys)}")
        for key in keys:
            self._has.pop(key, None)
        return ScriptedTicket(self.clock, [Status.OK] * len(keys), [self.clock.now] * len(keys))

    def stats(self) -> Mapping[str, int]:
        flowed, link = self._flows.came(self.clock.now - self._begins), self._link
        while link and link[0].end <= flowed:
            piece = link.popleft()
            self._came += piece.end - piece.begin
        came = self._came
        for piece in link:
            if piece.begin >= flowed:
                break
            came += min(piece.end, flowed) - piece.begin
        return {
            "bytes_read": round(came) // self.lump_bytes * self.lump_bytes,
            "client_round_trip_us": max(1, round(self.rtt_s * 1e6)),
        }

    # --- The link ---

    def reset(self) -> None:
        """Its connections are new: what was on its way does not come, and nobody says so."""
        flowed = self._flows.came(self.clock.now - self._begins)
        for piece in self._link:
            piece.end = min(piece.end, max(piece.begin, flowed))
        self._free_at = min(self._free_at, self.clock.now)

    def _send(self, statuses: Sequence[Status], ends: list[float]) -> None:
        """Put the values of a job on the link, and their moments into `ends`."""
        now, first = self.clock.now, self.clock.now + self.rtt_s
        if self._free_at <= now:  # behind a pause it begins anew
            self._came += sum(piece.end - piece.begin for piece in self._link)
            self._link.clear()
            self._flows, self._begins, self._end = self.flowing, first, 0.0
        at = max(self._end, self._flows.came(first - self._begins))
        for status in statuses:
            if status not in (Status.OK, Status.CORRUPT):
                ends.append(max([first, *ends[-1:]]))
            elif self.hangs:
                ends.append(math.inf)
            else:
                self._link.append(_Piece(at, at + self.chunk_bytes, ends))
                at += self.chunk_bytes
                ends.append(self._begins + self._flows.takes_s(at))
                self._end, self._free_at = at, ends[-1]

    def _withdrawn(self, ends: list[float], span: str) -> None:
        self._say(f"{self.name} withdraws {span}")
        if not self.drops:
            return
        soon = self.clock.now + self.rtt_s
        flowed = self._flows.came(soon - self._begins)
        for piece in self._link:
            if piece.of is ends:
                piece.end = min(piece.end, max(piece.begin, flowed))
        if self._link and self._link[-1].of is ends:
            self._end, self._free_at = self._link[-1].end, min(self._free_at, soon)

    def _span(self, keys: Sequence[str]) -> str:
        if not keys:
            return "nothing"
        first, *rest = (self._names.get(key, key) for key in (*keys[:1], *keys[1:][-1:]))
        return f"{first} to {rest[0]}" if rest else first

    def _tell(self, what: str) -> None:
        if self.refuses:
            self._say(f"{self.name} refuses: {what}")
            raise UnavailableError(self.name)
        self._say(f"{self.name} {what}")
