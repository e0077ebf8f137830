"""Servers of SGLang on which one hash stands for two contents do not start with our storage."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvferry.base.errors import ConfigError
from kvferry.integrations.sglang import ambiguity
from kvferry.integrations.sglang.ambiguity import check_server

UTILS = "sglang.srt.mem_cache.utils"
LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [4.0]}


@pytest.fixture(autouse=True)
def sglang(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A SGLang of today, as far as its hashes go."""
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache", UTILS):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = sys.modules[UTILS]
    module.storage_namespace_seed = lambda *of: None  # type: ignore[attr-defined]
    yield module
    ambiguity._warn_of_tenants.cache_clear()


@pytest.fixture
def old(sglang: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SGLang whose hashes are made of tokens alone."""
    del sglang.storage_namespace_seed
    version_is(monkeypatch, "0.5.19.post1")


def version_is(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    "server",
    [
        {"enable_lora": True},
        {"enable_lora": None, "lora_paths": ["a=/adapters/a"]},
        {"lora_paths": {"a": "/adapters/a"}},
    ],
)
def test_adapters_are_refused_before_their_names_are_hashed(server: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"before 0\.5\.20.*LoRA") as caught:
        check_server(SimpleNamespace(**server), "/nowhere")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    "server", [None, SimpleNamespace(), SimpleNamespace(enable_lora=False, lora_paths=["a=b"])]
)
def test_tenants_are_warned_of_once_before_they_are_hashed(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_server(server, "/nowhere")
        check_server(server, "/nowhere")
    (said,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert "tenant" in said.getMessage()


@pytest.mark.parametrize("version", ["0.5.20", "0.5.20rc1", "0.6", "1.0.0"])
def test_a_later_version_may_have_the_seed_elsewhere(
    version: str,
    sglang: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    del sglang.storage_namespace_seed
    version_is(monkeypatch, version)
    check_server(SimpleNamespace(enable_lora=True), "/nowhere")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("version", ["0.4.10", "main"])
def test_what_is_older_or_unknown_counts_as_without(
    version: str, sglang: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    del sglang.storage_namespace_seed
    version_is(monkeypatch, version)
    with pytest.raises(ConfigError, match="LoRA"):
        check_server(SimpleNamespace(enable_lora=True), "/nowhere")


def loaded(config: dict[str, Any], context_len: int | None, **server: Any) -> SimpleNamespace:
    """Server arguments of a model with this configuration."""
    hf = SimpleNamespace(**config)
    model = SimpleNamespace(hf_config=hf, hf_text_config=hf, context_len=context_len)
    return SimpleNamespace(get_model_config=lambda: model, **server)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": LONG_ROPE, "original_max_position_embeddings": 4096},
        {"rope_scaling": {**LONG_ROPE, "original_max_position_embeddings": 4096}},
        {"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 4096},
        {"rope_parameters": {**LONG_ROPE, "original_max_position_embeddings": 4096}},
        {
            "rope_parameters": {"full_attention": LONG_ROPE, "sliding_attention": {}},
            "original_max_position_embeddings": 4096,
        },
    ],
)
def test_long_rope_is_refused_beyond_its_first_length_alone(config: dict[str, Any]) -> None:
    check_server(loaded(config, 4096), "/nowhere")
    check_server(loaded(config, 131072, context_length=4096), "/nowhere")
    for server in (loaded(config, 4097), loaded(config, 4096, context_length=8192)):
        with pytest.raises(ConfigError, match="--context-length 4096") as caught:
            check_server(server, "/nowhere")
        assert "\n" not in str(caught.value)


def test_long_rope_of_unknown_lengths_is_refused() -> None:
    with pytest.raises(ConfigError, match="LongRoPE"):
        check_server(loaded({"rope_scaling": LONG_ROPE}, 128), "/nowhere")
    lengths = {"rope_scaling": LONG_ROPE, "original_max_position_embeddings": 4096}
    with pytest.raises(ConfigError, match="LongRoPE"):
        check_server(loaded(lengths, None), "/nowhere")


@pytest.mark.parametrize("kind", ["llama3", "yarn", "dynamic", "linear", "mrope", "default"])
def test_other_positions_are_the_same_in_every_batch(kind: str) -> None:
    config = {"rope_scaling": {"rope_type": kind}, "original_max_position_embeddings": 4096}
    check_server(loaded(config, 131072), "/nowhere")
    check_server(loaded({"rope_scaling": None}, 131072), "/nowhere")


@pytest.fixture
def phi3(tmp_path: Path) -> str:
    """A model of LongRoPE, as its files say it."""
    told = {
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": LONG_ROPE,
    }
    (tmp_path / "config.json").write_text(json.dumps(told))
    return str(tmp_path)


def test_the_file_of_the_model_is_read_where_sglang_does_not_say_it(phi3: str) -> None:
    with pytest.raises(ConfigError, match="LongRoPE"):
        check_server(None, phi3)
    with pytest.raises(ConfigError, match="LongRoPE"):
        check_server(SimpleNamespace(json_model_override_args='{"a": 1}'), phi3)
    check_server(SimpleNamespace(context_length=4096), phi3)
    check_server(SimpleNamespace(json_model_override_args='{"rope_scaling": null}'), phi3)


def test_a_draft_model_of_long_rope_is_refused_too(phi3: str) -> None:
    with pytest.raises(ConfigError, match="LongRoPE"):
        check_server(loaded({}, 131072, speculative_draft_model_path=phi3), "/nowhere")
