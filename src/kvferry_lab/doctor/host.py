"""Reading this host: what the kernel says under /proc and /sys. The root is an argument."""

from __future__ import annotations

import ipaddress
import os
import platform
import re
import socket
from collections.abc import Iterator, Set
from pathlib import Path

from kvferry.base.host import usable_cores
from kvferry.config import ClientConfig
from kvferry_lab.doctor.facts import HostFacts, ServerPlace
from kvferry_lab.doctor.server import is_near

__all__ = ["interface_to", "read_host"]

_SYSCTLS = (
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_congestion_control",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.wmem_default",
    "net.core.somaxconn",
    "vm.overcommit_memory",
)
_UP = 0x1  # RTF_UP
_SERVERS = re.compile(r"redis|valkey|dragonfly|kvrocks|garnet|keydb", re.IGNORECASE)
_ELSEWHERE = "192.0.2.1"  # an address of documentation (RFC 5737): only the default route fits


def read_host(
    config: ClientConfig, root: Path = Path("/"), server_pid: int | None = None
) -> HostFacts:
    """What concerns the way to this server.

    Args:
        server_pid: Of the server's process, if it is on this host and says so.
    """
    interface = "lo" if is_near(config) else _interface(config, root)
    device = root / "sys/class/net" / (interface or "-")
    return HostFacts(
        sysctls=dict(_sysctls(root)),
        thp=_chosen(_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        huge_pages_free=_meminfo(root, "HugePages_Free"),
        ulps=_ulps(root),
        can_load_tls=_has_tls_module(root),
        interface=interface,
        mtu=_number(device / "mtu"),
        numa_node=_nic_node(device, root),
        cpu_nodes=_nodes_of(os.sched_getaffinity(0), root),
        cores=usable_cores(),
        is_tls_used=config.tls,
        memory_bytes=(_meminfo(root, "MemTotal") or 0) * 1024 or None,
        server=None if server_pid is None else _place(server_pid, root),
    )


def interface_to(address: str, root: Path = Path("/")) -> str | None:
    """The interface that the kernel's routing table names for an address: the longest match."""
    target = ipaddress.ip_address(address)
    routes = _routes_v6(root) if target.version == 6 else _routes_v4(root)
    matches = [(net.prefixlen, name) for net, name in routes if target in net]
    return max(matches, key=lambda match: match[0])[1] if matches else None


def _interface(config: ClientConfig, root: Path) -> str | None:
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
        return interface_to(str(found[0][4][0]).partition("%")[0], root)
    except (OSError, ValueError):
        return None


def _routes_v4(root: Path) -> Iterator[tuple[ipaddress.IPv4Network, str]]:
    for line in _text(root / "proc/net/route").splitlines()[1:]:
        words = line.split()
        if len(words) >= 8 and int(words[3], 16) & _UP:
            # In the byte order of the machine, as every Linux that we run on has it.
            target, mask = (bytes.fromhex(word)[::-1] for word in (words[1], words[7]))
            length = int.from_bytes(mask).bit_count()
            yield ipaddress.IPv4Network((target, length), strict=False), words[0]


def _routes_v6(root: Path) -> Iterator[tuple[ipaddress.IPv6Network, str]]:
    for line in _text(root / "proc/net/ipv6_route").splitlines():
        words = line.split()
        if len(words) == 10 and int(words[8], 16) & _UP and words[9] != "lo":
            target = (bytes.fromhex(words[0]), int(words[1], 16))
            yield ipaddress.IPv6Network(target, strict=False), words[9]


def _sysctls(root: Path) -> Iterator[tuple[str, str]]:
    for name in _SYSCTLS:
        if text := _text(root / "proc/sys" / name.replace(".", "/")):
            yield name, " ".join(text.split())


def _ulps(root: Path) -> frozenset[str] | None:
    path = root / "proc/sys/net/ipv4/tcp_available_ulp"
    return frozenset(_text(path).split()) if path.exists() else None


def _has_tls_module(root: Path) -> bool:
    modules = root / "lib/modules" / platform.release()
    return any((modules / "kernel/net/tls").glob("tls.ko*"))


def _nic_node(device: Path, root: Path) -> int | None:
    """The NUMA node of an interface's card; ``None`` on machines with one node."""
    node = _number(device / "device/numa_node")
    if node is None:  # a bond or a VLAN: the card beneath it
        below = map(_number, device.glob("lower_*/device/numa_node"))
        node = next((found for found in below if found is not None), None)
    several = re.search(r"[-,]", _text(root / "sys/devices/system/node/online"))
    return node if several and node is not None and node >= 0 else None


def _place(pid: int, root: Path) -> ServerPlace | None:
    """Of a server's process here; its number may be of another namespace, so its name is asked."""
    process = root / "proc" / str(pid)
    if not _SERVERS.search(_text(process / "comm")):
        return None
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", _text(process / "status"), re.MULTILINE)
    nic = interface_to(_ELSEWHERE, root)
    node = _nic_node(root / "sys/class/net" / nic, root) if nic else None
    if allowed is None or nic is None or node is None:
        return None
    cpu_nodes = _nodes_of(_cpus(allowed[1]), root)
    return ServerPlace(cpu_nodes=cpu_nodes, nic=nic, nic_node=node) if cpu_nodes else None


def _nodes_of(cpus: Set[int], root: Path) -> frozenset[int]:
    nodes = (root / "sys/devices/system/node").glob("node[0-9]*")
    return frozenset(int(node.name[4:]) for node in nodes if cpus & _cpus(_text(node / "cpulist")))


def _cpus(text: str) -> set[int]:
    """``0-3,8`` as numbers."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _chosen(text: str) -> str | None:
    """The word in brackets, of ``always [madvise] never``."""
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else None


def _meminfo(root: Path, name: str) -> int | None:
    match = re.search(rf"^{name}:\s+(\d+)", _text(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) if match else None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
