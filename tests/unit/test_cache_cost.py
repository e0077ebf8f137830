"""The cost model: what it learns, what it chooses, and what a wrong guess can cost."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.cache.cost.load_or_compute import Account, LoadModel, Odds, Offer, decide
from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.load.wait_budget import (
    NOTHING_KNOWN,
    Expected,
    Flow,
    RunningLoad,
    StoreTimes,
    WaitBudget,
)
from kvferry.cache.store.tier import Tier

GB = 10**9


def prefill(a: float, c: float, d: float) -> PrefillModel:
    return PrefillModel(a, c, d, fixed=True)


def learnt(a: float, c: float, d: float, noise: float = 0.0, seed: int = 1) -> PrefillModel:
    model, rng = PrefillModel(), random.Random(seed)
    truth = prefill(a, c, d)
    for _ in range(60):
        tokens = rng.randrange(64, 16_000)
        cached = rng.choice([0, 0, rng.randrange(tokens)])
        took_s = truth.predict_s(tokens, cached)
        model.observe(tokens, cached, took_s * (1 + noise * rng.uniform(-1, 1)))
    return model


# Prefill.


@pytest.mark.parametrize(
    "truth", [(0.0, 1e-4, 0.0), (0.01, 4e-5, 0.0), (0.005, 4e-5, 2e-9), (0.0, 0.0, 3e-8)]
)
def test_prefill_coefficients_are_learnt(truth: tuple[float, float, float]) -> None:
    model = learnt(*truth)
    for tokens, cached in [(100, 0), (4_000, 0), (16_000, 0), (16_000, 12_000)]:
        expected = prefill(*truth).predict_s(tokens, cached)
        assert model.predict_s(tokens, cached) == pytest.approx(expected, rel=0.02)


def test_noise_leaves_predictions_near_and_coefficients_non_negative() -> None:
    for seed in range(20):
        model = learnt(0.01, 4e-5, 1e-9, noise=0.2, seed=seed)
        assert min(model.coefficients) >= 0
        expected = prefill(0.01, 4e-5, 1e-9).predict_s(8_000)
        assert model.predict_s(8_000) == pytest.approx(expected, rel=0.25)


def test_a_store_that_was_slow_once_is_tried_again_however_often_it_is_asked() -> None:
    model = LoadModel()
    model.observe(64 << 20, 6.4, 0.0)
    slow = model.bandwidth_bytes_s(0.0)
    for second in range(120):
        model.observe(0, 0.001, float(second))
    assert model.bandwidth_bytes_s(30.0) == slow
    assert model.bandwidth_bytes_s(120.0) > 4 * slow


def test_one_prefill_is_enough_for_a_first_guess() -> None:
    model = PrefillModel()
    assert not model.known
    model.observe(4_000, 0, 0.8)
    assert model.known
    assert model.predict_s(8_000) == pytest.approx(1.6)


def test_one_stalled_prefill_does_not_bend_the_curve() -> None:
    model = learnt(0.01, 4e-5, 0.0)
    before = model.predict_s(8_000)
    model.observe(8_000, 0, before * 100)
    assert model.predict_s(8_000) < before * 1.5


def test_an_engine_that_became_faster_is_noticed() -> None:
    model = learnt(0.01, 4e-5, 0.0)
    for _ in range(120):
        model.observe(8_000, 0, 0.05)
    assert model.predict_s(8_000) == pytest.approx(0.05, rel=0.1)


def test_nothing_is_learnt_from_nonsense_or_against_the_users_numbers() -> None:
    model = PrefillModel()
    for tokens, cached, took_s in [(0, 0, 1.0), (5, 5, 1.0), (5, 0, 0.0), (5, 0, float("nan"))]:
        model.observe(tokens, cached, took_s)
    assert not model.known
    told = prefill(0.0, 1e-3, 0.0)
    told.observe(1_000, 0, 50.0)
    assert told.predict_s(1_000) == 1.0


# Loads.


@pytest.mark.parametrize("fixed_s", [0.0002, 0.02, 0.1])
@pytest.mark.parametrize("bandwidth", [0.05 * GB, 1 * GB, 10 * GB])
def test_load_times_are_learnt(fixed_s: float, bandwidth: float) -> None:
    model, rng, now = LoadModel(), random.Random(2), 0.0
    for _ in range(40):
        size = rng.randrange(4 << 20, 512 << 20)
        model.observe(0, fixed_s, now)
        model.observe(size, fixed_s + size / bandwidth, now)
        now += 0.1
    size = 128 << 20
    assert model.predict_s(size, now) == pytest.approx(fixed_s + size / bandwidth, rel=0.1)
    queued = model.predict_s(size, now, queued_bytes=size)
    assert queued == pytest.approx(fixed_s + 2 * size / bandwidth, rel=0.1)


def test_the_first_load_says_what_the_bandwidth_is_and_not_what_was_assumed() -> None:
    model = LoadModel()
    model.observe(0, 0.001, 0.0)  # its answer came before its bytes
    model.observe(5 << 20, 0.1, 0.1)
    assert model.bandwidth_bytes_s(0.1) == pytest.approx(5 * (1 << 20) / 0.1, rel=0.1)


def test_a_store_that_became_slow_is_noticed_within_few_loads() -> None:
    model, size = LoadModel(), 256 << 20
    for n in range(20):
        model.observe(size, size / (5 * GB), n)
    for n in range(3):
        model.observe(size, size / (0.1 * GB), 20 + n)
    assert model.bandwidth_bytes_s(23) < 0.15 * GB


def test_a_store_that_is_not_used_is_given_another_chance() -> None:
    model, size = LoadModel(), 256 << 20
    model.observe(size, size / (0.05 * GB), 0.0)
    at_once, later = model.predict_s(size, 1.0), model.predict_s(size, 300.0)
    assert at_once == pytest.approx(size / (0.05 * GB), rel=0.05)
    assert later < at_once / 50
    fast = LoadModel()
    fast.observe(size, size / (9 * GB), 0.0)
    assert fast.bandwidth_bytes_s(1e6) == pytest.approx(
        9 * GB, rel=0.05
    )  # no better than it ever was


# The choice.


@given(
    total=st.integers(1, 4_000),
    cuts=st.lists(st.integers(0, 4_000), min_size=1, max_size=4),
    per_token=st.lists(st.floats(0, 1e-3), min_size=4, max_size=4),
    fixed=st.lists(st.floats(0, 0.5), min_size=4, max_size=4),
    a=st.floats(0, 0.1),
    c=st.floats(0, 1e-3),
    d=st.floats(0, 1e-7),
)
def test_the_choice_is_the_best_of_all_lengths(
    total: int,
    cuts: list[int],
    per_token: list[float],
    fixed: list[float],
    a: float,
    c: float,
    d: float,
) -> None:
    ends = sorted(min(cut, total) for cut in cuts)
    model, offers = prefill(a, c, d), []
    for i, (start, end) in enumerate(pairwise(ends)):
        offers.append(Offer(str(i), start, end, fixed[i] + per_token[i] * (end - start)))
    chosen = decide(total, ends[0], offers, model)

    def ttft(tokens: int) -> float:
        load = 0.0
        for i, offer in enumerate(offers):
            if tokens > offer.start_token:
                part = min(tokens, offer.end_token) - offer.start_token
                load += fixed[i] + per_token[i] * part
        return load + model.predict_s(total, tokens)

    best = min(ttft(tokens) for tokens in range(ends[0], ends[-1] + 1))
    assert chosen.prefill_s is not None
    ttft_s = chosen.load_s + chosen.prefill_s
    assert ttft_s <= best + 1e-9
    assert ttft_s == pytest.approx(ttft(chosen.tokens), abs=1e-9)


def test_without_knowledge_of_the_engine_everything_is_loaded() -> None:
    chosen = decide(1_000, 0, [Offer("s", 0, 960, 5.0)], PrefillModel())
    assert (chosen.tokens, chosen.reason, chosen.prefill_s) == (960, "unknown_prefill", None)


def test_reasons() -> None:
    fast, slow = Offer("s", 0, 960, 0.01), Offer("s", 0, 960, 5.0)
    model = prefill(0.0, 1e-3, 0.0)
    assert decide(1_000, 0, [fast], model).reason == "all"
    assert decide(1_000, 0, [slow], model).reason == "memory_only"
    assert decide(1_000, 0, [], model).reason == "memory_only"
    then = Offer("t", 960, 992, 5.0)
    assert decide(1_000, 0, [fast, then], model) == decide(1_000, 0, [fast], model).__class__(
        960, 0.01, model.predict_s(1_000, 960), 1.0, "part", 0
    )


# The budget.


@given(
    total=st.integers(1, 10_000),
    memory=st.floats(0, 1),
    gain=st.floats(0, 1),
    c=st.floats(1e-6, 1e-3),
    d=st.floats(0, 1e-7),
)
def test_whoever_leaves_in_time_is_done_in_time(
    total: int, memory: float, gain: float, c: float, d: float
) -> None:
    model, held = prefill(0.0, c, d), int(total * memory)
    tokens = held + int((total - held) * gain)
    budget = WaitBudget(total, held, model, began=100.0, deadline=1e9)
    done = budget.until(tokens) + model.predict_s(total, tokens)
    assert done - 100.0 <= 1.07 * model.predict_s(total, held) + 1e-9


def test_the_callers_deadline_holds_in_any_case() -> None:
    slow = WaitBudget(10_000, 0, prefill(0, 1, 0), began=0.0, deadline=2.0)
    assert slow.until(9_000) == 2.0
    assert WaitBudget(10, 0, PrefillModel(), began=0.0, deadline=2.0).until(5) == 2.0


def test_a_store_that_is_known_to_be_far_away_is_given_its_time() -> None:
    model = prefill(0.0, 1e-3, 0.0)
    budget = WaitBudget(1_000, 0, model, began=5.0, deadline=99.0, allowance_s=0.3)
    assert budget.until(0) == pytest.approx(5.05)
    assert budget.until(0, Expected(0.1)) == pytest.approx(5.125)
    assert budget.until(0, Expected(0.2)) == pytest.approx(5.25)
    assert budget.until(0, Expected(0.3)) == pytest.approx(5.05)  # more than it may lose
    assert budget.until(0, Expected(0.1, 0.97)) == pytest.approx(5.05)  # for too little
    poor = WaitBudget(1_000, 0, model, began=5.0, deadline=99.0, allowance_s=0.0)
    assert poor.until(0) == pytest.approx(5.0)
    assert poor.until(500) == pytest.approx(5.5)


def test_until_bytes_flow_a_load_has_half_the_time_of_computing_if_requests_may_lose_it() -> None:
    model = prefill(0.0, 1e-3, 0.0)

    def waits(allowance_s: float, *, bytes_come: bool) -> float:
        budget = WaitBudget(1_000, 0, model, began=5.0, deadline=99.0, allowance_s=allowance_s)
        return budget.until(0, bytes_come=bytes_come) - 5.0

    assert waits(0.9, bytes_come=False) == pytest.approx(0.5)
    assert waits(0.9, bytes_come=True) == pytest.approx(0.05), "nothing whole, and no hope"
    assert waits(0.3, bytes_come=False) == pytest.approx(0.3)
    assert waits(0.0, bytes_come=False) == pytest.approx(0.0)


def test_behind_what_is_queued_waiting_costs_nothing() -> None:
    model = prefill(0.0, 1e-3, 0.0)
    budget = WaitBudget(1_000, 0, model, began=5.0, deadline=99.0, queued_s=10.0, allowance_s=0.0)
    assert budget.until(0) == pytest.approx(15.0)
    assert budget.until(0, Expected(8.0)) == pytest.approx(15.0)
    assert budget.loss_s(0, 14.0) == 0.0
    assert budget.loss_s(0, 15.5) == pytest.approx(0.5)
    slow = Offer("s", 0, 960, 9.5)
    assert decide(1_000, 0, [slow], model).reason == "memory_only"
    assert decide(1_000, 0, [slow], model, queued_s=10.0).reason == "all"
    assert decide(1_000, 0, [slow], model, queued_s=10.0, waited_s=9.0).reason == "memory_only"


def test_a_question_is_waited_for_as_long_as_its_answer_can_pay() -> None:
    def waits(wins: float, question_s: float, load_s: float, allowance_s: float = 9.0) -> float:
        budget = WaitBudget(1_000, 0, prefill(0.0, 1e-3, 0.0), 5.0, 99.0, allowance_s=allowance_s)
        times = StoreTimes(wins, question_s, load_s, question_s)
        return budget.answer_until(0, 1_000, times) - 5.0

    assert waits(1.0, 0.0, 0.2) == pytest.approx(0.25), "nobody knows what it takes"
    assert waits(0.25, 0.05, 0.15) == pytest.approx(0.2)
    assert waits(49.0, 0.1, 0.1) == pytest.approx(0.4), "four times what it takes"
    assert waits(49.0, 0.001, 0.1) == pytest.approx(0.1), "a tenth of computing"
    assert waits(49.0, 0.1, 0.1, allowance_s=0.24) == 0.0, "too little for an answer and bytes"
    assert waits(49.0, 0.1, 0.1, allowance_s=0.26) == pytest.approx(0.26)
    assert waits(49.0, 0.5, 0.6) == 0.0, "it cannot pay"
    assert waits(0.02, 0.05, 0.1) == 0.0, "it has hardly anything"


# The account of all requests.


def test_requests_lose_a_small_part_of_what_they_take_over_any_hundred() -> None:
    rng = random.Random(5)
    account, seen = Account(), []
    for n in range(600):
        base_s = rng.uniform(0.8, 1.2)
        may_s, lent_s = account.open(base_s)
        spent_s = may_s if rng.random() < (0.7 if n % 200 < 150 else 0.0) else 0.0
        account.close(base_s, spent_s, lent_s)
        seen.append((base_s, spent_s))
    assert seen[0][1] <= 0.25 * seen[0][0] + 1e-9
    for end in range(100, 601):
        part = seen[end - 100 : end]
        assert sum(spent for _, spent in part) <= 0.0725 * sum(base for base, _ in part)
    assert max(spent / base for base, spent in seen) > 0.9, "what others left is used"


def test_what_one_was_lent_is_nobody_elses() -> None:
    account = Account()
    first = account.open(1.0)
    assert first == pytest.approx((1.05, 1.0))
    assert account.open(1.0) == pytest.approx((0.05, 0.0))
    account.close(0.0, 0.0, first[1])
    assert account.open(1.0) == pytest.approx((1.05, 1.0))


def test_odds_follow_the_answers() -> None:
    odds = Odds()
    assert odds.wins == pytest.approx(1.0)
    for _ in range(300):
        odds.answered(1.0)
    assert odds.wins > 40
    for _ in range(300):
        odds.answered(0.0)
    assert 0 < odds.wins < 0.05


def test_waiting_is_worth_it_while_it_beats_computing() -> None:
    budget = WaitBudget(1_000, 0, prefill(0.0, 1e-3, 0.0), began=0.0, deadline=9.0)
    assert budget.gain_s(100, 1_000, remaining_s=0.8) == pytest.approx(0.1)
    assert budget.gain_s(100, 1_000, remaining_s=0.95) == pytest.approx(-0.05)


def flowing(begun: int, done_s: float) -> RunningLoad:
    """A load of 1,000 tokens that takes so long; 0.166 s have passed, and little is whole."""
    flow = SimpleNamespace(
        remaining_s=lambda: done_s - 0.166,
        share=lambda: begun / 1_000,
        seen_s=lambda: 0.1,
        idle_s=lambda: 0.0,
        is_young=False,
    )
    tier = SimpleNamespace(measured=True)
    load = RunningLoad(cast("Tier", tier), cast("Flow", flow), NOTHING_KNOWN, goal=1_000)
    load.held, load.begun = min(71, begun), begun
    return load


def test_a_flow_that_ends_well_before_computing_is_waited_for_although_little_is_whole() -> None:
    """A store at 1.7 of break-even, 50 ms away: 4 of 28 parts have come, and at most 2 are whole.

    It was left here, at 1.12 of computing, where going on takes 0.7 of it.
    """
    model = prefill(0.0, 1e-3, 0.0)
    budget = WaitBudget(1_000, 0, model, began=5.0, deadline=99.0, allowance_s=1.0)
    assert budget.until(71) < 5.166, "no time is left by what is whole"
    assert budget.goes_on(flowing(143, 0.69), 5.166)
    assert not budget.goes_on(flowing(143, 0.85), 5.166), "for too little"
    assert not budget.goes_on(flowing(0, 0.69), 5.166), "too much would be lost for nothing"
    poor = WaitBudget(1_000, 0, model, began=5.0, deadline=99.0, allowance_s=0.0)
    assert not poor.goes_on(flowing(143, 0.69), 5.166), "others have waited in vain"
    hurried = WaitBudget(1_000, 0, model, began=5.0, deadline=5.1, allowance_s=1.0)
    assert not hurried.goes_on(flowing(143, 0.69), 5.166)
