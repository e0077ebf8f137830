"""Until when one request waits for its cache.

A request may wait for three things: for a store to say what it has (`WaitBudget.answer_until`), for
chunks that another request is bringing (`until`), and for a load of its own (`goes_on`). One bound
is behind all three. A request that has waited ``t`` and holds ``k`` tokens of its prefix has its
first token at ``t`` plus the time of computing the rest. Without a cache it would have it after
`alone_s`: the time of what the engine computes before it, and of all its tokens that were not in
memory. What it is later than that is its *loss*. Each request may lose a share of `alone_s`, and
more as far as the account of all requests lends it (`kvferry.cache.cost.load_or_compute`).

A `Flow` says how much of a running load has come and how fast, from the counters of its stores.

So a request that holds nothing leaves after a twentieth of the time of computing, and one that
holds half of its prefix may wait for half of that time: a load that stalls at once is left early,
and one that stalls late has paid for its wait already.

Requests that wait at the same time share their store. The first of them would seem to lose as soon
as its load takes longer than computing it alone; but if it left, the engine would compute it before
all others. So while bytes flow, a load is also compared with `together_s`: when the request would
be done if no request that waits now had a cache (decision 0026).

Every constant says what it bounds, and names the test that fails where it is another one; how the
values were found is told in decision 0012. Any change of them shows in
``tests/property/test_read_path.py``.

Units: seconds, tokens. Moments: of ``time.monotonic``. Threads: one at a time, a request's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from kvferry.cache.cost.load_or_compute import OWN_LOSS_SHARE, FirstByte, Place
from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.store.tier import Tier

__all__ = [
    "NOTHING_KNOWN",
    "Expected",
    "Flow",
    "OthersBytes",
    "RunningLoad",
    "StoreTimes",
    "WaitBudget",
]

# How long a flow must have been seen for its speed to say anything.
_MATURE_S = 0.05
# TCP begins slowly and doubles with each round trip. A flow that is this many times as fast as a
# span before is expected to grow on like that; above the second figure the difference is a lump
# (``test_a_flow_that_doubles_with_each_round_trip_is_not_judged_by_its_mean``).
_GROWTH_MIN, _GROWTH_MAX = 1.5, 4.0
# A flow that was seen for fewer round trips than two spans have is young.
_SPAN_ROUND_TRIPS = 2
# What comes besides values: answers to questions.
_NOISE_BYTES = 16 << 10


class OthersBytes(NamedTuple):
    """Bytes of other loads, which come before or beside the bytes of this load.

    Attributes:
        size_bytes: How many bytes other loads wait for. A counter does not say for which load bytes
            came, so this load counts as complete when the others are complete, too.
        until: Bytes that come before this moment belong to other loads, or to loads that were cut.
    """

    size_bytes: int = 0
    until: float = 0.0


NOBODYS = OthersBytes()


class _Look(NamedTuple):
    """What had come by a moment."""

    moment: float
    came_bytes: int


class _Growth(NamedTuple):
    """How many times as much came in the last span as in the one before."""

    factor: float
    span_s: float
    came_bytes: float  # in the last one


class Flow:
    """How fast bytes are coming in, from all stores of a load together.

    Args:
        sizes: How many bytes are wanted of each store.
        began: When the load began.
        start: What each store had sent by then, where that is not what it has sent by now.
        ahead_bytes: How many were asked for before the rest was.
        rest_at: When the rest can be here at the soonest: that nothing comes until then says
            nothing about the speed.
        others: Bytes of other loads.

    Attributes:
        began: When the load began.
    """

    def __init__(
        self,
        sizes: dict[Tier, int],
        began: float,
        start: dict[Tier, int] | None = None,
        ahead_bytes: int = 0,
        rest_at: float = 0.0,
        others: OthersBytes = NOBODYS,
    ) -> None:
        self.began = began
        self._others_bytes, self._others_until = others
        self._wanted_bytes = sum(sizes.values()) + self._others_bytes
        self._start = {**{tier: tier.received_bytes() for tier in sizes}, **(start or {})}
        self._ahead_bytes, self._rest_at = ahead_bytes, rest_at
        self._moved_at = began  # when more had come than by the look before
        self._nothing_at = began  # the last look by which nothing had come
        self._first_at = math.inf  # the first look by which something had
        self._flows_at = 0.0  # since when what comes says something about the speed
        self._seen: list[_Look] = []

    def received(self, tier: Tier) -> int:
        """How many bytes came from a store since the load began, whoever asked for them."""
        return tier.received_bytes() - self._start[tier]

    def look(self, now: float) -> None:
        """Note how much has come."""
        if now < self._others_until:
            came = min(sum(map(self.received, self._start)), self._others_bytes)
            self._start = {tier: tier.received_bytes() for tier in self._start}
            self._wanted_bytes -= came
            self._others_bytes -= came
        count = sum(self.received(tier) for tier in self._start)
        if count <= min(_NOISE_BYTES, self._wanted_bytes // 8):
            self._nothing_at = now
            return
        self._first_at = min(self._first_at, now)
        if not self._seen:
            if count <= self._ahead_bytes + _NOISE_BYTES and now < self._rest_at:
                return
            self._flows_at = now
        if not self._seen or count > self._seen[-1].came_bytes:
            self._moved_at = now
        self._seen.append(_Look(now, count))

    # --- What has come ---

    def first_byte(self) -> FirstByte:
        """When bytes began to come, counted from the beginning of the load."""
        return FirstByte(self._nothing_at - self.began, self._first_at - self.began)

    def share(self) -> float:
        """How much of what is wanted has come, as a part of 1."""
        return min(1.0, self._seen[-1].came_bytes / self._wanted_bytes) if self._seen else 0.0

    def seen_s(self) -> float:
        """For how long bytes were seen to come; they come in lumps, so a moment says little."""
        return self._seen[-1].moment - self._flows_at if self._seen else 0.0

    def idle_s(self) -> float:
        """For how long nothing more has come; infinite: nothing has yet."""
        return self._seen[-1].moment - self._moved_at if self._seen else math.inf

    @property
    def is_young(self) -> bool:
        """Whether it was seen for less than two spans of `_growth`."""
        return self.seen_s() < 2 * _SPAN_ROUND_TRIPS * self.first_byte().most_s

    # --- How fast ---

    def rate(self) -> float:
        """Bytes per second of late; of a flow that grows, in the span that comes next."""
        if len(self._seen) < 2:
            return 0.0
        growth = self._growth()
        if growth.factor >= _GROWTH_MIN:
            return growth.factor * growth.came_bytes / growth.span_s
        half, last = self._half(), self._seen[-1]
        return (last.came_bytes - half.came_bytes) / max(last.moment - half.moment, 1e-3)

    def remaining_s(self) -> float | None:
        """Seconds until the rest is here, at the speed of late; None: it is not known yet."""
        if len(self._seen) < 2:
            return None
        half, last = self._half(), self._seen[-1]
        if last.moment - half.moment < _MATURE_S:
            return None
        rest = max(0.0, self._wanted_bytes - last.came_bytes)
        factor, span_s, came = self._growth()
        if factor < _GROWTH_MIN:
            return rest * (last.moment - half.moment) / max(last.came_bytes - half.came_bytes, 1)
        # What comes in the next spans is a geometric series.
        return span_s * math.log1p(rest * (factor - 1) / (factor * came)) / math.log(factor)

    def _half(self) -> _Look:
        """Where the half of the looks begins that says how fast it is: connections run dry one by
        one."""
        now = self._seen[-1].moment
        moment = now - max(2 * _MATURE_S, (now - self._seen[0].moment) / 2)
        return self._seen[max(0, bisect_right(self._seen, (moment, math.inf)) - 1)]

    def _growth(self) -> _Growth:
        """Compares two spans, each of two round trips if it was seen for so long: lumps come with
        each of them."""
        now, count = self._seen[-1]
        round_trips_s = _SPAN_ROUND_TRIPS * self.first_byte().most_s
        span_s = min((now - self._seen[0].moment) / 2, max(_MATURE_S, round_trips_s))
        middle, start = self._by(now - span_s), self._by(now - 2 * span_s)
        came = max(count - middle, 1.0)
        return _Growth(min(came / max(middle - start, 1.0), _GROWTH_MAX), span_s, came)

    def _by(self, moment: float) -> float:
        """What had come by a moment."""
        index = bisect_right(self._seen, (moment, math.inf))
        if index in (0, len(self._seen)):
            return self._seen[index and -1].came_bytes
        (then, before), (later, count) = self._seen[index - 1 : index + 1]
        return before + (count - before) * (moment - then) / (later - then)


# --- What was measured ---

# How many times what a store was measured to take it is waited for: measurements scatter
# (test_a_store_that_is_known_to_be_far_away_is_given_its_time).
EXPECTED_FACTOR = 1.25
# The largest share of `together_s` that a load may be expected to take and still be given that
# time: above it, loading gains less than the measurement is uncertain by (the same test).
WORTH_SHARE = 0.95

# --- Answers (test_a_question_is_waited_for_as_long_as_its_answer_can_pay) ---

# An answer is waited for as long as so many times what it mostly takes, or this share of
# `together_s` if that is longer: what takes many times as long will hardly come at all.
LATE_ANSWER_FACTOR, LATE_ANSWER_SHARE = 4.0, 0.1
# The share of `together_s` for the first answer of all, of which nobody knows how long it takes.
FIRST_ANSWER_SHARE = 0.25

# --- Loads of which nothing can be said yet ---

# The share of `alone_s` that may be lost by waiting for a first byte, where the account has that
# much: a store may have moved away, and then takes longer than expected just once
# (test_until_bytes_flow_a_load_has_half_the_time_of_computing_if_requests_may_lose_it).
FIRST_BYTE_SHARE = 0.5
# A store that was never measured lags if as little as one of so many parts has come of what should
# have, for all to come within `alone_s`: the first request does not wait for a first lump
# (test_the_first_prompts_lose_little_to_a_slow_store_that_sends_in_lumps).
LAG_FACTOR = 4
# A store does not lag before this share of `alone_s` has passed, behind the round trips in which
# TCP begins (test_a_store_that_is_far_away_from_the_start_is_a_hit_soon).
LAG_SEEN_SHARE = 0.1
TCP_BEGINS_ROUND_TRIPS = 4

# --- Loads that flow ---

# The share of `alone_s` for which bytes are seen before they say how fast they come: they come in
# lumps (test_a_store_whose_tcp_begins_slowly_is_a_hit_wherever_that_pays).
LUMPS_SHARE = 0.1
# How wrong the speed seen so far may be, as a share of `alone_s`: a load whose rest is not slower
# than computing by more goes on.
SPEED_DOUBT_SHARE = 0.05
# The end of a load is in sight if the request is done within this share of what computing takes, at
# the speed of late, and leaving at that moment would lose no more than the second share
# (test_a_flow_that_ends_well_before_computing_is_waited_for_although_little_is_whole).
IN_SIGHT_SHARE, IN_SIGHT_LOSS_SHARE = 0.8, 0.15
# Bytes still come if the last ones are no older than this share of `alone_s`, or than this time.
PAUSE_SHARE, PAUSE_S = 0.1, 0.25

# --- Looks (test_many_loads_are_looked_at_less_often) ---

# How often a running load is looked at, as a share of `alone_s`, the least and the most: a look
# takes half a millisecond of a core that the bytes need too.
LOOK_SHARE, LOOK_S, LOOK_S_MAX = 0.01, 0.005, 0.02
# The same where nobody knows what computing takes, so that nothing is cut. Where many loads wait,
# the first figure is the most for loads that may be cut, and the second one for all others.
IDLE_LOOK_S, IDLE_LOOK_S_MAX = 0.05, 0.5
# Where more loads than these wait at a time, each of them is looked at less often, so that all of
# them together leave the processor to those who have work.
LOOKED_AT = 4


class Expected(NamedTuple):
    """When a load should bring something, counted from the beginning of the request.

    Attributes:
        first_s: Its first chunks; 0: nothing was measured.
        all_s: All of it.
    """

    first_s: float = 0.0
    all_s: float = 0.0


NOTHING_KNOWN = Expected()


class StoreTimes(NamedTuple):
    """What asking a store and loading from it is expected to take.

    Attributes:
        wins: How many seconds to wait for each that an answer can save; see `Odds`.
        question_s: How long an answer mostly takes; 0: nobody knows.
        load_s: Loading all that is asked for.
        first_s: Loading the first chunks of it.
    """

    wins: float
    question_s: float
    load_s: float
    first_s: float


@dataclass
class RunningLoad:
    """A load that goes on, as far as `WaitBudget.goes_on` looks at it.

    Attributes:
        tier: The store of its first chunks.
        flow: What has come, and how fast.
        expected: When something should have.
        goal: Tokens of the prefix with all of it.
        held: Tokens of the prefix that stay if the load is left now.
        begun: The same with what has come of chunks that are not whole.
        lags: Whether far too little had come when that was asked last.
    """

    tier: Tier
    flow: Flow
    expected: Expected
    goal: int = 0
    held: int = 0
    begun: int = 0
    lags: bool = False


@dataclass(frozen=True)
class WaitBudget:
    """See the module.

    Attributes:
        total_tokens: Of the prompt.
        memory_tokens: Tokens of its prefix that were in memory when the request began.
        prefill: What computing takes; if that knows nothing, `deadline` is the only limit.
        began: The moment at which the request began.
        deadline: The caller's limit, a moment.
        queued_s: What the engine computes before this request, by its own account.
        allowance_s: What this request may lose, by the account; None: its own share.
        place: Of this request among all that wait; None: it is alone.
    """

    total_tokens: int
    memory_tokens: int
    prefill: PrefillModel
    began: float
    deadline: float
    queued_s: float = 0.0
    allowance_s: float | None = None
    place: Place | None = None

    # --- What computing takes ---

    @property
    def alone_s(self) -> float:
        """When the request is done without a load, counted from its beginning."""
        return self.queued_s + self.rest_s(self.memory_tokens)

    @property
    def queue_s(self) -> float:
        """What is computed before this request if no other request that waits has a load."""
        return self.queued_s if self.place is None else max(self.queued_s, self.place.most_s)

    @property
    def together_s(self) -> float:
        """When the request is done if no request that waits has a load, this one included."""
        return self.queue_s + self.rest_s(self.memory_tokens)

    def rest_s(self, tokens: int) -> float:
        """Time of computing what is behind `tokens`."""
        return self.prefill.predict_s(self.total_tokens, tokens)

    def gain_s(self, tokens: int, goal: int, remaining_s: float) -> float:
        """What waiting `remaining_s` for `goal` tokens saves against stopping with `tokens`."""
        if not self.prefill.known:
            return float("inf")
        return self.rest_s(tokens) - self.rest_s(goal) - remaining_s

    def loss_s(self, tokens: int, now: float) -> float:
        """How much later than without a cache a request is that stops now with `tokens`."""
        return max(0.0, now - self.began + self.rest_s(tokens) - self.together_s)

    # --- Answers ---

    def answer_until(self, tokens: int, goal: int, store: StoreTimes) -> float:
        """Until when to wait for a store to say what it has behind `tokens`.

        It is `began` where no answer can pay: where the first bytes mostly come later than what
        this request may lose.

        Args:
            tokens: Tokens of the prefix that are there.
            goal: As many as would be if the store had everything.
            store: What it is expected to take.
        """
        together_s, question_s = self.together_s, store.question_s
        done_s = question_s + store.load_s
        saving_s = self.gain_s(tokens, goal, max(0.0, done_s - self.queue_s))
        loss_s = min(store.wins * saving_s, self._loss_s_max)
        first_s = store.first_s
        if done_s + self.rest_s(goal) < IN_SIGHT_SHARE * together_s:
            first_s = min(first_s, question_s)  # bytes that flow are enough: see `_is_in_sight`
        patient_s = (question_s + first_s) * EXPECTED_FACTOR
        if saving_s <= 0 or (question_s and patient_s > self.queued_s + loss_s):
            return self.began
        share = LATE_ANSWER_SHARE if question_s else FIRST_ANSWER_SHARE
        late_s = max(LATE_ANSWER_FACTOR * question_s, share * together_s)
        return min(self.deadline, self.began + self.queued_s + min(loss_s, late_s))

    # --- Chunks ---

    def until(
        self, tokens: int, expected: Expected = NOTHING_KNOWN, *, bytes_come: bool = True
    ) -> float:
        """The moment at which a request that holds `tokens` of its prefix stops waiting.

        Args:
            tokens: Whole chunks.
            expected: When something should come of what is waited for.
            bytes_come: They are seen to; until they are, nobody knows how fast the store is now.
        """
        if not self.prefill.known:
            return self.deadline
        wait_s = self._wait_s(tokens, OWN_LOSS_SHARE if bytes_come else FIRST_BYTE_SHARE)
        patient_s = EXPECTED_FACTOR * expected.first_s
        is_worth_it = expected.all_s <= WORTH_SHARE * self.together_s
        if is_worth_it and patient_s <= self.queued_s + self._loss_s_max:
            wait_s = max(wait_s, patient_s)
        return min(self.deadline, self.began + wait_s)

    def goes_on(self, load: RunningLoad, now: float) -> bool:
        """Whether to go on waiting for a load that runs.

        There is a moment at which the request would have to stop for what it holds, or at which
        something should have come (`until`). The load goes on while one of these is so, and is cut
        when none is:

        1. Nobody knows how fast bytes come, and that moment has not come.
        2. Bytes come as fast as they were expected to, within what the account has.
        3. That moment has not come, and the rest takes hardly longer than computing it.
        4. It is over, but the end of this load is in sight, or that of all loads of the store.

        A store that was never measured and lags gets neither time to begin nor that of 2.
        """
        flow, left_s = load.flow, load.flow.remaining_s()
        lags = not load.tier.measured and self._lags(load, now)
        expected = NOTHING_KNOWN if lags else load.expected
        until = self.until(load.held, expected, bytes_come=lags or left_s is not None)
        if left_s is None and now >= until and flow.share() and expected.all_s:
            # Bytes come, but other loads' come first: nothing of this load is whole.
            left_s = self.began + expected.all_s - now
        if left_s is None:
            return now < until  # 1
        loaded_s = now - self.began + left_s
        if self._comes_as_expected(load, expected, loaded_s, now):
            return True  # 2
        if now < until:  # 3
            is_seen = flow.seen_s() >= LUMPS_SHARE * self.alone_s
            return not is_seen or self._is_quicker(load, left_s, now)
        if self._is_in_sight(load, loaded_s, now):
            return True  # 4
        return self._moves(flow) and self._all_are_in_sight(load, loaded_s, left_s, now)

    def look_s(self, waiting: int) -> float:
        """After how long to look at a running load again, where so many wait."""
        many = max(1.0, waiting / LOOKED_AT)
        if not self.prefill.known:
            return min(IDLE_LOOK_S_MAX, IDLE_LOOK_S * many)
        look_s = min(LOOK_S_MAX, max(LOOK_S, LOOK_SHARE * self.alone_s))
        return min(IDLE_LOOK_S, look_s * many)

    # --- The rules of `goes_on` ---

    def _lags(self, load: RunningLoad, now: float) -> bool:
        """Whether a store sends so slowly that nothing is to be hoped for; noted in the load."""
        alone_s, flow = self.alone_s, load.flow
        waited_s = now - flow.began - TCP_BEGINS_ROUND_TRIPS * load.tier.round_trip_s()
        load.lags = waited_s > max(LAG_SEEN_SHARE * alone_s, LAG_FACTOR * alone_s * flow.share())
        return load.lags

    def _comes_as_expected(
        self, load: RunningLoad, expected: Expected, loaded_s: float, now: float
    ) -> bool:
        """Whether a load takes what it was measured to take, although little is here.

        TCP begins slowly and catches up, in what was measured too. So a load that was seen for a
        few round trips alone is taken to come as expected.
        """
        patient_s = EXPECTED_FACTOR * expected.all_s
        is_late = loaded_s > patient_s and not load.flow.is_young
        if is_late or expected.all_s > WORTH_SHARE * self.together_s:
            return False
        wait_s = min(patient_s, self.queued_s + self._loss_s_max)
        return now < min(self.deadline, self.began + wait_s)

    def _is_quicker(self, load: RunningLoad, left_s: float, now: float) -> bool:
        """Whether the rest comes in about the time of computing it, behind the engine's queue."""
        left_s -= max(0.0, self.began + self.queued_s - now)
        gain_s = self.gain_s(load.held, load.goal, left_s)
        return gain_s > -SPEED_DOUBT_SHARE * self.alone_s

    def _is_in_sight(self, load: RunningLoad, loaded_s: float, now: float) -> bool:
        """Whether this load ends soon enough to wait for that, although the request is late now.

        Chunks come side by side, so what is lost by leaving is reckoned with pieces of them: most
        would be whole in a moment.
        """
        done_s = loaded_s + self.rest_s(load.goal)
        wait_s = self._wait_s(load.begun, IN_SIGHT_LOSS_SHARE)
        is_near = done_s < IN_SIGHT_SHARE * self.alone_s
        return is_near and now < min(self.deadline, self.began + wait_s)

    def _all_are_in_sight(
        self, load: RunningLoad, loaded_s: float, left_s: float, now: float
    ) -> bool:
        """Whether the loads of all requests that wait end soon enough to wait for that.

        This request may be the first of them. All that the store has still to send must come
        within a share of `together_s`, and sooner than the engine would compute this request and
        the ones before it.
        """
        if self.place is None:
            return False
        done_s = loaded_s + self.rest_s(load.goal)
        queued_bytes, bytes_s = load.tier.queued_bytes(), max(load.flow.rate(), 1.0)
        done_s += max(0.0, queued_bytes / bytes_s - left_s)
        together_s = self.together_s
        leaving_s = self.rest_s(load.held) + self.place.ahead_s
        if done_s >= IN_SIGHT_SHARE * together_s or done_s - (now - self.began) > leaving_s:
            return False
        wait_s = self._wait_s(load.begun, IN_SIGHT_LOSS_SHARE) + together_s - self.alone_s
        return now < min(self.deadline, self.began + wait_s)

    def _moves(self, flow: Flow) -> bool:
        """Whether bytes have come of late, for whomever."""
        return flow.idle_s() < max(PAUSE_S, PAUSE_SHARE * self.alone_s)

    # --- The bound ---

    @property
    def _loss_s_max(self) -> float:
        """What this request may lose; of what is computed before it too, as that becomes known."""
        alone_s = self.alone_s
        own_s = OWN_LOSS_SHARE * alone_s if self.allowance_s is None else self.allowance_s
        return own_s + OWN_LOSS_SHARE * (self.together_s - alone_s)

    def _wait_s(self, tokens: int, share: float) -> float:
        """How long a request may wait that holds `tokens` and may lose this share of `alone_s`."""
        alone_s = self.alone_s
        return alone_s + min(share * alone_s, self._loss_s_max) - self.rest_s(tokens)
