"""What of a vLLM configuration makes the same tokens other KV: the fields of an identity.

    Identity(**model_identity(vllm_config), layout=layout, engine="vllm LBHNC block=16")

The caller adds how the bytes lie: the `KVLayout` (shape, element type, shard) and the engine's
text. From here comes what is true of the whole model: its weights (`kvferry.integrations.weights`),
positions, quantisation, the switches that change what attention computes, and the device where that
changes how blocks are packed (`platform_fields`): vLLM's CPU kernels pack keys for the instructions
that they use (AMX, AVX-512, NEON ...), so blocks of the same shape from two kinds of CPU are not
the same bytes; and versions that do not name the layout of their cache let the attention backend
choose the layout, by the kind of GPU.

A model in a directory is known by its files and not by its path, so two machines that keep it in
two places share. A model whose files cannot be read is known by its name and revision alone; that
is said in the log once.

Fields that have their default are left out, and everything is read with a default: the two versions
of vLLM that are tested (see `versions`) have not all of them, and a later one may have others. What
differs for each request (LoRA, multimodal input, cache salt) is no part of this: it belongs to the
hash of a chunk, vLLM's own or that of `connector.request_hashes`.

All integrations of vLLM take their fields from here, so that what one of them tells apart all do.
How many requests, tokens or bytes an engine has room for changes no KV and is left out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvferry.integrations.weights import fingerprint, hub_place, is_known

__all__ = ["DRAFTS_WITHOUT_KV", "kv_dtype", "model_identity", "plain_text", "platform_fields"]

_log = logging.getLogger("kvferry.integrations")

# Kinds of rotary embedding for which the longest context does not enter the angles.
_FIXED_ROPE = ("", "default", "linear", "llama3", "mrope", "yarn")
# Ways to read the same files.
_PLAIN_LOADERS = ("", "auto", "hf", "safetensors", "fastsafetensors", "runai_streamer")
_LEFT_OUT_BY_DEFAULT = ["original/**/*"]
# Speculation whose drafts come from the text and not from a model with KV of its own.
DRAFTS_WITHOUT_KV = ("ngram", "ngram_gpu", "suffix")
_ATTENTION = (
    *("backend_per_kind", "use_trtllm_attention", "disable_flashinfer_q_quantization"),
    *("use_prefill_query_quantization", "indexer_kv_dtype", "indexer_sparse_logits"),
    *("use_non_causal", "sparse_mla_force_mqa", "mla_prefill_backend", "flash_attn_version"),
)
# Variables that choose what is computed, or how exactly; the value that they have by default is not
# known here, so one that is set counts.
_NUMERICS = re.compile(
    r"VLLM_(BATCH_INVARIANT|FLOAT32_MATMUL_PRECISION|MLA_DISABLE|DISABLED_KERNELS|USE_MODELSCOPE"
    r"|MODEL_REDIRECT_PATH|REPLICATE_EMBED|TEST_FORCE_\w+|USE_FBGEMM"
    r"|USE_(HW_AGNOSTIC|OINK_OPS|TRITON_AWQ|V2_MODEL_RUNNER|DEEP_GEMM(_E8M0)?|FUSED_MOE\w+)"
    r"|CPU_(INT4_W4A8|SGL_KERNEL|ATTN_SPLIT_KV)|GDN_DECODE_KERNEL|ENABLE_FLA_\w+|KIMI_\w+"
    r"|\w*(FP4|FP8|MXFP)\w*|HUMMING_\w+|MARLIN_INPUT_DTYPE|MOE_USE_\w+|MOE_ROUTING_\w+"
    r"|(USE_)?FLASHINFER_MOE_\w+|ROCM_USE_\w+|ROCM_SHUFFLE_\w+|XPU_INC_\w+)"
    r"|[QKV]_SCALE_CONSTANT|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
    r"|(ONEDNN|DNNL)_DEFAULT_FPMATH_MODE"
)


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


def platform_fields(vllm_config: Any = None, layout_named: bool = True) -> dict[str, str]:
    """Fields of an identity: ``device``, and ``attention`` where a backend was asked for.

    Without vLLM there is no device.

    Args:
        vllm_config: To see which attention backend was asked for; None: unknown.
        layout_named: Whether vLLM names the layout of its cache. If not, the exact device counts.
    """
    device = _device(layout_named)
    fields = {"device": device} if device else {}
    backend = getattr(getattr(vllm_config, "attention_config", None), "backend", None)
    asked = getattr(backend, "name", backend) or os.getenv("VLLM_ATTENTION_BACKEND", "")
    if asked:
        fields["attention"] = str(asked)
    if not layout_named and os.getenv("VLLM_KV_CACHE_LAYOUT"):
        fields["kv_order"] = os.environ["VLLM_KV_CACHE_LAYOUT"]
    return fields


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
        **_config_source(model),
        "model_classes": _digest(getattr(model, "model_class_overrides", None)),
        "attention_dtype": getattr(model, "override_attention_dtype", None),
        "no_sliding_window": getattr(model, "disable_sliding_window", False),
        "mm_kwargs": _digest(getattr(multimodal, "mm_processor_kwargs", None)),
        "mm_pruning": getattr(multimodal, "video_pruning_rate", None),
        "mm_media": _digest(getattr(multimodal, "media_io_kwargs", None)),
        "mm_text_alone": getattr(multimodal, "language_model_only", False),
        "mm_dtype": getattr(multimodal, "mm_encoder_attn_dtype", None),
        "fast_prefill": getattr(cache_config, "kv_sharing_fast_prefill", False),
        "mamba": _mamba(model, cache_config),
        "draft": _draft(vllm_config),
        "adapters": _adapters(vllm_config),
        "attention_options": _attention(vllm_config),
        "kernels": _kernels(vllm_config),
        "plug_in": _digest(getattr(vllm_config, "additional_config", None)),
        "environment": " ".join(_environment()),
        **_loader(load),
    }
    for name, size in (("pcp", "prefill_context"), ("dcp", "decode_context")):
        extra[name] = _unless(getattr(parallel, f"{size}_parallel_size", 1), 1)
    if extra["pcp"] or extra["dcp"]:
        for name in ("cp_kv_cache_interleave_size", "dcp_kv_cache_interleave_size"):
            extra[name] = _unless(getattr(parallel, name, 1), 1)
    if extra["loader"] == "dummy":
        extra["loader"], extra["dummy_weights"] = None, f"seed {getattr(model, 'seed', 0)}"
    return extra


def _config_source(model: Any) -> dict[str, Any]:
    """Where the model's configuration comes from, if not from the file beside its weights."""
    overrides, path = getattr(model, "hf_overrides", None), getattr(model, "hf_config_path", None)
    result = getattr(getattr(model, "hf_config", None), "to_dict", None)
    if callable(overrides) and result is not None:  # the function has a name, and does what it does
        fields = {k: v for k, v in result().items() if k != "transformers_version"}
        overrides = {"function": _digest(overrides), "result": fields}
    return {
        "hf_config_path": f"{path} {fingerprint(str(path))}" if path else None,
        "config_format": _unless(_name_of(getattr(model, "config_format", "auto")), "auto"),
        "model_impl": _unless(_name_of(getattr(model, "model_impl", "auto")), "auto"),
        "overrides": _digest(overrides),
    }


