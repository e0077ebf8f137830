"""The native client finds the nodes of a cluster, whoever it asks first and whatever they are
called; and it says what is wrong where there is none to be found.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvferry import AsyncRedisClient, RedisClient
from kvferry.base import errors
from kvferry.client.batch import Status
from kvferry.config import ClientConfig
from support.clients import NATIVE, no_takes_s, opened
from support.cluster import Cluster, keys_of_slot
from support.programs import run_program
from support.proxy import FaultProxy
from support.servers import TestServer, free_port
from support.stamps import KIB, MIB, fetch, poisoned, store, until, within
from support.tuned import tuned

StartCluster = Callable[..., Cluster]

SIZES = {f"key-{index}": 100 + 37 * index for index in range(60)}
QUICK: dict[str, Any] = {"connect_timeout_s": 0.5, "reconnect_max_s": 0.2}


def by_url(url: str, **settings: Any) -> Any:
    return RedisClient.from_url(url, **tuned(ClientConfig, **settings))


def works(client: Any) -> None:
    """It stores and reads on all shards, and nothing is redirected."""
    assert store(client, SIZES).ok
    assert fetch(client, SIZES).result.ok
    assert len(client.nodes()) == 3
    assert sum(node["commands_settled"] > 0 for node in client.nodes()) == 3


# Seeds.


@pytest.mark.parametrize("first", [0, 1, 2])
def test_any_node_is_enough(cluster: Cluster, first: int) -> None:
    node = cluster.nodes[first]
    with opened("native", node, topology="cluster") as client:
        works(client)
        assert client.stats()["commands_settled"] == 2 * len(SIZES)  # none was sent astray


@pytest.mark.parametrize("kind", NATIVE)
def test_all_forms_of_a_url(cluster: Cluster, kind: str) -> None:
    hosts = ",".join(cluster.seeds)
    for scheme in ("redis+cluster", "valkey+cluster", "redis-cluster"):
        url = f"{scheme}://{hosts}"
        if kind == "native":
            with by_url(url) as client:
                works(client)
            continue

        async def work(url: str = url) -> None:
            async with AsyncRedisClient.from_url(url) as client:
                await client.set("k", b"v")
                assert await client.exists("k")

        asyncio.run(work())


def test_seeds_that_are_dead(cluster: Cluster) -> None:
    """One refuses, one has no address, one swallows everything."""
    with FaultProxy(cluster.nodes[0].host, cluster.nodes[0].port) as hole:
        hole.black_hole()
        dead = [f"127.0.0.1:{free_port()}", "no-such-host.invalid:7000", f"127.0.0.1:{hole.port}"]
        url = f"redis+cluster://{','.join(dead)},{cluster.seeds[2]}"
        with by_url(url, **QUICK) as client, within(15):
            until(lambda: store(client, SIZES).ok, 12)
            works(client)


def test_the_seed_goes_away_when_the_map_is_known(
    fresh_cluster: StartCluster,
) -> None:
    """Further looks go to the nodes of the map."""
    cluster = fresh_cluster()
    with FaultProxy(cluster.nodes[0].host, cluster.nodes[0].port) as seed:
        settings = {"topology": "cluster", "topology_refresh_s": 0.2}
        with opened("native", seed, **settings) as client:
            works(client)
            seed.refuse()
            seed.cut_now()
            first, second = cluster.primary(0), cluster.primary(1)
            slot = cluster.slots_of(first)[0]
            key = keys_of_slot(slot, 1)[0].decode()
            cluster.migrate_slots(first, second, [slot])
            assert store(client, {key: KIB}).ok  # MOVED, and the new map is found elsewhere
            assert fetch(client, {key: KIB}).result.ok
            works(client)


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_a_replica_is_a_seed(fresh_cluster: StartCluster, kind: str) -> None:
    cluster = fresh_cluster(kind, replicas=1)
    replica = cluster.replica_of(1)
    with opened("native", replica, topology="cluster") as client:
        works(client)
        assert {node["role"] for node in client.nodes()} == {"primary"}


# Names and addresses.


def test_localhost(cluster: Cluster) -> None:
    with RedisClient("localhost", cluster.port, topology="cluster") as client:
        works(client)


@pytest.mark.parametrize(
    ("options", "host"),
    [
        ({"host": "::1"}, "[::1]"),
        ({"endpoint": "hostname"}, "localhost"),
        ({"kind": "redis7", "endpoint": "hostname"}, "localhost"),
        ({"kind": "redis7", "endpoint": "unknown-endpoint"}, "127.0.0.1"),
    ],
    ids=["IPv6", "host names", "host names of Redis 7", "nameless"],
)
def test_what_nodes_call_each_other(
    fresh_cluster: StartCluster, options: dict[str, Any], host: str
) -> None:
    cluster = fresh_cluster(**options)
    first, second = cluster.primary(0), cluster.primary(1)
    slots = cluster.slots_of(first)[:3]
    keys = {keys_of_slot(slot, 1)[0].decode(): KIB for slot in slots}
    with opened("native", cluster) as client:
        works(client)
        expected = {f"{host}:{node.client_port}" for node in cluster.nodes}
        assert {node["address"] for node in client.nodes()} == expected
        assert store(client, keys).ok
        cluster.migrate_slots(first, second, slots)  # MOVED names them, too
        assert fetch(client, keys).result.ok
        assert store(client, keys, 2).ok
        assert {node["address"] for node in client.nodes()} == expected


# Secrets.


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_password(fresh_cluster: StartCluster, kind: str) -> None:
    cluster = fresh_cluster(kind, password="p w@/:")
    with opened("native", cluster) as client:
        works(client)
    with opened("native", cluster, password="wrong one") as client, within(10):
        until(lambda: not client.available, 5)
        result = client.batch_get(["k"], [poisoned(1)])
        assert result[0] is Status.UNAVAILABLE
        assert "WRONGPASS" in result.error
        assert "wrong one" not in result.error
        with pytest.raises(errors.AuthError):
            client.exists("k")
    with (
        opened("native", cluster, password=None) as client,
        within(10),
        pytest.raises(errors.AuthError, match="NOAUTH"),
    ):
        client.exists("k")


def test_acl_user(fresh_cluster: StartCluster) -> None:
    """A user with the keys of one prefix, and the one command that a client of a cluster needs."""
    rights = "~mine:* -@all +@read +@write +@connection +cluster|slots"
    cluster = fresh_cluster(users=[f"user alice on >secret {rights}"])
    sizes = {f"mine:{index}": KIB for index in range(30)}
    with opened("native", cluster, username="alice", password="secret") as client:
        assert store(client, sizes).ok
        assert fetch(client, sizes).result.ok
        theirs = client.batch_get(
            ["mine:1", "theirs:1", "mine:2"], [poisoned(KIB), poisoned(1), poisoned(KIB)]
        )
        assert list(theirs) == [Status.OK, Status.SERVER_ERROR, Status.OK]
        assert "NOPERM" in theirs.error


def test_a_user_who_may_not_ask_for_the_map(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(users=["user bob on >secret ~* +@read +@write +@connection"])
    with opened("native", cluster, username="bob", password="secret") as client, within(10):
        until(lambda: not client.available, 5)
        result = client.batch_exists(["k"])
        assert result[0] is Status.UNAVAILABLE
        assert "NOPERM" in result.error


# TLS.


def test_tls(tls_cluster: Cluster) -> None:
    with opened("native", tls_cluster) as client:
        works(client)
        big = {f"big-{index}": 3 * MIB for index in range(6)}
        assert store(client, big).ok
        assert fetch(client, big).result.ok
    settings = dict(tls_cluster.settings)
    for name in ("tls", "topology", "nodes"):
        del settings[name]
    with by_url(tls_cluster.url, **settings) as client:
        works(client)


def test_tls_with_host_names_and_a_password(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster("redis7", tls=True, endpoint="hostname", password="secret")
    with opened("native", cluster) as client:
        works(client)
        assert all(node["address"].startswith("localhost:") for node in client.nodes())


def test_tls_without_the_authority_is_a_refusal(tls_cluster: Cluster) -> None:
    with opened("native", tls_cluster, tls_ca_file=None) as client, within(10):
        until(lambda: not client.available, 5)
        with pytest.raises(errors.TlsError, match="certificate"):
            client.exists("k")


# What does not fit.


def test_a_client_of_one_server_on_a_node_of_a_cluster(cluster: Cluster) -> None:
    keys = [keys_of_slot(cluster.slots_of(node)[0], 1)[0].decode() for node in cluster.nodes]
    with opened("native", cluster.nodes[0]) as client:
        result = client.batch_set(keys, [b"value"] * 3)
        assert list(result) == [Status.OK, Status.SERVER_ERROR, Status.SERVER_ERROR]
        assert "redis+cluster://" in result.error
        with pytest.raises(errors.ServerError, match=r"belongs to a cluster"):
            client.get(keys[1], poisoned(5))
        assert client.get(keys[0], poisoned(5))  # the connection is in step


def test_a_client_of_clusters_on_a_server_without(
    valkey: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kvferry")
    with opened("native", valkey, topology="cluster") as client, within(10):
        until(lambda: client.batch_exists(["k"])[0] is Status.UNAVAILABLE, 5)
        until(lambda: not client.available, 5)
        with pytest.raises(errors.UnavailableError, match="cluster support disabled"):
            client.exists("k")
    assert "the topology is not known" in caplog.text
    assert "cluster support disabled" in caplog.text


def test_a_cluster_without_slots(start: Callable[..., TestServer]) -> None:
    lonely = start("valkey", "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with opened("native", lonely, topology="cluster") as client, within(20):
        until(lambda: not client.available, 5)
        result = client.batch_exists(["k"])
        assert result[0] is Status.UNAVAILABLE
        assert "slots" in result.error
        lonely.cli("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until(lambda: store(client, {"k": KIB}).ok, 10)  # once it has some, it is found


def test_nobody_is_there() -> None:
    """After the first look every call says no at once."""
    seeds = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    with by_url(f"redis+cluster://{','.join(seeds)}") as client:
        with within(5):
            assert client.batch_exists(["k"])[0] is Status.UNAVAILABLE
        until(lambda: not client.available, 5)
        assert no_takes_s(client, ["a", "b"]) < 0.005
        with pytest.raises(errors.UnavailableError, match="refused"):
            client.set("k", b"v")


# Life.


def test_close_while_the_map_is_sought() -> None:
    with FaultProxy("127.0.0.1", free_port()) as hole:
        hole.black_hole()
        patient = {"connect_timeout_s": 30.0, "timeout_s": 30.0}
        client = RedisClient(hole.host, hole.port, topology="cluster", **patient)
        batch = client.submit_batch_exists(["k"])
        time.sleep(0.1)
        with within(2):
            client.close()
        (completed,) = client.drain_completions()
        assert completed[0] == batch
        assert completed[1][0] is Status.CANCELLED


def test_close_with_work_on_all_shards(proxied_cluster: Cluster) -> None:
    sizes = {f"chunk-{index}": MIB for index in range(24)}
    with opened("native", proxied_cluster) as client:
        assert store(client, sizes).ok
        for proxy in proxied_cluster.proxies:
            proxy.down.bandwidth_bytes_per_s = 2e6
        targets = [[poisoned(MIB) for _ in sizes] for _ in range(3)]
        submitted = {client.submit_batch_get(list(sizes), each) for each in targets}
        time.sleep(0.1)
        with within(2):
            client.close()
        completed = dict(client.drain_completions())
        assert set(completed) == submitted
        for result in completed.values():
            assert set(result) <= {Status.OK, Status.CANCELLED}


def test_close_leaves_nothing_behind(cluster: Cluster) -> None:
    name = "kvferry-that-leaves"

    def connected() -> int:
        lists = [node.cli("CLIENT", "LIST").decode() for node in cluster.nodes]
        return sum(one.count(f"name={name}") for one in lists)

    with opened("native", cluster, client_name=name) as client:
        works(client)
        until(lambda: connected() == 3 * (8 + 1) + 1, 10)  # a map is asked for over one more
    until(lambda: connected() == 0, 5)
    assert client.close() is None  # the object is still there


FORK = """
import os, sys
import kvferry

url = sys.argv[1]
client = kvferry.RedisClient.from_url(url)
keys = [f"key-{index}" for index in range(60)]
values = [key.encode() * 1000 for key in keys]

def check(client):
    targets = [bytearray(len(value)) for value in values]
    assert client.batch_get(keys, targets).ok
    assert targets == values

assert client.batch_set(keys, values).ok
check(client)
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        check(client)
        assert len(client.nodes()) == 3
        os._exit(7)
    children.append(pid)
check(client)
for pid in children:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
check(client)
print("done")
"""


def test_fork(cluster: Cluster) -> None:
    assert run_program(FORK, cluster.url, within_s=30) == "done\n"


def test_exit_without_close(cluster: Cluster) -> None:
    source = """
import sys, kvferry
client = kvferry.RedisClient.from_url(sys.argv[1])
client.submit_batch_set([f"key-{index}" for index in range(60)], [bytes(1 << 20)] * 60)
"""
    assert run_program(source, cluster.url, within_s=20) == ""
