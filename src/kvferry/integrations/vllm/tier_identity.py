"""The identity of a tier's chunks: vLLM's key says which tokens, and nothing of what the bytes are.

A chunk of the offloading connector is a row of its pinned memory: the blocks of all workers behind
each other, all layers. Here is written down what two engines must have alike to use each other's
rows: the model (see `identity`), how blocks are cut and grouped, how workers divide them, the
layout of the cache, the machine's part in it (see `platform`), and how vLLM makes its hashes.

vLLM 0.22.1 gives a tier its whole configuration. Later versions give it an excerpt, which has the
model's name and no revision, no quantisation, no override: from that alone nobody can say whether
two engines compute the same KV. LoRA adapters are in vLLM's key by name and path, and not by what
their files hold. So where the configuration is missing, where the files of the model cannot be
read, or where there are adapters, a tier refuses to start until the user names an identity: a text
that he changes whenever one of these does.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from kvferry.chunks.keys import describe_identity
from kvferry.errors import ConfigError
from kvferry.integrations.vllm.identity import kv_dtype, model_identity, plain_text
from kvferry.integrations.vllm.platform import platform_fields
from kvferry.integrations.weights import fingerprint, hub_place, is_known

__all__ = ["chunk_tokens", "describe_rows", "warn_of_random_seed"]

_log = logging.getLogger("kvferry.integrations")

# Of what lies in a row; another number makes old rows misses.
_FORMAT = 1


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


def describe_rows(spec: Any, row_bytes: int, extra: str = "") -> str:
    """The identity of rows, in words; see `kvferry.chunks.keys.describe_identity`.

    Args:
        spec: An ``OffloadingSpec`` of either version, or anything shaped like one.
        row_bytes: Length of a row.
        extra: The identity that the user named; "": none.

    Raises:
        ConfigError: Without one, other KV could have the same identity.
    """
    vllm_config = getattr(spec, "vllm_config", None)
    unknown = "" if extra else _unknown(vllm_config)
    if unknown:
        raise ConfigError(
            f"{unknown}, so KvferryTier cannot tell whose KV it would load: set the tier's option "
            '"identity" to a text, the same in all engines that are to share, and change it '
            "whenever the model's revision, quantisation or overrides, or a LoRA adapter, change"
        )
    excerpt = getattr(spec, "config", None)
    layout = str(getattr(excerpt, "kv_cache_layout", None) or "")
    fields: dict[str, Any] = {"engine": "vllm offload", "format": _FORMAT, "row_bytes": row_bytes}
    if vllm_config is not None:
        model = model_identity(vllm_config)
        fields |= model.pop("extra") | model
        fields["dtype"] = kv_dtype(vllm_config)
    else:
        name = str(excerpt.model.name) if excerpt is not None else "unknown"
        weights = fingerprint(name)
        if is_known(weights) and Path(name).exists():  # wherever it lies
            name = hub_place(name)[0] or "local"
        fields |= {"model": name, "revision": weights}
    if excerpt is not None:
        fields |= _of_excerpt(excerpt)
    else:
        fields |= _of_config(spec, vllm_config)
    fields |= {"layout": layout, **platform_fields(vllm_config, layout_named=bool(layout))}
    fields |= _hashing(vllm_config)
    fields["user"] = extra
    shown = {name: plain_text(value) for name, value in fields.items()}
    return describe_identity(**{name: value for name, value in shown.items() if value != ""})


def _unknown(vllm_config: Any) -> str:
    """Why the model's identity cannot be known, as the beginning of a sentence; "": it can."""
    if vllm_config is None:
        return "this vLLM tells its tiers no more of a model than its name"
    if getattr(vllm_config, "lora_config", None) is not None:
        return "vLLM tells LoRA adapters apart by their names and not by what they hold"
    if not is_known(model_identity(vllm_config)["revision"]):
        return f"the files of model {vllm_config.model_config.model!r} cannot be read here"
    return ""


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

    A seed that vLLM draws for each process makes keys that no other process has; see `tier`.
    """
    cache = getattr(vllm_config, "cache_config", None)
    algorithm = str(getattr(cache, "prefix_caching_hash_algo", "") or "")
    return {"hash": algorithm, "hash_seed": os.getenv("PYTHONHASHSEED", "")}


def warn_of_random_seed(spec: Any) -> None:
    """Say that nobody else can use what is stored, where vLLM draws its hash seed at random."""
    vllm_config = getattr(spec, "vllm_config", None)
    algorithm = _hashing(vllm_config)["hash"]
    fixed_by_default = hasattr(spec, "config") and not algorithm.startswith("xxhash")
    if os.getenv("PYTHONHASHSEED") is None and not fixed_by_default:
        _log.warning(
            "this vLLM seeds its block hashes at random: no other process, and not this one after "
            "a restart, will find what is stored; set PYTHONHASHSEED to the same number everywhere"
        )
