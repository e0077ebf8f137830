"""The identity of a tier's chunks: vLLM's key says which tokens, and nothing of what the bytes are.

A chunk of the offloading connector is a row of its pinned memory: the blocks of all workers behind
each other, all layers. Here is written down what two engines must have alike to use each other's
rows: the model (see `identity`), how blocks are cut and grouped, how workers divide them, the
layout of the cache, the machine's part in it (see `platform`), and how vLLM makes its hashes.

vLLM 0.22.1 gives a tier its whole configuration. Later versions give it an excerpt, which has the
model's name and no revision, no quantisation, no override. `config_behind` finds the rest where the
connector that is building us has it. Where it is not, the excerpt has to do, and the log says so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from types import FrameType
from typing import Any

from kvferry.integrations.vllm.identity import kv_dtype, model_identity, plain_text
from kvferry.integrations.vllm.platform import platform_fields
from kvferry.integrations.weights import fingerprint
from kvferry.keys import describe_identity

__all__ = ["config_behind", "describe_rows"]

_log = logging.getLogger("kvferry.integrations")

# Of what lies in a row; another number makes old rows misses.
_FORMAT = 1
_FRAMES_MAX = 60
_NAME = "vllm_config"


def config_behind(spec: Any) -> Any:
    """The ``VllmConfig`` that an ``OffloadingSpec`` was made from, or None.

    Later versions keep it from the spec. It is then in a frame below us: tiers are built in the
    constructor of the connector, which has it.
    """
    own = getattr(spec, "vllm_config", None)
    if own is not None:
        return own
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES_MAX):
        if frame is None:
            break
        code = frame.f_code
        # Reading locals keeps them alive as long as their frame: only where it has to be.
        if _NAME in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            found = frame.f_locals.get(_NAME)
            if hasattr(found, "model_config") and hasattr(found, "cache_config"):
                return found
        frame = frame.f_back
    return None


def describe_rows(spec: Any, row_bytes: int, extra: str = "") -> str:
    """The identity of rows, in words; see `kvferry.keys.describe_identity`.

    Args:
        spec: An ``OffloadingSpec`` of either version, or anything shaped like one.
        row_bytes: Length of a row.
        extra: A text of the user.
    """
    vllm_config = config_behind(spec)
    excerpt = getattr(spec, "config", None)
    layout = str(getattr(excerpt, "kv_cache_layout", None) or "")
    fields: dict[str, Any] = {"engine": "vllm offload", "format": _FORMAT, "row_bytes": row_bytes}
    if vllm_config is not None:
        model = model_identity(vllm_config)
        fields |= model.pop("extra") | model
        fields["dtype"] = kv_dtype(vllm_config)
    else:
        name = str(excerpt.model.name) if excerpt is not None else "unknown"
        fields |= {"model": name, "revision": fingerprint(name)}
        _log.warning(
            "vLLM's configuration is not to be found: cached KV is told apart by the files of the "
            "model and its element type; set the tier's option identity if anything else differs"
        )
    if excerpt is not None:
        fields |= _of_excerpt(excerpt)
    else:
        fields |= _of_config(spec, vllm_config)
    fields |= {"layout": layout, **platform_fields(vllm_config, layout_named=bool(layout))}
    fields |= _hashing(vllm_config)
    fields["user"] = extra
    shown = {name: plain_text(value) for name, value in fields.items()}
    return describe_identity(**{name: value for name, value in shown.items() if value != ""})


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
    vllm_config = config_behind(spec)
    algorithm = _hashing(vllm_config)["hash"]
    fixed_by_default = hasattr(spec, "config") and not algorithm.startswith("xxhash")
    if os.getenv("PYTHONHASHSEED") is None and not fixed_by_default:
        _log.warning(
            "this vLLM seeds its block hashes at random: no other process, and not this one after "
            "a restart, will find what is stored; set PYTHONHASHSEED to the same number everywhere"
        )
