"""Where the settings of a cache server come from, and which of them wins."""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Mapping, Sequence
from typing import Any

from kvferry.config.cache import CACHE, SECTION, CacheConfig, Examined, cache_values, resolved
from kvferry.config.endpoints import endpoints_of
from kvferry.config.file import FILE_VARIABLES, find_config_file
from kvferry.config.server_settings import ServerSettings
from kvferry.config.setting import specs
from kvferry.config.source_values import Names, SourceValues
from kvferry.errors import ConfigError

__all__ = ["SERVER", "gathered"]

_log = logging.getLogger("kvferry.server")

_LISTENING = ("tcp", "host", "port", "ipc")
# Settings of the engine that the server has under names of its own.
_OF_ENGINE = {
    "l1_size_gb": "max_local_cpu_size",
    "eviction_policy": "eviction_policy",
    "l2_adapters": "stores",
    "chunk_size": "chunk_size",
    "hugepages": "hugetlb",
}
_ALIASES: dict[str, tuple[str, float | None]] = {
    "l2_adapter": ("l2_adapters", None),
    "stores": ("l2_adapters", None),
    "l1_size": ("l1_size_gb", None),
    "max_local_cpu_size": ("l1_size_gb", None),
    "state": ("state_file", None),
}
_ADVICE = "is a setting of the cache; write it into the section 'cache'"
_KNOWN = specs(ServerSettings)
_DEFAULTS = {name: spec.default for name, spec in _KNOWN.items()}
SERVER = Names(
    _KNOWN,
    "server",
    "KVFERRY_SERVER_",
    _ALIASES,
    elsewhere={name: _ADVICE for name in CACHE.known if name not in (*_KNOWN, *_ALIASES)},
)


def gathered(
    path: str | os.PathLike[str] | None,
    environ: Mapping[str, str] | None,
    overrides: Mapping[str, Any],
    names: Container[str],
) -> dict[str, Any]:
    """The keywords of a server's configuration that are in `names`, from all sources.

    Raises:
        ConfigError: A file is missing or malformed, or a setting is unknown or cannot be.
    """
    environ = os.environ if environ is None else environ
    found = Examined(file=find_config_file(path, environ, FILE_VARIABLES))
    given = dict(overrides)
    if (engine := given.pop("engine", None)) is None:
        engine = {}
    http = given.get("http")
    if isinstance(http, tuple | list):
        del given["http"]
    places = SERVER.gather(found.file, environ, given, found)
    config, chunk_size = _engine(engine, places, environ, found)
    found.log(_log)
    settings = SERVER.together(places)
    return {
        **{name: value for name, value in settings.items() if name in names},
        "engine": config,
        "chunk_size": chunk_size,
        "hugepages": config.hugetlb,
        "endpoints": _endpoints(places, {**_DEFAULTS, **settings}),
        "http": tuple(http) if isinstance(http, list | tuple) else _http({**_DEFAULTS, **settings}),
    }


def _engine(
    engine: Any, places: Sequence[SourceValues], environ: Mapping[str, str], found: Examined
) -> tuple[CacheConfig, int | None]:
    """The settings of the engines, and the chunk size if any source names one."""
    own = {place.kind: _for_engine(place) for place in places}
    if isinstance(engine, CacheConfig):
        mixed = {name: v for place in reversed(own.values()) for name, v in place.values.items()}
        if "stores" in mixed:
            raise ConfigError("pass either a CacheConfig or l2_adapters; both name stores")
        return engine.replace(**mixed), mixed.get("chunk_size")
    if not isinstance(engine, Mapping):
        raise ConfigError("engine is no CacheConfig and no mapping of settings")
    clash = [name for name in own["call"].values if name in engine]
    if clash:
        raise ConfigError(f"engine: {clash[0]} is there a second time; keep one")
    order = [own["call"], CACHE.take(SourceValues("call", "engine: "), engine, found)]
    # Of each place what it says of the server, then what it says of engines.
    for place in cache_values(SECTION, environ, found):
        order += [own.pop(place.kind)] if place.kind in own else []
        order.append(place)
    resolved(order, environ, found)
    config = CacheConfig(**found.settings())
    size, source = found.values["chunk_size"]
    return config, None if source == "default" else size


def _for_engine(place: SourceValues) -> SourceValues:
    """What a place says of pool and stores, by the names that these have for an engine."""
    values = {ours: place.values[n] for n, ours in _OF_ENGINE.items() if n in place.values}
    spelled = {ours: place.spelled[n] for n, ours in _OF_ENGINE.items() if n in place.values}
    return SourceValues(place.kind, place.where, values, spelled)


def _endpoints(places: Sequence[SourceValues], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The list of the strongest place that speaks of listening, or what the parts amount to."""
    for place in places:
        parts = [name for name in _LISTENING if name in place.values]
        if "endpoints" in place.values:
            if parts:
                raise ConfigError(
                    f"{place.where}endpoints and {parts[0]} are the same; keep one of them"
                )
            return tuple(place.values["endpoints"])
        if parts:
            break
    return endpoints_of(**{name: settings[name] for name in _LISTENING})


def _http(settings: Mapping[str, Any]) -> tuple[str, int] | None:
    if not settings["http"] or settings["http_port"] == 0:
        return None
    return settings["http_host"], settings["http_port"]
