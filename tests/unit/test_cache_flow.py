"""What the counters of a running load say about its speed, on a clock that the test turns."""

from __future__ import annotations

import math
from typing import cast

import pytest

from kvferry.cache.load.wait_budget import Flow
from kvferry.cache.store.tier import Tier

MIB = 1 << 20


class Counter:
    """A store by its count of bytes."""

    count = 0

    def received_bytes(self) -> int:
        return self.count


def flow(counter: Counter, *, ahead_bytes: int = 0, rest_at: float = 0.0) -> Flow:
    tier = cast("Tier", counter)
    return Flow({tier: 56 * MIB}, 0.0, {tier: 0}, ahead_bytes, rest_at)


def test_bytes_that_come_evenly_say_when_the_rest_is_here() -> None:
    counter = Counter()
    seen = flow(counter)
    for step in range(1, 21):
        counter.count = step * MIB
        seen.look(step * 0.01)
    assert seen.remaining_s() == pytest.approx(0.36, rel=0.05)
    assert seen.first_byte() == (0.0, 0.01)


def test_a_flow_that_doubles_with_each_round_trip_is_not_judged_by_its_mean() -> None:
    """TCP begins with ten segments for each connection; at the mean speed it would be late."""
    counter = Counter()
    seen = flow(counter)
    for step in range(1, 81):
        rounds = step // 4  # of 20 ms
        counter.count = 115_840 * (2**rounds - 1)
        seen.look(step * 0.005)
        if rounds == 6:
            break
    left_s = 0.02 * math.log2((56 * MIB - counter.count) / (115_840 * 2**6) + 1)
    assert seen.remaining_s() == pytest.approx(left_s, rel=0.5)
    mean_s = 0.12 * (56 * MIB / counter.count - 1)
    assert mean_s > 10 * left_s
    assert seen.rate() > 5 * counter.count / 0.12, "so more of it is asked for"


def test_a_pause_until_the_rest_can_be_here_is_no_slow_flow() -> None:
    """The first chunk was asked for with the question, the rest 0.1 s later, when it was answered.

    A load from 0.1 s away was cut in that pause although it took a third of computing.
    """
    counter = Counter()
    seen, blind = flow(counter, ahead_bytes=2 * MIB, rest_at=0.225), flow(counter)
    counter.count = 2 * MIB
    for step in range(11, 21):
        seen.look(step * 0.01)
        blind.look(step * 0.01)
    assert seen.remaining_s() is None
    assert blind.remaining_s() == pytest.approx(54 * 0.09 * MIB, rel=0.01), "nothing came of late"
    assert seen.first_byte() == (0.0, 0.11), "the first byte is what it was"
    for step in range(21, 31):
        counter.count += 3 * MIB
        seen.look(step * 0.01)
    assert seen.remaining_s() == pytest.approx(0.08, rel=0.05)


def test_a_pause_that_is_short_beside_the_flow_is_no_slow_flow() -> None:
    """The thread that looks, or the link, had to wait for a processor: 0.17 s after 0.4 s."""
    counter = Counter()
    seen = flow(counter)
    for step in range(1, 41):
        counter.count = step * MIB
        seen.look(step * 0.01)
    seen.look(0.57)
    assert (seen.remaining_s() or math.inf) < 1.0


def test_a_rest_that_does_not_come_in_time_is_a_slow_flow() -> None:
    counter = Counter()
    seen = flow(counter, ahead_bytes=2 * MIB, rest_at=0.225)
    counter.count = 2 * MIB
    for step in range(11, 41):
        seen.look(step * 0.01)
    assert (seen.remaining_s() or 0.0) > 60
    assert seen.seen_s() == pytest.approx(0.17, abs=0.011)


def test_nothing_has_come() -> None:
    seen = flow(Counter())
    seen.look(0.5)
    assert seen.first_byte() == (0.5, math.inf)
    assert seen.remaining_s() is None
    assert seen.share() == 0.0
