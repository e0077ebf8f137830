"""What a model's config.json says about its KV and about the work of reading a prompt.

Understands Hugging Face configurations of decoders: multi-head, grouped-query and multi-query
attention, DeepSeek's latent attention (MLA), mixtures of experts, layers without growing KV
(recurrent, linear, Mamba), sliding windows, and text models inside multimodal ones. A field that is
missing gets the value that the libraries assume; one without which nothing can be said is an error
that names it.

Source: https://huggingface.co/docs/transformers/model_doc/llama (and deepseek_v3, qwen3_moe,
gpt_oss); DeepSeek-V2, arXiv:2405.04434, for MLA.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvferry.base.errors import UsageError
from kvferry.base.shown import reason_of

__all__ = ["ModelShape", "chunk_tokens", "load_model", "read_model"]

_MIB = 1 << 20
_BLOCK_TOKENS = 16  # engines cut KV into blocks of this many
_TYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "float8_e4m3fn": 1}
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_WITHOUT_KV = ("linear_attention", "mamba", "recurrent", "conv")
_WINDOWED = ("sliding", "chunked")
_ALTERNATING = ("gemma2", "gpt_oss")  # every second layer, although no field says so


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Of one model, all shards together.

    Attributes:
        name: Its architecture, as it calls itself.
        layers: Decoder layers.
        kv_layers: Those whose KV grows with the prompt.
        sliding_layers: Those among them that only ever look at a window.
        window_tokens: Of that window; 0 where there is none, or nobody says how long it is.
        kv_heads: Of each layer; 1 for MLA, which cannot be divided among GPUs.
        kv_values: Numbers kept for each token and layer, keys and values together.
        value_bytes: Of one number.
        heads_size: Query heads times their size, for the quadratic part of attention.
        active_parameters: That each token meets in the layers; embedding and output left out.
    """

    name: str
    layers: int
    kv_layers: int
    sliding_layers: int
    kv_heads: int
    kv_values: int
    value_bytes: int
    heads_size: int
    active_parameters: int
    window_tokens: int = 0

    @property
    def bytes_per_token(self) -> int:
        """KV of one token, all layers."""
        return self.kv_layers * self.kv_values * self.value_bytes

    def shard_bytes_per_token(self, gpus: int) -> int:
        """The part of it on one of `gpus` tensor-parallel GPUs; heads are divided, latents not."""
        return self.bytes_per_token // math.gcd(gpus, self.kv_heads)

    def prefill_flops(self, tokens: int) -> float:
        """Work of reading a prompt: two per parameter and token, and causal attention."""
        windowed = self.sliding_layers if self.window_tokens else 0
        pairs = (self.kv_layers - windowed) * tokens**2
        pairs += windowed * min(tokens**2, 2 * tokens * self.window_tokens)
        return 2.0 * self.active_parameters * tokens + 2.0 * self.heads_size * pairs


def chunk_tokens(bytes_per_token: int, near_bytes: int = 4 * _MIB) -> int:
    """Tokens per chunk, 16 times a power of two, whose KV comes nearest to `near_bytes`."""
    choices = [_BLOCK_TOKENS << power for power in range(17)]
    return min(choices, key=lambda tokens: abs(math.log(tokens * bytes_per_token / near_bytes)))


