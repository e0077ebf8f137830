"""The doctor on models: bytes per token as published, and who wins, store or GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvferry.base.errors import UsageError
from kvferry_lab.doctor.facts import Finding, Severity, TrafficFacts
from kvferry_lab.doctor.model import chunk_tokens, load_model, read_model
from kvferry_lab.doctor.prefill import GPUS, Engine, examine_model

MIB = 1 << 20


def dense(layers: int, hidden: int, heads: int, kv: int, inner: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["Model"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": inner,
        "torch_dtype": "bfloat16",
        **more,
    }


LLAMA_8B = dense(32, 4096, 32, 8, 14336)
LLAMA_70B = dense(80, 8192, 64, 8, 28672)
QWEN3_06B = dense(28, 1024, 16, 8, 3072, head_dim=128)
QWEN25_7B = dense(28, 3584, 28, 4, 18944)
DEEPSEEK_V3 = {
    **dense(61, 7168, 128, 128, 18432),
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
}
GPT_OSS_120B = {
    **dense(36, 2880, 64, 8, 2880, head_dim=64),
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}


@pytest.mark.parametrize(
    ("config", "block_mib"),  # 16 tokens, as vLLM publishes them
    [
        (LLAMA_8B, 2.0),
        (dense(16, 2048, 32, 8, 8192, head_dim=64), 0.5),  # Llama-3.2-1B
        (LLAMA_70B, 5.0),  # 1.25 for each of four GPUs
        (QWEN3_06B, 1.75),
        (QWEN25_7B, 0.875),
        (dense(40, 5120, 32, 8, 32768, head_dim=128), 2.5),  # Mistral-Small-24B
    ],
)
def test_bytes_per_token_as_published(config: dict[str, Any], block_mib: float) -> None:
    assert read_model(config).bytes_per_token * 16 == block_mib * MIB


def test_latent_attention() -> None:
    model = read_model(DEEPSEEK_V3)
    assert model.bytes_per_token == 61 * 576 * 2 == 70_272
    assert model.shard_bytes_per_token(8) == 70_272, "each GPU holds all of the latents"
    assert model.active_parameters == pytest.approx(37e9, rel=0.06)


@pytest.mark.parametrize(
    ("config", "parameters"),  # in the layers: without embedding and output
    [(LLAMA_8B, 6.98e9), (LLAMA_70B, 68.5e9), (GPT_OSS_120B, 4.5e9)],
)
def test_active_parameters(config: dict[str, Any], parameters: float) -> None:
    assert read_model(config).active_parameters == pytest.approx(parameters, rel=0.03)


def test_layers_of_several_kinds() -> None:
    model = read_model(GPT_OSS_120B)
    assert (model.kv_layers, model.sliding_layers) == (36, 18)
    hybrid = dense(48, 2048, 16, 2, 5120, head_dim=256)
    assert read_model({**hybrid, "full_attention_interval": 4}).kv_layers == 12
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 12
    assert read_model({**hybrid, "layer_types": kinds}).kv_layers == 12


def test_older_names_and_missing_fields() -> None:
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12}
    model = read_model(gpt2)
    assert (model.name, model.kv_heads, model.value_bytes) == ("gpt2", 12, 2)
    assert model.bytes_per_token == 2 * 12 * 768 * 2
    assert read_model({**gpt2, "multi_query": True}).kv_heads == 1
    assert read_model({**gpt2, "num_key_value_heads": None, "dtype": "float32"}).value_bytes == 4


def test_a_text_model_inside_another() -> None:
    outer = {"architectures": ["Vision"], "text_config": LLAMA_8B, "hidden_size": 1}
    assert read_model(outer).bytes_per_token == read_model(LLAMA_8B).bytes_per_token
    assert read_model(outer).name == "Vision"


@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "num_attention_heads"])
def test_what_is_needed_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        read_model({k: v for k, v in LLAMA_8B.items() if k != name})


@pytest.mark.parametrize("name", ["layer_types", "architectures"])
@pytest.mark.parametrize("value", [5, 1.5, True, {"a": 1}, "attention"])
def test_what_should_be_a_list_and_is_none_is_named(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} of the configuration is no list"):
        read_model({**dense(2, 64, 4, 2, 128), name: value})


@pytest.mark.parametrize("text", ["", "[]", "{", "7"])
def test_files_that_are_no_configuration(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        load_model(tmp_path)
    with pytest.raises(UsageError, match="nowhere"):
        load_model(tmp_path / "nowhere")


def test_a_directory_or_its_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert load_model(tmp_path) == load_model(tmp_path / "config.json") == read_model(LLAMA_8B)


@pytest.mark.parametrize(
    ("config", "gpus", "tokens"),
    [
        (LLAMA_8B, 1, 32),
        (LLAMA_70B, 1, 16),
        (LLAMA_70B, 4, 64),
        (LLAMA_70B, 16, 128),  # eight heads: two GPUs hold the same
        (DEEPSEEK_V3, 8, 64),
        (QWEN25_7B, 1, 64),
    ],
)
def test_tokens_per_chunk(config: dict[str, Any], gpus: int, tokens: int) -> None:
    per_token = read_model(config).shard_bytes_per_token(gpus)
    assert chunk_tokens(per_token) == tokens
    assert MIB * 2.8 < tokens * per_token < MIB * 5.7


@pytest.mark.parametrize(
    ("config", "gpu", "gpus", "gb_s"),  # KV per second, of the research's reference table
    [
        (LLAMA_8B, "h100", 1, 4.0),
        (LLAMA_8B, "a100", 1, 1.3),
        (LLAMA_8B, "l4", 1, 0.44),
        (LLAMA_70B, "h100", 4, 4.6),
    ],
)
def test_what_a_gpu_makes(config: dict[str, Any], gpu: str, gpus: int, gb_s: float) -> None:
    model, engine = read_model(config), Engine(gpu=gpu, gpus=gpus)
    compute_s = engine.compute_s(model)
    assert compute_s is not None
    assert engine.prefix_tokens * model.bytes_per_token / compute_s / 1e9 == pytest.approx(
        gb_s, rel=0.15
    )


def contest(engine: Engine, rate_bytes_s: float | None) -> Finding:
    traffic = TrafficFacts(rtt_s=0.001, by_size={MIB: rate_bytes_s} if rate_bytes_s else {})
    findings = {f.id: f for f in examine_model(read_model(LLAMA_8B), engine, traffic)}
    assert {f.scope for f in findings.values()} == {"model"}
    return findings["beats-prefill"]


def test_store_against_gpu() -> None:
    h100 = Engine(gpu="h100")
    assert contest(h100, 10e9).severity is Severity.OK
    slow = contest(h100, 2e9)
    assert slow.severity is Severity.WARN
    assert "at least 4.0 GB/s" in slow.fix
    assert contest(Engine(gpu="l4"), 2e9).severity is Severity.OK
    assert contest(h100, None).severity is Severity.INFO
    assert contest(Engine(), 2e9).severity is Severity.INFO


def test_a_measured_rate_wins_over_a_table() -> None:
    engine = Engine(gpu="h100", prefill_tokens_s=8192 / 2.0)
    assert engine.compute_s(read_model(LLAMA_8B)) == pytest.approx(2.0)
    assert "the engine makes 0.54 GB" in contest(engine, 2e9).seen


def test_an_unknown_gpu_is_named() -> None:
    with pytest.raises(UsageError, match="h100"):
        Engine(gpu="h1000").compute_s(read_model(LLAMA_8B))
    assert all(Engine(gpu=name).compute_s(read_model(LLAMA_8B)) for name in GPUS)
