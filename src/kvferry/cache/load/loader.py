"""Loading a prefix from stores into memory: in parts, all at once, and no longer than it pays.

A load consists of parts of consecutive chunks. So many of them are asked for at a time as flow in a
tenth of a second, and two at least: the wire never idles, and chunks arrive nearly in order, so a
load that is cut leaves a usable prefix. It is cut

- when nothing flows, and the budget of the request is used up: waiting longer would make it later
  than computing;
- when the rest, at the speed seen so far, would take longer than computing it;
- when the caller's deadline has come.

Its first part may be on its way before anybody knew that it is there: see
`kvferry.cache.load.window`.

A part that was cut ends soon, but not at once: a store may still be writing into its pages. They go
back when it has ended, which `PendingLoads` sees to, and nobody waits for that.

Chunks for which there is no page can go into buffers of the caller (`direct`), where nobody else
sees them. Then a cut has to wait until the store has let go of them: only for stores that do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from kvferry.base.errors import DeadlineExceeded, KVFerryError
from kvferry.cache.cost.load_or_compute import Budget
from kvferry.cache.load.flow import Flow
from kvferry.cache.load.load_parts import Loaded, Part, Wanted, cut_up
from kvferry.cache.load.pending import PendingLoads
from kvferry.cache.load.window import ASSUMED_BYTES_S, Window
from kvferry.cache.memory import HERE, STATES, Memory, PagesGone, Reserved
from kvferry.cache.steps import Steps, Wait, finish
from kvferry.cache.store.prefix_answers import reason_of
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import BatchResult, Status
from kvferry.connectors.base import BufferLike

__all__ = ["SIDE_BY_SIDE", "Load", "Loaded", "Wanted"]

# So many chunks come at the same time, each on a connection of its own, before one is complete.
SIDE_BY_SIDE = 8

# How much is on its way at a time: what flows in so many seconds, and in a round trip or two.
_WINDOW_S = 0.1
_WINDOW_BYTES_MIN = 8 << 20
# How often a running load is looked at, as a part of the time of computing, the least and the most,
# and where nobody knows it. A look costs half a millisecond of a core that the bytes need too.
_LOOK_SHARE, _LOOK_S, _LOOK_MAX_S = 0.01, 0.005, 0.02
_IDLE_LOOK_S, _IDLE_LOOK_MAX_S = 0.05, 0.5
# Where more loads than these wait at a time, each of them is looked at less often, so that all of
# them together leave the processor to those who have work.
_LOOKED_AT = 4
_waiting: set[Load] = set()
# How wrong the speed seen so far may be, as a share of the time of computing.
_DOUBT = 0.05
# How many round trips the first bytes may take that were asked for when it was known what is there.
_AWAY = 1.25
# The share of a round trip in which all bytes are those of other loads, where there are such.
_OTHERS = 0.75
# For how long a flow is seen before it says anything, as such a share.
_LUMPS = 0.1
# What a store may take to let go of a part that was cut, before the part is left behind...
_RELEASE_S = 0.02
# ... and before that is an error, where it holds buffers of the caller.
_RELEASE_DIRECT_S = 10.0


class Load:
    """One load. `begin`, then `finish`; one thread at a time.

    Args:
        memory: Where to.
        prompt: What.
        budget: Until when.
        pending: Takes what was cut.
        arrived: Called with chunks and their pages (direct: no pages) when they have arrived and
            before anybody else sees them: the pages are the caller's for that long.
        direct: Buffers for all chunks of the prompt: they go there, and not into memory.
    """

    def __init__(
        self,
        memory: Memory,
        prompt: Prompt,
        budget: Budget,
        pending: PendingLoads,
        arrived: Callable[[Sequence[int], Sequence[int]], None] | None = None,
        direct: Sequence[BufferLike] | None = None,
    ) -> None:
        self._memory = memory
        self._prompt = prompt
        self._budget = budget
        self._pending = pending
        self._arrived = arrived
        self._direct = direct
        self._parts: list[Part] = []
        self._began = time.monotonic()
        self._asked = self._done = 0  # parts that were submitted, and that have ended
        self._ahead_bytes = 0  # of parts in between
        self._others: list[int] = []  # chunks in between that are here, or that others bring
        self._flow = Flow({}, self._began)
        # When the first chunk and when all should be here, if that is known; see Budget.until.
        self._expected = (0.0, 0.0)
        self._outcome = Loaded(0)

    def begin(self, wanted: Sequence[Wanted], window: Window | None = None) -> int:
        """Reserve pages and begin to ask; how many chunks are on their way because of it.

        `wanted` is in the order of the prefix, without gaps. Without more room it ends early. The
        window begins where `wanted` does, and is taken over.
        """
        if not wanted:
            return 0
        self._outcome.end = self._start = wanted[0].start
        self._tier = wanted[0].tier
        total = sum(piece.end - piece.start for piece in wanted)
        start_bytes: dict[Tier, int] = {}
        if window is not None:
            self._began, start_bytes = window.began, {window.tier: window.received}
            wanted = self._adopt(window, wanted)
        for tier, start, end in cut_up(wanted, total):
            if not self._reserve(tier, start, end):
                break
        sizes: dict[Tier, int] = {}
        for part in self._parts:
            sizes[part.tier] = sizes.get(part.tier, 0) + part.size_bytes
        # Of what is asked for now, nothing comes sooner than in most of a round trip.
        others_s = _OTHERS * self._tier.question_s() if self._tier.others_load else 0.0
        others = (sum(tier.queued_bytes() for tier in sizes), self._began + others_s)
        if window is None:
            self._flow = Flow(sizes, self._began, others=others)
        else:
            # One that is measured is sent as many reads as fill the round trip.
            away_s = 0.0 if window.tier.measured else _AWAY * window.tier.question_s()
            rest = (window.size * window.tier.chunk_bytes, time.monotonic() + away_s)
            self._flow = Flow(sizes, self._began, start_bytes, *rest, others)
        if (self._tier.asked or others[0]) and sizes.get(self._tier):
            waited_s = self._began - self._budget.began
            all_s = sum(tier.predict_s(n // tier.chunk_bytes) for tier, n in sizes.items())
            first = min(SIDE_BY_SIDE, sizes[self._tier] // self._tier.chunk_bytes)
            self._expected = (waited_s + self._tier.predict_s(first), waited_s + all_s)
        self._ask()
        return self.wanted

    @property
    def wanted(self) -> int:
        """How many chunks are to be loaded here."""
        return sum(len(part.reserved.chunks) for part in self._parts)

    @property
    def budget(self) -> Budget:
        """Until when."""
        return self._budget

    @property
    def reason(self) -> str:
        """Why that is less than was wanted: "", "pool_full", "error"."""
        return self._outcome.reason

    @property
    def again(self) -> bool:
        """See `Loaded.again`."""
        return self._outcome.again

    def finish(self) -> Loaded:
        """`finishing`, waiting on the spot."""
        return finish(self.finishing())

    def finishing(self) -> Steps[Loaded]:
        """Wait while that pays."""
        came: dict[Tier, tuple[float, int]] = {}
        done = 0
        _waiting.add(self)
        try:
            for part in self._parts:
                result = yield from self._await(part)
                if result is None:
                    break
                now = time.monotonic()
                came[part.tier] = now - self._began, self._flow.received(part.tier)
                done += 1
                if not self._take(part, result):
                    break
        except BaseException:  # somebody presses Ctrl-C, or goes on with this no more
            finish(self._cut(done))
            raise
        finally:
            _waiting.discard(self)
        yield from self._cut(done)
        self._outcome.took_s = time.monotonic() - self._began
        self._learn(came)
        return self._outcome

    def _adopt(self, window: Window, wanted: Sequence[Wanted]) -> Sequence[Wanted]:
        """Make the window the first part; what is left to be asked for."""
        first = wanted[0]
        wanted_here = min(window.size, first.end - first.start)
        items, pages, count = window.keep(wanted_here)
        end = first.start + count
        chunks = [first.start + item for item in items]
        if items:
            reserved = Reserved(0, chunks, pages, 0)
            self._parts.append(Part(window.tier, end, reserved, window.ticket, window, items))
        else:
            window.drop(self._pending)
        self._others += sorted(set(range(first.start, end)) - set(chunks))
        if count < wanted_here:  # there may be room for who asks for it before the values come
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

    def _ask(self) -> None:
        """Submit parts, as many as should be on their way."""
        thought = self._tier.bandwidth_bytes_s if self._tier.measured else ASSUMED_BYTES_S
        rate = max(self._flow.rate(), thought)
        window = max(_WINDOW_BYTES_MIN, rate * (_WINDOW_S + 2 * self._tier.question_s()))
        while self._asked < len(self._parts):
            part = self._parts[self._asked]
            size = part.size_bytes
            # Where nothing can be cut, everything is asked for at once.
            full = self._budget.prefill.known and self._ahead_bytes + size > window
            if part.ticket is not None:  # a window
                self._asked += 1
                self._ahead_bytes += size
                continue
            if self._asked - self._done >= 2 and full:
                return
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
                    timeout_s=max(0.001, self._budget.deadline - time.monotonic()),
                )
            except PagesGone:
                self._outcome.reason = "cancelled"
                return
            except KVFerryError:  # it has too much to do, or was closed
                self._outcome.reason = "error"
                return
            self._asked += 1
            self._ahead_bytes += size

    def _await(self, part: Part) -> Steps[BatchResult | None]:
        """Wait for a part while that pays; None when it does not."""
        self._ask()
        now = time.monotonic()
        while part.ticket is not None:
            many = max(1.0, len(_waiting) / _LOOKED_AT)
            look_s = min(_IDLE_LOOK_MAX_S, _IDLE_LOOK_S * many)
            if self._budget.prefill.known:
                look_s = max(_LOOK_S, _LOOK_SHARE * self._budget.recompute_s)
                look_s = min(_IDLE_LOOK_S, min(_LOOK_MAX_S, look_s) * many)
            left_s = max(0.0, self._budget.deadline - now)
            result: BatchResult | None = yield Wait(part.ticket, min(look_s, left_s))
            now = time.monotonic()
            self._flow.look(now)
            if result is not None:
                self._done += 1
                self._ahead_bytes -= part.size_bytes
                return result
            if now >= self._budget.deadline:
                self._outcome.reason = "deadline"
                return None
            held = part.reached(part.arrived)
            if self._budget.prefill.known and not self._pays(now, held):
                self._outcome.reason = "cut"
                return None
        return None

    def _pays(self, now: float, held: int) -> bool:
        """Whether to wait on, with `held` chunks of the prefix here."""
        budget, flow, tier, position = self._budget, self._flow, self._tier, self._prompt.position
        held = self._unbroken(held)
        goal, left_s = self._parts[-1].end, flow.remaining_s()
        lags = not tier.measured and flow.lags(now, budget.recompute_s, tier.round_trip_s())
        expected = (0.0, 0.0) if lags else self._expected
        until = budget.until(position(held), *expected, flows=lags or left_s is not None)
        if left_s is None and now >= until and flow.share() and expected[1]:
            # Behind other loads theirs comes first, and nothing of this one is whole.
            left_s = budget.began + expected[1] - now
        if left_s is None:
            return now < until
        loaded_s = now - budget.began + left_s
        if budget.comes(expected[1], 0.0 if flow.is_young else loaded_s, now):
            return True
        if now < until:
            if flow.seen_s() < _LUMPS * budget.recompute_s:
                return True
            left_s -= max(0.0, budget.began + budget.queued_s - now)
            gain_s = budget.gain_s(position(held), position(goal), left_s)
            return gain_s > -_DOUBT * budget.recompute_s
        end_s = loaded_s + budget.rest_s(position(goal))
        begun = self._start + (goal - self._start) * flow.share()
        some = position(int(max(held, begun)))
        near, moves = budget.in_sight(some, end_s, now), flow.moves(budget.recompute_s)
        end_s += max(0.0, tier.queued_bytes() / max(flow.rate(), 1.0) - left_s)
        return near or (moves and budget.in_sight_of_all(position(held), some, end_s, now))

    def _unbroken(self, held: int) -> int:
        """How many of the first `held` chunks are here, with those that others bring."""
        while self._others and self._others[0] < held:
            state = self._memory.cache.states(self._prompt.digest(self._others[0]))
            if STATES[state[0]] not in HERE:
                return self._others[0]
            self._others.pop(0)
        return held

    def _take(self, part: Part, result: BatchResult) -> bool:
        """Put what has arrived into memory; False: the prefix ends within this part."""
        chunks, handles, whole = part.reserved.chunks, part.reserved.handles, result
        count = (result := part.own(whole)).prefix_len
        if self._arrived is not None and count:
            self._arrived(chunks[:count], handles[:count])
        self._keep(part, whole)
        name = part.tier.name
        self._outcome.chunks[name] = self._outcome.chunks.get(name, 0) + count
        self._outcome.end = part.reached(count)
        if count == len(chunks):
            return True
        if part.window is not None and result[count] is Status.MISS:
            self._outcome.again = True  # it was perhaps asked for before it was written
            return False
        part.tier.refuse(self._prompt, chunks, result)
        if not self._outcome.left:
            self._outcome.reason = reason_of(result, count)
        return False

    def _cut(self, index: int) -> Steps[None]:
        """Withdraw the parts from this one on; keep what has arrived of the first of them."""
        for part in self._parts[index:]:
            if part.ticket is not None:
                part.ticket.cancel()
        until = time.monotonic() + (_RELEASE_S if self._direct is None else _RELEASE_DIRECT_S)
        whole = self._outcome.left  # else there is a hole already
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
                window = part.window
                self._pending.add(part.ticket, part.reserved.id if window is None else window.end)
                whole = False
            elif whole:
                whole = self._take(part, result)
            else:
                self._keep(part, result)

    def _keep(self, part: Part, result: BatchResult) -> None:
        """Put what has arrived of a part into memory, behind a hole as well: that may be filled."""
        if part.window is not None:
            part.window.end(result, part.items)
        elif part.reserved.id:
            ok = bytes(status == 0 for status in result.statuses)
            self._memory.commit(part.reserved.id, ok)

    def _learn(self, came: dict[Tier, tuple[float, int]]) -> None:
        """Tell each tier how fast it was, as far as it came, with what it sent to others meanwhile:
        a load that follows reckons with theirs. Of what was cut, pieces of chunks count."""
        for part in self._parts:
            came.setdefault(part.tier, (self._outcome.took_s, self._flow.received(part.tier)))
        cut = self._outcome.reason == "cut"
        for tier, (seconds, received_bytes) in came.items():
            size_bytes = self._outcome.chunks.get(tier.name, 0) * tier.chunk_bytes
            first_s = self._flow.first_s() if tier is self._tier else (0.0, math.inf)
            if size_bytes or cut:
                if self._flow.lagged and first_s[1] == math.inf:  # it does not pay to ask it again
                    seconds = max(seconds, self._budget.recompute_s)
                size_bytes = max(size_bytes, received_bytes)
                tier.learn(size_bytes, seconds, whole=not cut, first_s=first_s)
