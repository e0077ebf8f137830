"""A store that takes as long as it is told, on a clock that only waiting moves.

    clock = FakeClock()
    store = TimedStore(clock, chunk_bytes, rtt_s=0.01, bytes_s=1e9)
    store.has(prompt)

Values have no bytes: what is simulated is when they are there. All jobs share one link, in order; a
null reply takes none of its time. With `pages_on_demand`, reads may leave with the question.
One thread drives everything: `Ticket.wait` moves the clock to when something is there, or to the
end of its limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import BatchResult, Status


class FakeClock:
    """Seconds; `module` stands for ``time`` in a module that asks it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.module = SimpleNamespace(monotonic=lambda: self.now)


class TimedTicket:
    """A job that ends at a moment that is known."""

    def __init__(
        self,
        clock: FakeClock,
        statuses: bytes,
        ends: Sequence[float],
        hangs: bool,
        on_demand: Any = None,
    ) -> None:
        self._clock, self._statuses, self._ends = clock, statuses, ends
        self._began = clock.now
        self._hangs = hangs
        self._pages = on_demand
        self._cancelled_at: float | None = None

    def wait(self, timeout_s: float) -> BatchResult | None:
        clock = self._clock
        ends_at = max(self._ends, default=clock.now) if not self._hangs else float("inf")
        if self._cancelled_at is not None:
            ends_at = min(ends_at, self._cancelled_at)
        if ends_at > clock.now + timeout_s:
            clock.now += timeout_s
            return None
        clock.now = max(clock.now, ends_at)
        gone = bytearray(
            status if end <= ends_at and not self._hangs else int(Status.CANCELLED)
            for status, end in zip(self._statuses, self._ends, strict=True)
        )
        sizes = [int(status == Status.OK) for status in gone]
        for index, size in enumerate(sizes):
            if size and self._pages is not None and not self._pages.place(index):
                gone[index] = Status.CANCELLED
        return BatchResult(bytes(gone), sizes, ends_at - self._began)

    def cancel(self) -> None:
        if self._cancelled_at is None:
            self._cancelled_at = self._clock.now

    @property
    def done(self) -> bool:
        return self.wait(0.0) is not None

    @property
    def prefix_len(self) -> int:
        if self._hangs:
            return 0
        pairs = zip(self._statuses, self._ends, strict=True)
        count = 0
        for status, end in pairs:
            if status != Status.OK or end > self._clock.now:
                break
            count += 1
        return count


class TimedStore:
    """A connector as a tier sees it.

    `sees`: it has a view of what is there, so that nobody asks. `together`: chunks of a job come
    side by side, and are whole at its end. `grows`: TCP begins with so many bytes in a round trip,
    and again with the next load after `idle_s`, so many times as `slow_starts` says: as if each
    connection remembered how fast it was, and another one had its turn. `lump_bytes`: so many are
    seen to come at a time.
    """

    def __init__(self, clock: FakeClock, chunk_bytes: int, rtt_s: float, bytes_s: float) -> None:
        self.clock, self.chunk_bytes = clock, chunk_bytes
        self.rtt_s, self.bytes_s = rtt_s, bytes_s
        self.available = True
        self.hangs = False
        self.sees = False
        self.pages_on_demand = False
        self.together = False
        self.grows: float | None = None
        self.idle_s = math.inf
        self.slow_starts = math.inf
        self.lump_bytes = 1
        self.questions = 0
        self.reads = 0
        self._keys: set[str] = set()
        self._free_at = 0.0
        self._flowed = 0.0  # bytes, since TCP began
        self._came = 0
        self._coming: list[tuple[float, float]] = []  # when, and behind what, each chunk begins

    def has(self, prompt: Prompt) -> None:
        self._keys.update(prompt.keys(0, prompt.chunks))

    def leading(self, keys: Sequence[str]) -> int | None:
        return self._statuses(keys).count(int(Status.OK)) if self.sees else None

    def submit_exists(
        self, keys: Sequence[str], *, prefix: bool = False, touch: bool = False, **_: Any
    ) -> TimedTicket:
        self.questions += 1
        statuses = self._statuses(keys)
        return TimedTicket(
            self.clock, statuses, [self.clock.now + self.rtt_s] * len(keys), self.hangs
        )

    def submit_get(
        self, keys: Sequence[str], buffers: Any, *, timeout_s: float, **_: Any
    ) -> TimedTicket:
        self.reads += 1
        if self.clock.now - self._free_at > self.idle_s and self.slow_starts > 0:
            self._flowed, self.slow_starts = 0.0, self.slow_starts - 1
        at = max(self.clock.now + self.rtt_s, self._free_at)
        ends, statuses = [], self._statuses(keys)
        for status in statuses:
            if status == Status.OK:
                self._coming += [] if self.hangs else [(at, self._flowed)]
                at += self._takes_s()
            ends.append(at)
        self._free_at = at
        if self.together:
            ends = [at] * len(ends)
        on_demand = buffers if self.pages_on_demand and not isinstance(buffers, list) else None
        return TimedTicket(self.clock, statuses, ends, self.hangs, on_demand)

    def submit_delete(self, keys: Sequence[str]) -> TimedTicket:
        return TimedTicket(self.clock, bytes(len(keys)), [self.clock.now] * len(keys), False)

    def stats(self) -> Mapping[str, int]:
        came, coming = 0.0, []
        for begins, before in self._coming:  # a chunk comes byte by byte
            flowed = self._flows_in(self.flowing_s(before) + self.clock.now - begins)
            if flowed - before >= self.chunk_bytes:
                self._came += self.chunk_bytes
            else:
                coming.append((begins, before))
                came += max(0.0, flowed - before)
        self._coming = coming
        came += self._came
        came = round(came) // self.lump_bytes * self.lump_bytes
        return {"bytes_read": came, "client_round_trip_us": max(1, round(self.rtt_s * 1e6))}

    def forget_jobs(self) -> None:
        """Nothing is on its way any more."""
        self._free_at = min(self._free_at, self.clock.now)

    def _takes_s(self) -> float:
        """How long the link has to do with the next chunk."""
        before, self._flowed = self._flowed, self._flowed + self.chunk_bytes
        return self.flowing_s(self._flowed) - self.flowing_s(before)

    def flowing_s(self, size_bytes: float) -> float:
        """How long so many bytes take from the first one on."""
        if self.grows is None:
            return size_bytes / self.bytes_s
        rounds = min(int(math.log2(1 + size_bytes / self.grows)), self._rounds)
        return rounds * self.rtt_s + (size_bytes - self.grows * (2.0**rounds - 1)) / self.bytes_s

    def _flows_in(self, seconds: float) -> float:
        """The way back."""
        if self.grows is None:
            return seconds * self.bytes_s
        rounds = max(0, min(int(seconds / self.rtt_s), self._rounds))
        lump = (seconds - rounds * self.rtt_s) * self.bytes_s
        if rounds < self._rounds:
            lump = min(lump, self.grows * 2.0**rounds)
        return self.grows * (2.0**rounds - 1) + lump

    @property
    def _rounds(self) -> int:
        """Round trips in which TCP sends less than the link takes."""
        assert self.grows is not None
        return math.ceil(math.log2(max(1.0, self.bytes_s * self.rtt_s / self.grows)))

    def _statuses(self, keys: Sequence[str]) -> bytes:
        return bytes(int(Status.OK if key in self._keys else Status.MISS) for key in keys)
