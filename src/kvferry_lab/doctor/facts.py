"""Facts and findings: what was read before anybody judges it, and the outcome of each check.

Plain data. `None` means that a fact could not be read. What servers report stays as they spell it,
under their own names, so that a rule can be compared with the server's manual.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

__all__ = [
    "BareFacts",
    "ClientNeed",
    "ClusterFacts",
    "Facts",
    "Finding",
    "HostFacts",
    "NodeLine",
    "SameHostFacts",
    "ServerFacts",
    "ServerPlace",
    "Severity",
    "TrafficFacts",
    "Unread",
    "fault",
    "info",
    "ok",
    "size_text",
    "warn",
]
_UNITS = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


class Severity(IntEnum):
    """How much it matters, from least to most."""

    OK = 0  # as it should be
    INFO = 1  # worth knowing; nothing has to be done
    WARN = 2  # costs speed, memory or hits
    FAULT = 3  # reads or writes of the cache fail, now or as soon as it is full


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        id: Of the check: stable, for programs.
        severity: See above.
        seen: The fact.
        why: Why it matters. Empty where all is well.
        fix: The line that mends it: ``CONFIG SET ...`` for the server, ``sysctl`` for a host, of a
            configuration file, or a setting of the client. Empty where nothing is to be done.
        scope: Whose it is: server, cluster, host (this one), network or model.
        where: The servers that it was seen at; empty where it is no server's.
    """

    id: str
    severity: Severity
    seen: str
    why: str = ""
    fix: str = ""
    scope: str = "server"
    where: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Its fields, with the severity as a word."""
        return {**asdict(self), "severity": self.severity.name.lower(), "where": [*self.where]}


class Unread(Exception):
    """A check needs what this server does not show."""


def ok(check: str, seen: str) -> Finding:
    """All is well."""
    return Finding(check, Severity.OK, seen)


def info(check: str, seen: str, why: str = "", fix: str = "") -> Finding:
    """Worth knowing."""
    return Finding(check, Severity.INFO, seen, why, fix)


def warn(check: str, seen: str, why: str, fix: str) -> Finding:
    """It costs something."""
    return Finding(check, Severity.WARN, seen, why, fix)


def fault(check: str, seen: str, why: str, fix: str) -> Finding:
    """Something does not work, or will not."""
    return Finding(check, Severity.FAULT, seen, why, fix)


def size_text(size_bytes: float) -> str:
    """A number of bytes for people: ``4 MiB``, ``1.5 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.4g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.4g} TiB"


