"""Where the settings of a cache server come from, and which of them wins."""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvferry.config.cache import CacheConfig
from kvferry.config.endpoints import address_of, endpoints_of
from kvferry.config.file import (
    FILE_VARIABLES,
    find_config_file,
    open_to_others,
    read_document,
    read_token,
    section_of,
)
from kvferry.config.server_settings import ServerSettings
from kvferry.config.setting import specs
from kvferry.config.source_values import Findings, Names, SourceValues, together
from kvferry.config.sources import CACHE, Examined, cache_values, resolved
from kvferry.errors import ConfigError

__all__ = ["SERVER", "gathered", "strongest_word"]

_log = logging.getLogger("kvferry.server")

_SECTION = "server"
_PREFIX = "KVFERRY_SERVER_"
_SECRETS = ("token", "http_token")
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
_ADVICE = "is a setting of engines; write it into the section 'engine'"
_KNOWN = specs(ServerSettings)
_DEFAULTS = {name: spec.default for name, spec in _KNOWN.items()}
SERVER = Names(
    _KNOWN,
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
    given = {name: value for name, value in overrides.items() if value is not None}
    engine = given.pop("engine", {})
    http = given.get("http")
    if isinstance(http, tuple | list):
        del given["http"]
    call = SERVER.take(SourceValues("call"), given, found)
    places = [call, *_of_file(found), _of_environ(environ, found)]
    found.raise_first()
    config, chunk_size = _engine(engine, places, environ, found)
    found.log(_log)
    settings = together(places)
    kept = {name: value for name, value in settings.items() if name in names}
    words = {name: strongest_word(places, name, f"{name}_file") for name in _SECRETS}
    return {
        **kept,
        **{name: word for name, word in words.items() if word is not None},
        "engine": config,
        "chunk_size": chunk_size,
        "hugepages": config.hugetlb,
        "endpoints": _endpoints(places, {**_DEFAULTS, **settings}),
        "http": tuple(http) if isinstance(http, list | tuple) else _http({**_DEFAULTS, **settings}),
    }


def _of_file(found: Examined) -> list[SourceValues]:
    file = found.file
    if file is None:
        return []
    settings = section_of(file, read_document(file), _SECTION)
    place = SERVER.take(SourceValues("file", f"{file}: {_SECTION}: "), settings, found)
    if any(name in place.values for name in _SECRETS):
        found.warnings += open_to_others(file)
    return [place]


def _of_environ(environ: Mapping[str, str], found: Findings) -> SourceValues:
    variable = f"{_PREFIX}PORT"
    if "://" in environ.get(variable, ""):
        # Kubernetes says so of a service with the name kvferry-server, to every pod.
        _log.warning("%s is no port but that of a service; it is not read", variable)
        environ = {name: text for name, text in environ.items() if name != variable}
    found.warnings += SERVER.misspelt(environ, _PREFIX)
    return SERVER.take_environ(environ, _PREFIX, found)


def _engine(
    engine: Any, places: Sequence[SourceValues], environ: Mapping[str, str], found: Examined
) -> tuple[CacheConfig, int | None]:
    """The settings of the engines, and the chunk size if any source names one."""
    own = {place.kind: _for_engine(place) for place in places}
    if isinstance(engine, CacheConfig):
        mixed = together(list(own.values()))
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
    for place in cache_values("engine", environ, found):
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
    return (address_of("http_host", settings["http_host"]), settings["http_port"])


def strongest_word(places: Sequence[SourceValues], name: str, file: str) -> str | None:
    """The secret `name` of the strongest place that has one, from its file where it names that."""
    for place in places:
        if name in place.values and file in place.values:
            raise ConfigError(f"{place.where}{name} and {file} are the same; keep one")
        if file in place.values:
            return read_token(Path(place.values[file]), file)
        if name in place.values:
            return str(place.values[name])
    return None
