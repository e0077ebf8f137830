"""The doctor before clusters, Sentinels and TLS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from kvferry.base.errors import UnavailableError
from kvferry.config import ClientConfig
from kvferry_lab.doctor.facts import Finding, Severity
from kvferry_lab.doctor.run import DoctorPlan, run_doctor
from support.cluster import Cluster
from support.sentinel import SentinelGroup
from support.servers import KINDS, TestServer

OK, INFO, WARN, FAULT = Severity


def findings(url: str, **settings: Any) -> dict[str, Finding]:
    config = ClientConfig.from_url(url, **settings)
    return {f.id: f for f in run_doctor(DoctorPlan(config=config))[1]}


def of_cluster(findings: dict[str, Finding]) -> dict[str, Severity]:
    return {i: f.severity for i, f in findings.items() if f.scope == "cluster" and f.severity > OK}


def test_a_cluster_is_read_node_by_node(cluster: Cluster) -> None:
    seen = findings(cluster.url)
    assert of_cluster(seen) == {"cluster-coverage": WARN}
    assert len(seen["maxmemory"].where) == 3, "one finding names all nodes"
    assert "3 shards" in seen["cluster-mode"].seen


def test_a_cluster_behind_the_url_of_one_server(cluster: Cluster) -> None:
    seen = findings(f"redis://{cluster.seeds[0]}")
    assert seen["cluster-mode"].severity is FAULT
    assert "redis+cluster://" in seen["cluster-mode"].fix


def test_a_seed_that_is_down_is_passed_over(cluster: Cluster) -> None:
    seen = findings(f"redis+cluster://127.0.0.1:1,{cluster.seeds[1]}")
    assert seen["cluster-nodes"].severity is OK


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_cluster_then_one_without_some_slots(
    fresh_cluster: Callable[..., Cluster], kind: str
) -> None:
    cluster = fresh_cluster(kind, full_coverage=False)
    assert of_cluster(findings(cluster.url)) == {}
    cluster.nodes[1].cli("CLUSTER", "DELSLOTS", 6000, 6001)
    sick = findings(f"redis+cluster://{cluster.seeds[1]}")
    assert sick["cluster-slots"].severity is FAULT
    assert sick["cluster-slots"].seen.startswith("2 of 16,384")


def test_a_dead_node(fresh_cluster: Callable[..., Cluster]) -> None:
    cluster = fresh_cluster("valkey", node_timeout_ms=1000, full_coverage=False)
    cluster.nodes[2].kill()
    sick = findings(cluster.url)  # before the others agree that it failed, or after
    assert sick["cluster-nodes"].severity >= WARN
    assert str(cluster.nodes[2].port) in sick["cluster-nodes"].seen


def test_uneven_shards(fresh_cluster: Callable[..., Cluster]) -> None:
    cluster = fresh_cluster("valkey", full_coverage=False)
    moved = cluster.slots_of(cluster.primary(0))[:2500]
    identity = cluster.primary(1).cli("CLUSTER", "MYID").decode()
    for node in cluster.nodes:
        with redis.Redis(port=node.port) as talk, talk.pipeline(transaction=False) as commands:
            for slot in moved:
                commands.execute_command("CLUSTER", "SETSLOT", slot, "NODE", identity)
            commands.execute()
    assert of_cluster(findings(cluster.url)).get("cluster-balance") is WARN


def test_the_primary_that_sentinels_name(sentinels: SentinelGroup) -> None:
    config = ClientConfig.from_url(sentinels.url, **sentinels.settings)
    facts, seen = run_doctor(DoctorPlan(config=config))
    assert facts.servers[0].address == sentinels.master().address
    role = next(f for f in seen if f.id == "role")
    assert role.severity is OK


def test_a_name_that_no_sentinel_knows(sentinels: SentinelGroup) -> None:
    settings = sentinels.settings | {"sentinel_master": "nobody"}
    with pytest.raises(UnavailableError, match="no primary named 'nobody'"):
        findings(sentinels.url, **settings)


def test_tls_says_what_is_spoken(tls_server: TestServer) -> None:
    assert tls_server.tls is not None
    seen = findings(tls_server.tls_url, **tls_server.tls.client_settings)
    assert seen["tls"].severity is OK
    assert seen["tls"].seen.startswith("TLSv1.3 TLS_")
    settings = tls_server.tls.client_settings | {"tls_verify": "ca"}
    assert findings(tls_server.tls_url, **settings)["tls"].severity is WARN


def test_a_certificate_that_is_refused_is_said(tls_server: TestServer) -> None:
    with pytest.raises(UnavailableError, match="certificate"):
        findings(tls_server.tls_url)
