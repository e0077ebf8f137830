"""A connector from a specification, as configuration files have it.

    {"type": "valkey", "url": "redis://cache-1:6379", "connections": 8}
    {"type": "file", "path": "/data/kv", "capacity_gb": 500, "fsync": "never"}
    {"type": "memory", "name": "shared", "capacity_gb": 4}
    {"type": "plugin", "module_path": "my_package.store:Store", "params": {"path": "x"}}
    {"type": "native_plugin", "module_path": "my_package:Client", "params": {"host": "cache-1"}}

A gigabyte is 2**30 bytes. Of a plug-in, ``module_path`` names a module that can be imported, and
``class_name``, or what stands behind a colon, its class, which is called with the space and the
``params``; a native one, whose client `native_plugin` describes, with the ``params`` alone. Values
of settings never enter errors: they may be secrets.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

from kvferry.base.errors import ConfigError, KVFerryError
from kvferry.config import ClientConfig
from kvferry.config.setting import specs
from kvferry.config.url import nearest
from kvferry.connectors.base import Connector, Space

__all__ = ["TYPES", "load_connector"]

T = TypeVar("T")

_GIB = 1 << 30
_SERVERS = ("redis", "valkey", "resp")
TYPES = (*_SERVERS, "file", "memory", "plugin", "native_plugin")


def load_connector(spec: Mapping[str, Any], space: Space) -> Connector:
    """Open the store that a specification names; see the head of this module.

    Raises:
        ConfigError: A type or key is unknown (the text has the nearest one that is known), or a
            value cannot be right, or a plug-in is not there or is no connector.
        KVFerryError: The store cannot be opened.
    """
    settings = dict(spec)
    kind = settings.pop("type", None)
    if kind in _SERVERS:
        return _server(settings, space)
    if kind not in TYPES:
        what = "has no type" if kind is None else f"of type {kind!r} is unknown"
        raise ConfigError(f"a connector {what}{nearest(str(kind), TYPES)}")
    openers = {"file": _file, "memory": _memory, "plugin": _plugin, "native_plugin": _native_plugin}
    return openers[kind](settings, space)


def _server(settings: dict[str, Any], space: Space) -> Connector:
    from kvferry.connectors.redis import RedisConnector

    _check_known("redis", settings, ["url", "serde", *specs(ClientConfig)])
    url, serde = settings.pop("url", None), settings.pop("serde", "naive")
    if url is None:
        config = ClientConfig(**settings)
    else:
        for name in ("host", "port", "unix_path"):
            if name in settings:
                raise ConfigError(f"url and {name} are both set; use one of them")
        config = ClientConfig.from_url(url, **settings)
    return RedisConnector(space, config, serde=serde)


def _file(settings: dict[str, Any], space: Space) -> Connector:
    from kvferry.connectors.file import FileConnector

    known = ("path", "capacity_gb", "fsync", "direct", "io_uring", "rescan_s", "queued_keys_max")
    _check_known("file", settings, known)
    if not settings.get("path"):
        raise ConfigError("a file connector needs a path: a directory of its own")
    _rename_capacity(settings)
    return FileConnector(space, settings.pop("path"), **settings)


def _memory(settings: dict[str, Any], space: Space) -> Connector:
    from kvferry.connectors.memory import MemoryConnector

    _check_known("memory", settings, ("name", "capacity_gb", "queued_keys_max"))
    _rename_capacity(settings)
    return MemoryConnector(space, **settings)


def _plugin(settings: dict[str, Any], space: Space) -> Connector:
    path, factory = _factory(settings)
    if lacks := getattr(factory.func, "__abstractmethods__", None):
        raise ConfigError(f"plugin {path} is no connector; it lacks {', '.join(sorted(lacks))}")
    connector = _opened(path, lambda: factory(space))
    if not isinstance(connector, Connector):
        raise ConfigError(f"plugin {path} is no kvferry.connectors.Connector; derive it from that")
    return connector


def _native_plugin(settings: dict[str, Any], space: Space) -> Connector:
    from kvferry.connectors.native_plugin import NativePluginConnector

    path, make = _factory(settings)
    return _opened(path, lambda: NativePluginConnector(space, make))


def _factory(settings: dict[str, Any]) -> tuple[str, partial[object]]:
    """What the settings of a plug-in name, and what makes an object of its class."""
    _check_known("plugin", settings, ("module_path", "class_name", "params"))
    path = settings.get("module_path")
    if not isinstance(path, str) or not path:
        raise ConfigError("a plugin needs module_path, e.g. 'my_package.store:Store'")
    module_name, _, class_name = path.partition(":")
    class_name = class_name or settings.get("class_name") or ""
    if not class_name or settings.get("class_name", class_name) != class_name:
        raise ConfigError(f"plugin {module_name}: name its class once, as class_name or behind ':'")
    params = settings.get("params") or {}
    if not isinstance(params, Mapping):
        raise ConfigError(f"plugin {path}: params is no mapping")
    return path, partial(_imported(module_name, class_name), **params)


def _opened(path: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except KVFerryError:
        raise
    except Exception as error:  # the text could repeat a parameter
        raise ConfigError(f"plugin {path} cannot be opened: {type(error).__name__}") from error


def _imported(module_name: str, class_name: str) -> Callable[..., object]:
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"plugin {module_name} cannot be imported: {error}") from error
    except Exception as error:
        why = f"{type(error).__name__} while it was imported"
        raise ConfigError(f"plugin {module_name} cannot be used: {why}") from error
    factory = getattr(module, class_name, None)
    if not callable(factory):
        known = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise ConfigError(f"plugin {module_name} has no {class_name!r}{nearest(class_name, known)}")
    return cast("Callable[..., object]", factory)


def _check_known(kind: str, settings: Mapping[str, Any], known: Iterable[str]) -> None:
    known = list(known)
    for name in settings:
        if name not in known:
            raise ConfigError(f"a {kind} connector has no {name!r}{nearest(str(name), known)}")


def _rename_capacity(settings: dict[str, Any]) -> None:
    if "capacity_gb" not in settings:
        return
    capacity_gb = settings.pop("capacity_gb")
    number = isinstance(capacity_gb, int | float) and not isinstance(capacity_gb, bool)
    if capacity_gb is not None and not (number and 0 < capacity_gb < 1e9):
        raise ConfigError("capacity_gb is no size above 0")
    settings["capacity_bytes"] = None if capacity_gb is None else int(capacity_gb * _GIB)
