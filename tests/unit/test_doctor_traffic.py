"""What the doctor concludes from rates, and how much it dares to write."""

from __future__ import annotations

import pytest

from kvferry_lab.doctor.examine import examine
from kvferry_lab.doctor.facts import (
    BareFacts,
    ClientNeed,
    Facts,
    Finding,
    HostFacts,
    ServerFacts,
    Severity,
    TrafficFacts,
)
from kvferry_lab.doctor.rules_traffic import best_chunk_bytes, connections_for, knee
from kvferry_lab.doctor.traffic import room_bytes

MIB, GIB = 1 << 20, 1 << 30
NEAR = {1: 1.0e9, 2: 1.9e9, 4: 3.6e9, 8: 4.0e9, 16: 4.05e9, 32: 3.9e9}


def found(traffic: TrafficFacts, connections: int = 8) -> dict[str, Finding]:
    facts = Facts(need=ClientNeed(connections=connections), traffic=traffic)
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


@pytest.mark.parametrize(
    ("rtt_s", "where", "severity"),
    [
        (0.00008, "as within one host", Severity.OK),
        (0.0001, "as within one host", Severity.OK),
        (0.0004, "as within one zone", Severity.OK),
        (0.0015, "as within one region", Severity.INFO),
        (0.0021, "as between regions", Severity.INFO),
    ],
)
def test_a_round_trip_in_words(rtt_s: float, where: str, severity: Severity) -> None:
    finding = found(TrafficFacts(rtt_s=rtt_s))["rtt"]
    assert finding.severity is severity
    assert finding.seen.endswith(where)


def test_a_round_trip_within_this_host_is_not_called_a_distance() -> None:
    facts = Facts(host=HostFacts(interface="lo"), traffic=TrafficFacts(rtt_s=0.003))
    (finding,) = (f for f in examine(facts) if f.id == "rtt")
    assert finding.severity is Severity.INFO
    assert "on this host" in finding.seen
    assert "region" not in finding.seen + finding.why


@pytest.mark.parametrize(
    ("rate", "break_even", "severity"),
    [
        (1.9e9, None, Severity.WARN),
        (2.1e9, None, Severity.OK),
        (2.1e9, 4.0e9, Severity.WARN),
        (0.5e9, 0.4e9, Severity.OK),
    ],
)
def test_a_rate_is_slow_below_two_gigabytes_or_what_the_engine_computes(
    rate: float, break_even: float | None, severity: Severity
) -> None:
    facts = Facts(
        need=ClientNeed(prefill_bytes_s=break_even), traffic=TrafficFacts(by_connections={8: rate})
    )
    (finding,) = (f for f in examine(facts) if f.id == "bandwidth")
    assert finding.severity is severity
    assert ("4.00 GB/s" in finding.why) == (break_even == 4.0e9)


@pytest.mark.parametrize(("rate", "severity"), [(3.0e9, Severity.OK), (1.0e9, Severity.WARN)])
def test_the_store_beside_bare_tcp(rate: float, severity: Severity) -> None:
    bare = BareFacts(peer="cache:7419", rtt_s=0.0003, by_connections={1: 2.0e9, 4: 4.0e9})
    facts = Facts(bare=bare, traffic=TrafficFacts(by_connections={8: rate}))
    (finding,) = (f for f in examine(facts) if f.id == "bare-tcp")
    assert finding.severity is severity
    assert finding.scope == "network"
    assert finding.seen.startswith("4.00 GB/s from cache:7419; by connections: 1: 2.00, 4: 4.00")
    assert f"gives {rate / 4e9:.0%}" in finding.seen
    assert "as within one zone" in finding.seen


def test_a_peer_that_went_away_is_told_of() -> None:
    bare = BareFacts(peer="cache:7419", rtt_s=0.0003, by_connections={1: 2.0e9}, skipped="it left")
    (finding,) = (f for f in examine(Facts(bare=bare)) if f.id == "bare-tcp")
    assert "it left" in finding.seen


def test_a_peer_that_is_not_there_says_what_to_start() -> None:
    facts = Facts(bare=BareFacts(peer="cache:7419", skipped="cannot connect to cache:7419"))
    (finding,) = (f for f in examine(facts) if f.id == "bare-tcp")
    assert finding.severity is Severity.INFO
    assert "cannot connect" in finding.seen
    assert finding.fix.startswith("kvferry doctor --serve")


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
