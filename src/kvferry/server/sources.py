"""Where the settings of a server come from, and which of them wins."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvferry._config_file import read_document, section_of
from kvferry._url import nearest
from kvferry.config_file import others_may_read
from kvferry.engine_config import EngineConfig, examine
from kvferry.engine_config.sources import FILE_VARIABLES, OURS
from kvferry.errors import ConfigError
from kvferry.server.endpoints import address_of, endpoints_of
from kvferry.server.settings import ALIASES, PLAIN, PREFIX, SETTINGS

__all__ = ["SECTION", "gathered", "read_token"]

_log = logging.getLogger("kvferry.server")

SECTION = "server"
_SIMILAR = 0.75  # of a variable's name: beyond it a typing error is likelier than a stranger
_TOKEN_BYTES_MAX = 4096
_LISTENING = ("tcp", "host", "port", "ipc")
# Settings of the engine that the server has under names of its own.
_OF_ENGINE = {
    "l1_size_gb": "max_local_cpu_size",
    "eviction_policy": "eviction_policy",
    "l2_adapters": "l2_adapters",
    "chunk_size": "chunk_size",
    "hugepages": "hugetlb",
}
_SECRETS = ("http_token",)


@dataclass
class _Layer:
    """What one place says: checked values by our names, and how they are spelled there."""

    where: str
    values: dict[str, Any] = field(default_factory=dict)
    spelled: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, given: str, value: Any) -> None:
        if name in self.values:
            raise ConfigError(
                f"{self.where}{given} says {self.spelled[name]} a second time; keep one"
            )
        self.values[name], self.spelled[name] = value, given


def gathered(
    path: str | os.PathLike[str] | None,
    environ: Mapping[str, str] | None,
    overrides: Mapping[str, Any],
) -> dict[str, Any]:
    """The keywords of `ServerConfig`, from all sources; see `ServerConfig.load`.

    Raises:
        ConfigError: A file is missing or malformed, or a setting is unknown or cannot be.
    """
    environ = os.environ if environ is None else environ
    if path is None:
        path = next((environ[name] for name in FILE_VARIABLES if environ.get(name)), None)
    file = None if path is None else Path(path)
    call, engine = _of_call(overrides)
    layers = [call, _of_environ(environ), _of_file(file)]
    settings = {
        name: next(layer.values[name] for layer in layers if name in layer.values)
        for name in SETTINGS
        if any(name in layer.values for layer in layers)
    }
    config, chunk_size = _engine(path, environ, layers, engine)
    found = {name: settings[name] for name in PLAIN if name in settings}
    found.update(
        engine=config,
        chunk_size=chunk_size,
        hugepages=config.hugetlb,
        endpoints=_endpoints(layers, settings),
        http=_http(call, settings),
    )
    token = _token(layers)
    if token is not None:
        found["http_token"] = token
    return found


def _of_call(overrides: Mapping[str, Any]) -> tuple[_Layer, Any]:
    """The layer, and what the call says of the engine."""
    layer = _Layer("")
    given = {name: value for name, value in overrides.items() if value is not None}
    engine = given.pop("engine", {})
    if not isinstance(engine, EngineConfig | Mapping):
        raise ConfigError("engine is no EngineConfig and no mapping of settings")
    http = given.get("http")
    if isinstance(http, tuple | list):
        del given["http"]
        if len(http) != 2:
            raise ConfigError("http is no pair of host and port")
        given["http_host"], given["http_port"] = http
        layer.values["http"] = tuple(http)
    _take(layer, given)
    return layer, engine


def _of_file(file: Path | None) -> _Layer:
    layer = _Layer(f"{file}: {SECTION}: ")
    if file is not None:
        found = section_of(file, read_document(file), SECTION)
        _take(layer, {name: value for name, value in found.items() if value is not None})
        secret = any(name in layer.values for name in _SECRETS)
        if secret and others_may_read(file):
            _log.warning("%s holds a secret and others may open it; run chmod 600 on it", file)
    return layer


def _take(layer: _Layer, settings: Mapping[str, Any]) -> None:
    for given, value in settings.items():
        name = ALIASES.get(given, given)
        if name not in SETTINGS:
            if given in OURS:
                advice = "is a setting of engines; write it into the section 'engine'"
                raise ConfigError(f"{layer.where}{given} {advice}")
            known = difflib.get_close_matches(given, [*SETTINGS, *ALIASES], n=1, cutoff=0.4)
            advice = nearest(given, known or SETTINGS)
            raise ConfigError(f"{layer.where}unknown setting {given!r}{advice}")
        try:
            layer.put(name, given, SETTINGS[name].check(given, _plain(name, value)))
        except ConfigError as error:
            text = str(error)
            raise ConfigError(text if text.startswith(layer.where) else layer.where + text) from (
                None
            )


def _plain(name: str, value: Any) -> Any:
    """A path as text, and one adapter as a list of one."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return [value] if name == "l2_adapters" and isinstance(value, Mapping) else value


