"""The settings of a cache server, as one frozen object that is checked when it is made.

What a place does not say of pool and stores comes from the cache's settings there: the section
``cache`` of the same file, ``KVFERRY_*``, ``LMCACHE_*``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Self

from kvferry.base.errors import ConfigError
from kvferry.config.cache import CACHE, SECTION, CacheConfig, Examined, cache_values, resolved
from kvferry.config.endpoints import address_of, endpoints_of, listening
from kvferry.config.file import FILE_VARIABLES, find_config_file
from kvferry.config.removed import REMOVED
from kvferry.config.setting import Path, Settings, setting, specs, word
from kvferry.config.source_values import Alias, Names, SourceValues
from kvferry.config.tuning import ServerTuning
from kvferry.config.url import is_loopback

__all__ = ["SERVER", "ServerConfig", "ServerSettings"]

_log = logging.getLogger("kvferry.server")

# Settings of the cache whose default is another one here.
_OF_ITS_OWN = ("chunk_size", "prefault")
_ALIASES: dict[str, Alias] = {
    "l2_adapter": ("stores", None),
    "l2_adapters": ("stores", None),
    "l1_size": ("max_local_cpu_size", None),
    "l1_size_gb": ("max_local_cpu_size", None),
    "state": ("state_file", None),
}
_ADVICE = "is a setting of the cache; write it into the section 'cache'"
_HTTP = "a pair of http_host and http_port, or None"
_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z"
Address = Annotated[str, setting(min_length=1, use="an address of this host, e.g. localhost")]
ListenPort = Annotated[int, setting(ge=0, le=65_535)]


class CommonSettings(Settings, frozen=True, kw_only=True):
    """What a server is told in the same words by people and by programs.

    Attributes:
        chunk_size: The tokens of a chunk, for engines that name no chunk size. Without it such an
            engine takes its own default.
        token: The word that engines must show. It is needed where other hosts can connect.
        http_token: The word that callers of HTTP must show. It is needed where other hosts can
            connect.
        shm_name: The beginning of the names of shared segments; a random part follows. Each server
            of one user needs another.
        prefault: Take all memory of the pool at once, as soon as an engine has registered, and not
            as it fills: for huge pages, or where engines pin it.
        state_file: The file that keeps the index over a restart, so that the pool is used again.
        tuning: Values that are no settings.
    """

    removed: ClassVar = REMOVED["server"]

    chunk_size: Annotated[int, setting(ge=1, le=1 << 20, unit="tokens")] | None = None
    token: Annotated[str, word("token_file")] | None = None
    http_token: Annotated[str, word("http_token_file")] | None = None
    shm_name: Annotated[str, setting(pattern=_NAME, use="a name of letters, digits and -_.")] = (
        "kvferry"
    )
    prefault: bool = False
    state_file: Annotated[str, setting(min_length=1, use="a path", flag="state")] | None = None
    tuning: Annotated[ServerTuning, setting(private=True)] = ServerTuning()


class ServerSettings(CommonSettings, frozen=True, kw_only=True):
    """What a file, the environment and the command line may name.

    Those of the cache in `of_cache` are among them, and win over what the same place says of the
    cache.

    Attributes:
        tcp: Let engines connect over TCP, at `host` and `port`.
        host: The address where engines connect. One that other hosts reach needs a token.
        port: The TCP port where engines connect; 0 takes any that is free.
        ipc: The path of a Unix socket where engines connect too.
        http: Serve HTTP.
        http_host: The address where HTTP listens. One that other hosts reach needs a token.
        http_port: The port where HTTP listens; 0 serves no HTTP. If 8080 is taken, the server goes
            on without HTTP and says so; any other port that is taken is an error.
        token_file: A file with the token that engines must show.
        http_token_file: A file with the token that callers of HTTP must show.
    """

    guide: ClassVar = (*("host", "port", "ipc", "token_file", "state_file"),)
    of_cache: ClassVar = ("max_local_cpu_size", "stores", "eviction_policy", "hugetlb")

    tcp: bool = True
    host: Address = "localhost"
    port: ListenPort = 5555
    ipc: Path | None = None
    token_file: Path | None = None
    http: bool = True
    http_host: Address = "localhost"
    http_port: ListenPort = 8080
    http_token_file: Path | None = None


_KNOWN = {**specs(ServerSettings), **{name: CACHE.known[name] for name in ServerSettings.of_cache}}
SERVER = Names(
    _KNOWN,
    "server",
    "KVFERRY_SERVER_",
    _ALIASES,
    elsewhere={
        **{name: _ADVICE for name in CACHE.known if name not in (*_KNOWN, *_ALIASES)},
        "endpoints": "is gone: use host, port and ipc",
        **ServerSettings.removed,
    },
)


class ServerConfig(CommonSettings, frozen=True, kw_only=True):
    """What a cache server holds, where it listens, and its limits.

    Attributes:
        cache: Pool size (`max_local_cpu_size`, of all identities together), eviction policy,
            stores and time limits.
        endpoints: Where engines connect, e.g. "tcp://127.0.0.1:6555", "ipc:///run/kvferry.sock".
            Port 0 is any free one.
        http: Host and port of the HTTP side, port 0 any free one; None: none.
        again: Reads the same settings anew, for a reload; None: they came from the program alone.

    The others are those of `ServerSettings`.

    Raises:
        ConfigError: A setting cannot be, or contradicts another one.
    """

    cache: Annotated[CacheConfig, setting(program=True)] = CacheConfig()
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
        if not isinstance(self.cache, CacheConfig):
            raise ConfigError("cache is no CacheConfig; make it with CacheConfig.load(...)")
        self._check_endpoints()
        self._check_http()

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
        return self.cache.l1_bytes

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
                `cache` a `CacheConfig` or a mapping of its settings.

        Raises:
            ConfigError: The file is missing or malformed, or a setting is; the text names it.
        """
        again = partial(cls.load, path, environ=environ, **overrides)
        environ, given = os.environ if environ is None else environ, dict(overrides)
        found = Examined(file=find_config_file(path, environ, FILE_VARIABLES))
        cache, http = given.pop("cache", None), given.get("http")
        if isinstance(http, tuple | list):
            del given["http"]
        places = SERVER.gather(found.file, environ, given, found)
        config, said = _cache({} if cache is None else cache, places, environ, found)
        found.log(_log)
        settings = {**SERVER.together(places), **said}
        own = ServerSettings(**{n: settings[n] for n in specs(ServerSettings) if n in settings})
        pair = (own.http_host, own.http_port) if own.http and own.http_port else None
        return cls(
            **{name: getattr(own, name) for name in specs(CommonSettings)},
            cache=config,
            endpoints=endpoints_of(tcp=own.tcp, host=own.host, port=own.port, ipc=own.ipc),
            http=tuple(http) if isinstance(http, tuple | list) else pair,
            again=again,
        )


