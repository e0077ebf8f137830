"""The identity of a tier's chunks: vLLM's key says which tokens, and nothing of what the bytes are.

A chunk of the offloading connector is a row of its pinned memory: the blocks of all workers behind
each other, all layers. Here is written down what two engines must have alike to use each other's
rows: the model (see `identity`, which all integrations share), how blocks are cut and grouped, how
workers divide them, the layout of the cache, the device where that changes the layout, and how vLLM
makes its hashes.

vLLM tells a tier too little for that: since 0.23 the model's name and no more, and of adapters
never what they hold. So a tier opens only under `KvferryTierConnector`, which has the whole
configuration and gives it on as an `TierEngine`. Under vLLM's own connector it refuses, with the
configuration to use instead. What a user names as ``identity`` is added, and replaces nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvferry.base.errors import ConfigError
from kvferry.chunks.keys import describe_identity
from kvferry.integrations.vllm.identity import kv_dtype, model_identity, plain_text, platform_fields
from kvferry.integrations.weights import is_known

__all__ = [
    "CONNECTOR",
    "TierEngine",
    "chunk_tokens",
    "describe_rows",
    "refuse_other_connectors",
    "warn_of_random_seed",
]

_log = logging.getLogger("kvferry.integrations")

CONNECTOR = "KvferryTierConnector"

# Of what lies in a row; another number makes old rows misses.
_FORMAT = 1
_MODULE = "kvferry.integrations.vllm.tier"
_SPECS = ("TieringOffloadingSpec", "KvferryTieringSpec")  # the connector finds out which
_HIDDEN = "***"
_SECRET = re.compile(r"(\w+_)?(password|secret|token)|params")
_IN_URL = re.compile(r"(?<=:)[^:@/]+(?=@)|(?<=password=)[^&]+")


@dataclass(frozen=True, slots=True, repr=False)
class TierEngine:
    """What the connector gives a tier: vLLM's whole configuration."""

    vllm_config: Any


def chunk_tokens(spec: Any) -> int:
    """Tokens of a chunk; 0 where groups of layers have different ones."""
    config = getattr(spec, "config", None)
    if config is not None:
        sizes = {int(group.tokens_per_block) for group in config.groups}
        blocks = int(config.cache.blocks_per_chunk)
    else:
        groups = spec.kv_cache_config.kv_cache_groups
        sizes = {int(group.kv_cache_spec.block_size) for group in groups}
        blocks = int(spec.block_size_factor)
    return sizes.pop() * blocks if len(sizes) == 1 else 0


def describe_rows(spec: Any, row_bytes: int, engine: TierEngine, extra: str = "") -> str:
    """The identity of rows, in words; see `kvferry.chunks.keys.describe_identity`.

    Args:
        spec: An ``OffloadingSpec`` of either version, or anything shaped like one.
        row_bytes: Length of a row.
        engine: What computes them.
        extra: What the user adds; "": nothing.

    Raises:
        ConfigError: Other KV could have the same identity.
    """
    vllm_config = engine.vllm_config
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        raise ConfigError(
            "calculate_kv_scales makes the scales of KV in each process anew, so KV of another one "
            "means something else; leave it out, or KvferryTier"
        )
    model = model_identity(vllm_config)
    if not is_known(model["revision"]) and not extra:
        raise ConfigError(
            f"the files of model {vllm_config.model_config.model!r} cannot be read here, so "
            'KvferryTier cannot tell whose KV it would load: set its option "identity" to a text, '
            "the same in all engines that are to share, and change it when the weights change"
        )
    excerpt = getattr(spec, "config", None)
    layout = str(getattr(excerpt, "kv_cache_layout", None) or "")
    fields: dict[str, Any] = {"engine": "vllm offload", "format": _FORMAT, "row_bytes": row_bytes}
    fields |= model.pop("extra") | model
    fields["dtype"] = kv_dtype(vllm_config)
    fields |= _of_excerpt(excerpt) if excerpt is not None else _of_config(spec, vllm_config)
    fields |= {"layout": layout, **platform_fields(vllm_config, layout_named=bool(layout))}
    fields |= _hashing(vllm_config)
    fields["user"] = extra
    shown = {name: plain_text(value) for name, value in fields.items()}
    return describe_identity(**{name: value for name, value in shown.items() if value != ""})


