"""What an engine with a cache says is what it says without, through every integration of every
version.

First an engine that fills the store, then another process, which finds it full: it is lied to, and
then the store breaks in every way. Order matters in this file: see lane.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from engines.conftest import OLDEST, VllmVenv, prompt
from engines.integrations import CHUNK, Integration
from engines.lane import CHUNKS, FAULT_LIMIT_S, SAID, TOKENS, Lane
from engines.stored import DAMAGE, FORGERIES
from kvferry_lab.engines.engine_process import EngineProcess

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

FULL = CHUNK * CHUNKS
FAULTS = ("slow", "killed", "black_hole", "refused", "holes")
WELL = tuple(f"well {number}" for number in range(4))
MEASURED_AGAIN_S = 6.0  # a store that loads nothing is measured, no more often than every 5 s
NAMES = (
    *("base", "one", "two", "three", "part"),
    *(f"damaged {how}" for how in DAMAGE),
    *(f"forged {how}" for how in FORGERIES),
    *FAULTS,
    *WELL,
)


@pytest.fixture(scope="module")
def lane(
    vllm: VllmVenv,
    integration: Integration,
    model: Callable[..., Path],
    plain: Callable[..., EngineProcess],
    open_engine: Callable[..., EngineProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lane]:
    prompts = {name: prompt(TOKENS, seed) for seed, name in enumerate(NAMES)}
    folder = tmp_path_factory.mktemp("lane")
    with ExitStack() as stack:
        yield Lane(
            *(vllm, integration, model("tiny"), folder, open_engine, plain(vllm), stack, prompts),
        )


# --- The first engine ---


def test_cold(lane: Lane) -> None:
    assert len(lane.keys("base")) == CHUNKS
    assert lane.cold["base"].cached == 0
    assert lane.cold["base"].tokens == lane.right("base").tokens


def test_warm_in_the_same_process(lane: Lane) -> None:
    lane.keys("base")
    lane.writer.forget()
    again = lane.ask("base")
    assert again.cached == FULL
    assert again.tokens == lane.right("base").tokens
    assert lane.hits() >= FULL


def test_a_longer_prompt_and_one_that_branches_off(lane: Lane) -> None:
    lane.keys("base")
    longer = lane.prompts["base"] + prompt(200, 101)
    branch = lane.prompts["base"][: 10 * CHUNK] + prompt(200, 102)
    for asked, cached in ((longer, FULL), (branch, 10 * CHUNK)):
        lane.writer.forget()
        said = lane.writer.generate([asked], SAID)
        assert said.cached == [cached]
        assert said.tokens == lane.right_of([asked]).tokens


def test_many_at_once(lane: Lane) -> None:
    lane.keys("base")
    asked = [
        lane.prompts["base"],
        lane.prompts["base"] + prompt(90, 111),
        lane.prompts["base"][:200] + prompt(300, 112),
        *(prompt(400, seed) for seed in (113, 114)),
        lane.prompts["base"],
    ]
    lane.writer.forget()
    said = lane.writer.generate(asked, SAID)
    assert said.tokens == lane.right_of(asked).tokens
    assert sum(said.cached) >= FULL


def test_a_salt_is_another_cache(lane: Lane) -> None:
    lane.keys("base")
    lane.writer.forget()
    said = lane.writer.generate([{"ids": lane.prompts["base"], "salt": "mine"}], SAID).outputs[0]
    assert said.cached == 0
    assert said.tokens == lane.right("base").tokens


# --- Another process ---


def test_warm_in_a_new_process(lane: Lane) -> None:
    said = lane.reader.generate([lane.prompts["base"]], SAID).outputs[0]
    assert said.cached == FULL
    assert said.tokens == lane.right("base").tokens
    assert lane.hits() >= FULL


def test_many_at_once_in_a_new_process(lane: Lane) -> None:
    names = ("one", "two", "three")
    asked = [lane.prompts[name] for name in names] + [prompt(300, 121)]
    said = lane.reader.generate(asked, SAID)
    assert said.cached[:3] == [FULL] * 3
    assert said.tokens == lane.right_of(asked).tokens


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_noticed(lane: Lane, how: str) -> None:
    name = f"damaged {how}"
    _ = lane.reader
    DAMAGE[how](lane.store, lane.keys(name), lane.keys("base"))
    assert lane.ask(name).tokens == lane.right(name).tokens


def test_what_did_not_come_is_not_among_the_cached_tokens(lane: Lane) -> None:
    """One chunk is damaged: it is found, and what lies behind it is computed."""
    _ = lane.reader
    if lane.integration.name == "tier" or lane.vllm.version == OLDEST:
        pytest.skip("vLLM reports what was promised, and tells us nothing of it")
    DAMAGE["flipped"](lane.store, lane.keys("part")[CHUNKS // 2 :][:1], ())
    said = lane.ask("part")
    assert said.cached < FULL
    assert said.cached % CHUNK == 0
    assert said.tokens == lane.right("part").tokens


@pytest.mark.parametrize("how", FORGERIES)
def test_wrong_kv_would_be_seen(lane: Lane, how: str) -> None:
    name = f"forged {how}"
    _ = lane.reader
    FORGERIES[how](lane.store, lane.keys(name), lane.keys("base"))
    said = lane.ask(name)
    assert said.cached == FULL
    assert said.tokens != lane.right(name).tokens


def test_chunks_that_are_gone(lane: Lane) -> None:
    _ = lane.reader
    for key in lane.keys("holes")[::3]:
        lane.store.cli("DEL", key)
    assert lane.ask("holes").tokens == lane.right("holes").tokens


# --- Faults of the store, each met by the first request ---


def test_a_slow_store(lane: Lane) -> None:
    _ = lane.reader
    lane.proxy.down.bandwidth_bytes_per_s = 500_000  # a prompt in 5 s
    lane.proxy.down.delay_s = 0.05
    said = lane.reader.generate([lane.prompts["slow"]], SAID, limit_s=FAULT_LIMIT_S)
    assert said.tokens == [lane.right("slow").tokens]
    lane.recover()


@pytest.mark.parametrize("name", ["black_hole", "refused"])
def test_a_store_that_does_not_answer(lane: Lane, name: str) -> None:
    _ = lane.reader
    if name == "black_hole":
        lane.proxy.black_hole()
    else:
        lane.proxy.refuse()
        lane.proxy.cut_now()
    said = lane.reader.generate([lane.prompts[name]], SAID, limit_s=FAULT_LIMIT_S)
    assert said.tokens == [lane.right(name).tokens]
    lane.recover()


def test_a_store_that_dies_while_it_answers_and_comes_back(lane: Lane) -> None:
    _ = lane.reader
    for name in WELL:  # until what was slow is known to be quick
        if lane.ask(name).cached == FULL:
            break
        time.sleep(MEASURED_AGAIN_S)
    before = lane.reader.generate([prompt(100, 131)], SAID).seconds
    lane.proxy.down.bandwidth_bytes_per_s = 2_000_000
    fault = lane.proxy.cut_after(128 << 10)  # of one connection; all have about 2.7 MB to carry
    lane.reader.begin([lane.prompts["killed"]], SAID)
    fault.wait_fired()
    lane.store.kill()
    said = lane.reader.end(FAULT_LIMIT_S)
    assert said.tokens == [lane.right("killed").tokens]
    quick = lane.reader.generate([prompt(100, 132)], SAID)  # while it is away
    assert quick.seconds < 2 * before + 10
    lane.store.restart()  # empty
    lane.recover()
    lane.reader.forget()
    assert lane.ask("killed").tokens == lane.right("killed").tokens