def _cache(
    cache: Any, places: Sequence[SourceValues], environ: Mapping[str, str], found: Examined
) -> tuple[CacheConfig, dict[str, Any]]:
    """The settings of the cache, and those of `_OF_ITS_OWN` that a source names."""
    own = {place.kind: _for_cache(place) for place in places}
    if isinstance(cache, CacheConfig):
        mixed = {name: v for place in reversed(own.values()) for name, v in place.values.items()}
        if "stores" in mixed:
            raise ConfigError("pass either a CacheConfig or l2_adapters; both name stores")
        return cache.replace(**mixed), mixed
    if not isinstance(cache, Mapping):
        raise ConfigError("cache is no CacheConfig and no mapping of settings")
    clash = [name for name in own["call"].values if name in cache]
    if clash:
        raise ConfigError(f"cache: {clash[0]} is there a second time; keep one")
    order = [own["call"], CACHE.take(SourceValues("call", "cache: "), cache, found)]
    # Of each place what it says of the server, then what it says of the cache.
    for place in cache_values(SECTION, environ, found):
        order += [own.pop(place.kind)] if place.kind in own else []
        order.append(place)
    resolved(order, environ, found)
    config = CacheConfig(**found.settings())
    told = ((name, *found.values[name]) for name in _OF_ITS_OWN)
    return config, {name: value for name, value, source in told if source != "default"}


def _for_cache(place: SourceValues) -> SourceValues:
    """What a place of the server says of its cache."""
    names = (*_OF_ITS_OWN, *ServerSettings.of_cache)
    values = {name: place.values[name] for name in names if name in place.values}
    return SourceValues(place.kind, place.where, values, place.spelled)
