"""What an engine's steps teach of its speed: totals of steps, whatever a step consists of."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvferry.cache.cost.prefill import PrefillModel

STEP_TOKENS = 512


def run(model: PrefillModel, truth: PrefillModel, seed: int, *, noise: float = 0.0) -> None:
    """Steps as an engine makes them: prompts in pieces, sequences that go on, stalls."""
    rng = random.Random(seed)
    for _ in range(60):
        left, done = rng.choice([40, 300, 1500, 4000]), 0
        while left:
            decodes = rng.randrange(6)
            new = min(left, STEP_TOKENS - decodes)
            contexts = [rng.randrange(2000) for _ in range(decodes)]
            pairs = (done + new) ** 2 - done**2 + sum(2 * m + 1 for m in contexts)
            a, c, d, e = truth.coefficients
            took_s = a + c * new + d * pairs + e * decodes
            took_s *= 1 + noise * rng.uniform(-1, 1)
            model.observe_step(new, pairs, decodes, took_s * (50 if rng.random() < 0.02 else 1))
            left, done = left - new, done + new


TRUTH = PrefillModel(0.008, 4e-4, 2e-8, 1e-3, fixed=True, step_tokens=STEP_TOKENS)
A, C, D, E = TRUTH.coefficients


@pytest.mark.parametrize("prior", [None, (0.0, 4e-5, 1e-9, 0.0), (0.0, 4e-3, 1e-6, 0.0)])
def test_a_prompt_is_foretold_from_steps_that_were_cut_and_shared(
    prior: tuple[float, float, float, float] | None,
) -> None:
    for seed in range(5):
        model = PrefillModel(step_tokens=STEP_TOKENS)
        if prior is not None:
            model.expect(prior)
        run(model, TRUTH, seed, noise=0.1)
        for tokens, cached in [(300, 0), (2000, 0), (2000, 1500), (8000, 0)]:
            expected = TRUTH.predict_s(tokens, cached)
            assert model.predict_s(tokens, cached) == pytest.approx(expected, rel=0.2)


def test_thousands_of_steps_of_decoding_do_not_wash_out_what_prompts_cost() -> None:
    model = PrefillModel(step_tokens=STEP_TOKENS)
    model.expect((0.0, 4e-5, 1e-9, 0.0))
    run(model, TRUTH, 1)
    for n in range(3000):
        model.observe_step(0, 3000 + n, 1, A + E)
    assert model.predict_s(4000) == pytest.approx(TRUTH.predict_s(4000), rel=0.1)


def test_tokens_wait_for_hardly_any_fit_and_a_prompt_is_fitted_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fit takes longer than all else that a step does for the cache."""
    model = PrefillModel(step_tokens=STEP_TOKENS)
    run(model, TRUTH, 1)
    fits: list[int] = []
    fit = PrefillModel._fit

    def counted(self: PrefillModel) -> None:
        fits.append(self.samples)
        fit(self)

    monkeypatch.setattr(PrefillModel, "_fit", counted)
    for n in range(6000):
        model.observe_step(0, 3000 + n, 1, A + E)
        if n % 500 == 0:
            model.observe_step(512, 512**2, 0, TRUTH.predict_s(512))
    assert len(fits) <= 1  # nobody has asked
    model.predict_s(512)
    assert fits[-1] == model.samples
    model.predict_s(512)
    assert fits.count(model.samples) == 1


