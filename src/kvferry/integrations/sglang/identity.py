"""What the bytes of a page mean, in words: the fields of the identity of a pool's pages.

The hash that SGLang makes of a page says which tokens it stands for, adapter and tenant included,
and nothing else. So everything else that changes the bytes is said here: the weights (a fingerprint
of their files), the shape and the element type, the layout, which layers and heads this rank has,
and the options of the server that change KV. Two servers that differ in any of it never see each
other's pages.

SGLang's objects are read by name, and what a version does not have is left out.
"""

from __future__ import annotations

import hashlib
import logging
import os
from typing import Any

from kvferry.config.integrations import SglangSettings
from kvferry.integrations.weights import fingerprint, is_known

__all__ = ["has_draft", "heads_of", "is_replicated", "model_path", "page_fields", "server_fields"]

_log = logging.getLogger("kvferry.integrations.sglang")

FORMAT = 1  # of the parts of a page; another one is another identity
# Of a host pool, where it has them: numbers of its shape, and its element types.
_SHAPE = (
    *("page_size", "layer_num", "start_layer", "end_layer", "target_layer_num"),
    *("head_num", "head_dim", "v_head_dim", "head_group_num"),
    *("kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim", "index_head_dim"),
    *("num_mamba_layers", "temporal_state_elem_size"),
)
_DTYPES = ("dtype", "temporal_dtype", "conv_dtype", "indexer_dtype")
# Options of the server that make KV another one.
_OPTIONS = (
    *("dtype", "quantization", "kv_cache_dtype", "quantization_param_path"),
    "json_model_override_args",
)
_TEXT_CHARS_MAX = 400
_OWN = os.urandom(16).hex()  # of this process


def server_fields(server: Any, settings: SglangSettings, model_name: str) -> dict[str, str | int]:
    """What the server's options say of the KV, the fingerprints of the weights included.

    Args:
        server: SGLang's server arguments; None where there are none.
        settings: Ours; what they say of the weights wins.
        model_name: As the server calls the model.
    """
    fields: dict[str, str | int] = {
        "model": _line(model_name),
        "tag": _line(settings.extra_backend_tag),
    }
    path = model_path(server, settings, model_name)
    if settings.revision:
        fields["weights"] = _line(settings.revision)
    else:
        fields["weights"] = fingerprint(path, getattr(server, "revision", None))
        if not is_known(str(fields["weights"])):
            _log.warning(
                "the weights of %r cannot be read here, so pages are kept under the name alone; "
                'set "model_path" or "revision" in the HiCache extra config',
                path,
            )
    draft = getattr(server, "speculative_draft_model_path", None)
    if draft:
        branch = getattr(server, "speculative_draft_model_revision", None)
        method = getattr(server, "speculative_algorithm", None) or ""
        fields["draft"] = _line(f"{fingerprint(str(draft), branch)} {method}")
    if adapters := _adapters(server):
        fields["adapters"] = adapters
    if getattr(server, "load_format", None) == "dummy":
        fields["weights"] = "dummy"  # random ones, whatever the files say
    for name in _OPTIONS:
        value = getattr(server, name, None)
        if value not in (None, "", "{}"):
            fields[f"option_{name}"] = _line(value)
    return {name: value for name, value in fields.items() if value != ""}


def model_path(server: Any, settings: SglangSettings, model_name: str) -> str:
    """Where the files of the model are; a name of the hub where SGLang was given one."""
    return str(settings.model_path or getattr(server, "model_path", None) or model_name)


def has_draft(pool: Any, name: str) -> bool:
    """Whether the pages of a pool are, or have layers, of the draft model."""
    own = getattr(pool, "target_layer_num", None)
    return name.startswith("draft") or (own is not None and own != pool.layer_num)


