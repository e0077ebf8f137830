"""Reads from the replicas of a cluster, anywhere or in one's own zone: they really go there, what a
replica lacks is asked of its primary, and whoever is lost is replaced by the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from kvferry.client.batch import Status
from support.clients import NATIVE, opened
from support.cluster import Cluster, ClusterNode, key_slot, start_cluster
from support.load import Load
from support.pure import payload
from support.servers import ADMIN_SECRET, wait_for
from support.stamps import KIB, MIB, fetch, poisoned, store, until, within

StartCluster = Callable[..., Cluster]

SIZES = {f"key-{index}": 100 + 37 * index for index in range(60)}
IDENTITY = bytes(range(16))
# A node names another's replica once it has heard of its offset, which may take it a moment.
OFTEN: dict[str, Any] = {"topology_refresh_s": 0.3}
FROM_REPLICAS: dict[str, Any] = {"read_from": "replica"} | OFTEN


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    """Three shards of a primary, in zone "a", and a replica, in zone "b"."""
    try:
        cluster = start_cluster("valkey", replicas=1)
    except LookupError as reason:
        pytest.skip(str(reason))
    with cluster:
        in_zones(cluster)
        yield cluster


@pytest.fixture
def replicated(shared_cluster: Cluster) -> Cluster:
    shared_cluster.flush()
    return shared_cluster


def in_zones(cluster: Cluster) -> None:
    for number, node in enumerate(cluster.nodes):
        node.cli("CONFIG", "SET", "availability-zone", "a" if number < 3 else "b")

    def is_known() -> bool:
        shards = cluster.nodes[0].cli("CLUSTER", "SLOTS")
        return [place[3][-1] for shard in shards for place in shard[2:]] == [b"a", b"b"] * 3

    wait_for("the zones to be known", is_known)


def replicate(cluster: Cluster) -> None:
    """Until the replicas have what the primaries have."""
    for node in cluster.running():
        if node.leads():
            until(lambda node=node: node.cli("WAIT", 1, 1000) >= 1, 10)


def calls(nodes: Sequence[ClusterNode], command: str) -> list[int]:
    """How often each of them was asked that, by its own counters."""
    said = [node.info("commandstats").get(f"cmdstat_{command}", "calls=0,") for node in nodes]
    return [int(one.split("calls=")[1].split(",")[0]) for one in said]


def settled(client: Any, cluster: Cluster) -> None:
    """Until it has connections to all six, and will hear of all six from whomever it asks."""

    def names_all(node: ClusterNode) -> bool:
        return sum(len(shard) - 2 for shard in node.cli("CLUSTER", "SLOTS")) == 6

    def is_so() -> bool:
        nodes = client.nodes()
        connected = len(nodes) == 6 and all(node["connections_up"] == 8 for node in nodes)
        return connected and all(names_all(node) for node in cluster.nodes)

    until(is_so, 15)


def until_read(client: Any, node: ClusterNode, version: int = 1) -> None:
    """Until reads reach that node; they are right all the while."""
    before = calls([node], "get")

    def is_read() -> bool:
        assert fetch(client, SIZES, {version}).result.ok
        return calls([node], "get") > before

    until(is_read, 15, pause_s=0.1)


# Reads go there.


@pytest.mark.parametrize("kind", NATIVE)
def test_reads_go_to_replicas_and_writes_do_not(replicated: Cluster, kind: str) -> None:
    primaries, replicas = replicated.nodes[:3], replicated.nodes[3:]
    with opened(kind, replicated, **FROM_REPLICAS) as client:
        settled(client, replicated)
        assert store(client, SIZES).ok
        replicate(replicated)
        assert fetch(client, SIZES).result.ok
        assert client.batch_exists(list(SIZES)).ok
        assert calls(primaries, "get") == [0, 0, 0]
        assert sum(calls(replicas, "get")) == len(SIZES)
        assert all(calls(replicas, "get"))
        assert calls(primaries, "exists") == [0, 0, 0]
        assert sum(calls(replicas, "exists")) == len(SIZES)
        # Of use to the eviction is only a touch where evictions happen.
        assert client.batch_exists(list(SIZES), touch=True).ok
        assert sum(calls(primaries, "touch")) == len(SIZES)
        assert client.batch_delete(list(SIZES)).ok
        roles = [node["role"] for node in client.nodes()]
        assert sorted(roles) == ["primary"] * 3 + ["replica"] * 3
        for node in client.nodes():  # by the client's own counters, too
            assert (node["bytes_received"] > 10 * KIB) == (node["role"] == "replica")


def test_the_default_is_to_read_from_primaries(replicated: Cluster) -> None:
    with opened("native", replicated) as client:
        assert store(client, SIZES).ok
        assert fetch(client, SIZES).result.ok
        assert sum(calls(replicated.nodes[:3], "get")) == len(SIZES)
        assert calls(replicated.nodes[3:], "get") == [0, 0, 0]
        assert client.stats()["nodes"] == 3


def test_big_values_and_stripes(replicated: Cluster) -> None:
    with opened("native", replicated, **FROM_REPLICAS) as client:
        settled(client, replicated)
        sizes = {f"big-{index}": 3 * MIB for index in range(6)}
        assert store(client, sizes).ok
        here = client.namespace("kv:", identity=IDENTITY, value_size_bytes=9 * MIB)
        value, target = payload(9 * MIB), poisoned(9 * MIB)
        here.set("v", value)
        replicate(replicated)
        assert fetch(client, sizes).result.ok
        assert here.get("v", target)
        assert target == value
        assert calls(replicated.nodes[:3], "get") == [0, 0, 0]


# What a replica lacks.


@contextmanager
def cut_off(cluster: Cluster) -> Iterator[None]:
    """The replicas hear nothing more from their primaries."""
    primaries, replicas = cluster.nodes[:3], cluster.nodes[3:]
    for replica in replicas:
        replica.cli("CONFIG", "SET", "masterauth", "wrong")
    for primary in primaries:
        primary.cli("CLIENT", "KILL", "TYPE", "REPLICA")
    try:
        yield
    finally:
        for replica in replicas:
            replica.cli("CONFIG", "SET", "masterauth", ADMIN_SECRET)
            replica.cli("CONFIG", "SET", "replica-serve-stale-data", "yes")
        cluster.wait_until_whole()


@pytest.mark.parametrize("kind", NATIVE)
def test_a_replica_that_lags_has_not_the_last_word(replicated: Cluster, kind: str) -> None:
    """What it has not heard of is asked of its primary: no false miss."""
    primaries, replicas = replicated.nodes[:3], replicated.nodes[3:]
    with opened(kind, replicated, **FROM_REPLICAS) as client, cut_off(replicated):
        settled(client, replicated)
        assert store(client, SIZES).ok
        assert fetch(client, SIZES).result.ok
        assert sum(calls(replicas, "get")) == sum(calls(primaries, "get")) == len(SIZES)
        assert client.batch_exists(list(SIZES)).ok
        targets = [poisoned(size) for size in SIZES.values()]
        assert client.batch_get(list(SIZES), targets, prefix=True).ok
        assert client.batch_exists(["none-1", "none-2"]).count(Status.MISS) == 2
        here = client.namespace("kv:", identity=IDENTITY, value_size_bytes=9 * MIB)
        value, target = payload(9 * MIB), poisoned(9 * MIB)
        here.set("v", value)
        assert here.get("v", target)
        assert target == value


def test_a_replica_that_may_not_answer(replicated: Cluster) -> None:
    """MASTERDOWN: it has no link, and is told not to serve what may be old."""
    with opened("native", replicated, **FROM_REPLICAS) as client, cut_off(replicated):
        settled(client, replicated)
        for replica in replicated.nodes[3:]:
            replica.cli("CONFIG", "SET", "replica-serve-stale-data", "no")
        assert store(client, SIZES).ok
        with within(5):
            assert fetch(client, SIZES).result.ok
        assert sum(calls(replicated.nodes[:3], "get")) == len(SIZES)


# Who is lost.


def test_a_replica_that_dies(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(replicas=1)
    with opened("native", cluster, **FROM_REPLICAS, reconnect_max_s=0.3) as client:
        settled(client, cluster)
        assert store(client, SIZES).ok
        replicate(cluster)
        lost = cluster.nodes[3]
        with Load(client, [f"load-{index}" for index in range(24)], lossy=True) as load:
            load.wait_for_rounds(2)
            lost.kill()
            load.wait_for_rounds(5)
            with within(5):
                assert fetch(client, SIZES).result.ok
        assert load.failures() == set(), load.reasons
        lost.restart()
        cluster.wait_until_whole()
        until_read(client, lost)


def test_a_replica_that_hangs(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(replicas=1, node_timeout_ms=30_000)
    hurried = {**FROM_REPLICAS, "stall_timeout_s": 1.0, "connect_timeout_s": 1.0}
    with opened("native", cluster, **hurried) as client:
        settled(client, cluster)
        assert store(client, SIZES).ok
        replicate(cluster)
        cluster.nodes[3].pause()
        try:
            with within(5):
                assert fetch(client, SIZES).result.ok
            with within(5):
                assert fetch(client, SIZES).result.ok
        finally:
            cluster.nodes[3].resume()


def test_a_primary_that_dies_leaves_its_readers(fresh_cluster: StartCluster) -> None:
    """Before any replica is promoted: what it had can still be read, and nothing can be written."""
    cluster = fresh_cluster(replicas=1, node_timeout_ms=30_000, full_coverage=False)
    with opened("native", cluster, **FROM_REPLICAS, reconnect_max_s=0.3) as client:
        settled(client, cluster)
        assert store(client, SIZES).ok
        replicate(cluster)
        lost = cluster.primary(0)
        its_slots = set(cluster.slots_of(lost))
        lost.kill()
        for _ in range(3):
            with within(5):
                assert fetch(client, SIZES).result.ok
        with within(5):
            written = store(client, SIZES, 2)
        for key, status in zip(SIZES, written, strict=True):
            assert status is (Status.UNAVAILABLE if key_slot(key) in its_slots else Status.OK)


def test_a_promoted_replica_changes_its_role(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(replicas=1)
    with opened("native", cluster, **FROM_REPLICAS) as client:
        settled(client, cluster)
        assert store(client, SIZES).ok
        replicate(cluster)
        old, new = cluster.primary(0), cluster.failover(0)
        cluster.wait_until_whole()

        def roles() -> dict[str, str]:
            return {node["address"]: node["role"] for node in client.nodes()}

        until(lambda: roles().get(new.address) == "primary", 10)
        until(lambda: roles().get(old.address) == "replica", 10)
        until(lambda: store(client, SIZES, 2).ok, 5)
        replicate(cluster)
        until_read(client, old, version=2)


# Zones.


@pytest.mark.parametrize(("zone", "readers"), [("a", 0), ("b", 3), ("elsewhere", 3)])
def test_reads_stay_in_the_zone(replicated: Cluster, zone: str, readers: int) -> None:
    settings = {"read_from": "az", "availability_zone": zone} | OFTEN
    with opened("native", replicated, **settings) as client:
        settled(client, replicated)
        assert store(client, SIZES).ok
        replicate(replicated)
        assert fetch(client, SIZES).result.ok
        near = replicated.nodes[readers : readers + 3]
        far = [node for node in replicated.nodes if node not in near]
        assert sum(calls(near, "get")) == len(SIZES)
        assert calls(far, "get") == [0, 0, 0]
        zones = {node["role"]: node["availability_zone"] for node in client.nodes()}
        assert zones == {"primary": "a", "replica": "b"}


def test_the_zones_only_replica_is_lost(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(replicas=1)
    in_zones(cluster)
    settings = {"read_from": "az", "availability_zone": "b", "reconnect_max_s": 0.3} | OFTEN
    with opened("native", cluster, **settings) as client:
        settled(client, cluster)
        assert store(client, SIZES).ok
        replicate(cluster)
        cluster.nodes[4].kill()
        for _ in range(3):
            with within(5):
                assert fetch(client, SIZES).result.ok
