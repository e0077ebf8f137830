"""The pure-Python client in clusters: whole ones, changing ones, broken ones, and liars."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvferry.base import errors
from kvferry.client.batch import Status
from kvferry.client.pure.client import PureRedisClient
from kvferry.client.pure.cluster import REFRESH_MIN_S
from kvferry.config import ClientConfig
from support import clock
from support.cluster import Cluster, key_slot
from support.pure import MIB, payload
from support.scripted import Action, Command, MiniStore, ScriptedServer, answer
from support.scripted_cluster import lying
from support.servers import TestServer, wait_for
from support.stamps import until, within
from support.tuned import tuned

StartCluster = Callable[..., Cluster]
KEYS = [f"key-{index}" for index in range(200)]
VALUES = [payload(1000 + index, index) for index in range(200)]


def opened(cluster: Cluster, **settings: Any) -> PureRedisClient:
    return PureRedisClient.from_url(
        cluster.url, **tuned(ClientConfig, **(cluster.settings | settings))
    )


def read_all(client: PureRedisClient) -> list[Status]:
    """The statuses of all KEYS, after checking the bytes of those that are OK."""
    targets = [bytearray(len(value)) for value in VALUES]
    result = client.batch_get(KEYS, targets)
    for status, target, value in zip(result, targets, VALUES, strict=True):
        assert status is not Status.OK or target == value
    return list(result)


# A whole one.


def test_a_batch_goes_to_all_shards(cluster: Cluster) -> None:
    with opened(cluster) as client:
        assert client.batch_set(KEYS, VALUES).ok
        sizes = [node.cli("DBSIZE") for node in cluster.nodes]
        assert sum(sizes) == len(KEYS)
        assert all(sizes)
        assert read_all(client) == [Status.OK] * len(KEYS)
        assert client.batch_exists(KEYS, touch=True).ok
        mixed = client.batch_exists([*KEYS[:5], "none", *KEYS[5:]])
        assert [index for index, status in enumerate(mixed) if status] == [5]
        assert client.batch_delete(KEYS).ok
        assert client.batch_exists(KEYS).count(Status.MISS) == len(KEYS)
        assert client.server_info()["cluster_enabled"] == "1"
        assert client.ping() > 0
        assert client.stats()["connects"] == 3  # one to each, the seed's among them


@pytest.mark.parametrize("hole", [0, 1, 77, 199])
def test_prefix_is_that_of_the_keys_not_of_a_shard(cluster: Cluster, hole: int) -> None:
    with opened(cluster) as client:
        client.batch_set(KEYS, VALUES)
        client.delete(KEYS[hole])
        targets = [bytearray(len(value)) for value in VALUES]
        for result in (
            client.batch_get(KEYS, targets, prefix=True),
            client.batch_exists(KEYS, prefix=True),
        ):
            assert result.prefix_len == hole
            assert result[hole] is Status.MISS
            assert set(list(result)[hole + 1 :]) <= {
                Status.OK,
                Status.CANCELLED,
            }


def test_every_status_is_its_keys_own(cluster: Cluster) -> None:
    with opened(cluster) as client:
        client.batch_set(KEYS, VALUES)
        cluster.node_of("list").cli("RPUSH", "list", "item")
        result = client.batch_get(
            ["none", KEYS[0], "list", KEYS[1]],
            [bytearray(1), bytearray(1000), bytearray(1), bytearray(7)],
        )
        expected = [Status.MISS, Status.OK, Status.SERVER_ERROR, Status.SIZE_MISMATCH]
        assert list(result) == expected


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_tls_password_and_names(fresh_cluster: StartCluster, kind: str) -> None:
    tls = kind == "redis7"
    cluster = fresh_cluster(kind, password="p w", tls=tls, endpoint="hostname")
    with opened(cluster) as client:
        assert client.batch_set(KEYS, VALUES).ok
        assert read_all(client) == [Status.OK] * len(KEYS)
        assert client.stats()["connects"] == 4  # a seed by its address, three nodes by name
    with pytest.raises(errors.AuthError), opened(cluster, password="wrong") as client:
        client.ping()


@pytest.mark.parametrize(
    "options",
    [{"host": "::1"}, {"kind": "redis7", "endpoint": "unknown-endpoint"}],
    ids=["IPv6", "nameless"],
)
def test_nodes_that_are_named_otherwise(
    fresh_cluster: StartCluster, options: dict[str, Any]
) -> None:
    cluster = fresh_cluster(**options)
    first, second = cluster.primary(0), cluster.primary(1)
    slot = cluster.slots_of(first)[0]
    with opened(cluster) as client:
        assert client.batch_set(KEYS, VALUES).ok
        mine = {key_slot(key) for key in KEYS} & set(cluster.slots_of(first))
        cluster.migrate_slots(first, second, [*sorted(mine)[:3], slot])  # MOVED names them, too
        assert read_all(client) == [Status.OK] * len(KEYS)


def test_any_seed_will_do(cluster: Cluster) -> None:
    dead = "127.0.0.1:1"
    url = f"redis+cluster://{dead},{cluster.seeds[2]}"
    with PureRedisClient.from_url(url) as client, within(10):
        assert client.batch_set(KEYS, VALUES).ok
    with (
        PureRedisClient.from_url(f"redis+cluster://{dead}") as client,
        within(10),
        pytest.raises(errors.UnavailableError, match="tells its slots"),
    ):
        client.get("k", bytearray(1))


def test_one_server_is_no_cluster(valkey: TestServer) -> None:
    with (
        PureRedisClient(valkey.host, valkey.port, topology="cluster") as client,
        pytest.raises(errors.UnavailableError, match="cluster support disabled"),
    ):
        client.exists("k")


# A changing one.


def test_slots_move_both_ways_under_load(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster()
    first, second = cluster.primary(0), cluster.primary(1)
    slots = sorted({key_slot(key) for key in KEYS} & set(cluster.slots_of(first)))
    assert len(slots) > 20
    failures: list[object] = []
    done = threading.Event()

    def move() -> None:
        try:
            cluster.migrate_slots(first, second, slots)
            cluster.migrate_slots(second, first, slots[::2])
        except BaseException as error:
            failures.append(error)
        done.set()

    with opened(cluster) as client, within(60):
        client.batch_set(KEYS, VALUES)
        mover = threading.Thread(target=move)
        mover.start()
        rounds = 0
        while not done.is_set() or rounds < 2:
            assert read_all(client) == [Status.OK] * len(KEYS)
            assert client.batch_set(KEYS, VALUES).ok
            rounds += 1
        mover.join()
        assert not failures
        assert read_all(client) == [Status.OK] * len(KEYS)


def test_a_slot_that_is_half_moved(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster()
    keys = [f"{{tag}}{index}" for index in range(20)]
    source = cluster.node_of("{tag}")
    target = next(node for node in cluster.nodes if node is not source)
    with opened(cluster) as client:
        client.batch_set(keys, [b"%d" % index for index in range(20)])
        migration = cluster.begin_migration(source, target, key_slot("{tag}"))
        migration.move_keys(7)
        for _ in range(2):
            assert client.batch_exists([*keys, "{tag}none"]).prefix_len == 20
            assert client.batch_exists(["{tag}none"])[0] is Status.MISS
        client.set("{tag}new", b"new")  # an absent key is stored where the slot goes
        assert target.cli("CLUSTER", "COUNTKEYSINSLOT", key_slot("{tag}")) == 8
        migration.move_keys()
        migration.finish()
        assert client.batch_delete([*keys, "{tag}new"]).ok


def test_a_failover(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(replicas=1)
    with opened(cluster) as client, within(60):
        client.batch_set(KEYS, VALUES)
        for node in cluster.nodes[:3]:
            until(lambda node=node: node.cli("WAIT", 1, 1000) >= 1, 10)
        cluster.failover(0)
        assert read_all(client) == [Status.OK] * len(KEYS)
        assert client.batch_set(KEYS, VALUES).ok


# A broken one.


def test_a_lost_shard_costs_its_own_keys(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(full_coverage=False)
    with opened(cluster) as client, within(60):
        client.batch_set(KEYS, VALUES)
        lost = cluster.node_of(KEYS[0])
        its_slots = set(cluster.slots_of(lost))
        lost.kill()
        for _ in range(3):
            with within(5):
                statuses = read_all(client)
            for key, status in zip(KEYS, statuses, strict=True):
                mine = key_slot(key) in its_slots
                assert status is (Status.UNAVAILABLE if mine else Status.OK)
        lost.restart()
        cluster.wait_until_whole()

        def is_back() -> bool:
            return client.batch_exists(KEYS).count(Status.UNAVAILABLE) == 0

        wait_for("the shard to answer again", is_back, timeout_s=10)


def test_a_replica_takes_over(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(replicas=1, node_timeout_ms=1000)
    with opened(cluster) as client, within(90):
        client.batch_set(KEYS, VALUES)
        for node in cluster.nodes[:3]:
            until(lambda node=node: node.cli("WAIT", 1, 1000) >= 1, 10)
        cluster.node_of(KEYS[0]).kill()
        deadline = clock.now_s() + 40
        while (statuses := read_all(client)) != [Status.OK] * len(KEYS):
            assert set(statuses) <= {Status.OK, Status.UNAVAILABLE}
            assert clock.now_s() < deadline
            time.sleep(0.05)


def test_a_node_that_hangs_costs_time_and_its_own_keys(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster(full_coverage=False, node_timeout_ms=30_000)
    with opened(cluster, stall_timeout_s=1.0, timeout_s=4) as client:
        assert client.batch_set(KEYS, VALUES).ok
        hung = cluster.node_of(KEYS[0])
        its_slots = set(cluster.slots_of(hung))
        hung.pause()
        with within(6):
            statuses = read_all(client)
        hung.resume()
        for key, status in zip(KEYS, statuses, strict=True):
            assert status is (Status.TIMEOUT if key_slot(key) in its_slots else Status.OK)


def test_a_dead_connection_is_replaced(cluster: Cluster) -> None:
    with opened(cluster) as client:
        client.batch_set(KEYS, VALUES)
        for node in cluster.nodes:
            node.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert read_all(client) == [Status.OK] * len(KEYS)


# Liars.


def client_of(server: ScriptedServer, **settings: Any) -> PureRedisClient:
    return PureRedisClient(
        server.host, server.port, topology="cluster", **tuned(ClientConfig, **settings)
    )


def test_redirections_in_a_circle_end() -> None:
    told = {b"GET": b"-MOVED 1 127.0.0.1:%d\r\n", b"SET": b"-ASK 1 :%d\r\n"}
    server: ScriptedServer

    def circle(command: Command) -> Action | None:
        text = told.get(command.name)
        return text % server.port if text else None

    with lying(circle) as server, client_of(server) as client, within(5):
        read = client.batch_get(["a", "b"], [bytearray(1), bytearray(1)])
        assert list(read) == [Status.UNAVAILABLE] * 2
        assert "MOVED" in str(read.error)
        assert client.batch_set(["a"], [b"1"])[0] is Status.UNAVAILABLE
        assert server.names().count(b"GET") < 50
        assert client.batch_exists(["a"])[0] is Status.MISS  # the connection is in step


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", Status.UNAVAILABLE),
        (b"-CLUSTERDOWN The cluster is down\r\n", Status.UNAVAILABLE),
        (b"-MOVED 1 ?:7000\r\n", Status.UNAVAILABLE),
        (b"-MOVED\r\n", Status.SERVER_ERROR),
        (b"-MOVED 1 h:99999\r\n", Status.SERVER_ERROR),
        (b"-ASK 1 127.0.0.1:1\r\n", Status.UNAVAILABLE),
        (b"-MOVED 1 127.0.0.1:1\r\n", Status.UNAVAILABLE),
        (b"-LOADING not yet\r\n", Status.UNAVAILABLE),
    ],
)
def test_what_a_node_may_say(said: bytes, status: Status) -> None:
    with lying(answer(said, b"GET")) as server, client_of(server) as client, within(10):
        assert client.batch_get(["a"], [bytearray(1)])[0] is status
        time.sleep(REFRESH_MIN_S + 0.05)  # the map is asked for again, and believed
        client.set("a", b"1")


@pytest.mark.parametrize("times", [1, 3])
def test_try_again_is_tried_again(times: int) -> None:
    handler = answer(b"-TRYAGAIN later\r\n", b"GET", times=times)
    with lying(handler) as server, client_of(server) as client, within(5):
        client.set("a", b"1")
        assert client.get("a", bytearray(1))


@pytest.mark.parametrize(
    "reply",
    [
        b"+OK\r\n",
        b"*0\r\n",
        b"*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$1\r\nh\r\n:1\r\n",
        b"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\n?\r\n:7000\r\n",
        b"-ERR unknown command 'CLUSTER'\r\n",
        b"*1000000000\r\n",
        b"$16000000000\r\n",
    ],
)
def test_maps_that_are_none(reply: bytes) -> None:
    with (
        ScriptedServer(answer(reply, b"CLUSTER"), MiniStore()) as server,
        client_of(server) as client,
        within(5),
        pytest.raises(errors.UnavailableError, match="tells its slots"),
    ):
        client.exists("k")


def test_slots_without_a_node_are_unavailable() -> None:
    owner = b"*2\r\n$0\r\n\r\n:%d\r\n"
    server: ScriptedServer
    served = key_slot("here")

    def some(command: Command) -> Action | None:
        if command.name != b"CLUSTER":
            return None
        return b"*1\r\n*3\r\n:%d\r\n:%d\r\n%b" % (served, served, owner % server.port)

    with ScriptedServer(some, MiniStore()) as server, client_of(server) as client:
        result = client.batch_set(["here", "there"], [b"1", b"2"])
        assert list(result) == [Status.OK, Status.UNAVAILABLE]
        assert "no node serves slot" in str(result.error)


def test_a_big_value_is_redirected_without_harm(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster()
    value = payload(4 * MIB)
    with opened(cluster) as client:
        client.set("big", value)
        source = cluster.node_of("big")
        target = next(node for node in cluster.nodes if node is not source)
        cluster.migrate_slots(source, target, [key_slot("big")])
        client.set("big", value)
        cluster.migrate_slots(target, source, [key_slot("big")])
        buffer = bytearray(len(value))
        assert client.get("big", buffer)
        assert buffer == value
