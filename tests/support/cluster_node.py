"""One node of a cluster: a TestServer in cluster mode, and how it sees the others.

``view()`` is CLUSTER NODES as a dictionary. What it knows of the cluster outlives restart().
"""

from __future__ import annotations

from binascii import crc_hqx
from dataclasses import dataclass
from typing import Any, Literal

from support.servers import TestServer, free_port

SLOTS = 16384
Endpoint = Literal["ip", "hostname", "unknown-endpoint"]


def key_slot(key: bytes | str) -> int:
    """Source: the cluster specification; CRC16/XMODEM of the key or of its hash tag."""
    data = key.encode() if isinstance(key, str) else key
    opening = data.find(b"{")
    closing = data.find(b"}", opening + 1)
    if opening >= 0 and closing > opening + 1:
        data = data[opening + 1 : closing]
    return crc_hqx(data, 0) % SLOTS


def keys_of_slot(slot: int, count: int) -> list[bytes]:
    """Keys with a tag that brings them there."""
    tag = next(b"%d" % i for i in range(1 << 20) if key_slot(b"%d" % i) == slot)
    return [b"{%b}%d" % (tag, i) for i in range(count)]


@dataclass(frozen=True)
class ClusterOptions:
    """How its nodes are set up; the fields are the keywords of start_cluster()."""

    node_timeout_ms: int = 3000  # 1000 where a test waits for a failover
    full_coverage: bool = True  # False: the slots of a lost shard are down, the others answer
    endpoint: Endpoint = "ip"  # what MOVED and CLUSTER SLOTS say of a node
    hostname: str = "localhost"
    node_args: tuple[str, ...] = ()


class ClusterNode(TestServer):
    """A server in cluster mode."""

    def __init__(self, kind: str, cluster: ClusterOptions, **options: Any) -> None:
        self._options = cluster
        self.bus_port = 0
        self.node_id = ""
        super().__init__(kind, *cluster.node_args, unix=False, **options)
        self.node_id = self.cli("CLUSTER", "MYID").decode()

    def view(self) -> dict[str, dict[str, Any]]:
        """CLUSTER NODES by node id: flags, primary, connected, slots (ranges)."""
        nodes = {}
        for line in self.cli("CLUSTER", "NODES").decode().splitlines():
            words = line.split()
            owned = [word.split("-") for word in words[8:] if not word.startswith("[")]
            nodes[words[0]] = {
                "address": words[1],
                "flags": words[2].split(","),
                "primary": words[3],
                "connected": words[7] == "connected",
                "slots": [(int(bounds[0]), int(bounds[-1])) for bounds in owned],
            }
        return nodes

    def leads(self) -> bool:
        """Whether it takes itself for a primary with slots."""
        me = self.view()[self.node_id]
        return "master" in me["flags"] and bool(me["slots"])

    def cluster_state(self) -> str:
        said: str = self.cli("CLUSTER", "INFO").decode()
        return dict(line.split(":", 1) for line in said.split())["cluster_state"]

    def is_settled(self) -> bool:
        """Whether it works, has its primary's keys if it is a replica, and can name all others:
        names of hosts travel later than the rest, and are spelled "?" until then."""
        link = self.info("replication").get("master_link_status", "up")
        places = [place[0] for shard in self.cli("CLUSTER", "SLOTS") for place in shard[2:]]
        return self.cluster_state() == "ok" and link == "up" and b"?" not in places

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.bus_port = free_port()

    def _config(self, directory: str) -> list[str]:
        options = self._options
        lines = [
            *super()._config(directory),
            "cluster-enabled yes",
            f"cluster-config-file {self._home}/nodes.conf",
            f"cluster-port {self.bus_port}",
            f"cluster-node-timeout {options.node_timeout_ms}",
            f"cluster-require-full-coverage {'yes' if options.full_coverage else 'no'}",
            f"cluster-announce-hostname {options.hostname}" if options.hostname else "",
            f"cluster-preferred-endpoint-type {options.endpoint}",
            "cluster-allow-replica-migration no",  # a shard keeps its replicas
        ]
        if self.proxy:
            what = "tls-port" if self.tls else "port"
            lines += [
                f"cluster-announce-ip {self.host}",
                f"cluster-announce-{what} {self.proxy.port}",
                f"cluster-announce-bus-port {self.bus_port}",
            ]
        return lines
