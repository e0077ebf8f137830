"""What only the in-process connector has: chunks of several blocks, memory that no store backs,
latent KV, requests that end early. What it shares with other integrations is in
test_vllm_scenarios.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from engines.conftest import VllmVenv, prompt
from engines.integrations import PATIENCE_S, connector
from engines.stored import FORGERIES, frames, settle
from kvferry_lab.engines.engine_process import EngineProcess
from support.proxy import FaultProxy
from support.servers import TestServer, start_server
from support.stamps import until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

BLOCK, CHUNK = 32, 96
TOKENS = 7 * CHUNK + 50
SAID = 12


def transfer(**settings: Any) -> dict[str, Any]:
    limits = {"max_local_cpu_size": 0.0625, "lookup_timeout_s": PATIENCE_S}
    chosen = {**limits, "recompute": "never", **settings}
    extra = {f"kvferry.{name}": value for name, value in chosen.items()}
    return connector("KvferryConnector", extra)


class Engine:
    """An engine with a store behind a proxy, and another one without."""

    def __init__(
        self, engine: EngineProcess, plain: EngineProcess, store: TestServer, proxy: FaultProxy
    ) -> None:
        self.engine, self.plain, self.store, self.proxy = engine, plain, store, proxy

    def right(self, asked: list[int]) -> list[int]:
        return self.plain.generate([asked], SAID).tokens[0]

    def fill(self, asked: list[int], chunks: int) -> None:
        """Have the chunks of a prompt in the store, and none of its blocks in the engine."""
        before = frames(self.store)
        self.engine.generate([asked], SAID)
        settle(self.engine, self.store, before, chunks)
        self.engine.forget()

    def probe(self, what: str, **values: Any) -> Any:
        return self.engine.call(f"connector_probe:{what}", **values)


@pytest.fixture(scope="module")
def one(
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    open_engine: Callable[..., EngineProcess],
    plain: Callable[..., EngineProcess],
) -> Iterator[Engine]:
    with ExitStack() as stack:
        store = stack.enter_context(start_server("valkey"))
        proxy = stack.enter_context(FaultProxy(store.host, store.port))
        settings = transfer(remote_url=f"redis://{proxy.host}:{proxy.port}", chunk_size=90)
        engine = open_engine(stack, newest_vllm, model("tiny"), settings)
        yield Engine(engine, plain(newest_vllm), store, proxy)


def test_chunks_are_rounded_up_to_blocks_and_that_is_said(one: Engine) -> None:
    assert (
        "chunk_size 90 is no multiple of vLLM's block (32 tokens); chunks have 96" in one.engine.log
    )


@pytest.mark.parametrize("local", [BLOCK, 4 * BLOCK, 5 * BLOCK, 6 * BLOCK])
def test_blocks_that_the_engine_has_itself_stay_what_they_are(one: Engine, local: int) -> None:
    asked = prompt(TOKENS, 200 + local)
    right = one.right(asked)
    one.fill(asked, 7)
    start = [*asked[:local], *prompt(9, 300 + local)]
    assert one.engine.generate([start], SAID).tokens == [one.right(start)]
    before = one.probe("counts")
    said = one.engine.generate([asked], SAID).outputs[0]
    loaded = one.probe("counts")["loaded_chunks"] - before["loaded_chunks"]
    assert said.cached == 7 * CHUNK
    assert said.tokens == right
    assert loaded == 7 - local // CHUNK
    assert one.engine.generate([start], SAID).tokens == [one.right(start)]


def test_a_prompt_that_is_stored_as_a_whole_computes_its_last_token(one: Engine) -> None:
    asked = prompt(4 * CHUNK, 210)
    right = one.right(asked)
    one.fill(asked, 4)
    said = one.engine.generate([asked], SAID).outputs[0]
    assert said.cached == 4 * CHUNK
    assert said.tokens == right


def test_generated_tokens_come_back_too(one: Engine) -> None:
    asked = prompt(CHUNK - 10, 211)
    before = frames(one.store)
    said = one.engine.generate([asked], CHUNK + 30).tokens[0]
    settle(one.engine, one.store, before, 2)
    one.engine.forget()
    longer = [*asked, *said]
    answer = one.engine.generate([longer], SAID).outputs[0]
    assert answer.cached == 2 * CHUNK
    assert answer.tokens == one.right(longer)


def test_a_request_that_is_aborted_leaves_nothing_behind(one: Engine) -> None:
    asked = prompt(TOKENS, 212)
    right = one.right(asked)
    one.fill(asked, 7)
    free = one.probe("free_blocks")
    one.proxy.down.delay_s = 0.2
    seen = []
    for steps in (1, 3, 20, 200):
        left = one.probe("begin_and_abort", prompt=asked, steps=steps)
        assert left["forgotten"]
        seen.append(left["loading"])
        one.engine.forget()
    one.proxy.down.delay_s = 0.0
    assert one.probe("free_blocks") == free
    fresh = prompt(TOKENS, 213)
    assert one.probe("begin_and_abort", prompt=fresh, steps=2)["forgotten"]  # while it is saved
    for again in (asked, fresh):
        assert one.engine.generate([again], SAID).tokens == [one.right(again)]
    assert one.right(asked) == right
    assert one.probe("free_blocks") == free


def test_what_it_does_is_in_the_metrics_of_vllm(one: Engine) -> None:
    asked = prompt(TOKENS, 214)
    one.fill(asked, 7)
    before = one.engine.metrics()
    one.engine.generate([asked], SAID)
    one.engine.generate([[5, 6, 7]], 2)  # numbers travel with the steps
    after = one.engine.metrics()
    grown = {name: after[name] - before.get(name, 0) for name in after if "kvferry" in name}

    def sum_of(part: str) -> float:
        return sum(value for name, value in grown.items() if part in name)

    assert sum_of("kvferry_loaded_chunks") == 7
    token_bytes = 4 * 2 * 2 * 64 * 4  # layers, key and value, heads, numbers, float32
    assert sum_of("kvferry_loaded_bytes") == 7 * CHUNK * token_bytes
    assert sum_of("kvferry_failed_chunks") == 0


def test_a_reset_forgets_the_store_too(one: Engine) -> None:
    asked = prompt(TOKENS, 215)
    one.fill(asked, 7)
    assert one.probe("reset")
    until(lambda: not frames(one.store), 30)  # they are deleted in the background
    said = one.engine.generate([asked], SAID).outputs[0]
    assert said.cached == 0
    assert said.tokens == one.right(asked)


# --- Engines of their own ---


def test_memory_that_no_store_backs_is_found_from_another_process(
    vllm: VllmVenv,
    model: Callable[..., Path],
    run_engine: Callable[..., EngineProcess],
    plain: Callable[..., EngineProcess],
    tmp_path: Path,
) -> None:
    """The scheduler and the worker are two processes, and only the worker has memory."""
    file = tmp_path / "lmcache.yaml"
    file.write_text("chunk_size: 16\nlocal_cpu: true\nmax_local_cpu_size: 0.0625\n")
    settings = connector("KvferryConnector", {"kvferry.lookup_timeout_s": PATIENCE_S})
    settings["kv_load_failure_policy"] = "fail"  # vLLM's default; the connector knows better
    engine = run_engine(
        vllm,
        model("tiny"),
        settings,
        one_process=False,
        environment={"LMCACHE_CONFIG_FILE": str(file)},
    )
    asked = prompt(TOKENS, 220)
    right = plain(vllm).generate([asked], SAID).tokens
    assert engine.generate([asked], SAID).tokens == right
    engine.forget()
    said = engine.generate([asked], SAID)
    assert said.cached == [TOKENS // BLOCK * BLOCK]
    assert said.tokens == right


def test_latent_kv(
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    run_engine: Callable[..., EngineProcess],
    store: TestServer,
) -> None:
    """With latent vectors this vLLM computes the end of a prompt a little otherwise than the whole
    of it, so what is loaded is compared with what its own prefix cache gives. Where this version
    has none for latent vectors, ours gives it from memory, which has seen no store."""
    asked = prompt(300, 230)
    settings = transfer(remote_url=store.url, chunk_size=48)

    def opened() -> EngineProcess:
        return run_engine(newest_vllm, model("mla"), settings, block_size=16)  # as a CPU wants it

    engine = opened()
    engine.generate([asked], SAID)
    settle(engine, store, set(), 6)
    right = engine.generate([asked], SAID)
    assert right.cached == [288]
    engine.close()
    engine = opened()
    said = engine.generate([asked], SAID)
    assert said.cached == [288]
    assert said.tokens == right.tokens
    engine.close()
    FORGERIES["zeroed"](store, sorted(frames(store)), ())
    assert opened().generate([asked], SAID).tokens != right.tokens


def test_ranks_keep_their_own_heads_and_hit_together(
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    run_engine: Callable[..., EngineProcess],
    store: TestServer,
) -> None:
    asked = prompt(300, 240)
    settings = transfer(remote_url=store.url, chunk_size=BLOCK)
    two = {"tensor_parallel_size": 2, "one_process": False}
    engine = run_engine(newest_vllm, model("tiny"), settings, **two)
    right = engine.generate([asked], SAID).tokens
    keys = settle(engine, store, set(), 2 * 9)
    engine.close()
    assert len({key.split(b":")[1] for key in keys}) == 2  # an identity for each rank
    store.cli("DEL", sorted(keys)[0])  # what one rank has not, none has
    engine = run_engine(newest_vllm, model("tiny"), settings, **two)
    said = engine.generate([asked], SAID)
    assert said.cached[0] < 9 * BLOCK
    assert said.tokens == right
    settle(engine, store, frames(store), 0)
    engine.forget()
    again = engine.generate([asked], SAID)
    assert again.cached == [9 * BLOCK]
    assert again.tokens == right