def _of_environ(environ: Mapping[str, str]) -> _Layer:
    layer = _Layer("")
    known = {PREFIX + given.upper(): given for given in (*SETTINGS, *ALIASES)}
    for variable, given in known.items():
        text = environ.get(variable)
        if not text:
            continue
        name = ALIASES.get(given, given)
        if given == "port" and "://" in text:
            # Kubernetes says so of a service with the name kvferry-server, to every pod.
            _log.warning("%s is no port but that of a service; it is not read", variable)
            continue
        layer.put(name, variable, SETTINGS[name].parse(variable, text))
    for variable in environ:
        if variable.startswith(PREFIX) and variable not in known:
            names = [name.removeprefix(PREFIX) for name in known]
            close = difflib.get_close_matches(
                variable.removeprefix(PREFIX), names, n=1, cutoff=_SIMILAR
            )
            for name in close:
                _log.warning("%s is not read; did you mean %s%s?", variable, PREFIX, name)
    return layer


def _engine(
    path: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    layers: list[_Layer],
    engine: Any,
) -> tuple[EngineConfig, int | None]:
    """The settings of the engines, and the chunk size if any source names one."""
    call, env, file = [
        {ours: layer.values[name] for name, ours in _OF_ENGINE.items() if name in layer.values}
        for layer in layers
    ]
    if isinstance(engine, EngineConfig):
        mixed = {**file, **env, **call}
        stores = mixed.pop("l2_adapters", None)
        if stores is not None:
            raise ConfigError("pass either an EngineConfig or l2_adapters; both name stores")
        chunk_size = mixed.get("chunk_size")
        return replace(engine, **mixed), chunk_size
    clash = [name for name in call if name in engine]
    if clash:
        raise ConfigError(f"engine: {clash[0]} is there a second time; keep one")
    given = {**{name: env[name] for name in env if name not in engine}, **engine, **call}
    found = examine(path, environ=environ, over_file={SECTION: file}, **given)
    config = EngineConfig(**found.settings())
    for text in found.warnings:
        _log.warning("%s", text)
    for text in found.notes:
        _log.info("%s", text)
    size, source = found.values["chunk_size"]
    return config, None if source == "default" else size


def _endpoints(layers: list[_Layer], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The list of the strongest layer that speaks of listening, or what the parts amount to."""
    for layer in layers:
        parts = [name for name in _LISTENING if name in layer.values]
        if "endpoints" in layer.values:
            if parts:
                raise ConfigError(
                    f"{layer.where}endpoints and {parts[0]} are the same; keep one of them"
                )
            return tuple(layer.values["endpoints"])
        if parts:
            break
    return endpoints_of(
        tcp=settings.get("tcp", True),
        host=settings.get("host", "localhost"),
        port=settings.get("port", 5555),
        ipc=settings.get("ipc"),
    )


def _http(call: _Layer, settings: Mapping[str, Any]) -> tuple[str, int] | None:
    if isinstance(call.values.get("http"), tuple):
        return (address_of("http_host", call.values["http_host"]), call.values["http_port"])
    port = settings.get("http_port", 8080)
    if not settings.get("http", True) or port == 0:
        return None
    return (address_of("http_host", settings.get("http_host", "localhost")), port)


def _token(layers: list[_Layer]) -> str | None:
    """The token of the strongest layer that has one, from its file where it names that."""
    for layer in layers:
        token, file = layer.values.get("http_token"), layer.values.get("http_token_file")
        if token is not None and file is not None:
            raise ConfigError(f"{layer.where}http_token and http_token_file are the same; keep one")
        if file is not None:
            return read_token(Path(file))
        if token is not None:
            return str(token)
    return None


def read_token(file: Path) -> str:
    """The word that a file holds.

    Raises:
        ConfigError: It is missing, or holds something else.
    """
    try:
        with file.open("rb") as stream:
            raw = stream.read(_TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"http_token_file {file}: {error.strerror}") from None
    token = raw.decode("ascii", "replace").strip()
    if len(raw) > _TOKEN_BYTES_MAX or not token or not all("!" <= char <= "~" for char in token):
        raise ConfigError(f"http_token_file {file} does not hold one word of printable ASCII")
    if others_may_read(file):
        _log.warning("%s holds a secret and others may open it; run chmod 600 on it", file)
    return token
