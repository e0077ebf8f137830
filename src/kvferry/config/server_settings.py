"""What a cache server may be told: each setting once."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from kvferry.config.setting import Path, PolicyName, Settings, setting, word

__all__ = ["CommonSettings", "ServerSettings"]

_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z"
_ADAPTERS = 'a list of mappings such as {"type": "redis"}'
Address = Annotated[str, setting(min_length=1, use="an address of this host, e.g. localhost")]
ListenPort = Annotated[int, setting(ge=0, le=65_535)]


class CommonSettings(Settings, frozen=True, kw_only=True):
    """What a server is told in the same words by people and by programs.

    Attributes:
        chunk_size: Tokens of a chunk, for engines that were told none; None: they know best.
        token: What engines must show; needed beyond loopback.
        http_token: What callers of HTTP must show; needed beyond loopback.
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
    token: Annotated[str, word("token_file")] | None = None
    http_token: Annotated[str, word("http_token_file")] | None = None
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


class ServerSettings(CommonSettings, frozen=True, kw_only=True):
    """What a file, the environment and the command line may name.

    Attributes:
        l1_size_gb: Most memory of all chunks together, in GB of 2^30 bytes.
        eviction_policy: What leaves a full pool first.
        l2_adapters: The stores behind the pool, in the order in which they are asked.
        endpoints: Where engines connect, all of it at once.
        tcp: Listen at `host` and `port`.
        host: Where engines connect; beyond this host it needs a token.
        port: Where engines connect; 0: any free one.
        ipc: Listen at this Unix socket too.
        http: Serve HTTP.
        http_host: Where HTTP listens; beyond this host it needs a token.
        http_port: Where HTTP listens; 0: no HTTP. If 8080 is taken, the server goes on without
            HTTP and says so; another port that is taken is an error.
        token_file: A file whose content is asked of engines.
        http_token_file: A file whose content is asked of callers of HTTP.
    """

    guide: ClassVar = (
        *("l1_size_gb", "l2_adapters", "host", "port", "ipc", "token_file"),
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
    token_file: Path | None = None
    http: bool = True
    http_host: Address = "localhost"
    http_port: ListenPort = 8080
    http_token_file: Path | None = None
