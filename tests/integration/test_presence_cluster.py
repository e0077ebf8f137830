"""The presence view of a cluster: slots that move, nodes that go, keys that others write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kvferry import RedisClient
from support.cluster import Cluster
from support.presence import LIMIT_S, PREFIX, await_synced, settle, view_connections
from support.servers import wait_for

StartCluster = Callable[..., Cluster]
KEYS = [f"kv:{index}" for index in range(300)]


@contextmanager
def watched(cluster: Cluster, nodes: int = 3, **settings: Any) -> Iterator[RedisClient]:
    settings = cluster.settings | {"presence_prefix": PREFIX, "connections": 2} | settings
    with RedisClient.from_url(cluster.url, **settings) as client:
        await_synced(client, nodes)
        yield client


def settle_with(client: RedisClient, cluster: Cluster) -> Mapping[str, bool]:
    """Wait until the view says what the nodes have; that."""
    nodes = [node for node in cluster.running() if node.leads()]
    there = {key.decode() for node in nodes for key in node.cli("KEYS", "*")}
    truth = {key: key in there for key in KEYS}
    settle(client, truth)
    return truth


class Reader:
    """Asks all the time for keys that are there; collects those that were called absent."""

    def __init__(self, client: RedisClient, keys: list[str]) -> None:
        self._client, self._keys = client, keys
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.wrong: set[str] = set()
        self.known = 0

    def _read(self) -> None:
        while not self._stop.wait(0.001):
            answers = self._client.presence(self._keys)
            self.known += answers.count(True)
            self.wrong |= {
                key for key, answer in zip(self._keys, answers, strict=True) if answer is False
            }

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)


def test_every_shard_is_watched(cluster: Cluster) -> None:
    for key in KEYS[:100]:
        cluster.node_of(key).cli("SET", key, "x")
    with watched(cluster) as client:
        assert client.presence(KEYS) == [True] * 100 + [False] * 200
        for key in KEYS[50:60]:
            cluster.node_of(key).cli("DEL", key)
        for key in KEYS[200:210]:
            cluster.node_of(key).cli("SET", key, "x")
        settle_with(client, cluster)
        node = cluster.nodes[1]
        node.cli("FLUSHALL")
        truth = settle_with(client, cluster)
        assert 20 < list(truth.values()).count(True) < 100
        (connection,) = view_connections(node)
        node.cli("CLIENT", "KILL", "ID", connection)
        wait_for("its end to be seen", lambda: client.presence_stats()["forgotten"] > 1, LIMIT_S)
        settle_with(client, cluster)
        assert client.presence_stats()["forgotten"] == 2  # of this node alone
        assert all(len(view_connections(each)) == 1 for each in cluster.nodes)


def test_what_we_stored_stays_while_slots_move(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster("redis7")
    with watched(cluster) as client:
        client.batch_set(KEYS, [b"x"] * len(KEYS))
        settle_with(client, cluster)
        slots = sorted({cluster.slot(key) for key in KEYS})[:24]
        with Reader(client, KEYS) as reader:
            for slot in slots:  # there, or on to the next: each moves once
                source = cluster.owner(slot)
                target = cluster.nodes[(cluster.nodes.index(source) + 1) % 3]
                cluster.migrate_slots(source, target, [slot])
                client.batch_set(KEYS[:20], [b"y"] * 20)
            settle_with(client, cluster)
        assert reader.wrong == set()
        assert reader.known > 0


def test_a_key_that_others_write_to_a_slot_on_its_way(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster("redis7")
    key = KEYS[0]
    slot = cluster.slot(key)
    source = cluster.owner(slot)
    target = next(node for node in cluster.nodes if node is not source)
    with watched(cluster) as client, RedisClient.from_url(cluster.url, **cluster.settings) as other:
        settle(client, {key: False})
        migration = cluster.begin_migration(source, target, slot)
        settle(client, {key: None})  # some keys of the slot may be here, some there
        other.set(key, b"x")  # by ASK
        assert client.presence([key]) != [False]
        migration.move_keys()
        migration.finish()
        settle(client, {key: True})
        other.delete(key)
        settle(client, {key: False})
        other.set(key, b"x")
        settle(client, {key: True})


def test_failover_and_a_lost_node(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster("valkey", 3, 1)
    with watched(cluster) as client:
        client.batch_set(KEYS, [b"x"] * len(KEYS))
        settle_with(client, cluster)
        with Reader(client, KEYS) as reader:
            cluster.failover(0)
            wait_for(
                "the view to follow",
                lambda: client.presence(KEYS).count(True) == len(KEYS),
                2 * LIMIT_S,
            )
        assert reader.wrong == set()
        lost = cluster.primary(1)
        of_lost = [key for key in KEYS if cluster.node_of(key) is lost]
        lost.kill()
        settle(client, dict.fromkeys(of_lost[:1]))
        cluster.wait_for_promotion(1)
        cluster.wait_until_whole()
        client.batch_exists(KEYS)
        settle_with(client, cluster)
