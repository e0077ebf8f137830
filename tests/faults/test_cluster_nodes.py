"""Nodes of a cluster that die, hang, come back as something else, or hand over: the native client
loses what the cluster loses and nothing more, and follows whoever leads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import pytest

from kvferry.base import errors
from kvferry.client.batch import Status
from support.clients import NATIVE, completions, no_takes_s, opened
from support.cluster import Cluster, ClusterNode, FailoverMode, key_slot
from support.load import Load
from support.stamps import KIB, MIB, Fetched, fetch, poisoned, store, until, within

StartCluster = Callable[..., Cluster]

SIZES = {f"key-{index}": 100 + 37 * index for index in range(60)}
NO_TAKES_S = 0.005  # the bar: UNAVAILABLE while the breaker is open
RECOVERY_S = 2.0  # the bar: first success after a promotion
ATTEMPTS = 3  # at the bar, for the machine may be busy with other things
AWAY = {Status.UNAVAILABLE, Status.TIMEOUT}


def replicate(cluster: Cluster) -> None:
    """Until the replicas have what the primaries have."""
    for node in cluster.running():
        if node.leads():
            node.cli("WAIT", 1, 5000)


def of_node(cluster: Cluster, node: ClusterNode) -> set[str]:
    slots = set(cluster.slots_of(node))
    return {key for key in SIZES if key_slot(key) in slots}


def only_these_fail(result: Any, lost: Collection[str], status: Status) -> None:
    for key, one in zip(SIZES, result, strict=True):
        assert one is (status if key in lost else Status.OK), (key, one, result.error)


# A shard is lost.


@pytest.mark.parametrize(("kind", "tls"), [*((kind, False) for kind in NATIVE), ("native", True)])
def test_a_lost_shard_costs_its_own_keys(fresh_cluster: StartCluster, kind: str, tls: bool) -> None:
    cluster = fresh_cluster("redis7" if tls else "valkey", full_coverage=False, tls=tls)
    with opened(kind, cluster) as client:
        assert store(client, SIZES).ok
        node = cluster.nodes[1]
        lost = of_node(cluster, node)
        node.kill()
        for _ in range(3):
            with within(3):
                only_these_fail(fetch(client, SIZES).result, lost, Status.UNAVAILABLE)
        with within(3):
            only_these_fail(store(client, SIZES, 2), lost, Status.UNAVAILABLE)
        with within(3):
            only_these_fail(client.batch_exists(list(SIZES)), lost, Status.UNAVAILABLE)
        assert no_takes_s(client, sorted(lost)[:2]) < NO_TAKES_S
        assert client.available  # two of three are
        kept = {key: size for key, size in SIZES.items() if key not in lost}
        with within(2):
            for _ in range(20):
                assert fetch(client, kept, {2}).result.ok
        node.restart()
        until(lambda: Status.UNAVAILABLE not in fetch(client, SIZES, {2}).result, 15)
        read = fetch(client, SIZES, {2}).result
        only_these_fail(read, lost, Status.MISS)  # it came back empty
        assert store(client, SIZES, 3).ok


def test_a_prefix_ends_at_the_lost_shard(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(full_coverage=False)
    with opened("native", cluster) as client:
        assert store(client, SIZES).ok
        lost = of_node(cluster, cluster.nodes[0])
        cluster.nodes[0].kill()
        first = min(index for index, key in enumerate(SIZES) if key in lost)
        for _ in range(5):
            with within(3):
                result = fetch(client, SIZES, prefix=True).result
            assert result.prefix_len == first
            assert result[first] is Status.UNAVAILABLE


def test_values_of_several_stripes_miss_what_was_lost(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(full_coverage=False)
    with opened("native", cluster) as client:
        size = 9 * MIB
        here = client.namespace("kv:", identity=bytes(16), value_size_bytes=size)
        keys = [f"v{index}" for index in range(6)]
        assert store(here, dict.fromkeys(keys, size)).ok
        lost = set(cluster.slots_of(cluster.nodes[0]))
        cluster.nodes[0].kill()
        with within(10):
            result = fetch(here, dict.fromkeys(keys, size)).result
        for key, status in zip(keys, result, strict=True):
            stripes = [f"kv:{key}", f"kv:{key}#1", f"kv:{key}#2"]
            hit = any(key_slot(stripe) in lost for stripe in stripes)
            assert status is (Status.UNAVAILABLE if hit else Status.OK)
        assert {Status.OK, Status.UNAVAILABLE} == set(result)


def test_killed_in_the_middle_of_a_batch(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(full_coverage=False, proxied=True)
    sizes = {f"chunk-{index}": MIB for index in range(48)}
    with opened("native", cluster) as client:
        assert store(client, sizes).ok
        for proxy in cluster.proxies:
            proxy.down.shared, proxy.down.bandwidth_bytes_per_s = True, 8e6  # a third: 2 s
        node = cluster.nodes[2]
        slots = set(cluster.slots_of(node))
        targets = [poisoned(MIB) for _ in sizes]
        batch = client.submit_batch_get(list(sizes), targets, timeout_s=30)
        assert node.proxy
        begun = node.proxy.bytes_down
        until(lambda: node.proxy and node.proxy.bytes_down > begun + 2 * MIB, 10)
        node.kill()
        node.proxy.cut_now()
        node.proxy.refuse()
        result = completions(client, 1, 15)[batch]
        for key, status in zip(sizes, result, strict=True):
            assert status is Status.OK or (key_slot(key) in slots and status in AWAY)
        assert result.count(Status.UNAVAILABLE) > 0
        assert len(targets) == len(result)
        for proxy in cluster.proxies:
            proxy.down.bandwidth_bytes_per_s = None
        with within(10):
            read = fetch(client, sizes)
        assert {key for key in sizes if key not in read.versions} == {
            key for key in sizes if key_slot(key) in slots
        }


def test_a_node_that_hangs_costs_time_and_its_own_keys(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(full_coverage=False, node_timeout_ms=30_000)
    hurried = {"stall_timeout_s": 1.0, "connect_timeout_s": 1.0, "timeout_s": 4.0}
    with opened("native", cluster, **hurried) as client:
        assert store(client, SIZES).ok
        hung = cluster.nodes[1]
        lost = of_node(cluster, hung)
        hung.pause()
        try:
            with within(6):
                read = fetch(client, SIZES).result
            for key, status in zip(SIZES, read, strict=True):
                assert status in AWAY if key in lost else status is Status.OK
            key = min(lost)
            until(lambda: client.batch_exists([key])[0] is Status.UNAVAILABLE, 8)
            until(lambda: not all(node["available"] for node in client.nodes()), 5)
            assert no_takes_s(client, [key]) < NO_TAKES_S
        finally:
            hung.resume()
        until(lambda: fetch(client, SIZES).result.ok, 10)


def test_all_are_lost(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster()
    with opened("native", cluster, reconnect_max_s=0.3) as client:
        assert store(client, SIZES).ok
        for node in cluster.nodes:
            node.kill()
        until(lambda: not client.available, 5)
        assert no_takes_s(client, list(SIZES)[:12]) < NO_TAKES_S
        until(lambda: "refused" in client.batch_exists(["key-1"]).error, 5)  # at first: it ended
        with pytest.raises(errors.UnavailableError, match="refused"):
            client.get("key-1", poisoned(1))
        for node in cluster.nodes:
            node.restart()
        cluster.wait_until_whole()
        until(lambda: store(client, SIZES, 2).ok, 10)
        assert fetch(client, SIZES, {2}).result.ok


# Full coverage.


def test_without_full_coverage_nobody_answers(fresh_cluster: StartCluster) -> None:
    """CLUSTERDOWN of those that still run is a reason to compute, not an error of the server."""
    cluster = fresh_cluster(node_timeout_ms=2500)
    with opened("native", cluster, reconnect_max_s=0.3) as client:
        assert store(client, SIZES).ok
        node = cluster.nodes[2]
        node.kill()
        kept = {key: SIZES[key] for key in SIZES if key_slot(key) < 10_000}

        def is_down() -> bool:
            with within(3):
                result = fetch(client, kept).result
            assert set(result) <= {Status.OK, Status.UNAVAILABLE}
            return Status.OK not in result

        until(is_down, 30, pause_s=0.1)
        until(lambda: "CLUSTERDOWN" in client.batch_exists(list(kept)).error, 10)
        node.restart()
        until(lambda: store(client, SIZES, 2).ok, 30, pause_s=0.1)
        assert fetch(client, SIZES, {2}).result.ok


def test_slots_that_nobody_serves(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(full_coverage=False)
    with opened("native", cluster, topology_refresh_s=0.3) as client:
        assert store(client, SIZES).ok
        owner = cluster.node_of("key-7")
        for node in cluster.nodes:
            node.cli("CLUSTER", "DELSLOTS", key_slot("key-7"))
        for _ in range(5):
            with within(3):
                result = fetch(client, SIZES).result
            only_these_fail(result, {"key-7"}, Status.UNAVAILABLE)
            time.sleep(0.2)
        owner.cli("CLUSTER", "ADDSLOTS", key_slot("key-7"))
        until(lambda: store(client, SIZES, 2).ok, 15)
        assert fetch(client, SIZES, {2}).result.ok


# Somebody else leads.


def recovered_s(client: Any, version: int) -> float:
    """From now on: until everything can be written and read again."""

    def works() -> bool:
        written = store(client, SIZES, version)
        assert set(written) <= {Status.OK, *AWAY}, written.error
        return bool(written.ok) and fetch(client, SIZES, {version}).result.ok

    return until(works, 20)


@pytest.mark.parametrize("full_coverage", [True, False])
def test_a_replica_is_promoted_after_a_kill(
    fresh_cluster: StartCluster, full_coverage: bool
) -> None:
    """Until then the lost shard's keys are UNAVAILABLE; soon after it all is well."""
    taken_s: list[float] = []
    # So long the others answer and nobody is promoted, which is looked at first.
    cluster = fresh_cluster(replicas=1, node_timeout_ms=4000, full_coverage=full_coverage)
    with opened("native", cluster) as client:
        for attempt in range(ATTEMPTS):
            assert store(client, SIZES, attempt).ok
            replicate(cluster)
            old = cluster.primary(0)
            lost = of_node(cluster, old)
            old.kill()
            read = fetch(client, SIZES, {attempt}).result
            only_these_fail(read, lost, Status.UNAVAILABLE)
            assert no_takes_s(client, [min(lost)]) < NO_TAKES_S
            new = cluster.wait_for_promotion(0)
            taken_s.append(recovered_s(client, 100 + attempt))
            assert new is not old
            assert any(node["address"] == new.address for node in client.nodes())
            old.restart()
            cluster.wait_until_whole()
            if taken_s[-1] < RECOVERY_S:
                break
    print(f"recovered {taken_s} s after the promotion")
    assert min(taken_s) < RECOVERY_S


