"""The keys of HiCache's extra config, and what of a server and a pool makes another identity."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.base.errors import ConfigError
from kvferry.config.integrations import SglangSettings
from kvferry.integrations.sglang.identity import has_draft, page_fields, server_fields
from support.host_pools import Config, MhaPool, MlaPool


def test_the_package_can_be_named_where_sglang_is_not() -> None:
    package = importlib.import_module("kvferry.integrations.sglang")
    assert package.__all__ == ["KvferryHiCache"]
    assert "sglang" not in sys.modules
    with pytest.raises(AttributeError, match="no attribute 'Kvferry'"):
        _ = package.Kvferry


OF_SGLANG = {
    "backend_name": "kvferry",
    "module_path": "kvferry.integrations.sglang",
    "class_name": "KvferryHiCache",
    "interface_v1": 1,
    "prefetch_threshold": 128,
}


def test_keys_of_ours_and_of_sglang_lie_in_one_object() -> None:
    settings = SglangSettings.read(
        {**OF_SGLANG, "url": "redis://cache-1:7000", "connections": 3, "revision": "r"}
    )
    assert settings.client.address == "cache-1:7000"
    assert settings.client.connections == 3
    alone = settings.replace(client=SglangSettings().client)
    assert alone == SglangSettings(url="redis://cache-1:7000", revision="r")


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"conections": 3}, "'conections'"),
        ({"lookup_timeout_ms": 3}, "'lookup_timeout_ms'"),
        ({"lookup_timeout_s": 1}, "lookup_timeout_s is gone"),
        ({"load_timeout_s": 1}, "load_timeout_s is gone"),
        ({"store_timeout_s": 1}, "store_timeout_s is gone"),
        ({"url": 5}, "url"),
        ({"url": "http://cache-1"}, "the URL must begin"),
        ({"connections": -1}, "connections"),
        ({"revision": 7}, "revision"),
        ({"config_file": "/nowhere.yaml"}, "/nowhere.yaml"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence_with_the_key(
    extra: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        SglangSettings.read({**OF_SGLANG, **extra})
    assert "\n" not in str(caught.value)


def test_a_secret_of_the_url_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        SglangSettings.read({"url": "redis://:hunter2@cache-1/zero"})
    assert "hunter2" not in str(caught.value)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    return tmp_path


def described(server: Any, **ours: Any) -> dict[str, str | int]:
    return server_fields(server, SglangSettings(**ours), "tiny")


def test_other_weights_are_another_identity(weights: Path) -> None:
    server = SimpleNamespace(model_path=str(weights))
    before = described(server)
    assert described(server) == before
    (weights / "model.safetensors").write_bytes(bytes(999) + b"\1")
    assert described(server)["weights"] != before["weights"]
    assert described(server, revision="mine")["weights"] == "mine"


def test_weights_nobody_can_read_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    described(SimpleNamespace(model_path="/nowhere/at-all"))
    assert 'set "model_path" or "revision"' in caplog.text


@pytest.mark.parametrize(
    "option",
    [
        {"kv_cache_dtype": "fp8_e5m2"},
        {"quantization": "fp8"},
        {"json_model_override_args": '{"rope_scaling": {"factor": 4}}'},
    ],
)
def test_options_that_change_kv_are_told(weights: Path, option: dict[str, str]) -> None:
    plain = SimpleNamespace(model_path=str(weights), json_model_override_args="{}")
    other = SimpleNamespace(**{**vars(plain), **option})
    assert described(other) != described(plain)


def test_a_draft_model_matters_to_pages_with_its_layers(weights: Path) -> None:
    server = SimpleNamespace(model_path=str(weights), speculative_draft_model_path=str(weights))
    assert "draft" in described(server)
    assert "draft" not in described(SimpleNamespace(model_path=str(weights)))
    plain, packed = MhaPool(), MhaPool()
    packed.target_layer_num, plain.target_layer_num = packed.layer_num - 1, plain.layer_num
    assert [has_draft(pool, "kv") for pool in (plain, packed)] == [False, True]
    assert has_draft(plain, "draft_swa")


@pytest.mark.parametrize("form", ["text", "mapping", "object", "names"])
def test_an_adapter_that_is_trained_anew_is_another_identity(weights: Path, form: str) -> None:
    adapter = weights / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(bytes(100))
    told: Any = {
        "text": [f"mine={adapter}"],
        "mapping": [{"lora_name": "mine", "lora_path": str(adapter)}],
        "object": [SimpleNamespace(lora_name="mine", lora_path=str(adapter))],
        "names": {"mine": str(adapter)},
    }[form]
    server = SimpleNamespace(model_path=str(weights / "model.safetensors"), lora_paths=told)
    before = described(server)
    assert described(SimpleNamespace(model_path=server.model_path)) != before
    (adapter / "adapter_model.safetensors").write_bytes(bytes(99) + b"\1")
    assert described(server)["adapters"] != before["adapters"]


def test_random_weights_are_no_model(weights: Path) -> None:
    server = SimpleNamespace(model_path=str(weights), load_format="dummy")
    assert described(server)["weights"] == "dummy"


def shorter(pool: MhaPool) -> None:
    pool.page_size = 2


def narrower(pool: MhaPool) -> None:
    pool.head_num = 1


def of_other_type(pool: MhaPool) -> None:
    pool.dtype = "torch.float16"


def other_layout(pool: MhaPool) -> None:
    pool.layout = "page_head"


def other_layers(pool: MhaPool) -> None:
    pool.start_layer = 1


@pytest.mark.parametrize("change", [shorter, narrower, of_other_type, other_layout, other_layers])
def test_another_shape_is_another_identity(change: Callable[[MhaPool], None]) -> None:
    pool, other = MhaPool(), MhaPool()
    change(other)
    assert page_fields(pool, "kv", Config()) != page_fields(other, "kv", Config())


@pytest.mark.parametrize(
    "config",
    [
        Config(tp_rank=1, tp_size=2),
        Config(pp_rank=1, pp_size=2),
        Config(attn_cp_rank=1, attn_cp_size=2),
        Config(is_mla_model=True),
    ],
)
def test_another_rank_is_another_identity(config: Config) -> None:
    assert page_fields(MhaPool(), "kv", config) != page_fields(MhaPool(), "kv", Config())
    assert page_fields(MhaPool(), "draft", config) != page_fields(MhaPool(), "kv", config)


def test_ranks_that_have_the_same_bytes_share_them() -> None:
    first, second = (Config(tp_rank=rank, tp_size=2, is_mla_model=True) for rank in range(2))
    assert page_fields(MlaPool(), "kv", first) == page_fields(MlaPool(), "kv", second)
    # What is divided by heads they do not, nor the state of Mamba.
    assert page_fields(MhaPool(), "draft", first) != page_fields(MhaPool(), "draft", second)
    assert page_fields(MlaPool(), "mamba", first) != page_fields(MlaPool(), "mamba", second)


def test_sizes_of_tensor_parallelism_share_groups_of_heads() -> None:
    two = Config(tp_rank=1, tp_size=2, tp_lcm_size=4)
    four = Config(tp_rank=3, tp_size=4, tp_lcm_size=4)
    wide, narrow = MhaPool("page_head", heads=4), MhaPool("page_head", heads=2)
    assert page_fields(wide, "kv", two) == page_fields(narrow, "kv", four)
    assert page_fields(MhaPool("page_head", heads=4), "kv", four) != page_fields(wide, "kv", two)


def test_adapters_that_nobody_can_read_are_shared_with_nobody(
    weights: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name on the hub is no sign of which commit the server has loaded."""
    server = SimpleNamespace(model_path=str(weights), lora_paths={"mine": "org/adapter"})
    own = described(server)["adapters"]
    assert described(server)["adapters"] == own
    monkeypatch.setattr("kvferry.integrations.sglang.identity._OWN", "another process")
    assert described(server)["adapters"] != own
    assert "'org/adapter' cannot be read here" in caplog.text
