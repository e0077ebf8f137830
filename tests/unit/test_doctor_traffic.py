"""What the doctor concludes from rates, and how much it dares to write."""

from __future__ import annotations

import pytest

from kvferry.lab.doctor.examine import examine
from kvferry.lab.doctor.facts import Facts, HostFacts, Need, ServerFacts, TrafficFacts
from kvferry.lab.doctor.finding import Finding, Severity
from kvferry.lab.doctor.rules_traffic import best_chunk_bytes, connections_for, knee
from kvferry.lab.doctor.traffic import room_bytes

MIB, GIB = 1 << 20, 1 << 30
NEAR = {1: 1.0e9, 2: 1.9e9, 4: 3.6e9, 8: 4.0e9, 16: 4.05e9, 32: 3.9e9}


def found(traffic: TrafficFacts, connections: int = 8) -> dict[str, Finding]:
    facts = Facts(need=Need(connections=connections), traffic=traffic)
    return {f.id: f for f in examine(facts) if f.scope == "network"}


def test_the_knee() -> None:
    assert knee(NEAR) == 8
    assert knee({1: 2.0, 2: 2.05}) == 1
    assert knee({64: 1.0}) == 64


def test_the_best_chunk_is_the_smallest_that_is_as_good() -> None:
    assert best_chunk_bytes({MIB: 3.0, 2 * MIB: 3.9, 4 * MIB: 4.0, 7 * MIB: 3.0}) == 2 * MIB


@pytest.mark.parametrize(
    ("rate", "rtt_s", "rmem", "count"),
    [
        (1.25e9, 0.010, "4096 87380 8388608", 3),  # 12.5 MB over a window of 4 MiB
        (1.25e9, 0.050, "4096 87380 8388608", 15),
        (3.125e9, 0.050, "4096 87380 6291456", 50),
        (5e9, 0.0001, "4096 87380 6291456", 1),
        (5e9, 0.0, "", 1),
        (5e9, 0.01, "", 12),
    ],
)
def test_connections_that_hide_the_distance(
    rate: float, rtt_s: float, rmem: str, count: int
) -> None:
    assert connections_for(rate, rtt_s, HostFacts(sysctls={"net.ipv4.tcp_rmem": rmem})) == count


def test_a_good_way() -> None:
    findings = found(TrafficFacts(rtt_s=0.0002, by_connections=NEAR, by_size={4 * MIB: 4.0e9}))
    assert set(findings) == {"rtt", "bandwidth", "connections", "chunk-size"}
    assert {f.severity for f in findings.values()} == {Severity.OK}


def test_a_slow_way() -> None:
    findings = found(TrafficFacts(rtt_s=0.02, by_connections={1: 1e8, 2: 2e8, 4: 2.05e8}))
    assert findings["rtt"].severity is Severity.INFO
    assert findings["bandwidth"].severity is Severity.WARN


def test_too_few_connections() -> None:
    finding = found(TrafficFacts(rtt_s=0.0002, by_connections=NEAR), connections=2)["connections"]
    assert finding.severity is Severity.WARN
    assert "connections=8" in finding.fix


def test_a_gain_within_the_noise_is_no_advice() -> None:
    curve = {1: 3.7e9, 4: 3.8e9, 16: 4.05e9}
    finding = found(TrafficFacts(rtt_s=0.0001, by_connections=curve), connections=8)["connections"]
    assert finding.severity is Severity.OK


def test_a_long_way_needs_more_than_was_tried() -> None:
    curve = {1: 5e8, 2: 1e9, 4: 2e9}
    finding = found(TrafficFacts(rtt_s=0.05, by_connections=curve), connections=4)["connections"]
    assert finding.severity is Severity.WARN
    assert "connections=24" in finding.fix  # 100 MB over windows of 4 MiB


def test_what_was_not_measured_says_why() -> None:
    (finding,) = found(TrafficFacts(skipped="no room")).values()
    assert (finding.id, finding.severity) == ("bandwidth", Severity.INFO)
    assert "no room" in finding.seen


def store(limit: int, used: int, policy: str, role: str = "master") -> ServerFacts:
    return ServerFacts(
        info={
            "maxmemory": str(limit),
            "used_memory": str(used),
            "maxmemory_policy": policy,
            "role": role,
            "total_system_memory": str(32 * GIB),
        }
    )


@pytest.mark.parametrize(
    ("server", "room"),
    [
        (store(0, GIB, "noeviction"), GIB),
        (store(8 * GIB, 6 * GIB, "allkeys-lru"), GIB),
        (store(8 * GIB, 8 * GIB, "allkeys-lru"), GIB // 4),  # it evicts a little of its cache
        (store(8 * GIB, 8 * GIB, "noeviction"), 0),
        (store(8 * GIB, 0, "allkeys-lru", "slave"), 0),
    ],
)
def test_room(server: ServerFacts, room: int) -> None:
    assert room_bytes([server])[0] == room
    assert room_bytes([store(8 * GIB, 0, "allkeys-lru"), server])[0] == room


def test_no_server_no_room() -> None:
    assert room_bytes([])[0] == 0
