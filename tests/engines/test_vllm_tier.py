"""The tier under vLLM's own OffloadingConnector: the same tokens, whatever the store does.

Engines are started by few tests, because each start takes long: a test asks one engine many things.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engines.conftest import VllmVenv
from engines.integrations import INTEGRATIONS
from kvferry.client.pure.client import PureRedisClient
from kvferry_lab.engines.engine_process import EngineProcess
from support.proxy import FaultProxy
from support.servers import TestServer

BLOCK = 32
TOKENS = 12
# This machine may be busy: patience where a test wants hits.
PATIENT = {"lookup_timeout_ms": 5000, "tuning": {"load_stall_s": 5, "load_timeout_s": 20}}
SERIES = "vllm:kvferry_tier_"

pytestmark = pytest.mark.engines

Model = Callable[..., Path]
Run = Callable[..., EngineProcess]


def prompt_of(seed: int, tokens: int = 200) -> list[int]:
    return Random(seed).choices(range(300, 2000), k=tokens)


def whole(tokens: int) -> int:
    """Of a prompt, the tokens in whole blocks, one token left to compute."""
    return (tokens - 1) // BLOCK * BLOCK


@pytest.fixture
def proxy(store: TestServer) -> Iterator[FaultProxy]:
    with FaultProxy(store.host, store.port) as proxy:
        yield proxy


class Engines:
    """Opens engines with the tier, all alike but for what a test changes."""

    def __init__(self, vllm: VllmVenv, run: Run, model: Path, folder: Path) -> None:
        self.vllm, self.run, self.model, self.folder = vllm, run, model, folder
        self.stack = contextlib.ExitStack()

    def plain(self, **settings: Any) -> EngineProcess:
        return self.run(self.vllm, settings.pop("model", self.model), None, **settings)

    def cached(
        self, url: str, options: dict[str, Any] | None = None, **settings: Any
    ) -> EngineProcess:
        chosen = {**PATIENT, **(options or {})}
        behind = INTEGRATIONS["tier"].behind(url, self.folder, self.vllm.version, **chosen)
        transfer = self.stack.enter_context(behind)
        model = settings.pop("model", self.model)
        return self.run(self.vllm, model, transfer, **settings)


@pytest.fixture
def engines(vllm: VllmVenv, run_engine: Run, model: Model, tmp_path: Path) -> Iterator[Engines]:
    made = Engines(vllm, run_engine, model("tiny"), tmp_path)
    with made.stack:
        yield made


def settle(engine: EngineProcess) -> None:
    """Steps in which the last stores of the requests before go out and come back."""
    for _ in range(3):
        engine.generate([[5, 6, 7]], 4)


def store_keys(server: TestServer) -> list[bytes]:
    """Names of all chunks."""
    found = server.cli("KEYS", "kvf:*:*")
    assert isinstance(found, list)
    return sorted(found)


def damage(server: TestServer, names: list[bytes]) -> None:
    """Flip one bit in the middle of values."""
    with PureRedisClient(server.host, server.port) as client:
        for name in names:
            size = server.cli("STRLEN", name)
            value = bytearray(int(size))
            assert client.get(name, value)
            value[len(value) // 2] ^= 4
            client.set(name, bytes(value))


def test_a_new_process_finds_what_another_stored(
    engines: Engines, store: TestServer, proxy: FaultProxy
) -> None:
    """And what it finds damaged, late or not at all, it computes."""
    prompts = [prompt_of(seed) for seed in range(5)]
    longer = [*prompts[0], *prompt_of(99, 70)]
    plain = engines.plain()
    expected = [plain.generate([prompt], TOKENS).tokens[0] for prompt in prompts]
    expected_longer = plain.generate([longer], TOKENS).tokens
    plain.close()

    first = engines.cached(proxy.url)
    for prompt, tokens in zip(prompts, expected, strict=True):
        cold = first.generate([prompt], TOKENS)
        assert cold.cached == [0]
        assert cold.tokens == [tokens]
    settle(first)
    first.forget()
    warm = first.generate([prompts[0]], TOKENS)
    assert (warm.cached, warm.tokens) == ([whole(200)], expected[:1])
    first.close()
    assert len(store_keys(store)) >= 5 * whole(200) // BLOCK, first.log[-4000:]

    second = engines.cached(proxy.url)
    warm = second.generate([prompts[0]], TOKENS)
    assert (warm.cached, warm.tokens) == ([whole(200)], expected[:1])
    extended = second.generate([longer], TOKENS)
    assert extended.tokens == expected_longer
    assert extended.cached[0] >= whole(200)
    together = second.generate(prompts[1:3], TOKENS)
    assert together.cached == [whole(200)] * 2
    assert together.tokens == expected[1:3]
    if engines.vllm.version != "0.22.1":
        metrics = second.metrics()
        hits = sum(value for name, value in metrics.items() if "outcome=hit" in name)
        assert hits >= 3 * whole(200) / BLOCK
        assert any(name.startswith(f"{SERIES}load_bytes") for name in metrics)

    damage(store, store_keys(store))
    damaged = second.generate([prompts[3]], TOKENS)
    assert damaged.tokens == expected[3:4]
    assert damaged.cached == [0]
    proxy.black_hole()
    assert second.generate([prompts[4]], TOKENS).tokens == expected[4:5]
    others = [prompt_of(seed) for seed in (50, 51)]
    hole = second.generate(others, TOKENS).tokens
    proxy.heal()
    store.kill()
    second.forget()
    assert second.generate(others, TOKENS).tokens == hole
    second.close()


def test_other_bytes_are_never_found(engines: Engines, store: TestServer, model: Model) -> None:
    """Another element type, other weights, another block size: each computes its own."""
    prompt = prompt_of(1)
    first = engines.cached(store.url)
    own = first.generate([prompt], TOKENS)
    settle(first)
    first.close()
    assert store_keys(store)
    for changed in (
        {"dtype": "bfloat16"},
        {"model": model("tiny", seed=2)},
        {"block_size": 2 * BLOCK},
    ):
        other = engines.cached(store.url, **changed)
        assert other.generate([prompt], TOKENS).cached == [0], changed
        other.close()
    copied = engines.cached(store.url)
    again = copied.generate([prompt], TOKENS)
    assert (again.cached, again.tokens) == ([whole(200)], own.tokens)


def test_a_store_that_dies_while_it_is_read(
    engines: Engines, store: TestServer, proxy: FaultProxy
) -> None:
    prompts = [prompt_of(seed, 1200) for seed in range(2)]
    first = engines.cached(store.url)
    expected = [first.generate([prompt], TOKENS).tokens[0] for prompt in prompts]
    settle(first)
    first.close()
    second = engines.cached(proxy.url)
    second.generate([[5, 6, 7]], 4)  # connected
    proxy.cut_after(300 << 10)
    proxy.refuse()
    cut = second.generate([prompts[0]], TOKENS)
    assert cut.tokens == expected[:1]
    proxy.heal()
    proxy.stall_after(300 << 10, times=8)
    stalled = second.generate([prompts[1]], TOKENS)
    assert stalled.tokens == expected[1:]


def test_with_a_process_for_each_part(engines: Engines, store: TestServer) -> None:
    """As `vllm serve` runs it: the scheduler here, the worker there, the memory shared."""
    prompt = prompt_of(1)
    first = engines.cached(store.url, one_process=False)
    cold = first.generate([prompt], TOKENS)
    settle(first)
    first.close()
    second = engines.cached(store.url, one_process=False)
    warm = second.generate([prompt], TOKENS)
    assert (warm.cached, warm.tokens) == ([whole(200)], cold.tokens)
