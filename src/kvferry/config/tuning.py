"""Values that no user sets: each has one that serves, and a test or a measurement gives another.

    ClientConfig(host="cache-1", tuning=ClientTuning(stall_timeout_s=0.3))
    {"url": "redis://cache-1", "tuning": {"stall_timeout_s": 0.3}}

They are no settings: no page names them, and they may go. Those of a client are the defaults of
native/redis/config.hpp, which the native client keeps where nothing else is given.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import msgspec

__all__ = [
    "CacheTuning",
    "ClientTuning",
    "ControllerTuning",
    "NodeTuning",
    "ServerTuning",
    "SglangTuning",
    "TierLimits",
    "Tuning",
]

_MIB = 1 << 20


class Tuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Values of one machine that are no settings."""

    def replace(self, **changes: Any) -> Self:
        """These values with some others."""
        return msgspec.structs.replace(self, **changes)

    def changed(self) -> dict[str, Any]:
        """Those that differ from their defaults."""
        return {
            item.name: getattr(self, item.name)
            for item in msgspec.structs.fields(self)
            if getattr(self, item.name) != item.default
        }


class ClientTuning(Tuning, frozen=True, kw_only=True):
    """Of a client of a store.

    Attributes:
        stall_timeout_s: The longest that a connection with bytes due may receive none.
        reconnect_min_s: The first bound of the random wait before dialling again; it doubles.
        reconnect_max_s: The last bound of it.
        attempts_max: The most tries of a request, each on a new connection.
        floor_rate_bytes_s: The slowest transfer that still counts as alive.
        window_bytes: The bytes that each connection asks for ahead; None: the client adapts.
        value_size_bytes_max: The most bytes of a value, in both directions; as the server's
            ``proto-max-bulk-len``.
        drain_bytes_max: The most bytes of an unwanted reply that are read to its end; a longer one
            costs the connection.
        topology_refresh_s: The seconds after which the map of a cluster, or what Sentinels say, is
            asked for without a reason.
        nodes_max: The most nodes that a cluster or its redirects may make the client connect to.
        presence_keys_max: The most keys that a view of presence may hold.
        protocol: The version of RESP; 3 speaks RESP3 where the server does.
        ktls: Let the kernel encrypt TLS, where it and OpenSSL can.
        client_name: The name of the client in the server's ``CLIENT LIST``; empty sends none.
    """

    stall_timeout_s: float = 2.0
    reconnect_min_s: float = 0.05
    reconnect_max_s: float = 1.0
    attempts_max: int = 3
    floor_rate_bytes_s: float = 50e6
    window_bytes: int | None = None
    value_size_bytes_max: int = 512 * _MIB
    drain_bytes_max: int = 8 * _MIB
    topology_refresh_s: float = 60.0
    nodes_max: int = 128
    presence_keys_max: int = 4_000_000
    protocol: Literal[2, 3] = 3
    ktls: bool = True
    client_name: str = "kvferry"


class CacheTuning(Tuning, frozen=True, kw_only=True):
    """Of a cache.

    Attributes:
        write_queue_bytes_max: The most bytes that may wait to be written to the stores. A chunk
            beyond it is not stored, and counted.
        prefill: What computing n tokens takes, as a, c and d of ``a + c n + d n**2`` seconds; None:
            it is learned.
    """

    write_queue_bytes_max: int = 1024 * _MIB
    prefill: tuple[float, float, float] | None = None


class NodeTuning(Tuning, frozen=True, kw_only=True):
    """Of a node.

    Attributes:
        threads: The number of threads that move bytes; None: one for each core, at most 4.
        prefault: Touch all memory at the start, so that no value waits for it later.
    """

    threads: int | None = None
    prefault: bool = True


class ServerTuning(Tuning, frozen=True, kw_only=True):
    """Of a cache server.

    Attributes:
        lease_s: The seconds after which a lease or a reservation ends by itself.
        heartbeat_s: The seconds between two signs of life of a client.
        dead_after_s: The seconds of silence after which a client loses its leases.
        drain_s: The seconds that a shutdown waits for stores.
    """

    lease_s: float = 60.0
    heartbeat_s: float = 1.0
    dead_after_s: float = 5.0
    drain_s: float = 10.0


class ControllerTuning(Tuning, frozen=True, kw_only=True):
    """Of a controller.

    Attributes:
        heartbeat_s: The seconds between two signs of life of an instance.
        suspect_s: The seconds of silence after which an instance is named last.
        dead_s: The seconds of silence after which it is forgotten what an instance held.
        connections_max: The most connections of instances at a time, on all ports together.
    """

    heartbeat_s: float = 1.0
    suspect_s: float = 3.0
    dead_s: float = 10.0
    connections_max: int = 4096


class TierLimits(Tuning, frozen=True, kw_only=True):
    """Of the vLLM tier.

    Attributes:
        load_timeout_s: Deadline of a load, plus its bytes at `floor_rate_bytes_s`.
        load_stall_s: How long all loads together may get nothing; None: as long as that can pay.
        store_timeout_s: Deadline of a store, plus its bytes likewise.
        store_bytes_max: What may be on its way to the store; at most half of the pinned memory.
        floor_rate_bytes_s: The slowest transfer that counts as alive.
        lookup_timeout_s: The longest that a request waits for the store to say what it has; None:
            as long as that can pay.
        drain_timeout_s: How long the end waits for stores before it withdraws what is in flight.
    """

    load_timeout_s: float = 1.0
    load_stall_s: float | None = None
    store_timeout_s: float = 5.0
    store_bytes_max: int = 1 << 62
    floor_rate_bytes_s: float = 50e6
    lookup_timeout_s: float | None = None
    drain_timeout_s: float = 10.0


class SglangTuning(Tuning, frozen=True, kw_only=True):
    """Of HiCache's backend.

    Attributes:
        lookup_timeout_s: The longest that a question which pages are there may take.
        load_timeout_s: The longest that reading a batch of pages may take, beside its bytes.
        store_timeout_s: The longest that writing a batch of pages may take, beside its bytes.
    """

    lookup_timeout_s: float = 0.25
    load_timeout_s: float = 2.0
    store_timeout_s: float = 5.0
