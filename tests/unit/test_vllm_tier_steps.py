"""What a tier learns of computing from the steps that it sees planned."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kvferry.cache.cost.prefill import PrefillModel
from kvferry.integrations.vllm.tier.tier_cost import TierSteps

STEP_S = 0.5


class Engine:
    """Plans steps at moments, and offers what was computed two steps later."""

    def __init__(self) -> None:
        self.prefill = PrefillModel()
        self.steps = TierSteps(self.prefill)
        self.now = 100.0

    def plan(self, *new: str, after_s: float = 0.01) -> None:
        self.now += after_s
        self.steps.ended(self.now, new)

    def idle(self) -> None:
        self.now += 60.0


@pytest.fixture
def engine() -> Engine:
    return Engine()


def close_to(engine: Engine, tokens: int, took_s: float) -> bool:
    return engine.prefill.predict_s(tokens) == pytest.approx(took_s, rel=0.05)


def test_the_first_step_of_a_lone_request_is_measured(engine: Engine) -> None:
    engine.plan("a")
    engine.plan(after_s=STEP_S)
    engine.plan()
    engine.steps.stored("a", 0, 512)
    assert close_to(engine, 512, STEP_S)


def test_a_step_that_was_planned_ahead_of_its_predecessor_is_measured(engine: Engine) -> None:
    engine.plan("a")
    engine.plan()  # at once: the first one still runs
    engine.plan(after_s=STEP_S)
    engine.steps.stored("a", 0, 512)
    assert close_to(engine, 512, STEP_S)


@pytest.mark.parametrize("planned", [1, 2])
def test_the_rest_after_the_last_token_is_no_computing(engine: Engine, planned: int) -> None:
    """A request of one token: it is over when the next step is planned, or the one after that."""
    engine.plan("a")
    for n in range(planned):
        engine.plan(after_s=STEP_S if n == planned - 1 else 0.01)
        if n == planned - 1:
            engine.steps.finished("a")
    engine.idle()
    engine.plan()
    engine.steps.stored("a", 0, 512)
    assert not engine.prefill.known or close_to(engine, 512, STEP_S)


def test_a_request_of_one_token_is_measured(engine: Engine) -> None:
    engine.plan("a")
    engine.steps.finished("a")
    engine.plan(after_s=STEP_S)
    engine.idle()
    engine.plan()
    engine.steps.stored("a", 0, 512)
    assert close_to(engine, 512, STEP_S)


@pytest.mark.parametrize("others", [("b",), ("b", "c")])
def test_requests_that_begin_side_by_side_say_nothing(
    engine: Engine, others: Iterable[str]
) -> None:
    engine.plan("a", *others)
    engine.plan(after_s=STEP_S)
    engine.plan()
    engine.steps.stored("a", 0, 512)
    assert not engine.prefill.known


def test_a_prompt_that_another_one_goes_on_beside_says_nothing(engine: Engine) -> None:
    engine.plan("a")
    engine.plan(after_s=STEP_S)
    engine.steps.stored("b", 512, 1024)
    engine.plan()
    engine.steps.stored("a", 0, 512)
    assert not engine.prefill.known


def test_a_prompt_of_several_steps_says_how_many_tokens_one_has(engine: Engine) -> None:
    engine.plan("a")
    for _ in range(3):
        engine.plan(after_s=STEP_S)
    engine.steps.stored("a", 0, 512)
    engine.steps.stored("a", 512, 1024)
    assert engine.prefill.step_tokens == 512
    assert close_to(engine, 1024, 2 * STEP_S)


def test_what_was_cached_counts_as_attended_to(engine: Engine) -> None:
    for n, (start, end) in enumerate([(0, 512), (4096, 4608), (0, 2048)] * 4):
        name = str(n)
        engine.plan(name)
        pairs = end * end - start * start
        engine.plan(after_s=1e-4 * (end - start) + 1e-8 * pairs)
        engine.plan()
        engine.steps.stored(name, start, end)
        engine.steps.finished(name)
    assert engine.prefill.predict_s(4608, 4096) == pytest.approx(0.0512 + 0.0446, rel=0.1)
