"""Loading a prefix from stores into memory: in parts, in order, and no longer than it pays.

A load consists of parts of consecutive chunks. As many of them are asked for at a time as flow in a
tenth of a second, and two at least: the wire never idles, and chunks arrive nearly in order, so a
load that is cut leaves a usable prefix. Every few milliseconds the load asks its request's
`WaitBudget` whether to go on. It is cut when waiting does not pay any more, and left when the
caller's deadline has come.

Its first part may be on its way before anybody knew that it is there: see `load.window`.

A part that was withdrawn ends soon, but not at once: a store may still be writing into its pages.
They go back when it has ended, which `PendingLoads` sees to, and nobody waits for that.

Chunks for which there is no page can go into buffers of the caller (`direct`), where nobody else
sees them. Then a cut has to wait until the store has let go of them: only for stores that do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from kvferry.base.errors import DeadlineExceeded, KVFerryError
from kvferry.cache.cost.load_or_compute import UNSEEN
from kvferry.cache.load.asking import Loaded, Wanted
from kvferry.cache.load.wait_budget import (
    NOTHING_KNOWN,
    Expected,
    Flow,
    OthersBytes,
    RunningLoad,
    WaitBudget,
)
from kvferry.cache.load.window import ASSUMED_BYTES_S, PendingLoads, Window
from kvferry.cache.memory import HERE, STATES, Memory, PagesGone, Reserved
from kvferry.cache.steps import Steps, Wait, finish
from kvferry.cache.store.store_answers import reason_of
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import BatchResult, Status
from kvferry.connectors.base import BufferLike, Ticket

__all__ = ["SIDE_BY_SIDE", "Load"]

# How many chunks come at the same time, each on a connection of its own, before one is complete.
SIDE_BY_SIDE = 8

# How many parts a load has: enough that a cut wastes little, few enough to cost nothing.
_PARTS = 16
_PART_BYTES_MIN = 4 << 20
# How much is on its way at a time: what flows in so many seconds, and in two round trips.
_AHEAD_S = 0.1
_AHEAD_BYTES_MIN = 8 << 20
# How many round trips first bytes may take that were asked for when it was known what is there.
_FIRST_ROUND_TRIPS = 1.25
# The share of a round trip in which all bytes belong to other loads, where there are other loads.
_OTHERS_ROUND_TRIP = 0.75
# What a store may take to let go of a part that was withdrawn, before the part is left behind...
_RELEASE_S = 0.02
# ... and before that is an error, where the store holds buffers of the caller.
_RELEASE_DIRECT_S = 10.0


class RunningLoads:
    """The loads of this process that wait for their stores. Threads: any."""

    def __init__(self) -> None:
        self._loads: set[object] = set()

    def __len__(self) -> int:
        return len(self._loads)

    @contextmanager
    def waiting(self, load: object) -> Iterator[None]:
        """While a load waits."""
        self._loads.add(load)
        try:
            yield
        finally:
            self._loads.discard(load)


# All loads of a process share its processors, whatever cache they are of.
RUNNING = RunningLoads()


@dataclass
class Part:
    """Chunks that one job brings.

    Attributes:
        tier: The store.
        end: Behind the last chunk of the prefix that is there when this part is.
        reserved: Their pages; id 0: they go into buffers of the caller, or in a window.
        ticket: Of the job; None: it was not asked for yet.
        window: Where they were asked for before anybody knew that they are there.
        items: Which reads of the window bring them.
    """

    tier: Tier
    end: int
    reserved: Reserved
    ticket: Ticket | None = None
    window: Window | None = None
    items: Sequence[int] = ()

    @property
    def size_bytes(self) -> int:
        """Of its chunks."""
        return len(self.reserved.chunks) * self.tier.chunk_bytes

    def reached(self, arrived: int) -> int:
        """The index of the first chunk that is not there when so many of the part's are."""
        chunks = self.reserved.chunks
        return chunks[arrived] if arrived < len(chunks) else self.end

    @property
    def arrived(self) -> int:
        """How many leading chunks of the part are there by now."""
        assert self.ticket is not None
        count = self.ticket.prefix_len
        return count if self.window is None else sum(1 for item in self.items if item < count)

    def own(self, result: BatchResult) -> BatchResult:
        """What the result of the job says of the chunks of the part."""
        if self.window is None:
            return result
        statuses = bytes(result.statuses[item] for item in self.items)
        sizes = [result.sizes[item] for item in self.items]
        return BatchResult(statuses, sizes, result.elapsed_s, result.error, result.kind)


class _Brought(NamedTuple):
    """How long a store took for its parts of a load, and what it sent meanwhile to whomever."""

    took_s: float
    received_bytes: int


