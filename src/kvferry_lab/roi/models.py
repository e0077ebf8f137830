"""Models by name: what their config.json says, as far as KV and prefill follow from it.

They are read by the reader of config.json files, so a name and the file of that model say the same.

Source: config.json in the repositories of their publishers (meta-llama, mistralai, Qwen,
deepseek-ai, openai, google) on huggingface.co.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kvferry.base.errors import UsageError
from kvferry_lab.doctor.model import ModelShape, load_model, read_model

__all__ = ["MODELS", "find_model"]


def _dense(
    layers: int, hidden: int, heads: int, kv_heads: int, inner: int, **more: Any
) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "dtype": "bfloat16",
        **more,
    }


def _mixture(experts: int, chosen: int, inner: int, **more: Any) -> dict[str, Any]:
    return {
        "num_experts": experts,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": inner,
        **more,
    }


_LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_DEEPSEEK_V3 = _dense(
    61, 7168, 128, 128, 18432, **_LATENT, q_lora_rank=1536,
    **_mixture(256, 8, 2048, n_shared_experts=1, first_k_dense_replace=3),
)  # fmt: skip
_QWEN25_32B = _dense(64, 5120, 40, 8, 27648)
_OSS = {"head_dim": 64, "num_experts_per_tok": 4, "sliding_window": 128, "model_type": "gpt_oss"}

MODELS: dict[str, dict[str, Any]] = {
    "deepseek-r1": _DEEPSEEK_V3,
    "deepseek-v2-lite": _dense(
        27,
        2048,
        16,
        16,
        10944,
        **_LATENT,
        **_mixture(64, 6, 1408, n_shared_experts=2, first_k_dense_replace=1),
    ),
    "deepseek-v3": _DEEPSEEK_V3,
    "gemma-3-12b": _dense(
        48, 3840, 16, 8, 15360, head_dim=256, sliding_window=1024, sliding_window_pattern=6
    ),
    "gemma-3-27b": _dense(
        62, 5376, 32, 16, 21504, head_dim=128, sliding_window=1024, sliding_window_pattern=6
    ),
    "gpt-oss-120b": _dense(36, 2880, 64, 8, 2880, num_local_experts=128, **_OSS),
    "gpt-oss-20b": _dense(24, 2880, 64, 8, 2880, num_local_experts=32, **_OSS),
    "llama-3.1-405b": _dense(126, 16384, 128, 8, 53248),
    "llama-3.1-70b": _dense(80, 8192, 64, 8, 28672),
    "llama-3.1-8b": _dense(32, 4096, 32, 8, 14336),
    "llama-3.2-1b": _dense(16, 2048, 32, 8, 8192, head_dim=64),
    "llama-3.2-3b": _dense(28, 3072, 24, 8, 8192, head_dim=128),
    "llama-3.3-70b": _dense(80, 8192, 64, 8, 28672),
    "mistral-7b": _dense(32, 4096, 32, 8, 14336),
    "mistral-small-24b": _dense(40, 5120, 32, 8, 32768, head_dim=128),
    "mixtral-8x7b": _dense(32, 4096, 32, 8, 14336, num_local_experts=8, num_experts_per_tok=2),
    "qwen2.5-1.5b": _dense(28, 1536, 12, 2, 8960),
    "qwen2.5-3b": _dense(36, 2048, 16, 2, 11008),
    "qwen2.5-7b": _dense(28, 3584, 28, 4, 18944),
    "qwen2.5-32b": _QWEN25_32B,
    "qwen2.5-72b": _dense(80, 8192, 64, 8, 29568),
    "qwen3-0.6b": _dense(28, 1024, 16, 8, 3072, head_dim=128),
    "qwen3-1.7b": _dense(28, 2048, 16, 8, 6144, head_dim=128),
    "qwen3-4b": _dense(36, 2560, 32, 8, 9728, head_dim=128),
    "qwen3-8b": _dense(36, 4096, 32, 8, 12288, head_dim=128),
    "qwen3-14b": _dense(40, 5120, 40, 8, 17408, head_dim=128),
    "qwen3-32b": _dense(64, 5120, 64, 8, 25600, head_dim=128),
    "qwen3-30b-a3b": _dense(48, 2048, 32, 4, 6144, head_dim=128, **_mixture(128, 8, 768)),
    "qwen3-235b-a22b": _dense(94, 4096, 64, 4, 12288, head_dim=128, **_mixture(128, 8, 1536)),
    "r1-distill-qwen-32b": _QWEN25_32B,
}


def find_model(name: str, value_bytes: int | None = None) -> ModelShape:
    """A model of the table, or the one whose config.json (or its directory) is named.

    Args:
        value_bytes: Of one number of KV, where the engine keeps it in another type than the model.

    Raises:
        UsageError: It is neither, or its file lacks what is needed.
    """
    found = MODELS.get(name.lower().rpartition("/")[2].removesuffix("-instruct"))
    if found is not None:
        shape = replace(read_model(found), name=name)
    elif Path(name).exists():
        shape = load_model(name)
    else:
        raise UsageError(
            f"--model {name} is neither a config.json nor a known name: {', '.join(MODELS)}"
        )
    return replace(shape, value_bytes=value_bytes) if value_bytes else shape
