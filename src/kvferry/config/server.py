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

The call wins over the file, that over the environment, and that over the defaults, setting by
setting. In the environment a setting is ``KVFERRY_SERVER_`` and its name in capitals. What a place
does not say of pool and stores comes from the engine's settings there: the section ``engine`` of
the same file, ``KVFERRY_*``, ``LMCACHE_*``.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Self

from kvferry.config.cache import CacheConfig
from kvferry.config.endpoints import check_endpoint, plain_endpoint, tcp_host
from kvferry.config.setting import Path, PolicyName, Settings, setting, specs
from kvferry.config.url import is_loopback
from kvferry.errors import ConfigError

__all__ = ["ServerConfig", "ServerSettings"]

_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z"
_ADAPTERS = 'a list of mappings such as {"type": "redis"}'
_HTTP = "a pair of host and port, or None"
_PRINTABLE = "a text of printable ASCII without spaces"
Address = Annotated[str, setting(min_length=1, use="an address of this host, e.g. localhost")]
ListenPort = Annotated[int, setting(ge=0, le=65_535)]


class _Common(Settings, frozen=True, kw_only=True):
    """What a server is told in the same words by people and by programs.

    Attributes:
        chunk_size: Tokens of a chunk, for engines that were told none; None: they know best.
        http_token: What callers of HTTP must show; needed beyond loopback.
        curve_key_file: Keys of CURVE, mode 0600; needed beyond loopback.
        shm_name: What the names of shared segments begin with; a random part follows. Servers of
            one user need names of their own.
        hugepages: Put the pool on huge pages that the system has set aside.
        numa: The NUMA node whose memory is used; None: any.
        state_file: Where the index is kept over a restart, and the pool with it.
        lease_s: How long leases and reservations last.
        heartbeat_s: How often clients say that they live.
        dead_after_s: Silence after which a client loses its leases.
        client_share: Part of the pool that one client may hold at once, by leases and reservations;
            of what others hold already it gets none.
        drain_s: How long a shutdown waits for stores.
    """

    chunk_size: Annotated[int, setting(ge=1, le=1 << 20, unit="tokens")] | None = None
    http_token: (
        Annotated[str, setting(secret=True, pattern=r"^[!-~]+\Z", use=_PRINTABLE)] | None
    ) = None
    curve_key_file: Path | None = None
    shm_name: Annotated[str, setting(pattern=_NAME, use="a name of letters, digits and -_.")] = (
        "kvferry"
    )
    hugepages: Annotated[bool, setting(flag="l1-use-hugepages")] = False
    numa: Annotated[int, setting(ge=0, le=1023)] | None = None
    state_file: Annotated[str, setting(min_length=1, use="a path", flag="state")] | None = None
    lease_s: Annotated[float, setting(gt=0, le=86_400, unit="seconds")] = 60.0
    heartbeat_s: Annotated[float, setting(gt=0, le=3_600, unit="seconds")] = 1.0
    dead_after_s: Annotated[float, setting(gt=0, le=86_400, unit="seconds")] = 5.0
    client_share: Annotated[float, setting(gt=0, le=1)] = 0.5
    drain_s: Annotated[float, setting(ge=0, le=3_600, unit="seconds")] = 10.0


class ServerSettings(_Common, frozen=True, kw_only=True):
    """What a file, the environment and the command line may name.

    Attributes:
        l1_size_gb: Most memory of all chunks together, in GB of 2^30 bytes.
        eviction_policy: What leaves a full pool first.
        l2_adapters: The stores behind the pool, in the order in which they are asked.
        endpoints: Where engines connect, all of it at once.
        tcp: Listen at `host` and `port`.
        host: Where engines connect; beyond this host it needs `curve_key_file`.
        port: Where engines connect; 0: any free one.
        ipc: Listen at this Unix socket too.
        http: Serve HTTP.
        http_host: Where HTTP listens; beyond this host it needs a token.
        http_port: Where HTTP listens; 0: no HTTP. If 8080 is taken, the server goes on without
            HTTP and says so; another port that is taken is an error.
        http_token_file: A file whose content is asked of callers of HTTP.
    """

    guide: ClassVar = (
        *("l1_size_gb", "l2_adapters", "host", "port", "ipc", "curve_key_file"),
        *("http_host", "http_port", "http_token_file", "state_file"),
    )

    # These win over the engine's own settings of the same place.
    l1_size_gb: Annotated[float, setting(gt=0, le=1 << 20, unit="GB")] = 5.0
    eviction_policy: PolicyName = "LRU"
    l2_adapters: Annotated[
        tuple[Any, ...], setting(use=_ADAPTERS, secret=True, flag="l2-adapter")
    ] = ()
    endpoints: Annotated[
        tuple[str, ...], setting(use="a list such as [tcp://127.0.0.1:5555]", quoted=False)
    ] = ()
    tcp: bool = True
    host: Address = "localhost"
    port: ListenPort = 5555
    ipc: Path | None = None
    http: bool = True
    http_host: Address = "localhost"
    http_port: ListenPort = 8080
    http_token_file: Path | None = None


class ServerConfig(_Common, frozen=True, kw_only=True):
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
        setting(use="a list with at least one endpoint, e.g. tcp://127.0.0.1:5555", quoted=False),
    ] = ("tcp://127.0.0.1:5555",)
    http: Annotated[tuple[str, int], setting(use=_HTTP)] | None = ("127.0.0.1", 8080)
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
        endpoints = tuple(map(plain_endpoint, self.endpoints))
        if not endpoints:
            raise ConfigError("endpoints is empty; use at least one, e.g. tcp://127.0.0.1:5555")
        self._set("endpoints", endpoints)
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
        host, port = self.http
        if not 0 <= port <= 65535:
            raise ConfigError(f"http_port={port!r} is not valid; use 1 to 65535")
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if host != "localhost":
                raise ConfigError(f"http_host={host!r} is no address; use e.g. 127.0.0.1") from None
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
        from kvferry.config.server_sources import gathered

        again = partial(cls.load, path, environ=environ, **overrides)
        return cls(**gathered(path, environ, overrides), again=again)