def test_what_was_replicated_outlives_a_kill_under_load(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(replicas=1, node_timeout_ms=2500)
    kept = {f"kept-{index}": 64 * KIB for index in range(30)}
    with opened("native", cluster) as client:
        assert store(client, kept).ok
        replicate(cluster)
        keys = [f"load-{index}" for index in range(40)]
        with Load(client, keys, lossy=True) as load:
            load.wait_for_rounds(2)
            cluster.primary(1).kill()
            cluster.wait_for_promotion(1)
            until(lambda: fetch(client, kept).result.ok, 15)  # not one was lost
            load.wait_for_rounds(4)
        assert load.failures() <= {Status.MISS, *AWAY}, load.reasons
        until(lambda: fetch(client, kept).result.ok, 15)


@pytest.mark.parametrize("mode", ["", "FORCE", "TAKEOVER"])
def test_an_orderly_failover_under_load(fresh_cluster: StartCluster, mode: FailoverMode) -> None:
    """Without a mode the old primary waits for its replica, and nothing may be lost at all."""
    cluster = fresh_cluster(replicas=1)
    with opened("native", cluster) as client:
        keys = [f"load-{index}" for index in range(40)]
        with Load(client, keys, lossy=True) as load:
            for shard in (0, 1, 0):
                load.wait_for_rounds(2)
                cluster.failover(shard, mode)
            load.wait_for_rounds(4)
            cluster.wait_until_whole()
            taken_s = recovered_s(client, 1)
            # It is refused while they change over, and then no more, however slow the reads are.
            until(lambda: load.read[Status.OK] > 5 * load.read[Status.UNAVAILABLE], 15)
        assert load.failures() <= {Status.MISS, *AWAY}, load.reasons
        assert taken_s < 5


def test_values_survive_an_orderly_failover(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(replicas=1)
    with opened("native", cluster) as client:
        assert store(client, SIZES).ok
        for shard in range(3):
            cluster.failover(shard)
            reads: list[Fetched] = []

            def all_read(reads: list[Fetched] = reads) -> bool:
                reads.append(fetch(client, SIZES))
                return reads[-1].result.ok

            until(all_read, 5)
            # What is asked while they change over may be unavailable. It is never a miss.
            assert all(Status.MISS not in read.result for read in reads)
        until(lambda: store(client, SIZES, 2).ok, 5)
        assert fetch(client, SIZES, {2}).result.ok


def test_a_node_comes_back_as_a_replica(fresh_cluster: StartCluster) -> None:
    """The address of a primary is now that of a replica of another: nothing is written to it, and
    what it answers is MOVED."""
    cluster = fresh_cluster(replicas=1, node_timeout_ms=2500)
    with opened("native", cluster, reconnect_max_s=0.2) as client:
        assert store(client, SIZES).ok
        replicate(cluster)
        old = cluster.primary(0)
        old.kill()
        new = cluster.wait_for_promotion(0)
        old.restart()
        cluster.wait_until_whole()
        assert new.leads()
        assert not old.leads()
        recovered_s(client, 2)
        old.cli("CONFIG", "RESETSTAT")
        for version in range(3, 8):
            assert store(client, SIZES, version).ok
            assert fetch(client, SIZES, {version}).result.ok
        said = old.info("errorstats")
        assert "errorstat_MOVED" not in said