def refuse_other_connectors(spec: Any, options: Mapping[str, Any]) -> None:
    """Say which configuration to use in the place of one that tells a tier too little.

    Args:
        spec: vLLM's ``OffloadingSpec``.
        options: Of the tier, where vLLM does not tell all of its configuration.

    Raises:
        ConfigError: Always.
    """
    transfer = getattr(getattr(spec, "vllm_config", None), "kv_transfer_config", None)
    told = getattr(getattr(spec, "config", spec), "extra_config", None)
    told = told or getattr(transfer, "kv_connector_extra_config", None)
    extra = dict(told or {"secondary_tiers": [{"type": "KvferryTier", **options}]})
    if extra.get("spec_name") in _SPECS:
        extra = {k: v for k, v in extra.items() if k not in ("spec_name", "spec_module_path")}
    by_path = any("module_path" in tier for tier in extra.get("secondary_tiers", ()))
    config = {
        "kv_connector": CONNECTOR,
        **({"kv_connector_module_path": _MODULE} if by_path else {}),
        "kv_role": str(getattr(transfer, "kv_role", None) or "kv_both"),
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": _without_secrets(extra),
    }
    text = json.dumps(config)
    secrets = f" (with your own secrets in the place of {_HIDDEN})" if _HIDDEN in text else ""
    raise ConfigError(
        "vLLM's OffloadingConnector does not tell KvferryTier what computes the KV (overrides, "
        "revision, quantisation, what adapters hold), and an identity by hand cannot say it "
        f"either; use kvferry's connector{secrets}: --kv-transfer-config {shlex.quote(text)}"
    )


def _without_secrets(value: Any, name: str = "") -> Any:
    """As it is, but for passwords, also those in a URL, and what is no JSON."""
    if _SECRET.fullmatch(name):
        return _HIDDEN
    if isinstance(value, Mapping):
        return {str(k): _without_secrets(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_secrets(each, name) for each in value]
    if isinstance(value, str) and "://" in value:
        return _IN_URL.sub(_HIDDEN, value)
    return value if isinstance(value, (str, int, float)) or value is None else str(value)


def _of_excerpt(config: Any) -> dict[str, Any]:
    """What an ``OffloadingConfig`` says (0.32.0)."""
    parallel, groups = config.parallel, config.groups
    fields = {
        "dtype": config.model.dtype,
        "groups": _groups([(group.tokens_per_block, group.layer_names) for group in groups]),
        "hash_tokens": config.cache.tokens_per_hash,
        "chunk_blocks": config.cache.blocks_per_chunk,
        "replicated": "yes" if config.replicated_layout else "",
        "canonical": "yes" if config.canonical_layout else "",
        "world": parallel.world_size,
    }
    for name in ("tp", "pp", "pcp", "dcp"):
        fields[name] = getattr(parallel, f"{name}_size")
    return fields


def _of_config(spec: Any, vllm_config: Any) -> dict[str, Any]:
    """The same from a spec that has vLLM's whole configuration (0.22.1)."""
    parallel = vllm_config.parallel_config
    groups = spec.kv_cache_config.kv_cache_groups
    sizes = {
        "tp": "tensor_parallel_size",
        "pp": "pipeline_parallel_size",
        "pcp": "prefill_context_parallel_size",
        "dcp": "decode_context_parallel_size",
        "world": "world_size",
    }
    return {
        "groups": _groups(
            [(group.kv_cache_spec.block_size, group.layer_names) for group in groups]
        ),
        "hash_tokens": spec.hash_block_size,
        "chunk_blocks": spec.block_size_factor,
        **{name: getattr(parallel, field, 1) for name, field in sizes.items()},
    }


def _groups(groups: list[tuple[int, Any]]) -> str:
    """Groups of layers, short: how many tokens a block has, and a digest of the layers' names."""
    shown = []
    for tokens, names in groups:
        text = json.dumps(list(names)).encode()
        shown.append(f"{tokens} tokens {len(names)} layers {hashlib.sha256(text).hexdigest()[:8]}")
    return ", ".join(shown)


def _hashing(vllm_config: Any) -> dict[str, str]:
    """How block hashes are made: the algorithm, and the seed of the first one if one was set.

    A seed that vLLM draws for each process makes keys that no other process has; see
    `warn_of_random_seed`.
    """
    cache = getattr(vllm_config, "cache_config", None)
    algorithm = str(getattr(cache, "prefix_caching_hash_algo", "") or "")
    return {"hash": algorithm, "hash_seed": os.getenv("PYTHONHASHSEED", "")}


def warn_of_random_seed(spec: Any, vllm_config: Any) -> None:
    """Say that nobody else can use what is stored, where vLLM draws its hash seed at random."""
    algorithm = _hashing(vllm_config)["hash"]
    fixed_by_default = hasattr(spec, "config") and not algorithm.startswith("xxhash")
    if os.getenv("PYTHONHASHSEED") is None and not fixed_by_default:
        _log.warning(
            "this vLLM seeds its block hashes at random: no other process, and not this one after "
            "a restart, will find what is stored; set PYTHONHASHSEED to the same number everywhere"
        )
