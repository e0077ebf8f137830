"""Many requests at once, on a clock that only waiting moves: loads share a store, and prompts an
engine.

The engine computes in the order in which requests have their KV, one after the other, and what a
cache does not bring. Without a cache the request in the middle of sixteen waits for eight others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import pytest

from kvferry.cache.steps import Steps, Wait
from kvferry.chunks.prompt import Prompt
from unit.test_cache_patience import CHUNKS, COMPUTE_S, SIZE, TOKENS, Bench

TICK_S = 0.002


@dataclass
class Asked:
    """A request: what it waits for, until when; and what came of it."""

    prompt: Prompt
    came_at: float
    steps: Steps[object]
    wait: Wait | None = None
    until: float = 0.0
    held: int = 0
    ttft_s: float = 0.0


class Engine:
    """Asks a cache for many prompts at a time, and computes the rest of each, in turn."""

    def __init__(self, made: Bench, *, looks: bool = False) -> None:
        self.made, self.clock = made, made.clock
        self.looks = looks
        self.free_at = 0.0
        self._tasks: list[Asked] = []

    def ask(self, prompts: Sequence[Prompt], gaps_s: float = 0.0) -> list[Asked]:
        """All of them, so much time apart; each says what is ahead of it, as a scheduler does."""
        began, waiting, asked = self.clock.now, list(prompts), list[Asked]()
        at_work: list[Asked] = []
        while waiting or at_work:
            while waiting and began + (len(prompts) - len(waiting)) * gaps_s <= self.clock.now:
                at_work.append(self._begun(waiting.pop(0), asked))
                asked.append(at_work[-1])
            at_work = [one for one in at_work if not self._over(one)]
            self.clock.now += TICK_S
            self._background()
        self.clock.now = max(self.clock.now, self.free_at)
        self.made.retriever.pending.sweep()
        self.made.store.forget_jobs()
        self.made.memory.cache.clear()
        self.made.later.clear()
        self._tasks.clear()
        return asked

    def _begun(self, prompt: Prompt, before: Sequence[Asked]) -> Asked:
        ahead = sum(1 for one in before if not one.ttft_s)
        prompt = Prompt(prompt.hashes, TOKENS, SIZE, queued=(ahead * TOKENS, ahead * TOKENS**2))
        return Asked(prompt, self.clock.now, self._life(prompt))

    def _life(self, prompt: Prompt) -> Steps[object]:
        retriever, deadline = self.made.retriever, self.clock.now + 60
        if self.looks:
            found = yield from retriever.looking(prompt, None, deadline, touch=True, begin=True)
            if not found.worth_tokens:
                return None
        return (yield from retriever.gathering(prompt, deadline))

    def _background(self) -> None:
        """What lookups have begun, and measurements."""
        while self.made.later:
            self._tasks.append(Asked(self.made.prompt(stored=False), 0.0, self.made.later.pop()))
        self._tasks[:] = [task for task in self._tasks if not self._goes_on(task)]

    def _goes_on(self, one: Asked) -> bool:
        """Do what can be done; whether it is over."""
        now = self.clock.now
        try:
            if one.wait is None:
                one.wait = next(one.steps)
                one.until = now + one.wait.timeout_s
            while one.wait.of.done or now >= one.until:
                one.wait = one.steps.send(one.wait.of.wait(0.0))
                one.until = now + one.wait.timeout_s
        except StopIteration:
            return True
        return False

    def _over(self, one: Asked) -> bool:
        if not self._goes_on(one):
            return False
        one.held = self.made.memory.ready(one.prompt)[0]
        rest_s = self.made.prefill.predict_s(TOKENS, one.held * SIZE)
        self.free_at = max(self.free_at, self.clock.now) + rest_s
        one.ttft_s = self.free_at - one.came_at
        return True


def engine_of(
    monkeypatch: pytest.MonkeyPatch, percent: float, *, on_demand: bool, looks: bool = False
) -> Engine:
    """Over a store that loads a prompt in the time of computing, divided by `percent` / 100."""
    bytes_s = percent / 100 * CHUNKS * (1 << 20) / COMPUTE_S
    made = Bench(monkeypatch, 0.0005, bytes_s, COMPUTE_S, on_demand=on_demand, prompts=70)
    for _ in range(4):
        made.ask(made.prompt())
    return Engine(made, looks=looks)


@pytest.fixture(params=["asks first", "reads at once", "looks before"])
def how(request: pytest.FixtureRequest) -> dict[str, bool]:
    return {"on_demand": request.param != "asks first", "looks": request.param == "looks before"}


def none_s(count: int) -> float:
    """The mean time to a first token without a cache."""
    return COMPUTE_S * (count + 1) / 2


@pytest.mark.parametrize("count", [4, 8, 16, 32])
@pytest.mark.parametrize("percent", [600, 1200])
@pytest.mark.parametrize("gap_s", [0.0, 0.01])
def test_all_prompts_that_come_at_once_are_loaded(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, bool], count: int, percent: float, gap_s: float
) -> None:
    """Behind the others the first ones were later than computing them alone, and were cut."""
    engine = engine_of(monkeypatch, percent, **how)
    for _ in range(2):
        asked = engine.ask([engine.made.prompt() for _ in range(count)], gap_s)
        assert [one.held for one in asked] == [CHUNKS] * count, [one.ttft_s for one in asked]
        all_s = count * COMPUTE_S * 100 / percent
        assert max(one.ttft_s for one in asked) < 1.3 * all_s + 0.5 * COMPUTE_S


@pytest.mark.parametrize("percent", [10, 30, 60, 90, 130, 200, 300])
@pytest.mark.parametrize("gap_s", [0.0, 0.01])
def test_where_loading_pays_little_or_not_a_burst_takes_hardly_longer_than_without_a_cache(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, bool], percent: float, gap_s: float
) -> None:
    engine, count = engine_of(monkeypatch, percent, **how), 16
    means = []
    for _ in range(4):
        asked = engine.ask([engine.made.prompt() for _ in range(count)], gap_s)
        means.append(fmean(one.ttft_s for one in asked) / none_s(count))
    assert max(means) < 1.1, means


def test_of_many_at_once_whatever_is_stored_is_loaded_and_the_rest_computed(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, bool]
) -> None:
    engine = engine_of(monkeypatch, 1000, **how)
    for _ in range(3):
        stored = [True, False, True, True] * 4
        asked = engine.ask([engine.made.prompt(stored=here) for here in stored])
        assert [one.held for one in asked] == [CHUNKS * here for here in stored]


def test_a_store_that_falls_silent_in_a_burst_costs_it_little(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, bool]
) -> None:
    engine, count = engine_of(monkeypatch, 600, **how), 16
    engine.made.store.hangs = True
    asked = engine.ask([engine.made.prompt() for _ in range(count)])
    assert fmean(one.ttft_s for one in asked) < 1.1 * none_s(count)


def test_one_that_is_alone_is_decided_as_before(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, bool]
) -> None:
    engine = engine_of(monkeypatch, 60, **how)
    alone = [engine.ask([engine.made.prompt()])[0].ttft_s for _ in range(20)]
    assert fmean(alone) < 1.07 * COMPUTE_S