def test_a_token_waits_for_few_steps_to_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a fit that is most of what a step does; what a token takes is known all the same."""
    model = PrefillModel(step_tokens=STEP_TOKENS)
    seen: list[float] = []
    add = PrefillModel._add

    def counted(self: PrefillModel, x: Sequence[float], took_s: float) -> None:
        seen.append(took_s)
        add(self, x, took_s)

    monkeypatch.setattr(PrefillModel, "_add", counted)
    model.observe_step(512, 512**2, 0, TRUTH.predict_s(512))
    for n in range(2000):
        model.observe_step(0, 3000 + n, 1, A + E)
    assert len(seen) < 2000 / 8
    for n in range(2000):  # it became slower
        model.observe_step(0, 3000 + n, 1, 2 * (A + E))
    a, _, _, e = model.coefficients
    assert a + e == pytest.approx(2 * (A + E), rel=0.1)
    assert model.samples == 4001


def test_steps_and_questions_come_from_different_threads() -> None:
    """Whoever asks fits what a step is adding to."""
    model, over = PrefillModel(step_tokens=STEP_TOKENS), threading.Event()
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(_ask_until, model, over) for _ in range(2)]
        for seed in range(20):
            run(model, TRUTH, seed)
        over.set()
        assert all(each.result(60) for each in asked)
    assert model.predict_s(2000) == pytest.approx(TRUTH.predict_s(2000), rel=0.2)


def _ask_until(model: PrefillModel, over: threading.Event) -> bool:
    while not over.is_set():
        predicted_s = model.predict_s(2000)
        assert 0 <= predicted_s < 100
    return True


def test_hundreds_of_hits_leave_the_price_of_a_long_prompt() -> None:
    model = PrefillModel(step_tokens=STEP_TOKENS)
    model.expect((0.0, 4e-5, 1e-9, 0.0))
    run(model, TRUTH, 2)
    for n in range(500):
        new = 20 + n % 12
        pairs = (2000 + new) ** 2 - 2000**2
        took_s = A + C * new + D * pairs
        model.observe_step(new, pairs, 0, took_s * (1 + 0.2 * ((n * 7) % 11 - 5) / 5))
    assert model.predict_s(4000) == pytest.approx(TRUTH.predict_s(4000), rel=0.4)


def test_a_prompt_needs_as_many_steps_as_it_takes_and_each_has_its_fixed_part() -> None:
    model = PrefillModel(0.01, 1e-4, 0.0, fixed=True, step_tokens=512)
    assert model.predict_s(2048) == pytest.approx(4 * 0.01 + 0.2048)
    assert model.predict_s(2048, 2000) == pytest.approx(0.01 + 0.0048)
    assert PrefillModel(0.01, 1e-4, 0.0, fixed=True).predict_s(2048) == pytest.approx(0.2148)


@pytest.mark.parametrize("wrong", [0.02, 0.1, 1.0, 10.0])
def test_one_real_step_corrects_a_guess(wrong: float) -> None:
    model = PrefillModel(step_tokens=STEP_TOKENS)
    assert not model.known
    model.expect((0.0, wrong * C, wrong * D, 0.0))
    assert model.known
    assert model.samples == 0
    for start in range(0, 2048, 512):
        pairs = (start + 512) ** 2 - start**2
        took_s = A + 512 * C + pairs * D
        model.observe_step(512, pairs, 0, took_s)
    assert model.predict_s(2048) == pytest.approx(TRUTH.predict_s(2048), rel=0.1)
    assert model.predict_s(4096) == pytest.approx(TRUTH.predict_s(4096), rel=0.3)


def test_a_short_step_says_little_of_a_long_prompt() -> None:
    model = PrefillModel(step_tokens=STEP_TOKENS)
    model.expect((0.0, 1e-4, 0.0, 0.0))
    model.observe_step(40, 1600, 0, 0.009)  # mostly the fixed part, which a guess has not
    assert model.predict_s(4096) < 2 * 4096e-4


def test_nonsense_is_no_prior() -> None:
    model = PrefillModel()
    for prior in [(0, 0, 0, 0), (0, -1, 0, 0), (0, float("nan"), 0, 0), (0, float("inf"), 0, 0)]:
        model.expect(prior)
        assert not model.known
    told = PrefillModel(0, 1e-3, 0, fixed=True)
    told.expect((0, 1.0, 0, 0))
    assert told.predict_s(1000) == 1.0
