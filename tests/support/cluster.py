"""Real clusters: nodes on free ports of this machine, made whole in about two seconds.

    with start_cluster("valkey", primaries=3, replicas=1) as cluster:
        cluster.url, cluster.seeds, cluster.settings     # for a client
        node = cluster.node_of(b"key"); node.kill(); node.restart(); cluster.wait_until_whole()
        cluster.failover(0)                              # of the shard 0
        cluster.migrate_slots(cluster.primary(0), cluster.primary(1), range(100))

A node is a TestServer whose view of the cluster outlives restart(); its keys do not. A shard is the
nodes that started as one primary and its replicas, and ``primary(i)`` the one that leads it now.
Made with the public commands, as an operator would, so that every version can be started.
(The two seconds are the servers': a primary waits so long before it first takes part.)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal, Self

from support.cluster_node import SLOTS, ClusterNode, ClusterOptions, key_slot, keys_of_slot
from support.proxy import FaultProxy
from support.resharding import SlotMigration
from support.resp import ReplyError
from support.servers import HOST, address_of, wait_for
from support.tls import ServerTls

__all__ = [
    "SLOTS",
    "Cluster",
    "ClusterNode",
    "ClusterOptions",
    "FailoverMode",
    "key_slot",
    "keys_of_slot",
    "start_cluster",
]

WHOLE_TIMEOUT_S = 30.0
FAILOVER_GIVEN_UP_S = 6.0  # a server does so after 5 s
FailoverMode = Literal["", "FORCE", "TAKEOVER"]


class Cluster:
    """See the module; made by start_cluster()."""

    def __init__(self, nodes: Sequence[ClusterNode], primaries: int) -> None:
        self.nodes = tuple(nodes)
        self.shards = tuple(self.nodes[i::primaries] for i in range(primaries))
        self.tls = self.nodes[0].tls
        self.password = self.nodes[0].password

    # For clients.

    @property
    def proxies(self) -> tuple[FaultProxy, ...]:
        """One for each node, in their order; none where they are not proxied."""
        return tuple(node.proxy for node in self.nodes if node.proxy)

    @property
    def host(self) -> str:
        return self.nodes[0].host

    @property
    def port(self) -> int:
        return self.nodes[0].client_port

    @property
    def seeds(self) -> tuple[str, ...]:
        """host:port of every node."""
        return tuple(address_of(node.host, node.client_port) for node in self.nodes)

    @property
    def url(self) -> str:
        """All seeds in one URL; with TLS to be used with ``**cluster.settings``."""
        scheme = "rediss+cluster" if self.tls else "redis+cluster"
        user = f":{self.password}@" if self.password else ""
        return f"{scheme}://{user}{','.join(self.seeds)}"

    @property
    def settings(self) -> dict[str, Any]:
        """The keywords of a client that takes host and port."""
        settings: dict[str, Any] = {"topology": "cluster", "nodes": self.seeds[1:]}
        if self.password:
            settings["password"] = self.password
        return settings | (self.tls.client_settings if self.tls else {})

    # Who is who.

    @staticmethod
    def slot(key: bytes | str) -> int:
        return key_slot(key)

    def owner(self, slot: int) -> ClusterNode:
        """The node that serves a slot now, by its own word."""
        for node in self.running():
            if any(low <= slot <= high for low, high in node.view()[node.node_id]["slots"]):
                return node
        raise LookupError(f"no running node serves slot {slot}")

    def node_of(self, key: bytes | str) -> ClusterNode:
        return self.owner(key_slot(key))

    def primary(self, shard: int) -> ClusterNode:
        """The running node that leads this shard."""
        for node in self.shards[shard]:
            if node.is_running() and "master" in node.view()[node.node_id]["flags"]:
                return node
        raise LookupError(f"shard {shard} has no running primary")

    def replicas_of(self, shard: int) -> list[ClusterNode]:
        """Its running nodes that follow another, by their own word."""
        return [
            node
            for node in self.shards[shard]
            if node.is_running() and "slave" in node.view()[node.node_id]["flags"]
        ]

    def replica_of(self, shard: int) -> ClusterNode:
        for node in self.replicas_of(shard):
            return node
        raise LookupError(f"shard {shard} has no running replica")

    def running(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.is_running()]

    def slots_of(self, node: ClusterNode) -> list[int]:
        ranges = node.view()[node.node_id]["slots"]
        return [slot for low, high in ranges for slot in range(low, high + 1)]

    # What happens to it.

    def failover(self, shard: int, mode: FailoverMode = "", timeout_s: float = 20.0) -> ClusterNode:
        """Promote a replica; returns when it leads: the new primary.

        The old primary may follow a little later, so that a shard may be without a replica when
        this is called again: it is waited for."""
        wait_for(f"a replica of shard {shard}", lambda: self.replicas_of(shard), timeout_s)
        chosen = self.replica_of(shard)
        command = ("CLUSTER", "FAILOVER", *([mode] if mode else []))
        chosen.cli(*command)
        again_at = time.monotonic() + FAILOVER_GIVEN_UP_S

        def leads() -> bool:
            nonlocal again_at
            if not chosen.leads() and time.monotonic() > again_at:
                with suppress(ReplyError):  # it leads by now
                    chosen.cli(*command)
                again_at = time.monotonic() + FAILOVER_GIVEN_UP_S
            return chosen.leads()

        wait_for(f"{chosen!r} to lead", leads, timeout_s)
        return chosen

    def wait_for_promotion(self, shard: int, timeout_s: float = 20.0) -> ClusterNode:
        """After the loss of a primary: until another node leads its shard; that node."""

        def led() -> bool:
            return any(node.is_running() and node.leads() for node in self.shards[shard])

        wait_for(f"a new primary of shard {shard}", led, timeout_s)
        return self.primary(shard)

    def begin_migration(self, source: ClusterNode, target: ClusterNode, slot: int) -> SlotMigration:
        """A slot on its way: keys that are gone from the source are answered with ASK."""
        return SlotMigration(self.running(), source, target, slot)

    def migrate_slots(self, source: ClusterNode, target: ClusterNode, slots: Iterable[int]) -> None:
        """Move slots with their keys, while clients work."""
        for slot in slots:
            migration = self.begin_migration(source, target, slot)
            migration.move_keys()
            migration.finish()

    def wait_until_whole(self, timeout_s: float = WHOLE_TIMEOUT_S) -> None:
        """Until all running nodes are up, linked, and of one opinion on who serves what."""
        wait_for("the cluster to be whole", self.is_whole, timeout_s)

    def is_whole(self) -> bool:
        running = self.running()
        views = [node.view() for node in running]
        mine = {node.node_id for node in running}
        owners = [
            {name: (node["slots"], node["primary"]) for name, node in view.items() if name in mine}
            for view in views
        ]
        return (
            all(each == owners[0] and len(each) == len(running) for each in owners)
            and all(view[name]["connected"] for view in views for name in mine)
            and all(node.is_settled() for node in running)
        )

    def flush(self) -> None:
        """No keys, no statistics, no toxics, anywhere."""
        for proxy in self.proxies:
            proxy.heal()
        for node in self.running():
            if "master" in node.view()[node.node_id]["flags"]:
                node.cli("FLUSHALL")
            node.cli("CONFIG", "RESETSTAT")

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_cluster(
    kind: str = "valkey",
    primaries: int = 3,
    replicas: int = 0,
    *,
    tls: bool | ServerTls = False,
    password: str | None = None,
    users: Iterable[str] = (),
    host: str = HOST,
    proxied: bool = False,
    **options: Any,
) -> Cluster:
    """Start a cluster and wait until it is whole.

    Args:
        replicas: Of each primary; ``nodes`` has the primaries first.
        tls: A ServerTls needs ``between_servers``, for the nodes speak TLS with each other, too.
        host: "::1" for IPv6.
        proxied: Nodes announce a FaultProxy each, ``proxies``: a client sees nothing else.
        options: See ClusterOptions.
    """
    settings = {
        "password": password,
        "users": tuple(users),
        "tls": ServerTls(between_servers=True) if tls is True else tls,
        "host": host,
        "proxied": proxied,
    }
    count = primaries * (1 + replicas)
    with ThreadPoolExecutor(4) as pool:
        begun = [
            pool.submit(ClusterNode, kind, ClusterOptions(**options), **settings)
            for _ in range(count)
        ]
    try:
        nodes = [one.result() for one in begun]
        _introduce(nodes, primaries)
        cluster = Cluster(nodes, primaries)
        cluster.wait_until_whole()
    except BaseException:
        for one in begun:
            if one.exception() is None:
                one.result().stop()
        raise
    return cluster


def _introduce(nodes: Sequence[ClusterNode], primaries: int) -> None:
    """Slots and epochs first, then all meet all (gossip would take seconds), then replicas."""
    for i, node in enumerate(nodes):
        node.cli("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        if i < primaries:
            low, high = (SLOTS * at // primaries for at in (i, i + 1))
            node.cli("CLUSTER", "ADDSLOTSRANGE", low, high - 1)
    for i, node in enumerate(nodes):
        for other in nodes[:i]:
            node.cli("CLUSTER", "MEET", other.host, other.client_port, other.bus_port)
    for i, node in enumerate(nodes[primaries:]):
        primary = nodes[i % primaries].node_id
        wait_for("a node to know its primary", lambda: primary in node.view())  # noqa: B023
        node.cli("CLUSTER", "REPLICATE", primary)
