"""What of a vLLM configuration makes the same tokens other KV: the fields of an identity.

    Identity(**model_identity(vllm_config), layout=layout, engine="vllm LBHNC block=16")

The caller adds how the bytes lie: the `KVLayout` (shape, element type, shard) and the engine's
text. From here comes what is true of the whole model: its weights (`kvferry.integrations.weights`),
positions, quantisation, the switches that change what attention computes, and the kind of machine
where that changes how blocks are packed (`platform`).

A model in a directory is known by its files and not by its path, so two machines that keep it in
two places share. A model whose files cannot be read is known by its name and revision alone; that
is said in the log once.

Fields that have their default are left out, and everything is read with a default: the two versions
of vLLM that are tested (see `versions`) have not all of them, and a later one may have others. What
differs for each request (LoRA, multimodal input, cache salt) is no part of this: it belongs to the
hash of a chunk, vLLM's own or that of `hashing`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvferry.integrations.vllm.platform import platform_fields
from kvferry.integrations.weights import fingerprint, hub_place, is_known

__all__ = ["kv_dtype", "model_identity", "plain_text"]

_log = logging.getLogger("kvferry.integrations")

# Kinds of rotary embedding for which the longest context does not enter the angles.
_FIXED_ROPE = ("", "default", "linear", "llama3", "mrope", "yarn")


def model_identity(vllm_config: Any) -> dict[str, Any]:
    """Keyword arguments for `kvferry.Identity`: model, revision, rope, quantisation, lora, extra.

    Args:
        vllm_config: A ``VllmConfig`` of either version, or anything shaped like one.
    """
    model, load = vllm_config.model_config, getattr(vllm_config, "load_config", None)
    name, revision = str(model.model), getattr(model, "revision", None)
    weights = fingerprint(name, revision, cache_dir=getattr(load, "download_dir", None))
    if not is_known(weights):
        _warn_unknown(name)
    return {
        "model": plain_text(_shown_name(model, name, weights)),
        "revision": weights,
        "rope": plain_text(_rope(model)),
        "lora": "",
        "quantisation": plain_text(_quantisation(model)),
        "extra": {
            **{k: plain_text(v) for k, v in _extra(vllm_config).items() if _is_set(v)},
            **platform_fields(vllm_config),
        },
    }


def kv_dtype(vllm_config: Any) -> str:
    """The name of the KV's element type: the cache's own, or the model's; e.g. "bfloat16"."""
    named = str(getattr(vllm_config.cache_config, "cache_dtype", "auto"))
    if named == "auto":
        named = str(vllm_config.model_config.dtype)
    short = named.removeprefix("torch.")
    return {"half": "float16", "float": "float32"}.get(short, short)


def plain_text(value: object) -> str | int:
    """A value of an identity: a number, or one line of text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return " ".join(str(value).encode(errors="replace").decode().split())


@cache
def _warn_unknown(name: str) -> None:
    _log.warning(
        "the files of model %r cannot be read here: cached KV is told apart by its name and "
        "revision only, so clear the cache when its weights change",
        name,
    )


def _shown_name(model: Any, name: str, weights: str) -> str:
    """A name that does not depend on where the files lie, if those are known."""
    if not is_known(weights) or not Path(name).exists():
        return name
    on_hub = hub_place(name)[0]
    if on_hub:
        return on_hub
    hf_config = getattr(model, "hf_config", None)
    architectures = getattr(hf_config, "architectures", None) or ()
    return str(
        architectures[0] if architectures else getattr(hf_config, "model_type", "") or "local"
    )


def _rope(model: Any) -> str:
    text_config = getattr(model, "hf_text_config", None) or getattr(model, "hf_config", None)
    fields: dict[str, Any] = {}
    for name in ("rope_parameters", "rope_theta", "rope_scaling"):
        value = getattr(text_config, name, None)
        if value is not None:
            fields[name] = value
    if not fields:
        return ""
    kinds = _rope_kinds(fields)
    if any(kind not in _FIXED_ROPE for kind in kinds):
        fields["max_model_len"] = getattr(model, "max_model_len", None)
    return _compact(fields)


def _rope_kinds(value: object) -> set[str]:
    """Every ``rope_type`` (or ``type``) in nested parameters; they may differ by layer."""
    if not isinstance(value, Mapping):
        return set()
    own = {str(value[name]) for name in ("rope_type", "type") if value.get(name)}
    return own.union(*(_rope_kinds(inner) for inner in value.values()))


def _quantisation(model: Any) -> str:
    method = getattr(model, "quantization", None)
    config = getattr(model, "quantization_config", None)
    parts = [str(method)] if method else []
    return " ".join(parts + ([_compact(config)] if config else []))


def _extra(vllm_config: Any) -> dict[str, Any]:
    model, cache_config = vllm_config.model_config, vllm_config.cache_config
    parallel = getattr(vllm_config, "parallel_config", None)
    load = getattr(vllm_config, "load_config", None)
    multimodal = getattr(model, "multimodal_config", None)
    extra = {
        "compute": str(getattr(model, "dtype", "")).removeprefix("torch."),
        "cache_dtype": _unless(str(getattr(cache_config, "cache_dtype", "auto")), "auto"),
        "kv_skip_layers": ",".join(getattr(cache_config, "kv_cache_dtype_skip_layers", None) or ()),
        "kv_scales": getattr(cache_config, "calculate_kv_scales", False),
        "weights_url": getattr(model, "model_weights", ""),
        "code_revision": getattr(model, "code_revision", None),
        "hf_config_path": getattr(model, "hf_config_path", None),
        "overrides": _digest(getattr(model, "hf_overrides", None)),
        "model_classes": _digest(getattr(model, "model_class_overrides", None)),
        "attention_dtype": getattr(model, "override_attention_dtype", None),
        "no_sliding_window": getattr(model, "disable_sliding_window", False),
        "mm_kwargs": _digest(getattr(multimodal, "mm_processor_kwargs", None)),
        "mm_pruning": getattr(multimodal, "video_pruning_rate", None),
    }
    for name, size in (("pcp", "prefill_context"), ("dcp", "decode_context")):
        extra[name] = _unless(getattr(parallel, f"{size}_parallel_size", 1), 1)
    if extra["pcp"] or extra["dcp"]:
        for name in ("cp_kv_cache_interleave_size", "dcp_kv_cache_interleave_size"):
            extra[name] = _unless(getattr(parallel, name, 1), 1)
    if str(getattr(load, "load_format", "auto")).endswith("dummy"):
        extra["dummy_weights"] = f"seed {getattr(model, 'seed', 0)}"
    return extra


def _is_set(value: object) -> bool:
    return value is not None and value is not False and value != ""


def _unless(value: Any, default: object) -> Any:
    return None if value == default else value


def _digest(value: object) -> str:
    """A few digits for a mapping or a function, nothing for what is empty."""
    if not value:
        return ""
    if callable(value):
        text = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(value))}"
    else:
        text = _compact(value)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
