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

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Self

from kvferry.config.cache import CacheConfig
from kvferry.config.endpoints import address_of, listening
from kvferry.config.server_settings import CommonSettings, ListenPort
from kvferry.config.server_sources import gathered
from kvferry.config.setting import setting, specs
from kvferry.config.url import is_loopback
from kvferry.errors import ConfigError

__all__ = ["ServerConfig"]

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
        return cls(**gathered(path, environ, overrides, specs(cls)), again=again)