class Load:
    """One load. `begin`, then `finishing`; one thread at a time.

    Args:
        memory: Where to.
        prompt: What.
        budget: Until when.
        pending: Takes what was cut.
        arrived: Called with chunks and their pages (direct: no pages) when they have arrived and
            before anybody else sees them: the pages are the caller's for that long.
        direct: Buffers for all chunks of the prompt: they go there, and not into memory.
        running: The loads that wait.
    """

    def __init__(
        self,
        memory: Memory,
        prompt: Prompt,
        budget: WaitBudget,
        pending: PendingLoads,
        arrived: Callable[[Sequence[int], Sequence[int]], None] | None = None,
        direct: Sequence[BufferLike] | None = None,
        running: RunningLoads = RUNNING,
    ) -> None:
        self._memory = memory
        self._prompt = prompt
        self.budget = budget
        self._pending = pending
        self._arrived = arrived
        self._direct = direct
        self._all_running = running
        self._parts: list[Part] = []
        self._began = time.monotonic()
        self._asked = self._done = 0  # parts that were submitted, and that have ended
        self._ahead_bytes = 0  # of parts in between
        self._others: list[int] = []  # chunks in between that are here, or that others bring
        self._outcome = Loaded(0)

    def begin(self, wanted: Sequence[Wanted], window: Window | None = None) -> int:
        """Reserve pages and begin to ask; how many chunks are on their way because of it.

        `wanted` is in the order of the prefix, without gaps. Without more room it ends early. The
        window begins where `wanted` does, and is taken over.
        """
        if not wanted:
            return 0
        self._outcome.end = self._start = wanted[0].start
        tier = wanted[0].tier
        total = sum(piece.end - piece.start for piece in wanted)
        if window is not None:
            self._began = window.began
            wanted = self._adopt(window, wanted)
        for part in _cut_up(wanted, total):
            if not self._reserve(part.tier, part.start, part.end):
                break
        sizes: dict[Tier, int] = {}
        for made in self._parts:
            sizes[made.tier] = sizes.get(made.tier, 0) + made.size_bytes
        others = self._others_bytes(tier, sizes)
        expected = NOTHING_KNOWN
        if (tier.asked or others.size_bytes) and sizes.get(tier):
            expected = self._expected(tier, sizes)
        self._run = RunningLoad(tier, self._flow(sizes, window, others), expected)
        self._ask()
        return self.wanted

    @property
    def wanted(self) -> int:
        """How many chunks are to be loaded here."""
        return sum(len(part.reserved.chunks) for part in self._parts)

    @property
    def reason(self) -> str:
        """Why that is less than was wanted: "", "pool_full", "error"."""
        return self._outcome.reason

    @property
    def again(self) -> bool:
        """See `Loaded.again`."""
        return self._outcome.again

    def finishing(self) -> Steps[Loaded]:
        """Wait while that pays."""
        brought: dict[Tier, _Brought] = {}
        done, is_unbroken = 0, True
        try:
            with self._all_running.waiting(self):
                for part in self._parts:
                    result = yield from self._await(part)
                    if result is None:
                        break
                    took_s = time.monotonic() - self._began
                    brought[part.tier] = _Brought(took_s, self._run.flow.received(part.tier))
                    done += 1
                    is_unbroken = self._take(part, result)
                    if not is_unbroken:
                        break
        except BaseException:  # somebody presses Ctrl-C, or goes on with this no more
            finish(self._cut(done, is_unbroken=False))
            raise
        yield from self._cut(done, is_unbroken=is_unbroken)
        self._outcome.took_s = time.monotonic() - self._began
        self._learn(brought)
        return self._outcome

    # --- The beginning ---

    def _others_bytes(self, tier: Tier, sizes: Mapping[Tier, int]) -> OthersBytes:
        """What of the bytes that come belongs to other loads.

        Of what is asked for now, nothing comes sooner than in most of a round trip.
        """
        others_s = _OTHERS_ROUND_TRIP * tier.question_s() if tier.others_load else 0.0
        queued_bytes = sum(each.queued_bytes() for each in sizes)
        return OthersBytes(queued_bytes, self._began + others_s)

    def _flow(self, sizes: dict[Tier, int], window: Window | None, others: OthersBytes) -> Flow:
        if window is None:
            return Flow(sizes, self._began, others=others)
        # The window of a store that is measured is as long as a round trip: the rest follows it.
        measured = window.tier.measured
        rest_s = 0.0 if measured else _FIRST_ROUND_TRIPS * window.tier.question_s()
        return Flow(
            sizes,
            self._began,
            {window.tier: window.received},
            ahead_bytes=window.size * window.tier.chunk_bytes,
            rest_at=time.monotonic() + rest_s,
            others=others,
        )

    def _expected(self, tier: Tier, sizes: Mapping[Tier, int]) -> Expected:
        waited_s = self._began - self.budget.began
        all_s = sum(each.predict_s(size // each.chunk_bytes) for each, size in sizes.items())
        first = min(SIDE_BY_SIDE, sizes[tier] // tier.chunk_bytes)
        return Expected(waited_s + tier.predict_s(first), waited_s + all_s)

    def _adopt(self, window: Window, wanted: Sequence[Wanted]) -> Sequence[Wanted]:
        """Make the window the first part; what is left to be asked for."""
        first = wanted[0]
        wanted_here = min(window.size, first.end - first.start)
        kept = window.keep(wanted_here)
        end = first.start + kept.chunks
        chunks = [first.start + item for item in kept.items]
        if chunks:
            reserved = Reserved(0, chunks, kept.pages, 0)
            self._parts.append(Part(window.tier, end, reserved, window.ticket, window, kept.items))
        else:
            window.drop(self._pending)
        self._others += sorted(set(range(first.start, end)) - set(chunks))
        if kept.chunks < wanted_here:  # there may be room when the values of others have come
            self._outcome.again = True
            return ()
        rest = [Wanted(first.tier, end, first.end)] if end < first.end else []
        return [*rest, *wanted[1:]]

    def _reserve(self, tier: Tier, start: int, end: int) -> bool:
        """Make one part; False: there is no room for the next one."""
        if self._direct is not None:
            reserved = Reserved(0, list(range(start, end)), [], 0)
        else:
            reserved = self._memory.reserve(self._prompt.first(end), start)
        if reserved.shed:
            self._outcome.reason = "pool_full"
            end = reserved.chunks[-1] + 1 if reserved.chunks else start
        if reserved.chunks:
            self._parts.append(Part(tier, end, reserved))
        if len(reserved.chunks) < end - start:
            self._others += sorted(set(range(start, end)) - set(reserved.chunks))
        return not reserved.shed

    # --- Parts on their way ---

    def _ask(self) -> None:
        """Submit parts, as many as should be on their way."""
        tier = self._run.tier
        believed = tier.bandwidth_bytes_s if tier.measured else ASSUMED_BYTES_S
        bytes_s = max(self._run.flow.rate(), believed)
        ahead_bytes_max = max(_AHEAD_BYTES_MIN, bytes_s * (_AHEAD_S + 2 * tier.question_s()))
        while self._asked < len(self._parts):
            part = self._parts[self._asked]
            if part.ticket is None:  # else it is a window
                # Where nothing can be cut, everything is asked for at once.
                is_full = self._ahead_bytes + part.size_bytes > ahead_bytes_max
                is_full = is_full and self.budget.prefill.known
                if is_full and self._asked - self._done >= 2:
                    return
                if not self._submit(part):
                    return
            self._asked += 1
            self._ahead_bytes += part.size_bytes

    def _submit(self, part: Part) -> bool:
        """Ask for a part; False: that cannot be done, and the outcome says why."""
        chunks = part.reserved.chunks
        names = self._prompt.keys(chunks[0], chunks[-1] + 1)
        buffers = (self._direct or ())[chunks[0] : chunks[-1] + 1]
        try:
            if self._direct is None:
                buffers = self._memory.views(part.reserved.handles)
            part.ticket = part.tier.connector.submit_get(
                [names[chunk - chunks[0]] for chunk in chunks],
                buffers,
                prefix=True,
                timeout_s=max(0.001, self.budget.deadline - time.monotonic()),
            )
        except PagesGone:
            self._outcome.reason = "cancelled"
        except KVFerryError:  # the store has too much to do, or was closed
            self._outcome.reason = "error"
        return part.ticket is not None

    def _await(self, part: Part) -> Steps[BatchResult | None]:
        """Wait for a part while that pays; None when it does not."""
        self._ask()
        budget, now = self.budget, time.monotonic()
        while part.ticket is not None:
            look_s = budget.look_s(len(self._all_running))
            left_s = max(0.0, budget.deadline - now)
            result: BatchResult | None = yield Wait(part.ticket, min(look_s, left_s))
            now = time.monotonic()
            self._run.flow.look(now)
            if result is not None:
                self._done += 1
                self._ahead_bytes -= part.size_bytes
                return result
            if now >= budget.deadline:
                self._outcome.reason = "deadline"
                return None
            if budget.prefill.known and not self._pays(part, now):
                self._outcome.reason = "cut"
                return None
        return None

    def _pays(self, part: Part, now: float) -> bool:
        """Whether to go on waiting, of which `part` is what comes next."""
        run, position, goal = self._run, self._prompt.position, self._parts[-1].end
        held = self._unbroken(part.reached(part.arrived))
        begun = self._start + (goal - self._start) * run.flow.share()
        run.goal, run.held = position(goal), position(held)
        run.begun = position(int(max(held, begun)))
        return self.budget.goes_on(run, now)

    def _unbroken(self, held: int) -> int:
        """How many of the first `held` chunks are here, when chunks count that others bring."""
        while self._others and self._others[0] < held:
            state = self._memory.cache.states(self._prompt.digest(self._others[0]))
            if STATES[state[0]] not in HERE:
                return self._others[0]
            self._others.pop(0)
        return held

    # --- The end ---

    def _take(self, part: Part, of_job: BatchResult) -> bool:
        """Put what has arrived into memory; False: the prefix ends within this part."""
        chunks, handles, result = part.reserved.chunks, part.reserved.handles, part.own(of_job)
        count = result.prefix_len
        if self._arrived is not None and count:
            self._arrived(chunks[:count], handles[:count])
        self._keep(part, of_job)
        name = part.tier.name
        self._outcome.chunks[name] = self._outcome.chunks.get(name, 0) + count
        self._outcome.end = part.reached(count)
        if count == len(chunks):
            return True
        if part.window is not None and result[count] is Status.MISS:
            self._outcome.again = True  # the read perhaps came before the chunk was written
            return False
        part.tier.refuse(self._prompt, chunks, result)
        if not self._outcome.left:
            self._outcome.reason = reason_of(result, count)
        return False

    def _cut(self, index: int, *, is_unbroken: bool) -> Steps[None]:
        """Withdraw the parts from this one on, and keep what has arrived of them.

        Args:
            is_unbroken: The prefix reaches the first of them, so what has come of it counts.
        """
        for part in self._parts[index:]:
            if part.ticket is not None:
                part.ticket.cancel()
        until = time.monotonic() + (_RELEASE_S if self._direct is None else _RELEASE_DIRECT_S)
        for part in self._parts[index:]:
            if part.ticket is None:
                self._memory.abort(part.reserved.id)
                continue
            result = yield Wait(part.ticket, max(0.0, until - time.monotonic()))
            if result is None:
                if self._direct is not None:
                    raise DeadlineExceeded(
                        f"{part.tier.name} holds on to buffers of a load that was withdrawn"
                    )
                window, abort = part.window, partial(self._memory_abort, part.reserved.id)
                self._pending.add(part.ticket, abort if window is None else window.end)
                is_unbroken = False
            elif is_unbroken:
                is_unbroken = self._take(part, result)
            else:
                self._keep(part, result)

    def _keep(self, part: Part, result: BatchResult) -> None:
        """Put what has arrived of a part into memory, behind a hole as well: it may be filled."""
        if part.window is not None:
            part.window.end(result, part.items)
        elif part.reserved.id:
            ok = bytes(status == 0 for status in result.statuses)
            self._memory.commit(part.reserved.id, ok)

    def _memory_abort(self, reservation: int, _: BatchResult) -> None:
        self._memory.abort(reservation)

    def _learn(self, brought: dict[Tier, _Brought]) -> None:
        """Tell each tier how fast it was, as far as it came.

        What it sent to others meanwhile counts, because a load that follows reckons with what
        others load. Of what was cut, pieces of chunks count.
        """
        flow, outcome = self._run.flow, self._outcome
        for part in self._parts:
            received_bytes = flow.received(part.tier)
            brought.setdefault(part.tier, _Brought(outcome.took_s, received_bytes))
        is_cut = outcome.reason == "cut"
        for tier, (took_s, received_bytes) in brought.items():
            size_bytes = outcome.chunks.get(tier.name, 0) * tier.chunk_bytes
            first_byte = flow.first_byte() if tier is self._run.tier else UNSEEN
            if size_bytes or is_cut:
                if self._run.lags and first_byte.most_s == math.inf:
                    took_s = max(took_s, self.budget.alone_s)  # it does not pay to ask it again
                size_bytes = max(size_bytes, received_bytes)
                tier.learn(size_bytes, took_s, whole=not is_cut, first_byte=first_byte)


def _cut_up(wanted: Sequence[Wanted], total: int) -> Iterator[Wanted]:
    """The parts of a load of so many chunks."""
    for piece in wanted:
        step = max(-(-total // _PARTS), _PART_BYTES_MIN // piece.tier.chunk_bytes, 1)
        for start in range(piece.start, piece.end, step):
            yield Wanted(piece.tier, start, min(start + step, piece.end))
