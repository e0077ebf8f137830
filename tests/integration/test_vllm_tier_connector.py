"""`KvferryTierConnector` over stand-ins of the connector of two versions of vLLM.

What vLLM's own does with it is tested on the real one, in tests/engines.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.base.errors import ConfigError
from kvferry.integrations.vllm.tier.tier_identity import TierEngine
from support.vllm_offload_shapes import Role, VllmShape
from support.vllm_shapes import EngineRequest
from support.vllm_tiers import tiny_model, vllm_config

TIERS = [{"type": "KvferryTier", "url": "redis://cache-1"}, {"type": "fs", "root": "/kv"}]
BLOCKS = [bytes([number]) * 32 for number in range(5)]


@pytest.fixture(params=["0.22.1", "0.32.0"])
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> VllmShape:
    made = VllmShape(request.param)
    made.install(monkeypatch)
    return made


@pytest.fixture
def config(tmp_path: Path) -> Any:
    """Of an engine with adapters."""
    made = vllm_config(tiny_model(tmp_path))
    made.lora_config = SimpleNamespace(lora_dtype="auto")
    made.kv_transfer_config = SimpleNamespace(
        kv_connector_extra_config={"cpu_bytes_to_use": 5, "secondary_tiers": TIERS},
        kv_load_failure_policy="fail",
    )
    return made


def opened(shape: VllmShape, config: Any, role: Role = Role.SCHEDULER) -> Any:
    return shape.tier_connector.KvferryTierConnector(config, role, None)


def request(name: str, lora: Any = None, blocks: list[bytes] | None = None) -> Any:
    made = EngineRequest(name, list(range(80)), lora_request=lora)
    made.block_hashes = list(BLOCKS if blocks is None else blocks)  # type: ignore[attr-defined]
    return made


def adapter(folder: Path, content: bytes, number: int = 1) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(content)
    return SimpleNamespace(lora_name="x", lora_int_id=number, lora_path=str(folder))


def names(connector: Any, asked: Any, local_tokens: int = 0) -> list[bytes]:
    """Of the blocks that vLLM looks for."""
    connector.on_new_request(asked)
    connector.get_num_new_matched_tokens(asked, local_tokens)
    return list(connector.connector_scheduler._req_status[asked.request_id].keys)


def offloads(connector: Any, *names: str) -> list[bool]:
    """Whether vLLM goes on to offload these requests after a step of theirs."""
    connector.build_connector_meta(SimpleNamespace(num_scheduled_tokens=dict.fromkeys(names, 1)))
    states = [connector.connector_scheduler._req_status[name] for name in names]
    return [
        state.max_offload_tokens is None
        if hasattr(state, "max_offload_tokens")
        else state.group_states[0].next_stored_block_idx < sys.maxsize
        for state in states
    ]


def test_tiers_get_the_whole_configuration(shape: VllmShape, config: Any) -> None:
    """Beside the scheduler; what users wrote is left as it is."""
    connector = opened(shape, config)
    given = connector.given.kv_transfer_config.kv_connector_extra_config
    ours, theirs = given["secondary_tiers"]
    assert isinstance(ours.pop("engine"), TierEngine)
    assert [ours, theirs] == TIERS
    assert given["self_describing_kv_events"] is True
    old = {"spec_name": "KvferryTieringSpec", "spec_module_path": "kvferry.integrations.vllm.spec"}
    new = {"spec_name": "TieringOffloadingSpec"}
    spec = {name: value for name, value in given.items() if name.startswith("spec_")}
    assert spec == (old if shape.version == "0.22.1" else new)
    assert config.kv_transfer_config.kv_load_failure_policy == "recompute"
    assert list(config.kv_transfer_config.kv_connector_extra_config) == [
        "cpu_bytes_to_use",
        "secondary_tiers",
    ]
    assert "engine" not in TIERS[0]
    workers = opened(shape, config, Role.WORKER).given.kv_transfer_config
    assert "engine" not in workers.kv_connector_extra_config["secondary_tiers"][0]
    shown, more = shape.tier_connector.KvferryTierConnector.build_prom_metrics(config, 1, 2)
    assert (shown["spec_name"], more) == (spec["spec_name"], (1, 2))


def test_what_users_say_of_spec_and_events_stays(shape: VllmShape, config: Any) -> None:
    said = {"spec_name": "Mine", "spec_module_path": "mine", "self_describing_kv_events": False}
    config.kv_transfer_config.kv_connector_extra_config |= said
    given = opened(shape, config).given.kv_transfer_config.kv_connector_extra_config
    assert said.items() <= given.items()


@pytest.mark.parametrize("tiers", [None, [], [{"type": "fs"}], "KvferryTier", [1]])
def test_without_a_tier_of_ours_it_does_not_start(
    shape: VllmShape, config: Any, tiers: Any
) -> None:
    config.kv_transfer_config.kv_connector_extra_config["secondary_tiers"] = tiers
    with pytest.raises(ConfigError, match='needs "secondary_tiers"'):
        opened(shape, config)


def test_blocks_have_the_names_of_what_an_adapter_holds(
    shape: VllmShape, config: Any, tmp_path: Path
) -> None:
    connector = opened(shape, config)
    assert names(connector, request("plain")) == BLOCKS
    one = names(connector, request("one", adapter(tmp_path / "one", b"same")))
    assert len(set(one) | set(BLOCKS)) == 2 * len(BLOCKS)
    assert names(connector, request("again", adapter(tmp_path / "one", b"same"), BLOCKS[:3])) == []
    reloaded = adapter(tmp_path / "one", b"same", 2)  # the file was written again, and is the same
    assert names(connector, request("same", reloaded)) == one
    other = names(connector, request("other", adapter(tmp_path / "two", b"else", 3)))
    assert not set(other) & {*one, *BLOCKS}
    assert offloads(connector, "plain", "same", "other") == [True] * 3


def test_blocks_that_are_named_later_have_the_same_names(
    shape: VllmShape, config: Any, tmp_path: Path
) -> None:
    connector = opened(shape, config)
    lora = adapter(tmp_path / "one", b"same")
    whole = names(connector, request("whole", lora))
    grown = request("grown", lora, BLOCKS[:2])
    assert names(connector, grown) == whole[:2]
    grown.block_hashes += BLOCKS[2:]
    assert names(connector, grown) == whole
    state = connector.connector_scheduler._req_status["grown"]
    assert connector._max_loadable_tokens(state.req, 0) == len(BLOCKS)
    assert state.req.num_tokens == 80, "all else is the request's own"


def test_what_nobody_knows_is_neither_loaded_nor_offloaded(
    shape: VllmShape, config: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connector = opened(shape, config)
    lora = adapter(tmp_path / "one", b"old")
    assert names(connector, request("old", lora))
    lora = adapter(tmp_path / "one", b"other")  # and nobody has said so
    assert offloads(connector, "old") == [False], "while it runs"
    assert names(connector, request("new", lora)) == []
    assert offloads(connector, "new") == [False]
    unread = SimpleNamespace(lora_name="y", lora_int_id=9, lora_path=str(tmp_path / "nowhere"))
    assert names(connector, request("unread", unread)) == []
    assert offloads(connector, "unread") == [False]
    assert caplog.text.count("its requests are not cached") == 2


def test_what_vllms_own_cache_may_have_of_other_weights(
    shape: VllmShape, config: Any, tmp_path: Path
) -> None:
    connector = opened(shape, config)
    assert names(connector, request("old", adapter(tmp_path / "one", b"old")))
    lora = adapter(tmp_path / "one", b"other", 2)
    assert names(connector, request("all", lora), 0)
    assert names(connector, request("part", lora), 32) == []
    assert offloads(connector, "all", "part") == [True, False]


def test_requests_that_have_ended_are_forgotten(
    shape: VllmShape, config: Any, tmp_path: Path
) -> None:
    connector = opened(shape, config)
    names(connector, request("one", adapter(tmp_path / "one", b"same")))
    connector.connector_scheduler._req_status.clear()
    connector.build_connector_meta(SimpleNamespace(num_scheduled_tokens={}))
    assert not connector._adapted
