"""The settings of a cache server, as one frozen object that is checked when it is made.

    # kvferry.yaml
    server:
      l1_size_gb: 10
      port: 6555
      ipc: /run/kvferry/kvferry.sock
    engine:
      eviction_policy: S3-FIFO
      stores:
        - {type: redis, url: "redis://cache-1:6379", max_capacity_gb: 500}

    config = ServerConfig.load("kvferry.yaml", http_port=9090)

The call wins over the environment, that over the file, and that over the defaults, setting by
setting; `SETTINGS` in `server/settings.py` has the names. In the environment a setting is
``KVFERRY_SERVER_`` and its name in capitals. What the server does not say of pool and stores comes
from the engine's settings: the section ``engine`` of the same file, ``KVFERRY_*``, ``LMCACHE_*``.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kvferry._url import is_loopback
from kvferry.engine_config import EngineConfig
from kvferry.errors import ConfigError
from kvferry.server.endpoints import check_endpoint, plain_endpoint, tcp_host
from kvferry.server.settings import PLAIN

__all__ = ["ServerConfig"]


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """What a cache server holds, where it listens, and its limits.

    Attributes:
        engine: Pool size (`max_local_cpu_size`, of all identities together), eviction policy,
            stores and time limits.
        chunk_size: Tokens of a chunk, for engines that were told none; None: they know best.
        endpoints: Where engines connect, e.g. "tcp://127.0.0.1:6555", "ipc:///run/kvferry.sock".
            Port 0 is any free one.
        http: Host and port of the HTTP side, port 0 any free one; None: none.
        http_token: What callers of HTTP must show; needed beyond loopback.
        curve_key_file: Keys of CURVE; needed beyond loopback.
        shm_name: What the names of shared segments begin with; a random part follows.
        hugepages: Put segments on the system's huge pages.
        numa: Node whose memory is used; None: any.
        state_file: Where the index is kept over a restart.
        lease_s: How long leases and reservations last, in seconds.
        heartbeat_s: How often clients say that they live.
        dead_after_s: Silence after which a client loses its leases.
        client_share: Part of the pool that one client may hold at once, by leases and reservations.
        drain_s: How long a shutdown waits for stores.
        again: Reads the same settings anew, for a reload; None: they came from the program alone.

    Raises:
        ConfigError: A setting cannot be, or contradicts another one.
    """

    engine: EngineConfig = field(default_factory=EngineConfig)
    chunk_size: int | None = None
    endpoints: tuple[str, ...] = ("tcp://127.0.0.1:5555",)
    http: tuple[str, int] | None = ("127.0.0.1", 8080)
    http_token: str | None = field(default=None, repr=False)
    curve_key_file: Path | None = None
    shm_name: str = "kvferry"
    hugepages: bool = False
    numa: int | None = None
    state_file: Path | None = None
    lease_s: float = 60.0
    heartbeat_s: float = 1.0
    dead_after_s: float = 5.0
    client_share: float = 0.5
    drain_s: float = 10.0
    again: Callable[[], ServerConfig] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.engine, EngineConfig):
            raise ConfigError("engine is no EngineConfig; make it with EngineConfig.load(...)")
        for name, spec in PLAIN.items():
            value = getattr(self, name)
            if isinstance(value, Path):
                value = str(value)
            value = spec.check(name, value)
            if name.endswith("_file") and value is not None:
                value = Path(value)
            object.__setattr__(self, name, value)
        self._check_endpoints()
        self._check_http()
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", self.shm_name):
            raise ConfigError(f"shm_name={self.shm_name!r} is no name; use letters, digits and -_.")
        if self.dead_after_s <= self.heartbeat_s:
            raise ConfigError(
                f"dead_after_s={self.dead_after_s:g} is not above heartbeat_s="
                f"{self.heartbeat_s:g}: every client would be taken for dead; raise it"
            )

    def _check_endpoints(self) -> None:
        given = self.endpoints
        if isinstance(given, str) or not isinstance(given, tuple | list) or not given:
            raise ConfigError("endpoints is no list with at least one endpoint, e.g. tcp://...")
        endpoints = tuple(map(plain_endpoint, given))
        object.__setattr__(self, "endpoints", endpoints)
        for endpoint in endpoints:
            check_endpoint(endpoint)
            host = tcp_host(endpoint)
            if host is not None and self.curve_key_file is None and not is_loopback(host):
                raise ConfigError(
                    f"{endpoint} is reachable from other hosts, which needs curve_key_file; make "
                    "keys with `kvferry server --new-curve-keys DIR`, or listen on localhost"
                )
        for endpoint in endpoints:
            if endpoints.count(endpoint) > 1 and not endpoint.endswith((":0", ":*")):
                raise ConfigError(f"{endpoint} is there twice in endpoints; keep one")

    def _check_http(self) -> None:
        if self.http is None:
            return
        try:
            host, port = self.http
        except (TypeError, ValueError):
            raise ConfigError("http is no pair of host and port; or use None") from None
        if not isinstance(host, str) or not host or not isinstance(port, int):
            raise ConfigError("http is no pair of host and port; or use None")
        if isinstance(port, bool) or not 0 <= port <= 65535:
            raise ConfigError(f"http_port={port!r} is not valid; use 1 to 65535")
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if host != "localhost":
                raise ConfigError(f"http_host={host!r} is no address; use e.g. 127.0.0.1") from None
        object.__setattr__(self, "http", (host, port))
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
        """The settings of this call, of the environment and of a file; see the module.

        Args:
            path: The file; default: ``KVFERRY_CONFIG_FILE``, then ``LMCACHE_CONFIG_FILE``, or none.
            environ: Default: of this process.
            **overrides: Names of `SETTINGS` and of this class, where not None; `engine` may also
                be a mapping of settings of engines.

        Raises:
            ConfigError: The file is missing or malformed, or a setting is; the text names it.
        """
        from kvferry.server.sources import gathered

        again = _Sources(path, environ, overrides)
        return cls(**gathered(path, environ, overrides), again=again)


@dataclass(frozen=True, repr=False)
class _Sources:
    """Where settings were read; called, it reads them again. Equal are those of the same places."""

    path: str | os.PathLike[str] | None
    environ: Mapping[str, str] | None
    overrides: Mapping[str, Any]

    def __call__(self) -> ServerConfig:
        return ServerConfig.load(self.path, environ=self.environ, **self.overrides)
