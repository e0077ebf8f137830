"""`KvferryTier` in the words of two versions of vLLM: a real store, and stand-ins for vLLM."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.errors import ConfigError, UsageError
from support import clock
from support.servers import TestServer
from support.vllm_offload_shapes import Locality, Medium, Request, VllmShape

ROW, ROWS = 16 << 10, 8
LIMIT_S = 20.0
KEYS = [bytes([number]) * 32 + bytes(4) for number in range(1, ROWS + 1)]
PATIENT = {"lookup_timeout_ms": 10_000, "load_stall_ms": 10_000}


@pytest.fixture(params=["0.22.1", "0.32.0"])
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> VllmShape:
    made = VllmShape(request.param)
    made.install(monkeypatch)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"architectures": ["Tiny"]}))
    (tmp_path / "model" / "model.safetensors").write_bytes(os.urandom(100))
    return tmp_path / "model"


def vllm_config(model: Path, **changes: Any) -> SimpleNamespace:
    """As much of a configuration as an identity reads."""
    made = SimpleNamespace(
        model_config=SimpleNamespace(model=str(model), revision=None, dtype="torch.float16"),
        cache_config=SimpleNamespace(
            cache_dtype="auto", block_size=16, prefix_caching_hash_algo="sha256"
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=2, pipeline_parallel_size=1, world_size=2
        ),
    )
    for path, value in changes.items():
        part, _, name = path.partition("__")
        setattr(getattr(made, part), name, value)
    return made


def spec_of(shape: VllmShape, config: Any, **changes: Any) -> Any:
    """An offloading spec of that version; `changes` are of its excerpt of the configuration."""
    if shape.version == "0.22.1":
        group = SimpleNamespace(
            kv_cache_spec=SimpleNamespace(block_size=16), layer_names=["0", "1"]
        )
        return SimpleNamespace(
            vllm_config=config,
            kv_cache_config=SimpleNamespace(kv_cache_groups=[group]),
            hash_block_size=16,
            block_size_factor=changes.get("blocks_per_chunk", 1),
        )
    excerpt = SimpleNamespace(
        groups=[SimpleNamespace(tokens_per_block=16, layer_names=("0", "1"))],
        model=SimpleNamespace(name=config.model_config.model, dtype="float16"),
        cache=SimpleNamespace(
            tokens_per_hash=16, blocks_per_chunk=changes.get("blocks_per_chunk", 1)
        ),
        parallel=SimpleNamespace(
            world_size=2, tp_size=2, pp_size=1, pcp_size=1, dcp_size=1, rank=0
        ),
        replicated_layout=changes.get("replicated_layout", False),
        canonical_layout=changes.get("canonical_layout", False),
        kv_cache_layout=changes.get("kv_cache_layout", "LBHNC"),
    )
    events = SimpleNamespace(enable_kv_cache_events=changes.get("events", False))
    return SimpleNamespace(config=excerpt, kv_events_config=events)


class Tier:
    """A tier as the connector makes it; new versions tell it too little to do without a name."""

    def __init__(self, shape: VllmShape, url: str, model: Path, **options: Any) -> None:
        self.shape = shape
        self.memory = mmap.mmap(-1, ROW * ROWS)
        changes = options.pop("changes", {})
        if shape.version == "0.32.0":
            options.setdefault("identity", "tests")
        self.tier = shape.tier.KvferryTier(
            offloading_spec=spec_of(shape, options.pop("config", vllm_config(model)), **changes),
            primary_kv_view=memoryview(self.memory).cast("b").cast("B").cast("b", (ROWS, ROW)),
            tier_type="KvferryTier",
            url=url,
            **{**PATIENT, **options},
        )

    def row(self, index: int) -> bytes:
        return self.memory[index * ROW : (index + 1) * ROW]

    def finished(self) -> Any:
        until = clock.now_s() + LIMIT_S
        while not (done := list(self.tier.get_finished_jobs())):
            assert clock.now_s() < until
        return done[0]

    def look(self, keys: list[bytes]) -> list[Any]:
        until = clock.now_s() + LIMIT_S
        while True:
            self.tier.get_finished_jobs()
            answers = [self.tier.lookup(key, Request("r")) for key in keys]
            self.tier.on_schedule_end()
            if self.shape.retry not in answers:
                return answers
            assert clock.now_s() < until


Open = Callable[..., Tier]


@pytest.fixture
def store(start: Any) -> TestServer:
    server: TestServer = start("valkey")
    return server


@pytest.fixture
def open_tier(shape: VllmShape, store: TestServer, model: Path) -> Iterator[Open]:
    opened: list[Tier] = []

    def open_one(**options: Any) -> Tier:
        opened.append(Tier(shape, store.url, options.pop("model", model), **options))
        return opened[-1]

    yield open_one
    for one in opened:
        one.tier.shutdown()
        one.memory.close()


def test_store_look_load(shape: VllmShape, open_tier: Open) -> None:
    one, two = open_tier(), open_tier()
    one.memory[:] = os.urandom(ROW * ROWS)
    one.tier.submit_store(shape.job(3, KEYS[:4], [4, 5, 6, 7]))
    assert one.tier.has_pending_work()
    done = one.finished()
    assert (done.job_id, done.success) == (3, True)
    assert two.look(KEYS[:5]) == [shape.hit] * 4 + [shape.miss]
    two.tier.submit_load(shape.job(7, KEYS[:4], [0, 1, 2, 3]))
    done = two.finished()
    assert (done.job_id, done.success) == (7, True)
    assert [two.row(i) for i in range(4)] == [one.row(i) for i in range(4, 8)]
    if shape.version == "0.32.0":
        assert done.transfer_bytes == 4 * ROW
        assert done.successful_keys is None
        assert two.tier.medium is Medium.STORAGE
    assert not two.tier.has_pending_work()
    two.tier.on_request_finished(Request("r"))
    two.tier.drain_jobs()
    assert two.tier.stats()["load_ok"] == 4


def test_part_of_a_load(shape: VllmShape, open_tier: Open) -> None:
    one, two = open_tier(), open_tier()
    one.tier.submit_store(shape.job(1, KEYS[:1], [0]))
    one.finished()
    two.tier.submit_load(shape.job(2, KEYS[:2], [0, 1]))
    done = two.finished()
    assert not done.success
    if shape.version == "0.32.0":
        assert done.successful_keys == (KEYS[0],)
    assert two.look(KEYS[:1]) == [shape.hit]


CHANGES: list[dict[str, Any]] = [
    {"changes": {"blocks_per_chunk": 2}},
    {"identity": "another team"},
]


def test_identities(shape: VllmShape, open_tier: Open, model: Path, tmp_path: Path) -> None:
    first = open_tier().tier.identity
    assert open_tier().tier.identity == first
    other = tmp_path / "other"
    other.mkdir()
    for file in model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    assert open_tier(model=other).tier.identity == first, "the same files elsewhere"
    (other / "model.safetensors").write_bytes(os.urandom(100))
    seen = {first, open_tier(model=other).tier.identity}
    changes = list(CHANGES)
    if shape.version == "0.32.0":
        for name, value in (
            ("kv_cache_layout", "LBNHC"),
            ("replicated_layout", True),
            ("canonical_layout", True),
        ):
            changes.append({"changes": {name: value}})
    seen |= {open_tier(**options).tier.identity for options in changes}
    assert len(seen) == len(changes) + 2


def test_the_seed_of_hashes(
    shape: VllmShape,
    open_tier: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = open_tier().tier.identity
    warned = any("PYTHONHASHSEED" in record.message for record in caplog.records)
    assert warned == (shape.version == "0.22.1"), "that draws it at random"
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert open_tier().tier.identity != first


def test_a_tier_that_cannot_know_its_model_wants_a_name(
    store: TestServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(version: str, config: Any) -> str:
        shape = VllmShape(version)
        shape.install(monkeypatch)
        with pytest.raises(ConfigError) as refused:
            Tier(shape, store.url, model, config=config, identity="")
        named = Tier(shape, store.url, model, config=config, identity="ours")
        named.tier.shutdown()
        named.memory.close()
        return str(refused.value).partition(", so KvferryTier")[0]

    known = vllm_config(model)
    assert "no more of a model than its name" in refusal("0.32.0", known)  # an excerpt is not it
    unread = vllm_config(tmp_path / "not here")
    assert "cannot be read here" in refusal("0.22.1", unread)
    adapters = vllm_config(model)
    adapters.lora_config = SimpleNamespace(max_loras=1)
    assert "LoRA adapters" in refusal("0.22.1", adapters)


def test_events_and_metrics(
    store: TestServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = VllmShape("0.32.0")
    shape.install(monkeypatch)
    options = {"changes": {"events": True}, "enable_kv_events": True, "locality": "REMOTE"}
    one = Tier(shape, store.url, model, backpressure_detector="theirs", **options)
    assert one.tier.bp_detector == "theirs"
    one.tier.submit_store(shape.job(1, KEYS[:2], [0, 1]))
    assert one.tier.take_events() == (), "not before the store has it"
    one.finished()
    (event,) = one.tier.take_events()
    assert (event.keys, event.removed, event.locality) == (KEYS[:2], False, Locality.REMOTE)
    assert one.tier.take_events() == ()
    definitions = one.tier.build_metric_definitions({})
    stats = one.tier.get_stats()
    seen = {(name, labels): value for name, labels, value in stats.seen}
    where = one.tier.address
    assert seen["vllm:kvferry_tier_store_chunks", (where, "ok")] == 2
    assert seen["vllm:kvferry_tier_store_bytes", (where,)] == 2 * ROW
    assert seen["vllm:kvferry_tier_available", (where,)] == 1
    assert seen["kvferry_store_bytes", ("redis",)] == 2 * ROW
    assert seen["kvferry_store_available", ("redis",)] == 1
    assert all(len(definitions[name].labelnames) == len(labels) for name, labels in seen)
    monkeypatch.setattr(shape.tier, "_STATS_EVERY_S", 0.0)
    gauges = ["vllm:kvferry_tier_available", "kvferry_store_available"]
    assert [name for name, *_ in one.tier.get_stats().seen] == gauges
    one.tier.shutdown()
    one.memory.close()


def test_what_cannot_be(shape: VllmShape, store: TestServer, model: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key 'ulr'"):
        Tier(shape, store.url, model, ulr="redis://c")
    view = memoryview(bytearray(ROW * ROWS))[::2]
    spec = spec_of(shape, vllm_config(model))
    with pytest.raises(UsageError, match="not contiguous"):
        shape.tier.KvferryTier(spec, view, "KvferryTier", url=store.url)


def test_the_spec_brings_the_tier_to_old_versions(shape: VllmShape) -> None:
    ended: list[str] = []
    tier = SimpleNamespace(on_schedule_end=lambda: ended.append("step"))
    manager = SimpleNamespace(secondary_tiers=[tier, object()], take_events=lambda: iter([1, 2]))
    if shape.version == "0.32.0":
        manager.on_schedule_end = lambda context: None
    spec = shape.spec.KvferryTieringSpec()
    spec.manager = manager
    shape.spec.KvferryTieringSpec()
    assert shape.registry._registry["KvferryTier"] == (
        "kvferry.integrations.vllm.tier",
        "KvferryTier",
    )
    for _ in range(2):
        assert spec.get_manager() is manager
    assert list(manager.take_events()) == [1, 2]
    assert ended == (["step"] if shape.version == "0.22.1" else [])
