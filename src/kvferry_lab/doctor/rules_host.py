"""Checks of this host: the client's, and the server's where that is the same.

They are the machine's, not the server's: `scope` is "host". Where the server is reached without a
network, nothing that concerns networks is more than worth knowing. A server on this host has a way
of its own, a Unix socket, and what keeps its clients on TCP is checked too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvferry_lab.doctor.facts import (
    Facts,
    Finding,
    HostFacts,
    SameHostFacts,
    Severity,
    info,
    ok,
    size_text,
    warn,
)

__all__ = ["examine_host", "examine_same_host"]

_MIB = 1 << 20
_FLOW_BYTES_S = 625e6  # 5 Gbit/s: what clouds allow one flow at least
_MTU_JUMBO = 8000
_FAR_S = 0.002  # from here on a hit waits for what TCP begins with
_NETWORK = ("tcp-rmem", "tcp-wmem", "slow-start-after-idle", "mtu", "nic-numa")
_NONE = "the server has no Unix socket"


def examine_host(facts: Facts) -> Iterator[Finding]:
    """Every check that this kernel has something to say to."""
    host = facts.host
    found = (
        _buffer(facts, "tcp-rmem", "net.ipv4.tcp_rmem", "GET"),
        _buffer(facts, "tcp-wmem", "net.ipv4.tcp_wmem", "SET"),
        slow_start(facts),
        mtu(host),
        nic_numa(host),
        server_numa(host),
        transparent_huge_pages(host),
        huge_pages(host),
        kernel_tls(host),
        overcommit(facts),
        somaxconn(facts),
    )
    for finding in found:
        if finding is None:
            continue
        if finding.id in _NETWORK and not host.is_remote:
            finding = replace(finding, severity=min(finding.severity, Severity.INFO))
        yield replace(finding, scope="host")


def _buffer(facts: Facts, check: str, name: str, verb: str) -> Finding | None:
    """The window that TCP may grow to lets one connection fill a flow."""
    words = facts.host.sysctls.get(name, "").split()
    if len(words) != 3 or not words[2].isdigit():
        return None
    most, rtt_s = int(words[2]), facts.traffic.rtt_s
    seen = f"{name} up to {size_text(most)}"
    need = int(2 * _FLOW_BYTES_S * rtt_s) if rtt_s else 4 * _MIB  # half of it is overhead
    if most >= need:
        return ok(check, seen)
    if rtt_s:
        seen += f": {verb} of one connection stays below {most / 2 / rtt_s / 1e6:,.0f} MB/s"
    size = max(32 * _MIB, 1 << (need - 1).bit_length())
    why = f"a round trip holds more than that at 5 Gbit/s, and {verb} waits for it"
    fix = f'sysctl -w {name}="{words[0]} {words[1]} {size}"'
    return warn(check, seen, why, fix)


def slow_start(facts: Facts) -> Finding | None:
    """A connection that was idle goes on where it was."""
    value = facts.host.sysctls.get("net.ipv4.tcp_slow_start_after_idle")
    if value is None:
        return None
    is_far = facts.host.is_remote and (facts.traffic.rtt_s or 0.0) >= _FAR_S
    if value == "0" and not is_far:
        return ok("slow-start-after-idle", "off")
    why = (
        "loads come in bursts, and after a pause each connection begins with 10 segments again: "
        "some round trips for each batch. SETs depend on this host, GETs on the server's"
    )
    fix = "sysctl -w net.ipv4.tcp_slow_start_after_idle=0   "
    if value == "0":
        fix += "(on the server's host)"
        return info("slow-start-after-idle", "off here; the server's host cannot say", why, fix)
    fix += "(here and on the server's host)"
    return warn("slow-start-after-idle", "net.ipv4.tcp_slow_start_after_idle = 1", why, fix)


def mtu(host: HostFacts) -> Finding | None:
    """Large packets, where the network takes them."""
    if host.mtu is None or host.interface is None:
        return None
    seen = f"{host.interface}: MTU {host.mtu:,}"
    if host.mtu >= _MTU_JUMBO or not host.is_remote:
        return ok("mtu", seen)
    why = "inside most clouds 8,900 or 9,001 works, with a sixth of the packets; both ends need it"
    return info("mtu", seen, why, f"ip link set dev {host.interface} mtu 9000")


def nic_numa(host: HostFacts) -> Finding | None:
    """This process runs beside the network card."""
    if host.numa_node is None:
        return None
    seen = f"{host.interface} sits at NUMA node {host.numa_node}"
    if host.cpu_nodes <= {host.numa_node}:
        return ok("nic-numa", f"{seen}, and so do we")
    nodes = ", ".join(map(str, sorted(host.cpu_nodes)))
    why = "from another node every byte crosses the link between the sockets twice"
    fix = f"numactl --cpunodebind={host.numa_node} --membind={host.numa_node} <command>"
    return info("nic-numa", f"{seen}; this process may run on {nodes}", why, fix)


def server_numa(host: HostFacts) -> Finding | None:
    """A server on this host runs beside the card by which others reach it."""
    place = host.server
    if place is None:
        return None
    node = place.nic_node
    seen = f"{place.nic} sits at NUMA node {node}"
    if place.cpu_nodes <= {node}:
        return ok("server-numa", f"{seen}, and so does the server")
    nodes = ", ".join(map(str, sorted(place.cpu_nodes)))
    why = "for clients on other hosts its bytes cross the link between the sockets"
    fix = f"numactl --cpunodebind={node} --membind={node} redis-server ...   (needs a restart)"
    return info("server-numa", f"{seen}; the server may run on {nodes}", why, fix)


def transparent_huge_pages(host: HostFacts) -> Finding | None:
    """Buffers may have huge pages."""
    if host.thp is None:
        return None
    if host.thp == "never":
        why = "pools of chunks then take a page fault and a TLB entry for each 4 KiB"
        fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        return info("huge-pages-transparent", "never", why, fix)
    return ok("huge-pages-transparent", host.thp)


def huge_pages(host: HostFacts) -> Finding | None:
    """Reserved huge pages: nice to have."""
    if host.huge_pages_free is None:
        return None
    return ok("huge-pages-reserved", f"{host.huge_pages_free:,} free")


def kernel_tls(host: HostFacts) -> Finding | None:
    """What the kernel offers for TLS."""
    if host.ulps is None:
        return None
    if "tls" in host.ulps:
        return ok("ktls", "the kernel offers it")
    if not host.is_tls_used:
        return ok("ktls", "the kernel does not offer it now; TLS is not used")
    seen = "the kernel does not offer it" + (" now" if host.can_load_tls else ": no such module")
    why = "with it, decrypting saves one copy of each value"
    return info("ktls", seen, why, "modprobe tls" if host.can_load_tls else "")


def overcommit(facts: Facts) -> Finding | None:
    """Where the server is ours and forks, the fork succeeds."""
    value = facts.host.sysctls.get("vm.overcommit_memory")
    forks = [
        server
        for server in facts.servers
        if server.is_near and (server.count("aof_enabled") or (server.config or {}).get("save"))
    ]
    if value is None or not forks:
        return None
    if value == "1":
        return ok("overcommit", "vm.overcommit_memory = 1")
    why = "a snapshot of a server that uses half of the memory fails, and then writes are refused"
    fix = "sysctl -w vm.overcommit_memory=1"
    return warn("overcommit", f"vm.overcommit_memory = {value}, and the server forks", why, fix)


def somaxconn(facts: Facts) -> Finding | None:
    """The kernel grants the backlog that a server of ours asks for."""
    text = facts.host.sysctls.get("net.core.somaxconn", "")
    near = [server for server in facts.servers if server.is_near and server.config]
    asked = max((s.setting_bytes("tcp-backlog") or 0 for s in near), default=0)
    if not text.isdigit() or not asked:
        return None
    seen = f"net.core.somaxconn = {text}"
    if int(text) < min(asked, 511):
        why = f"the server's tcp-backlog {asked} is cut to that"
        return warn("somaxconn", seen, why, f"sysctl -w net.core.somaxconn={asked}")
    return ok("somaxconn", seen)


def examine_same_host(facts: Facts) -> Iterator[Finding]:
    """Every check; nothing where the server is not on this host, or TLS was asked for."""
    if facts.same_host is None:
        return
    kind = next((server.kind for server in facts.servers if server.kind), "redis")
    yield replace(way(facts.same_host, kind), scope="network")
    if kind == "kvferry":  # a node, which sees to the rest itself
        return
    if (finding := send_buffer(facts)) is not None:
        yield replace(finding, scope="host")
    if (finding := pacing(facts)) is not None:
        yield replace(finding, scope="host")


def way(found: SameHostFacts, kind: str) -> Finding:
    """Data goes over the server's Unix socket."""
    if found.unix_path is not None:
        return ok("same-host", f"over the Unix socket {found.unix_path}{_rates(found)}")
    seen = f"over TCP{_rates(found)}"
    if found.why != _NONE:
        return info("same-host", f"{seen}: {found.why}")
    fix = "kvferry node --listen unix:<path>   (besides its port; same user as the engine's)"
    if kind != "kvferry":
        lines = f"unixsocket /run/{kind}/{kind}.sock\nunixsocketperm 700"
        fix = f"{lines}   (configuration file; needs a restart; same user as the engine's)"
    why = "a Unix socket carries more for nothing, and the client finds it by itself"
    return info("same-host", f"{seen}: {found.why}", why, fix)


