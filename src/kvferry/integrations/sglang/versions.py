"""What differs between versions of SGLang, found by looking and never by their numbers."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import logging
import re
from typing import Any

__all__ = ["hashes_have_namespaces", "metrics_type", "prefix_result", "server_args"]

_log = logging.getLogger("kvferry.integrations.sglang")
_SERVER_ARGS = (
    ("sglang.srt.runtime_context", "get_server_args"),
    ("sglang.srt.server_args", "get_global_server_args"),
    ("sglang.srt.server_args", "get_server_args"),
)
_METRICS = ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector")


def server_args() -> Any:
    """SGLang's server arguments; None where there is no server in this process."""
    for module, name in _SERVER_ARGS:
        try:
            return getattr(importlib.import_module(module), name)()
        except Exception as error:
            _log.debug("no server arguments from %s.%s: %s", module, name, error)
    return None


def hashes_have_namespaces() -> bool:
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


def metrics_type() -> Any:
    """The class of what `get_stats` returns, or None."""
    for module in _METRICS:
        try:
            return importlib.import_module(module).StorageMetrics
        except (ImportError, AttributeError):
            continue
    return None


def prefix_result(kind: Any, lengths: list[int], longest: dict[str, int]) -> Any:
    """The answer of `batch_exists_v2`, with the fields that this version has.

    Args:
        kind: ``PoolTransferResult``.
        lengths: That can be restored, in pages, ascending.
        longest: By pool, the longest that it allows by itself.
    """
    told: list[Any] = [lengths[-1] if lengths else 0, longest]
    if "restorable_prefix_pages" in inspect.signature(kind).parameters:
        told.append(lengths)
    return kind(*told)