def page_fields(pool: Any, name: str, config: Any) -> dict[str, str | int]:
    """What the pages of a pool are, and of which part of the model.

    Args:
        pool: SGLang's host pool.
        name: Its name, "kv" for the main one.
        config: SGLang's `HiCacheStorageConfig`.
    """
    fields: dict[str, str | int] = {
        "engine": "sglang",
        "format": FORMAT,
        "pool": name,
        "pool_type": type(pool).__name__,
        "layout": _line(getattr(pool, "layout", "")),
        "pp": f"{config.pp_rank} of {config.pp_size}",
        "cp": f"{getattr(config, 'attn_cp_rank', 0)} of {getattr(config, 'attn_cp_size', 1)}",
        "dcp": f"{getattr(config, 'dcp_rank', 0)} of {getattr(config, 'dcp_size', 1)}",
        "mla": int(bool(config.is_mla_model)),
    }
    for attribute in _SHAPE:
        value = getattr(pool, attribute, None)
        if isinstance(value, int) and not isinstance(value, bool):
            fields[attribute] = value
    for attribute in _DTYPES:
        value = getattr(pool, attribute, None)
        if value is not None:
            fields[f"element_{attribute}"] = _line(value).removeprefix("torch.")
    split, _ = heads_of(pool, config)
    if is_replicated(pool, name, config):
        fields["tp"] = "all"
    elif split:
        # The groups are numbered in the suffixes of the parts, so every rank has this identity.
        fields["tp"] = f"groups of {config.tp_lcm_size}"
        fields["head_num"] = int(pool.head_num) // split
    else:
        fields["tp"] = f"{config.tp_rank} of {config.tp_size}"
    return {key: value for key, value in fields.items() if value != ""}


def is_replicated(pool: Any, name: str, config: Any) -> bool:
    """Whether all ranks of tensor parallelism have the same bytes, of which one of them is stored.

    With MLA that is so of every pool that is not divided by heads; states of Mamba always are.
    """
    divided = name == "mamba" or getattr(pool, "head_num", None) is not None
    return bool(config.is_mla_model) and not divided


def heads_of(pool: Any, config: Any) -> tuple[int, int]:
    """Into how many groups of heads a page is cut, and which of all is the first; 0: it is not.

    Servers that name a common multiple of their sizes of tensor parallelism (``tp_lcm_size``) keep
    pages by groups that all of them can make up theirs of.
    """
    lcm = getattr(config, "tp_lcm_size", None)
    by_head = getattr(pool, "layout", "") == "page_head"
    if not lcm or not by_head or not hasattr(pool, "get_split_heads_page_buffer_meta"):
        return 0, 0
    split = int(lcm) // int(config.tp_size)
    if split < 1 or int(pool.head_num) % split:
        return 0, 0
    return split, int(config.tp_rank) * split


def _adapters(server: Any) -> str:
    """A digest of the adapters that the server begins with.

    SGLang's hashes have their names and paths, and so do not change when they are trained anew. One
    that is loaded later has a number of its own there, each time. Where one cannot be read, nobody
    knows whose pages fit, so this process has a name of its own.
    """
    told = getattr(server, "lora_paths", None) or ()
    pairs = told.items() if isinstance(told, dict) else (_adapter(one) for one in told)
    known = sorted((str(name), str(path), fingerprint(str(path))) for name, path in pairs)
    unread = [path for _, path, digest in known if not is_known(digest)]
    if unread:
        _log.warning(
            "the files of LoRA adapter %r cannot be read here, so pages of this process are no "
            "other one's: nothing is found that was stored before",
            unread[0],
        )
        return f"unread {_OWN}"
    found = "".join(f"{name} {digest}\n" for name, _, digest in known)
    return hashlib.sha256(found.encode()).hexdigest()[:32] if found else ""


def _adapter(told: Any) -> tuple[str, str]:
    """Name and path of an adapter, which versions write down in different ways."""
    if isinstance(told, str):
        name, _, path = told.rpartition("=")
        return name or path, path
    if isinstance(told, dict):
        return str(told.get("lora_name", "")), str(told.get("lora_path", ""))
    return str(getattr(told, "lora_name", "")), str(getattr(told, "lora_path", ""))


def _line(value: object) -> str:
    """A value as one line of bounded length."""
    return " ".join(str(value).split())[:_TEXT_CHARS_MAX]
