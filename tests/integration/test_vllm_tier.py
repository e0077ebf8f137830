"""`KvferryTier` in the words of two versions of vLLM: a real store, and stand-ins for vLLM."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.errors import ConfigError, UsageError
from support.servers import TestServer
from support.vllm_offload_shapes import Locality, Medium, Request, VllmShape
from support.vllm_tiers import KEYS, ROW, ROWS, Tier, spec_of, tiny_model, vllm_config


@pytest.fixture(params=["0.22.1", "0.32.0"])
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> VllmShape:
    made = VllmShape(request.param)
    made.install(monkeypatch)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path)


Open = Callable[..., Tier]


@pytest.fixture
def store(start: Any) -> TestServer:
    server: TestServer = start("valkey")
    return server


@pytest.fixture
def open_tier(shape: VllmShape, store: TestServer, model: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_one(**options: Any) -> Tier:
            made = Tier(shape, store.url, options.pop("model", model), **options)
            return stack.enter_context(made)

        yield open_one


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
    with pytest.raises(ConfigError, match="unknown setting 'ulr'"):
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
