"""The doctor on hosts of many shapes, each a small tree of files."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from kvferry.config import ClientConfig
from kvferry_lab.doctor.examine import examine
from kvferry_lab.doctor.facts import (
    Facts,
    Finding,
    HostFacts,
    ServerFacts,
    ServerPlace,
    Severity,
    TrafficFacts,
)
from kvferry_lab.doctor.host import interface_to, read_host

MIB = 1 << 20
GOOD = HostFacts(
    sysctls={
        "net.ipv4.tcp_rmem": f"4096 131072 {64 * MIB}",
        "net.ipv4.tcp_wmem": f"4096 16384 {64 * MIB}",
        "net.ipv4.tcp_slow_start_after_idle": "0",
        "net.core.somaxconn": "4096",
        "vm.overcommit_memory": "1",
    },
    thp="madvise",
    huge_pages_free=0,
    ulps=frozenset({"tls"}),
    interface="eth0",
    mtu=9001,
    numa_node=0,
    cpu_nodes=frozenset({0}),
    cores=8,
    is_tls_used=True,
)
SERVER = ServerFacts(is_near=True, config={"save": "60 1", "tcp-backlog": "511"})
ROUTES = """\
Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth1\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
eth2\t0005000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
down\t0006000A\t00000000\t0000\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
ROUTES_V6 = f"""\
fd{"0" * 30} 08 {"0" * 32} 00 {"0" * 32} 00000100 00000001 00000000 00000001     eth5
{"0" * 32} 00 {"0" * 32} 00 {"0" * 32} ffffffff 00000001 00000000 00200200       lo
"""


def found(host: HostFacts, rtt_s: float | None = 0.0005) -> dict[str, Finding]:
    traffic = TrafficFacts(rtt_s=rtt_s)
    findings = examine(Facts(servers=(SERVER,), host=host, traffic=traffic))
    return {f.id: f for f in findings if f.scope == "host"}


def sysctl(name: str, value: str) -> HostFacts:
    return replace(GOOD, sysctls={**GOOD.sysctls, name: value})


def test_a_good_host_has_no_finding() -> None:
    assert {f.severity for f in found(GOOD).values()} == {Severity.OK}
    assert len(found(GOOD)) == 10


@pytest.mark.parametrize(
    ("check", "severity", "host"),
    [
        ("tcp-rmem", Severity.WARN, sysctl("net.ipv4.tcp_rmem", "4096 87380 212992")),
        ("tcp-wmem", Severity.WARN, sysctl("net.ipv4.tcp_wmem", "4096 16384 212992")),
        ("slow-start-after-idle", Severity.WARN, sysctl("net.ipv4.tcp_slow_start_after_idle", "1")),
        ("somaxconn", Severity.WARN, sysctl("net.core.somaxconn", "128")),
        ("overcommit", Severity.WARN, sysctl("vm.overcommit_memory", "0")),
        ("mtu", Severity.INFO, replace(GOOD, mtu=1460)),
        ("nic-numa", Severity.INFO, replace(GOOD, numa_node=1)),
        (
            "server-numa",
            Severity.INFO,
            replace(GOOD, server=ServerPlace(cpu_nodes=frozenset({0, 1}), nic="eth0", nic_node=1)),
        ),
        ("huge-pages-transparent", Severity.INFO, replace(GOOD, thp="never")),
        ("ktls", Severity.INFO, replace(GOOD, ulps=frozenset({"mptcp"}), can_load_tls=True)),
    ],
)
def test_what_is_planted(check: str, severity: Severity, host: HostFacts) -> None:
    finding = found(host)[check]
    assert finding.severity is severity
    assert finding.fix
    assert {f.id for f in found(host).values() if f.severity > Severity.OK} == {check}


def test_without_a_network_its_settings_are_notes() -> None:
    host = replace(sysctl("net.ipv4.tcp_slow_start_after_idle", "1"), interface="lo")
    assert found(host)["slow-start-after-idle"].severity is Severity.INFO


def test_far_away_the_line_for_the_servers_host_is_said_although_this_one_has_it() -> None:
    """GETs wait for slow start there, and nobody sees that from here."""
    assert found(GOOD, rtt_s=0.001)["slow-start-after-idle"].severity is Severity.OK
    far = found(GOOD, rtt_s=0.02)["slow-start-after-idle"]
    assert far.severity is Severity.INFO
    assert "tcp_slow_start_after_idle=0" in far.fix
    assert "on the server's host" in far.fix
    here = found(replace(GOOD, interface="lo"), rtt_s=0.02)["slow-start-after-idle"]
    assert here.severity is Severity.OK


def test_the_window_has_to_suit_the_distance() -> None:
    host = sysctl("net.ipv4.tcp_rmem", f"4096 131072 {6 * MIB}")
    assert found(host, rtt_s=0.001)["tcp-rmem"].severity is Severity.OK
    far = found(host, rtt_s=0.05)["tcp-rmem"]
    assert far.severity is Severity.WARN
    assert "63 MB/s" in far.seen  # 3 MiB each 50 ms
    assert far.fix == f'sysctl -w net.ipv4.tcp_rmem="4096 131072 {64 * MIB}"'
    assert found(host, rtt_s=None)["tcp-rmem"].severity is Severity.OK


