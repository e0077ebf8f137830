"""The doctor's measurements: real rates, nothing left behind, nobody's cache pushed out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvferry.base.errors import UnavailableError
from kvferry.client.batch import BatchResult
from kvferry.client.sync import RedisClient
from kvferry.config import ClientConfig
from kvferry_lab.doctor import traffic
from kvferry_lab.doctor.facts import ClientNeed, SameHostFacts, Severity
from kvferry_lab.doctor.run import DoctorPlan, run_doctor
from kvferry_lab.doctor.traffic import Limits, measure_rate, measure_rtt
from support.cluster import Cluster
from support.proxy import FaultProxy
from support.servers import TestServer

MIB = 1 << 20
SMALL = Limits(
    stored_bytes=8 * MIB,
    moved_bytes=256 * MIB,
    total_s=20.0,
    point_s=0.01,
    connections=(1, 3),
    sizes_bytes=(MIB // 4, MIB),
)
NEED = ClientNeed(chunk_bytes=MIB)


def silent(_: str) -> None:
    """Nobody listens."""


def config(url: str) -> ClientConfig:
    return ClientConfig.from_url(url)


def test_rates_and_a_clean_server(valkey: TestServer) -> None:
    said: list[str] = []
    began = time.monotonic()
    facts = measure_rate(config(valkey.url), NEED, SMALL, said.append)
    least = MIB / (time.monotonic() - began)  # every batch has four values or more
    assert facts.skipped == ""
    assert list(facts.by_connections) == [1, 3]
    assert list(facts.by_size) == [MIB // 4, MIB]
    rates = [*facts.by_connections.values(), *facts.by_size.values()]
    assert all(least < rate < 1e12 for rate in rates)
    assert facts.best_bytes_s == max(rates)
    assert len(said) == 4
    assert valkey.cli("DBSIZE") == 0


def test_rates_of_a_cluster(cluster: Cluster) -> None:
    facts, _ = run_doctor(DoctorPlan(config=config(cluster.url), limits=SMALL))
    assert facts.traffic.skipped == ""
    assert list(facts.traffic.by_connections) == [1, 3]
    assert [node.cli("DBSIZE") for node in cluster.nodes] == [0, 0, 0]


def test_its_keys_are_its_own_and_do_not_stay(
    start: Callable[..., TestServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start("valkey", users=["user probe on >secret ~kvferry:doctor:* +@all"])

    class Forgetful(RedisClient):
        def batch_delete(self, keys: object, **options: object) -> BatchResult:
            return BatchResult(b"", (), 0.0)

    monkeypatch.setattr(traffic, "RedisClient", Forgetful)
    url = server.url.replace("redis://", "redis://probe:secret@")
    facts = measure_rate(config(url), NEED, SMALL, silent)
    assert facts.skipped == "", "the user may touch nothing else"
    keys = server.cli("KEYS", "*")
    assert keys
    assert all(0 < server.cli("TTL", key) <= 120 for key in keys)


def test_bytes_and_time_are_bounded(valkey: TestServer) -> None:
    limits = replace(SMALL, connections=(1, 2, 4, 8, 16, 32, 64), moved_bytes=1, sizes_bytes=())
    facts = measure_rate(config(valkey.url), NEED, limits, silent)
    assert list(facts.by_connections) == [1]
    limits = replace(limits, moved_bytes=1 << 40, total_s=0.0)
    assert measure_rate(config(valkey.url), NEED, limits, silent).by_connections == {}
    assert int(valkey.info("stats")["total_net_input_bytes"]) < 64 * MIB


def test_who_may_not_write_is_told_so(start: Callable[..., TestServer]) -> None:
    server = start("valkey", users=["user guest on >secret ~* +@all -set"])
    plan = DoctorPlan(config=config(server.url.replace("redis://", "redis://guest:secret@")))
    facts, findings = run_doctor(replace(plan, limits=SMALL))
    assert "NOPERM" in facts.traffic.skipped
    bandwidth = next(f for f in findings if f.id == "bandwidth")
    assert bandwidth.severity is Severity.INFO
    assert "secret" not in repr(findings)


def test_a_full_server_is_left_alone(start: Callable[..., TestServer]) -> None:
    server = start("valkey", "--maxmemory", "16mb", "--maxmemory-policy", "noeviction")
    for key in range(2):
        server.cli("SET", f"k{key}", os.urandom(4 * MIB))
    facts, _ = run_doctor(DoctorPlan(config=config(server.url), limits=SMALL))
    assert "room" in facts.traffic.skipped
    assert server.cli("DBSIZE") == 2
    assert b"kvferry:doctor" not in b"".join(server.cli("KEYS", "*"))


def test_wrong_bytes_give_no_rate(
    valkey: TestServer, proxied: Callable[[TestServer], FaultProxy]
) -> None:
    proxy = proxied(valkey)
    fault = proxy.flip(3 * MIB)  # in a value of the first measurement
    facts = measure_rate(config(proxy.url), NEED, replace(SMALL, connections=(1,)), silent)
    fault.wait_fired()
    assert "other bytes" in facts.skipped
    assert facts.by_connections == {}
    assert valkey.cli("DBSIZE") == 0


def test_the_round_trip(valkey: TestServer) -> None:
    began = time.monotonic()
    assert 1e-6 < measure_rtt(config(valkey.url)) < time.monotonic() - began


def test_nobody_there() -> None:
    with pytest.raises(UnavailableError, match="refused"):
        run_doctor(DoctorPlan(config=ClientConfig(host="127.0.0.1", port=1), root=Path("/nowhere")))


def same_host_of(url: str, limits: Limits | None = SMALL) -> tuple[SameHostFacts | None, str]:
    facts, findings = run_doctor(DoctorPlan(config=config(url), limits=limits))
    seen = [finding.seen for finding in findings if finding.id == "same-host"]
    return facts.same_host, " ".join(seen)


def test_both_ways_to_a_server_on_this_host(server: TestServer) -> None:
    facts, seen = same_host_of(server.url)
    assert facts is not None
    assert facts.unix_path == server.unix_path
    assert facts.tcp_bytes_s
    assert facts.unix_bytes_s
    assert not facts.is_other_server
    assert f"over the Unix socket {server.unix_path}" in seen
    assert server.cli("DBSIZE") == 0
    assert same_host_of(server.url, None) == (
        SameHostFacts(unix_path=server.unix_path),
        f"over the Unix socket {server.unix_path}",
    )


def test_what_a_socket_would_bring(start: Callable[..., TestServer]) -> None:
    facts, seen = same_host_of(start("valkey", unix=False).url)
    assert facts is not None
    assert facts.unix_path is None
    assert facts.tcp_bytes_s
    assert facts.unix_bytes_s
    assert facts.is_other_server
    assert seen.endswith("the server has no Unix socket")


def test_a_way_that_was_chosen_is_not_discussed(valkey: TestServer) -> None:
    assert same_host_of(f"{valkey.url}?same_host=tcp", None) == (None, "")
    with FaultProxy(valkey.host, valkey.port) as proxy:
        assert "leads through a proxy" in same_host_of(proxy.url, None)[1]