@dataclass(frozen=True, kw_only=True)
class ClientNeed:
    """What the client is going to ask of a server.

    Attributes:
        chunk_bytes: The largest piece that travels as one value; namespaces cut at this.
        value_bytes_max: The largest value that a plain client may store whole.
        connections: Of one client.
        ttl_s: Of what it stores; ``None`` if values are set without one.
        prefill_bytes_s: KV that the engine computes in a second, where a model is named: the rate
            from which on loading it pays.
    """

    chunk_bytes: int = 4 << 20
    value_bytes_max: int = 40 << 20
    connections: int = 8
    ttl_s: float | None = None
    prefill_bytes_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """One server.

    Attributes:
        address: For people.
        info: ``INFO``; empty where it is refused.
        config: ``CONFIG GET *``; ``None`` where it is refused, as on managed services.
        is_near: It is reached by loopback or a Unix socket: its host is ours.
        cores: Of its host, where that is ours.
        is_open: It serves connections that name no user and no password.
        has_secret: We had to send a password to it.
        tls: Protocol and cipher of our connection, e.g. "TLSv1.3 TLS_AES_128_GCM_SHA256"; empty
            without TLS.
        is_verified: The certificate, and that it is of this server, is checked.
    """

    address: str = "server"
    info: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] | None = None
    is_near: bool = False
    cores: int | None = None
    is_open: bool | None = None
    has_secret: bool = False
    tls: str = ""
    is_verified: bool = True

    @property
    def kind(self) -> str:
        """``valkey``, ``redis``, ``kvferry`` (a node), or the name of another server."""
        for name in ("valkey", "dragonfly", "kvrocks", "garnet", "keydb", "kvferry"):
            if f"{name}_version" in self.info:
                return name
        return self.info.get("server_name") or ("redis" if "redis_version" in self.info else "")

    @property
    def version(self) -> str:
        """Its version, of its own kind (Valkey also reports the Redis it is compatible with)."""
        return self.info.get(f"{self.kind}_version") or self.info.get("redis_version", "")

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version, to compare; zeros if unknown."""
        match = re.match(r"v?(\d+)\.(\d+)", self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    def setting(self, name: str) -> str | None:
        """A setting; ``None`` if this server has none of that name.

        Raises:
            Unread: Settings are hidden here.
        """
        if self.config is None:
            raise Unread(name)
        return self.config.get(name)

    def setting_bytes(self, name: str) -> int | None:
        """A setting that is a number of bytes, or a plain number."""
        text = self.setting(name)
        return None if text is None else _bytes(text)

    def count(self, name: str) -> int | None:
        """A number out of ``INFO``; ``None`` if it is not there."""
        text = self.info.get(name, "")
        return int(text) if re.fullmatch(r"-?\d+", text) else None


@dataclass(frozen=True, kw_only=True)
class NodeLine:
    """One line of ``CLUSTER NODES``."""

    address: str
    flags: frozenset[str]
    is_linked: bool
    slots: int  # how many it serves

    @property
    def is_primary(self) -> bool:
        """Whether it owns slots, or could."""
        return "master" in self.flags


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """What one node says about its cluster.

    Attributes:
        info: ``CLUSTER INFO``.
        nodes: Every node that it knows.
        unreached: Primaries that we could not connect to, with the reason.
        is_expected: The client is set to cluster mode.
    """

    info: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[NodeLine, ...] = ()
    unreached: Mapping[str, str] = field(default_factory=dict)
    is_expected: bool = True


@dataclass(frozen=True, kw_only=True)
class ServerPlace:
    """Where on this host the server's process is, on machines with several NUMA nodes.

    Attributes:
        cpu_nodes: NUMA nodes that it may run on.
        nic: The card of the default route, by which others reach it.
        nic_node: Where that card sits.
    """

    cpu_nodes: frozenset[int]
    nic: str
    nic_node: int


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """This host: the client's, and the server's too where it is near.

    Attributes:
        sysctls: By name, e.g. ``net.ipv4.tcp_rmem``; only those that could be read.
        thp: Mode of transparent huge pages: always, madvise or never.
        huge_pages_free: Of the default size.
        ulps: What the kernel can put on top of TCP, e.g. ``tls``.
        can_load_tls: There is a kernel module for TLS that is not loaded.
        interface: The one that leads to the server, e.g. ``eth0``; ``lo`` for loopback.
        mtu: Of that interface.
        numa_node: Where its card sits; ``None`` on machines with one node.
        cpu_nodes: NUMA nodes that this process may run on.
        cores: That this process may use.
        is_tls_used: The client speaks TLS.
        memory_bytes: Of the machine.
        server: Of the server's process; ``None`` where it is elsewhere, or nothing is known of it.
    """

    sysctls: Mapping[str, str] = field(default_factory=dict)
    thp: str | None = None
    huge_pages_free: int | None = None
    ulps: frozenset[str] | None = None
    can_load_tls: bool = False
    interface: str | None = None
    mtu: int | None = None
    numa_node: int | None = None
    cpu_nodes: frozenset[int] = frozenset()
    cores: int = 1
    is_tls_used: bool = False
    memory_bytes: int | None = None
    server: ServerPlace | None = None

    @property
    def is_remote(self) -> bool:
        """Whether the server is reached over a network."""
        return self.interface is not None and self.interface != "lo"


@dataclass(frozen=True, kw_only=True)
class TrafficFacts:
    """What went over the wire. Rates are payload, GET, in bytes per second.

    Attributes:
        rtt_s: Round trip of a PING, the median.
        by_connections: Rate with so many connections, of `ClientNeed.chunk_bytes` values.
        by_size: Rate for values of so many bytes, with the best number of connections.
        skipped: Why nothing was measured, or not all; empty if all was.
    """

    rtt_s: float | None = None
    by_connections: Mapping[int, float] = field(default_factory=dict)
    by_size: Mapping[int, float] = field(default_factory=dict)
    skipped: str = ""

    @property
    def best_bytes_s(self) -> float | None:
        """The best rate that was seen."""
        return max([*self.by_connections.values(), *self.by_size.values()], default=None)


@dataclass(frozen=True, kw_only=True)
class BareFacts:
    """Bare TCP from a peer that runs `kvferry doctor --serve`.

    Attributes:
        peer: For people.
        rtt_s: Round trip of one byte, the median.
        by_connections: Rate received over so many connections, in bytes per second.
        skipped: Why not all was measured; empty if all was.
    """

    peer: str = ""
    rtt_s: float | None = None
    by_connections: Mapping[int, float] = field(default_factory=dict)
    skipped: str = ""


@dataclass(frozen=True, kw_only=True)
class SameHostFacts:
    """The two ways to a server on this host. Rates are payload, GET, in bytes per second.

    Attributes:
        unix_path: Of the socket that the client uses; ``None``: it stays at TCP.
        why: Why it does.
        is_other_server: The rates are of a server that was started to measure them.
    """

    unix_path: str | None = None
    why: str = ""
    tcp_bytes_s: float | None = None
    unix_bytes_s: float | None = None
    is_other_server: bool = False

    @property
    def gain(self) -> float | None:
        """The socket's rate as a multiple of that over TCP."""
        if not self.tcp_bytes_s or not self.unix_bytes_s:
            return None
        return self.unix_bytes_s / self.tcp_bytes_s


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All of it."""

    need: ClientNeed = field(default_factory=ClientNeed)
    servers: tuple[ServerFacts, ...] = ()
    cluster: ClusterFacts | None = None
    host: HostFacts = field(default_factory=HostFacts)
    traffic: TrafficFacts = field(default_factory=TrafficFacts)
    bare: BareFacts | None = None  # where a peer was named
    same_host: SameHostFacts | None = None


def _bytes(text: str) -> int | None:
    match = re.fullmatch(r"(-?\d+)\s*([kmg]?b?)", text.strip().lower())
    if match is None:
        return None
    unit = match[2] if match[2] in _UNITS else match[2] + "b"
    return int(match[1]) * _UNITS[unit]
