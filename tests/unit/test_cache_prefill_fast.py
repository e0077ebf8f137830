"""Steps that were measured far too short do not outweigh true ones; what cannot be is not believed.

Plain numbers: no engine, no clock.
"""

from __future__ import annotations

import math
import random

import pytest

from kvferry.cache.cost.learning import Learning
from kvferry.cache.cost.prefill import PrefillModel

STEP_TOKENS = 8192
TRUTH = PrefillModel(0.008, 1.2e-4, 2e-9, 1e-3, fixed=True, step_tokens=STEP_TOKENS)
FAST_S = (1e-4, 1e-3, 1e-2)
SIZES = (100, 1000, 8000)
PRIORS = (None, (0.0, 1.2e-5, 0.0, 0.0), (0.0, 1.2e-3, 2e-8, 0.0), TRUTH.coefficients)
HANDFUL = 8


def step(model: PrefillModel, tokens: int, decodes: int = 0, took_s: float | None = None) -> None:
    """A step of the truth, or one that is said to have taken something else."""
    a, c, d, e = TRUTH.coefficients
    pairs = tokens * tokens + 3000 * decodes
    true_s = a + c * tokens + d * pairs + e * decodes
    model.observe_step(tokens, pairs, decodes, true_s if took_s is None else took_s)
    _ = model.coefficients  # somebody asks after each of them


def error(model: PrefillModel, sizes: tuple[int, ...] = (1000, 4000)) -> float:
    """By how much too little of computing is foretold, at the worst of some sizes."""
    return max(TRUTH.predict_s(tokens) / model.predict_s(tokens) for tokens in sizes)


def begun(prior: tuple[float, float, float, float] | None) -> PrefillModel:
    model = PrefillModel(step_tokens=STEP_TOKENS)
    if prior is not None:
        model.expect(prior)
    return model


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize("took_s", FAST_S)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_handful_of_true_steps_outweighs_those_that_were_measured_too_short(
    prior: tuple[float, float, float, float] | None, tokens: int, took_s: float, count: int
) -> None:
    model = begun(prior)
    for _ in range(count):
        step(model, tokens, took_s=took_s)
    for n in range(max(HANDFUL, 2 * count + 2)):
        step(model, (500, 1000, 2000, 4000)[n % 4])
    assert error(model) < 1.7


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("took_s", FAST_S)
@pytest.mark.parametrize("seed", range(4))
def test_so_it_is_with_steps_of_decoding_between_and_false_ones_among_the_first(
    prior: tuple[float, float, float, float] | None, took_s: float, seed: int
) -> None:
    rng, model = random.Random(seed), begun(prior)
    first = [took_s, took_s, took_s, None, None, None, None, None]
    rng.shuffle(first)
    for false_s in [*first, *([None] * HANDFUL)]:
        step(model, rng.choice([200, 1000, 3000]), rng.randrange(4), false_s)
        for _ in range(rng.randrange(40)):
            step(model, 0, 1 + rng.randrange(8))
    assert error(model) < 1.7


@pytest.mark.parametrize("took_s", [1e-6, 1e-5, 1e-4])
def test_a_step_of_decoding_that_was_measured_too_short_says_nothing_of_prompts(
    took_s: float,
) -> None:
    model = begun(None)
    step(model, 0, 1, took_s)
    for n in range(HANDFUL):
        step(model, (500, 1000, 2000, 8000)[n % 4])
        for _ in range(20):
            step(model, 0, 1)
    assert error(model, (200, 1000, 8000)) < 1.5


def test_false_steps_in_the_middle_are_outweighed_too() -> None:
    model = begun(None)
    for n in range(40):
        step(model, (500, 1000, 2000, 4000)[n % 4])
    for _ in range(20):
        step(model, 1000, took_s=1e-3)
    for n in range(HANDFUL):
        step(model, (500, 1000, 2000, 4000)[n % 4])
    assert error(model) < 1.7


def test_a_first_step_that_stalled_is_forgotten_as_quickly() -> None:
    model = begun(None)
    step(model, 1000, took_s=60.0)
    for n in range(HANDFUL):
        step(model, (500, 1000, 2000, 4000)[n % 4])
    assert 0.8 < error(model) < 1.25


@pytest.mark.parametrize(
    "wrong",
    [
        *((1000, 10**6, 0, took_s) for took_s in (0.0, -1.0, math.nan, math.inf, 1e-200, 1e300)),
        *((tokens, 10**6, 0, 0.1) for tokens in (-5, math.nan, math.inf, 10**400)),
        *((1000, pairs, 0, 0.1) for pairs in (-5, math.nan, math.inf, 10**400)),
        *((1000, 10**6, decodes, 0.1) for decodes in (-5, math.nan, math.inf, 10**400)),
    ],
)
def test_what_no_step_can_have_been_is_not_believed(wrong: tuple[float, ...]) -> None:
    told: list[float] = []
    learning = Learning(None, list, lambda predicted_s, took_s: told.append(took_s))
    model = learning.prefill
    for n in range(HANDFUL):
        step(model, (500, 1000, 2000, 4000)[n % 4])
    before, samples = model.coefficients, model.samples
    for _ in range(HANDFUL):
        learning.observe(*wrong)  # type: ignore[arg-type]
    assert (model.coefficients, model.samples, told) == (before, samples, [])
