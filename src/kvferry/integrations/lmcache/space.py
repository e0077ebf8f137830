"""Where LMCache's in-process engine says what our connector is to connect to.

In its YAML, ``extra_config`` holds our `LmcacheSettings` under one of two prefixes; the
first is for one plug-in, the second for all of ours:

    remote_storage_plugin.<name>.url: redis://cache-1:6379
    kvferry.verify: true

or host and port stand in the URL of ``external://host:port/kvferry.integrations.lmcache/?...``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from kvferry.base.errors import ConfigError, UsageError
from kvferry.config.integrations import LmcacheSettings

__all__ = ["engine_settings"]

_OURS = "kvferry."
_LOADING = ("module_path", "class_name")  # LMCache's own keys of a plug-in


def engine_settings(config: Any, plugin_name: str | None = None) -> LmcacheSettings:
    """Our settings in an ``LMCacheEngineConfig``.

    Args:
        config: Its ``extra_config`` and ``remote_url`` are read; None: there is nothing.
        plugin_name: As in ``remote_storage_plugins``; None: the form with the URL.

    Raises:
        ConfigError: A key is unknown or its value cannot be right.
        UsageError: LMCache is to do something else with the values than store them.
    """
    serde = getattr(config, "remote_serde", None)
    if serde not in (None, "naive"):
        raise UsageError(f"LMCache's remote_serde is {serde!r}, we take naive values; set it so")
    if getattr(config, "use_layerwise", False):
        raise UsageError(
            "use_layerwise stores layers, and our values are whole chunks; turn it off"
        )
    extra: Mapping[str, Any] = getattr(config, "extra_config", None) or {}
    params = _under(extra, _OURS)
    if plugin_name is not None:
        own = _under(extra, f"remote_storage_plugin.{plugin_name}.")
        params.update((name, value) for name, value in own.items() if name not in _LOADING)
    elif not {"url", "host", "unix_path"} & params.keys():
        params.update(_of_url(getattr(config, "remote_url", None) or ""))
    return LmcacheSettings.read(params, "extra_config")


def _under(extra: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key[len(prefix) :]: extra[key] for key in extra if key.startswith(prefix)}


def _of_url(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        named = {"host": parts.hostname, "port": parts.port}
    except ValueError:
        raise ConfigError("remote_url is malformed; it is external://host:port/...") from None
    if parts.scheme != "external":
        return {}
    named.update({"username": parts.username, "password": parts.password})
    return {k: unquote(v) if isinstance(v, str) else v for k, v in named.items() if v}