def send_buffer(facts: Facts) -> Finding | None:
    """A Unix socket holds enough that its two ends need not wait for each other."""
    text = facts.host.sysctls.get("net.core.wmem_default", "")
    if not text.isdigit():
        return None
    seen = f"net.core.wmem_default = {size_text(int(text))}"
    if int(text) >= _MIB:
        return ok("unix-buffer", seen)
    why = "what a Unix socket holds at most: both ends wake each other once for each of these"
    fix = f"sysctl -w net.core.wmem_default={_MIB}   (before the server starts)"
    return info("unix-buffer", seen, why, fix)


def pacing(facts: Facts) -> Finding | None:
    """Where data goes over TCP, nothing paces it on its way through this host's memory."""
    congestion = facts.host.sysctls.get("net.ipv4.tcp_congestion_control")
    if congestion != "bbr" or facts.same_host is None or facts.same_host.unix_path is not None:
        return None
    seen = f"net.ipv4.tcp_congestion_control = {congestion}, also over loopback"
    why = "it sends by a timer, which costs a server on this host up to a third of its rate"
    route = "local 127.0.0.1 dev lo proto kernel scope host src 127.0.0.1"
    fix = f"ip route change {route} table local congctl cubic   (for new connections)"
    return info("pacing", seen, why, fix)


def _rates(found: SameHostFacts) -> str:
    if found.gain is None or found.tcp_bytes_s is None or found.unix_bytes_s is None:
        return ""
    whose = " of a server started for this" if found.is_other_server else ""
    return (
        f"; GET over the socket{whose} {found.unix_bytes_s / 1e9:.2f} GB/s, "
        f"over TCP {found.tcp_bytes_s / 1e9:.2f} ({found.gain:.2f} x)"
    )