def _loader(load: Any) -> dict[str, Any]:
    """Which of a model's files are read, where the way of reading them decides it."""
    kind = _name_of(getattr(load, "load_format", "auto"))
    ignored = getattr(load, "ignore_patterns", None) or _LEFT_OUT_BY_DEFAULT
    return {
        "loader": None if kind in _PLAIN_LOADERS else kind,
        "loader_options": _digest(getattr(load, "model_loader_extra_config", None)),
        "files_left_out": _digest(_unless(ignored, _LEFT_OUT_BY_DEFAULT)),
    }


def _draft(vllm_config: Any) -> str:
    """A model that drafts and keeps KV of its own beside this one's."""
    speculation = getattr(vllm_config, "speculative_config", None)
    method = str(getattr(speculation, "method", "") or "")
    if speculation is None or method in DRAFTS_WITHOUT_KV:
        return ""
    draft = getattr(speculation, "draft_model_config", None)
    name = getattr(draft, "model", None) or getattr(speculation, "model", None) or ""
    return f"{method} {fingerprint(str(name), getattr(draft, 'revision', None))}"


def _adapters(vllm_config: Any) -> str:
    """How adapters are applied; what they hold is in the names of chunks."""
    lora, parts = getattr(vllm_config, "lora_config", None), []
    dtype = str(getattr(lora, "lora_dtype", None) or "auto").removeprefix("torch.")
    if dtype not in ("auto", str(vllm_config.model_config.dtype).removeprefix("torch.")):
        parts.append(dtype)
    if targets := getattr(lora, "target_modules", None):
        parts += sorted(map(str, targets))
    for name in ("enable_tower_connector_lora", "enable_mixed_moe_lora_format"):
        parts += [name] if getattr(lora, name, False) else []
    return " ".join(parts)


def _attention(vllm_config: Any) -> str:
    config = getattr(vllm_config, "attention_config", None)
    found = {name: getattr(config, name, None) for name in _ATTENTION}
    return _digest({k: _name_of(v) for k, v in found.items() if v and _name_of(v) != "auto"})


def _mamba(model: Any, cache_config: Any) -> str:
    """How the states of a model with Mamba or linear attention are kept; "": it has none."""
    if not (getattr(model, "is_hybrid", False) or getattr(model, "is_attention_free", False)):
        return ""
    names = ("mamba_cache_dtype", "mamba_ssm_cache_dtype", "mamba_cache_mode", "use_replayssm")
    found = [_name_of(getattr(cache_config, name, "")) for name in names]
    return " ".join([*found, os.getenv("VLLM_SSM_CONV_STATE_LAYOUT", "")])


def _kernels(vllm_config: Any) -> str:
    config = getattr(vllm_config, "kernel_config", None)
    names = ("moe_backend", "linear_backend", "linear_backend_per_quant")
    found = {name: _name_of(getattr(config, name, None) or "auto") for name in names}
    return " ".join(f"{name}={value}" for name, value in found.items() if value != "auto")


def _environment() -> Iterator[str]:
    for name in sorted(os.environ):
        if os.environ[name] and _NUMERICS.fullmatch(name):
            yield f"{name}={os.environ[name]}"


def _device(layout_named: bool) -> str:
    try:
        from vllm.platforms import current_platform
    except ImportError:
        return ""
    kind = str(getattr(current_platform, "device_type", "") or "unknown")
    if kind == "cpu":
        return f"cpu {platform.machine()} {_instructions()}".strip()
    if layout_named:
        return kind
    try:
        return f"{kind} {current_platform.get_device_name()}"
    except Exception:  # a driver that does not tell must not keep the engine from starting
        _log.warning("the name of the device is unknown", exc_info=True)
        return kind


def _instructions() -> str:
    """What the kernels ask about the CPU."""
    try:
        import torch
    except ImportError:
        return ""
    found = []
    for name in ("amx_tile", "avx512", "avx2"):
        supported = getattr(getattr(torch, "cpu", None), f"_is_{name}_supported", None)
        if supported is not None and supported():
            found.append(name)
    return "+".join(found)


def _name_of(value: object) -> str:
    """Of an enumeration or a text."""
    return str(getattr(value, "value", value))


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