def test_a_host_that_says_nothing() -> None:
    assert found(HostFacts()) == {}


def tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_reading(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    tree(
        tmp_path,
        {
            "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
            "proc/sys/net/ipv4/tcp_slow_start_after_idle": "1\n",
            "proc/sys/net/ipv4/tcp_available_ulp": "espintcp mptcp\n",
            "proc/meminfo": "MemTotal: 1000 kB\nHugePages_Free:       7\n",
            "proc/net/route": ROUTES,
            "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
            "sys/class/net/eth1/mtu": "8896\n",
            "sys/class/net/eth1/device/numa_node": "1\n",
            "sys/devices/system/node/online": "0-1\n",
            "sys/devices/system/node/node0/cpulist": f"{cpu}\n",
            "sys/devices/system/node/node1/cpulist": "1000-1003\n",
            f"lib/modules/{platform.release()}/kernel/net/tls/tls.ko.xz": "",
        },
    )
    host = read_host(ClientConfig(host="10.7.0.9"), tmp_path)
    assert host.sysctls == {
        "net.ipv4.tcp_rmem": "4096 131072 6291456",
        "net.ipv4.tcp_slow_start_after_idle": "1",
    }
    assert (host.thp, host.huge_pages_free, host.memory_bytes) == ("never", 7, 1_024_000)
    assert (host.interface, host.mtu, host.is_remote) == ("eth1", 8896, True)
    assert (host.numa_node, host.cpu_nodes) == (1, frozenset({0}))
    assert host.ulps == frozenset({"espintcp", "mptcp"})
    assert host.can_load_tls


def test_loopback_is_no_network(tmp_path: Path) -> None:
    for config in (ClientConfig(host="127.0.0.1"), ClientConfig(unix_path="/run/x.sock")):
        host = read_host(config, tmp_path)
        assert (host.interface, host.is_remote) == ("lo", False)


def test_a_bond_has_the_node_of_a_card_beneath(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/net/route": ROUTES.replace("eth1", "bond0"),
            "sys/class/net/bond0/lower_eth7/device/numa_node": "1\n",
            "sys/devices/system/node/online": "0-1\n",
        },
    )
    assert read_host(ClientConfig(host="10.7.0.9"), tmp_path).numa_node == 1


@pytest.mark.parametrize(
    ("address", "interface"),
    [
        ("10.7.0.9", "eth1"),
        ("10.0.5.9", "eth2"),
        ("10.0.6.9", "eth1"),
        ("8.8.8.8", "eth0"),
        ("fd00::9", "eth5"),
        ("2001:db8::1", None),
    ],
)
def test_the_longest_route_wins(tmp_path: Path, address: str, interface: str | None) -> None:
    tree(tmp_path, {"proc/net/route": ROUTES, "proc/net/ipv6_route": ROUTES_V6})
    assert interface_to(address, tmp_path) == interface


def test_this_host_can_be_read() -> None:
    host = read_host(ClientConfig(host="127.0.0.1"))
    assert host.cores >= 1
    assert "net.ipv4.tcp_rmem" in host.sysctls
    assert host.cpu_nodes


def test_where_the_servers_process_is(tmp_path: Path) -> None:
    files = {
        "proc/net/route": ROUTES,
        "proc/41/comm": "redis-server\n",
        "proc/41/status": "Name:\tredis-server\nCpus_allowed_list:\t0-3,8\n",
        "proc/42/comm": "postgres\n",
        "proc/42/status": "Cpus_allowed_list:\t0-3\n",
        "sys/devices/system/node/online": "0-1\n",
        "sys/devices/system/node/node0/cpulist": "0-7\n",
        "sys/devices/system/node/node1/cpulist": "8-15\n",
        "sys/class/net/eth0/device/numa_node": "1\n",
    }
    tree(tmp_path, files)
    config = ClientConfig(host="127.0.0.1")
    host = read_host(config, tmp_path, 41)
    place = ServerPlace(cpu_nodes=frozenset({0, 1}), nic="eth0", nic_node=1)
    assert host.server == place, "its card is that of the default route, although we use loopback"
    finding = found(host)["server-numa"]
    assert finding.severity is Severity.INFO
    assert "eth0 sits at NUMA node 1; the server may run on 0, 1" in finding.seen
    assert finding.fix.startswith("numactl --cpunodebind=1 --membind=1 redis-server")
    tree(tmp_path, {"proc/41/status": "Cpus_allowed_list:\t8-9\n"})
    assert found(read_host(config, tmp_path, 41))["server-numa"].severity is Severity.OK
    for pid in (42, 43, None):  # of another program, of no process, of another host
        assert read_host(config, tmp_path, pid).server is None
    tree(tmp_path, {"sys/devices/system/node/online": "0\n"})
    assert read_host(config, tmp_path, 41).server is None, "there is one node"
