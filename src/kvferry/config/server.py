"""The settings of a cache server, as one frozen object that is checked when it is made.

    # kvferry.yaml
    server:
      l1_size_gb: 10
      port: 6555
      ipc: /run/kvferry/kvferry.sock
    cache:
      eviction_policy: S3-FIFO
      stores:
        - {type: redis, url: "redis://cache-1:6379", max_capacity_gb: 500}

    config = ServerConfig.load("kvferry.yaml", http_port=9090)

What a place does not say of pool and stores comes from the cache's settings there: the section
``cache`` of the same file, ``KVFERRY_*``, ``LMCACHE_*``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Self

from kvferry.config.cache import CACHE, SECTION, CacheConfig, Examined, cache_values, resolved
from kvferry.config.endpoints import address_of, endpoints_of, listening
from kvferry.config.file import FILE_VARIABLES, find_config_file
from kvferry.config.server_settings import CommonSettings, ListenPort, ServerSettings
from kvferry.config.setting import setting, specs
from kvferry.config.source_values import Names, SourceValues
from kvferry.config.url import is_loopback
from kvferry.errors import ConfigError

__all__ = ["SERVER", "ServerConfig"]

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
_HTTP = "a pair of http_host and http_port, or None"


class ServerConfig(CommonSettings, frozen=True, kw_only=True):
    """What a cache server holds, where it listens, and its limits.

    Attributes:
        engine: Pool size (`max_local_cpu_size`, of all identities together), eviction policy,
            stores and time limits.
        endpoints: Where engines connect, e.g. "tcp://127.0.0.1:6555", "ipc:///run/kvferry.sock".
            Port 0 is any free one.
        http: Host and port of the HTTP side, port 0 any free one; None: none.
        again: Reads the same settings anew, for a reload; None: they came from the program alone.

    The others are those of `ServerSettings`.

    Raises:
        ConfigError: A setting cannot be, or contradicts another one.
    """

    engine: Annotated[CacheConfig, setting(program=True)] = CacheConfig()
    endpoints: Annotated[
        tuple[str, ...],
        setting(
            min_length=1,
            use="a list with at least one endpoint, e.g. tcp://127.0.0.1:5555",
            quoted=False,
        ),
    ] = ("tcp://127.0.0.1:5555",)
    http: Annotated[tuple[str, ListenPort], setting(use=_HTTP)] | None = ("127.0.0.1", 8080)
    again: Annotated[Callable[[], ServerConfig] | None, setting(program=True, secret=True)] = None

    def __eq__(self, other: object) -> bool:
        """Where they were read makes no settings others."""
        names = [name for name in specs(ServerConfig) if name != "again"]
        return isinstance(other, ServerConfig) and all(
            getattr(self, name) == getattr(other, name) for name in names
        )

    def _check(self) -> None:
        if not isinstance(self.engine, CacheConfig):
            raise ConfigError("engine is no CacheConfig; make it with CacheConfig.load(...)")
        self._check_endpoints()
        self._check_http()
        if self.dead_after_s <= self.heartbeat_s:
            raise ConfigError(
                f"dead_after_s={self.dead_after_s:g} is not above heartbeat_s="
                f"{self.heartbeat_s:g}: every client would be taken for dead; raise it"
            )

    def _check_endpoints(self) -> None:
        found = [listening(endpoint) for endpoint in self.endpoints]
        endpoints = tuple(endpoint for endpoint, _ in found)
        self._set("endpoints", endpoints)
        for endpoint, host in found:
            if host is not None and self.token is None and not is_loopback(host):
                raise ConfigError(
                    f"{endpoint} is reachable from other hosts, which needs a token; set "
                    "token_file, or listen on localhost or at a Unix socket (ipc)"
                )
            if endpoints.count(endpoint) > 1 and not endpoint.endswith((":0", ":*")):
                raise ConfigError(f"{endpoint} is there twice in endpoints; keep one")

    def _check_http(self) -> None:
        if self.http is None:
            return
        host = address_of("http_host", self.http[0])
        self._set("http", (host, self.http[1]))
        if self.http_token is None and not is_loopback(host):
            raise ConfigError(
                f"http_host={host!r} is reachable from other hosts, which needs http_token; set "
                "http_token_file, or listen on localhost"
            )

    @property
    def l1_bytes(self) -> int:
        """The most that all pools together may hold, in bytes."""
        return self.engine.l1_bytes

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> Self:
        """The settings of this call, of a file and of the environment; see the module.

        Args:
            path: The file; default: ``KVFERRY_CONFIG_FILE``, then ``LMCACHE_CONFIG_FILE``, or none.
            environ: Default: of this process.
            **overrides: Names of `ServerSettings`, where not None; `http` may also be a pair, and
                `engine` a `CacheConfig` or a mapping of its settings.

        Raises:
            ConfigError: The file is missing or malformed, or a setting is; the text names it.
        """
        again = partial(cls.load, path, environ=environ, **overrides)
        environ, given = os.environ if environ is None else environ, dict(overrides)
        found = Examined(file=find_config_file(path, environ, FILE_VARIABLES))
        engine, http = given.pop("engine", None), given.get("http")
        if isinstance(http, tuple | list):
            del given["http"]
        places = SERVER.gather(found.file, environ, given, found)
        config, chunk_size = _engine({} if engine is None else engine, places, environ, found)
        found.log(_log)
        settings = {
            **SERVER.together(places),
            "chunk_size": chunk_size,
            "hugepages": config.hugetlb,
        }
        everything = {**_DEFAULTS, **settings}
        return cls(
            **{name: settings[name] for name in settings if name in specs(CommonSettings)},
            engine=config,
            endpoints=_endpoints(places, everything),
            http=tuple(http) if isinstance(http, list | tuple) else _http(everything),
            again=again,
        )


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
