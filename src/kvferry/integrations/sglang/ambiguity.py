"""Servers on which one hash of SGLang stands for two contents: they are refused, or warned of.

SGLang's hash of a page is taken for all that the server's options do not say (`identity.py`), so
both must hold: it has the adapter and the tenant of the request, and the KV of a prefix does not
depend on what else is computed with it.

- Before 0.5.20 hashes are made of tokens alone.
- LongRoPE has two sets of factors. SGLang takes the long ones for a whole batch as soon as one of
  its positions is beyond the length that the model was first trained for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvferry.base.errors import ConfigError

__all__ = ["check_server"]

_log = logging.getLogger("kvferry.integrations.sglang")
_LONG_ROPE = ("longrope", "su")
_FIRST_LENGTH = "original_max_position_embeddings"


def check_server(server: Any, model_path: str) -> None:
    """Warn once of what may be mixed up on this server.

    Args:
        server: SGLang's server arguments; None where there are none.
        model_path: Of the files of the model.

    Raises:
        ConfigError: Adapters or the lengths of prompts would be mixed up.
    """
    if not _hashes_have_namespaces():
        if _has_adapters(server):
            raise ConfigError(
                "SGLang before 0.5.20 leaves the LoRA adapter out of the hashes of its pages, so "
                "adapters would read each other's KV; upgrade SGLang, or start it without LoRA"
            )
        _warn_of_tenants()
    length = getattr(server, "context_length", None)
    drafts = getattr(server, "speculative_draft_model_path", None)
    for told, longest in _configs(server, model_path, drafts):
        _check_positions(told, length or longest)


def _hashes_have_namespaces() -> bool:
    """Whether the hash of a page has the adapter and the tenant of the request.

    It has since 0.5.20, where a function makes the seed of both. The number alone is looked at
    where that function is not found, since a later version may have it elsewhere.
    """
    try:
        if hasattr(importlib.import_module("sglang.srt.mem_cache.utils"), "storage_namespace_seed"):
            return True
        version = importlib.metadata.version("sglang")
    except Exception as error:
        _log.debug("the version of SGLang is not known: %s", error)
        return False
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return numbers is not None and tuple(int(n or 0) for n in numbers.groups()) >= (0, 5, 20)


def _has_adapters(server: Any) -> bool:
    enabled = getattr(server, "enable_lora", None)  # False: SGLang does not look at the paths
    return bool(enabled or (enabled is None and getattr(server, "lora_paths", None)))


@cache
def _warn_of_tenants() -> None:
    _log.warning(
        "SGLang before 0.5.20 leaves the tenant (cache_salt, extra_key) out of the hashes of its "
        "pages: tenants of this server read each other's; upgrade SGLang, or give each tenant a "
        'server with an "extra_backend_tag" of its own'
    )


def _configs(
    server: Any, model_path: str, draft_path: str | None
) -> Iterator[tuple[Mapping[str, Any], int | None]]:
    """The configurations of the model and of a draft model, each with its context length."""
    try:
        model = server.get_model_config()
        for name in ("hf_config", "hf_text_config"):
            if (told := getattr(model, name, None)) is not None:
                yield vars(told), getattr(model, "context_len", None)
    except Exception as error:  # a server without it, or whose model is not to be read here
        _log.debug("no model configuration from SGLang: %s", error)
        overrides = getattr(server, "json_model_override_args", None)
        yield from _of_file(model_path, overrides)
    if draft_path:
        yield from _of_file(draft_path, None)


def _of_file(path: str, overrides: str | None) -> Iterator[tuple[Mapping[str, Any], int | None]]:
    try:
        told = json.loads((Path(path) / "config.json").read_bytes())
        told |= json.loads(overrides or "{}")
        yield from ((part, None) for part in (told, told.get("text_config")) if part)
    except (OSError, ValueError, TypeError) as error:
        _log.debug("no configuration of the model %s: %s", path, error)


def _check_positions(told: Mapping[str, Any], context_length: int | None) -> None:
    ropes = [
        rope for name in ("rope_parameters", "rope_scaling") for rope in _ropes(told.get(name))
    ]
    if not any((rope.get("rope_type") or rope.get("type")) in _LONG_ROPE for rope in ropes):
        return
    lengths = [where[_FIRST_LENGTH] for where in (told, *ropes) if where.get(_FIRST_LENGTH)]
    context_length = context_length or told.get("max_position_embeddings")
    first = min(lengths, default=None)
    if first is not None and context_length is not None and context_length <= first:
        return
    raise ConfigError(
        "this model has LongRoPE, and SGLang takes its long factors for all prompts of a batch as "
        f"soon as one is beyond {first or 'the first length'} tokens, so one hash would stand for "
        f"two contents; start SGLang with --context-length {first or 'of the first length'}, or "
        "without this storage"
    )


def _ropes(value: Any) -> Iterator[Mapping[str, Any]]:
    """The parameters of rotary embeddings, also where each kind of layer has its own."""
    if isinstance(value, Mapping):
        yield value
        for inner in value.values():
            yield from _ropes(inner)
