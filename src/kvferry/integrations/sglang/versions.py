"""What differs between versions of SGLang, found by looking and never by their numbers."""

from __future__ import annotations

import importlib
import inspect
import logging
from typing import Any

__all__ = ["metrics_type", "prefix_result", "server_args"]

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
