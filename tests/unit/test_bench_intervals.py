"""Intervals: what they hold, how often they hold it, and what too few values say."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from kvferry_lab.bench.intervals import Interval, in_turn, percentile, quantile, ratios


@pytest.mark.parametrize(
    ("count", "rank"), [(6, 1), (8, 1), (9, 2), (15, 4), (20, 6), (25, 8), (100, 40)]
)
def test_the_ranks_of_the_interval_are_those_of_the_tables(count: int, rank: int) -> None:
    values = [float(value) for value in range(1, count + 1)]
    random.Random(count).shuffle(values)
    found = Interval.of_median(values)
    assert (found.low, found.high) == (rank, count + 1 - rank)
    assert found.middle == statistics.median(values)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_too_few_values_have_all_of_them_for_an_interval(count: int) -> None:
    found = Interval.of_median([float(value) for value in range(count)])
    assert (found.low, found.high) == (0, count - 1)


def test_a_median_lies_in_its_interval_nineteen_times_of_twenty() -> None:
    draw = random.Random(7)
    held = 0
    for _ in range(4000):
        # Skewed, as times are; the median of exp(N(0, 1)) is 1.
        found = Interval.of_median([math.exp(draw.gauss(0, 1)) for _ in range(15)])
        held += found.low <= 1 <= found.high
    assert 0.95 <= held / 4000 <= 0.98  # by the binomial 0.965


def test_a_ratio_lies_in_its_interval_where_runs_differ() -> None:
    draw = random.Random(9)
    held = 0
    for _ in range(60):
        slow = [draw.uniform(1, 3) for _ in range(30)]  # a run hits both sides alike
        ours = [[1.2 * each * draw.uniform(0.9, 1.1) for _ in range(20)] for each in slow]
        theirs = [[each * draw.uniform(0.9, 1.1) for _ in range(20)] for each in slow]
        found = Interval.of_ratio(ours, theirs, statistics.median)
        assert found.low <= found.middle <= found.high
        held += found.low <= 1.2 <= found.high
    assert held >= 51


def test_samples_of_one_run_do_not_count_as_many() -> None:
    """All samples of a run are the same here: 1,000 of them know no more than ten runs."""
    runs = [[float(value)] * 100 for value in range(1, 11)]
    found = Interval.of_ratio(runs, [[1.0] * 100] * 10, statistics.fmean)
    assert found.middle == 5.5
    assert found.high - found.low > 2


def test_equal_samples_have_one_ratio() -> None:
    runs = [[2.0, 4.0], [6.0]]
    found = Interval.of_ratio(runs, [[1.0, 2.0], [3.0]], lambda values: percentile(values, 99))
    assert found == Interval(2.0, 2.0, 2.0)


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 99) == 99
    assert percentile(values, 100) == 100
    assert percentile([3.0], 50) == 3.0


def test_pairs_need_a_neighbour_each() -> None:
    assert ratios([2.0, 9.0], [4.0, 3.0]) == [0.5, 3.0]
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0], [])


def test_measures_take_turns_and_warm_ups_do_not_count() -> None:
    said: list[str] = []

    def measure(name: str) -> int:
        said.append(name)
        return len(said)

    ours, theirs = in_turn(3, lambda: measure("a"), lambda: measure("b"))
    assert "".join(said) == "baabbaab", "every other round is backwards, the first does not count"
    assert (ours, theirs) == ([3, 6, 7], [4, 5, 8])
    assert in_turn(0, lambda: 1, warm_ups=0) == [[]]


def test_a_quantile_lies_between_values() -> None:
    assert quantile([4.0, 1.0, 2.0, 3.0], 0.25) == pytest.approx(1.75)
    assert quantile([5.0], 0.99) == 5.0
    assert quantile([], 0.5) is None