def load_model(path: str | Path) -> ModelShape:
    """Read a config.json, or the one in a directory.

    Raises:
        UsageError: It is not there, no JSON object, or lacks what is needed.
    """
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--model: {path} cannot be read: {reason_of(error)}") from None
    except ValueError as error:
        raise UsageError(f"--model: {path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"--model: {path} is not a JSON object")
    return read_model(found)


def read_model(config: Mapping[str, Any]) -> ModelShape:
    """The shape that a configuration describes.

    Raises:
        UsageError: It lacks what is needed.
    """
    outer = config
    for name in _NESTED:
        if isinstance(config.get(name), dict):
            config = config[name]
    layers = _need(config, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    hidden = _need(config, "hidden_size", "n_embd", "d_model")
    heads = _need(config, "num_attention_heads", "n_head", "num_heads", "n_heads")
    head = _get(config, "head_dim") or hidden // heads
    kinds = [str(kind) for kind in _list(config, "layer_types")]
    kv_layers = _growing(config, layers, kinds)
    sliding, window = _windows(config, layers, kinds)
    latent = _get(config, "kv_lora_rank")
    if latent:
        rope = _get(config, "qk_rope_head_dim") or 64
        plain = _get(config, "qk_nope_head_dim") or head
        value = _get(config, "v_head_dim") or plain
        kv_heads, kv_values, heads_size = 1, latent + rope, heads * (plain + rope + value) // 2
        query_rank = _get(config, "q_lora_rank")
        query = heads * (plain + rope)
        attention = (hidden + query) * query_rank if query_rank else hidden * query
        attention += hidden * kv_values + latent * heads * (plain + value) + heads * value * hidden
    else:
        kv_heads = _kv_heads(config, heads)
        kv_values, heads_size = 2 * kv_heads * head, heads * head
        attention = hidden * head * (2 * heads + 2 * kv_heads)
    return ModelShape(
        name=str((_list(outer, "architectures") or [outer.get("model_type", "model")])[0]),
        layers=layers,
        kv_layers=kv_layers,
        sliding_layers=sliding,
        window_tokens=window,
        kv_heads=kv_heads,
        kv_values=kv_values,
        value_bytes=_value_bytes(config, outer),
        heads_size=heads_size,
        active_parameters=layers * attention + _feed_forward(config, hidden, layers),
    )


def _growing(config: Mapping[str, Any], layers: int, kinds: list[str]) -> int:
    """Layers with attention over the whole prompt or a window of it."""
    if kinds:
        return sum(not kind.startswith(_WITHOUT_KV) for kind in kinds)
    every = _get(config, "full_attention_interval") or _get(config, "attn_layer_period") or 1
    return layers // every


def _windows(config: Mapping[str, Any], layers: int, kinds: list[str]) -> tuple[int, int]:
    """Layers that look at a window, and its tokens."""
    window = _get(config, "sliding_window") or _get(config, "attention_chunk_size") or 0
    if kinds:
        count = sum(kind.startswith(_WINDOWED) for kind in kinds)
    elif not window or config.get("use_sliding_window") is False:
        count = 0
    elif every := _get(config, "sliding_window_pattern"):
        count = layers - layers // every
    elif config.get("model_type") in _ALTERNATING:
        count = (layers + 1) // 2
    else:
        count = layers
    return count, window if count else 0


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    if config.get("multi_query") is True:
        return 1
    names = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
    return next((found for name in names if (found := _get(config, name))), heads)


def _feed_forward(config: Mapping[str, Any], hidden: int, layers: int) -> int:
    """Parameters that one token meets in the feed-forward parts of all layers."""
    inner = _get(config, "intermediate_size") or _get(config, "ffn_dim") or 4 * hidden
    chosen = _get(config, "num_experts_per_tok") or _get(config, "num_experts_per_token")
    experts = next(
        (n for name in ("n_routed_experts", "num_local_experts", "num_experts")
         if (n := _get(config, name))), 0,
    )  # fmt: skip
    if not chosen or not experts:
        return layers * 3 * hidden * inner
    expert = _get(config, "moe_intermediate_size") or inner
    shared = (_get(config, "n_shared_experts") or 0) * expert
    shared += _get(config, "shared_expert_intermediate_size") or 0
    dense = min(layers, _get(config, "first_k_dense_replace") or 0)
    routed = chosen * expert + shared
    return 3 * hidden * (dense * inner + (layers - dense) * routed) + layers * hidden * experts


def _value_bytes(config: Mapping[str, Any], outer: Mapping[str, Any]) -> int:
    """KV is kept in the type of the activations, also where weights are quantized."""
    for source in (config, outer):
        for name in ("dtype", "torch_dtype"):
            if (size := _TYPE_BYTES.get(str(source.get(name)).removeprefix("torch."))) is not None:
                return size
    return 2


def _get(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    is_number = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if is_number else None


def _list(config: Mapping[str, Any], name: str) -> list[Any]:
    found = config.get(name) or []
    if not isinstance(found, list):
        raise UsageError(f"--model: {name} of the configuration is no list")
    return found


def _need(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        if (value := _get(config, name)) is not None:
            return value
    raise UsageError(f"--model: the configuration has no {names[0]}")
