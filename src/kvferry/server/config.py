"""The settings of a cache server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kvferry.engine_config import EngineConfig

__all__ = ["ServerConfig"]


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """What a cache server holds, where it listens, and its limits.

    Attributes:
        engine: Pool size (`max_local_cpu_size`, of all identities together), eviction policy,
            stores and time limits.
        chunk_size: Identities with chunks of another size are refused; None: any.
        endpoints: Where engines connect, e.g. "tcp://127.0.0.1:6555", "ipc:///run/kvferry.sock".
        http: Host and port of the HTTP side; None: none.
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
