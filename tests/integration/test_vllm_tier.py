"""`KvferryTier` in the words of two versions of vLLM: a real store, and stand-ins for vLLM."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.base.errors import ConfigError, UsageError
from kvferry.integrations.vllm.tier.tier_identity import TierEngine
from support.servers import TestServer
from support.vllm_offload_shapes import Medium, Request, VllmShape
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


def test_a_model_whose_files_cannot_be_read_wants_a_name(open_tier: Open, tmp_path: Path) -> None:
    unread = vllm_config(tmp_path / "not here")
    with pytest.raises(ConfigError, match=r'cannot be read here, so .* set its option "identity"'):
        open_tier(config=unread)
    ours, theirs = (open_tier(config=unread, identity=name) for name in ("ours", "theirs"))
    assert ours.tier.identity != theirs.tier.identity


def test_scales_that_each_process_makes_anew_are_refused(open_tier: Open, model: Path) -> None:
    with pytest.raises(ConfigError, match="calculate_kv_scales"):
        open_tier(config=vllm_config(model, cache_config__calculate_kv_scales=True))


def test_what_changes_kv_changes_the_names(
    open_tier: Open, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a vLLM that tells its tiers the model's name alone."""
    rope = SimpleNamespace(rope_parameters={"rope_type": "default", "rope_theta": 5e3})
    changes: list[dict[str, Any]] = [
        {"model_config__hf_overrides": {"sliding_window": 64}},
        {"model_config__hf_text_config": rope},
        {"model_config__quantization": "fp8"},
        {"model_config__dtype": "torch.bfloat16"},
        {"cache_config__cache_dtype": "fp8_e5m2"},
        {"model_config__config_format": "mistral"},
        {"model_config__hf_config_path": str(tmp_path)},
        {"cache_config__prefix_caching_hash_algo": "sha256_cbor"},
    ]
    seen = [open_tier(config=vllm_config(model, **each)).tier.identity for each in [{}, *changes]]
    assert len(set(seen)) == len(changes) + 1
    same: dict[str, Any] = {"model_config__max_model_len": 99, "model_config__seed": 4}
    assert open_tier(config=vllm_config(model, **same)).tier.identity == seen[0]
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert open_tier().tier.identity not in seen


def test_another_connector_is_refused_with_the_configuration_to_use(
    shape: VllmShape, store: TestServer, model: Path
) -> None:
    """Whatever the tier is called by hand; what is said is complete, and has no secrets."""
    tier = {"type": "KvferryTier", "url": "redis://me:hush@cache-1", "identity": "by hand"}
    extra = {
        "spec_name": "KvferryTieringSpec",
        "spec_module_path": "kvferry.integrations.vllm.spec",
        "cpu_bytes_to_use": 1 << 30,
        "secondary_tiers": [tier, {"type": "fs", "password": "hush", "root": "it's here"}],
    }
    spec = spec_of(shape, vllm_config(model))
    role = "kv_both"
    if shape.version == "0.22.1":
        role = "kv_consumer"
        transfer = SimpleNamespace(kv_connector_extra_config=extra, kv_role=role)
        spec.vllm_config.kv_transfer_config = transfer
    else:
        spec.config.extra_config = extra
    view = memoryview(bytearray(ROW * ROWS)).cast("b", (ROWS, ROW))
    with pytest.raises(ConfigError) as refused:
        shape.tier.KvferryTier(spec, view, "KvferryTier", url=store.url, identity="by hand")
    assert "hush" not in str(refused.value)
    words = shlex.split(str(refused.value).partition("place of ***): ")[2])
    assert words[0] == "--kv-transfer-config"
    told = json.loads(words[1])
    assert told == {
        "kv_connector": "KvferryTierConnector",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": 1 << 30,
            "secondary_tiers": [
                {**tier, "url": "redis://me:***@cache-1"},
                {"type": "fs", "password": "***", "root": "it's here"},
            ],
        },
    }


def test_events_and_metrics(
    store: TestServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = VllmShape("0.32.0")
    shape.install(monkeypatch)
    options = {"changes": {"events": True}, "enable_kv_events": True}
    one = Tier(shape, store.url, model, backpressure_detector="theirs", **options)
    assert one.tier.bp_detector == "theirs"
    one.tier.submit_store(shape.job(1, KEYS[:2], [0, 1]))
    assert one.tier.take_events() == (), "not before the store has it"
    one.finished()
    (event,) = one.tier.take_events()
    assert (event.keys, event.removed) == (KEYS[:2], False)
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
        shape.tier.KvferryTier(
            spec, view, "KvferryTier", url=store.url, engine=TierEngine(vllm_config(model))
        )


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
