"""The cluster fixture: whole when it starts, and it moves, fails over and comes back as told."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from support.cluster import SLOTS, Cluster, ClusterNode, FailoverMode, keys_of_slot
from support.resp import ReplyError, encode, read_reply
from support.servers import address_of, wait_for

Start = Callable[..., Cluster]
UNKNOWN = "unknown-endpoint"
PONG = 1  # the type of that message on the cluster's bus


@pytest.mark.parametrize("key", [b"", b"key", b"{tag}x", b"{}x", b"a{b}c{d}", b"{{x}}", b"\0\xff"])
def test_slots_are_those_of_the_server(cluster: Cluster, key: bytes) -> None:
    assert cluster.slot(key) == cluster.nodes[0].cli("CLUSTER", "KEYSLOT", key)


def test_every_slot_has_a_node_and_every_node_answers(cluster: Cluster) -> None:
    assert [len(cluster.slots_of(node)) for node in cluster.nodes] == [5461, 5461, 5462]
    for key in (b"a", b"b", b"c", b"foo"):
        node = cluster.node_of(key)
        assert node.cli("SET", key, b"value") == b"OK"
        others = [other for other in cluster.nodes if other is not node]
        address = address_of(node.host, node.port)
        for other in others:
            with pytest.raises(ReplyError, match=f"MOVED {cluster.slot(key)} {address}"):
                other.cli("GET", key)
    assert cluster.url == "redis+cluster://" + ",".join(cluster.seeds)
    assert cluster.settings["nodes"] == cluster.seeds[1:]


def test_it_starts_every_test_empty(cluster: Cluster) -> None:
    assert [node.cli("DBSIZE") for node in cluster.nodes] == [0, 0, 0]


def test_each_kind_of_failover_promotes_the_replica(fresh_cluster: Start) -> None:
    cluster = fresh_cluster("redis7", replicas=1)
    modes: list[FailoverMode] = ["", "FORCE", "TAKEOVER"]
    for mode in modes:
        old, replica = cluster.primary(0), cluster.replica_of(0)
        assert cluster.failover(0, mode) is replica
        cluster.wait_until_whole()
        assert cluster.primary(0) is replica
        assert cluster.replica_of(0) is old


def test_a_failover_may_follow_another_at_once(fresh_cluster: Start) -> None:
    """The old primary hears of its loss later than the new one leads: here it misses the news, and
    takes itself for a primary until somebody else tells it."""
    cluster = fresh_cluster("valkey", replicas=1)
    old, replica = cluster.primary(0), cluster.replica_of(0)
    old.cli("DEBUG", "DROP-CLUSTER-PACKET-FILTER", PONG)
    assert cluster.failover(0, "TAKEOVER") is replica
    assert cluster.failover(0, "TAKEOVER") is old


def test_a_lost_primary_is_replaced_and_returns_as_a_replica(fresh_cluster: Start) -> None:
    cluster = fresh_cluster("valkey", replicas=1, node_timeout_ms=1000)
    old, replica = cluster.primary(1), cluster.replica_of(1)
    name = old.node_id
    old.kill()
    assert cluster.wait_for_promotion(1) is replica
    old.restart()
    cluster.wait_until_whole()
    assert old.cli("CLUSTER", "MYID").decode() == name
    assert cluster.replica_of(1) is old


def test_without_full_coverage_the_other_shards_answer(fresh_cluster: Start) -> None:
    cluster = fresh_cluster("redis7", node_timeout_ms=1000, full_coverage=False)
    lost = cluster.primary(2)
    lost.kill()
    left = cluster.running()
    assert len(left) == 2
    wait_for("the loss", lambda: "fail" in left[0].view()[lost.node_id]["flags"], 20)
    key = keys_of_slot(cluster.slots_of(left[0])[0], 1)[0]
    wait_for("the other shards to answer", lambda: left[0].cli("GET", key) is None)
    with pytest.raises(LookupError, match="no running node"):
        cluster.owner(SLOTS - 1)
    with pytest.raises(LookupError, match="shard 2"):
        cluster.primary(2)


@pytest.mark.parametrize(
    ("kind", "endpoint"), [("valkey", "hostname"), ("redis7", "hostname"), ("redis7", UNKNOWN)]
)
def test_nodes_are_named_as_was_asked(fresh_cluster: Start, kind: str, endpoint: str) -> None:
    cluster = fresh_cluster(kind, endpoint=endpoint)
    wanted = b"localhost" if endpoint == "hostname" else None
    for node in cluster.nodes:
        shards = node.cli("CLUSTER", "SLOTS")
        assert [place[0] for shard in shards for place in shard[2:]] == [wanted] * 3


def test_ipv6(fresh_cluster: Start) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError as reason:
            pytest.skip(f"no IPv6: {reason}")
    cluster = fresh_cluster("valkey", host="::1")
    assert cluster.seeds[0] == f"[::1]:{cluster.nodes[0].port}"
    slots = cluster.nodes[0].cli("CLUSTER", "SLOTS")
    assert {place[0] for shard in slots for place in shard[2:]} == {b"::1"}


def test_tls_between_nodes_and_for_clients(fresh_cluster: Start) -> None:
    cluster = fresh_cluster("redis7", replicas=1, tls=True, password="secret")
    source, target = cluster.primary(0), cluster.primary(1)
    key = keys_of_slot(3, 1)[0]
    source.cli("SET", key, b"value")
    cluster.migrate_slots(source, target, [3])
    assert target.cli("GET", key) == b"value"
    assert cluster.seeds[0] == f"127.0.0.1:{cluster.nodes[0].tls_port}"
    assert cluster.url.startswith("rediss+cluster://:secret@127.0.0.1:")
    assert tls_port_in_slots(cluster.nodes[0]) == cluster.nodes[0].tls_port


def tls_port_in_slots(node: ClusterNode) -> int:
    """What the map says to somebody who came over TLS."""
    assert node.tls is not None
    with (
        socket.create_connection((node.host, node.tls_port), 10) as plain,
        node.tls.client_context().wrap_socket(plain, server_hostname="localhost") as talk,
        talk.makefile("rb") as read,
    ):
        talk.sendall(encode("AUTH", "secret") + encode("CLUSTER", "SLOTS"))
        assert read_reply(read) == b"OK"
        slots = read_reply(read)
    names = {place[2].decode(): int(place[1]) for shard in slots for place in shard[2:]}
    return names[node.node_id]


def endpoints(node: ClusterNode) -> set[tuple[str, int]]:
    shards = node.cli("CLUSTER", "SLOTS")
    return {(place[0].decode(), place[1]) for shard in shards for place in shard[2:]}


def test_clients_of_a_proxied_cluster_see_proxies_alone(proxied_cluster: Cluster) -> None:
    cluster = proxied_cluster
    wanted = {(proxy.host, proxy.port) for proxy in cluster.proxies}
    assert [endpoints(node) for node in cluster.nodes] == [wanted] * 3
    assert cluster.seeds == tuple(f"127.0.0.1:{proxy.port}" for proxy in cluster.proxies)
    node = cluster.node_of("foo")
    assert node.proxy is not None
    other = next(other for other in cluster.nodes if other is not node)
    with pytest.raises(ReplyError, match=f"MOVED 12182 127.0.0.1:{node.proxy.port}"):
        other.cli("GET", "foo")
    before = node.proxy.connections
    with socket.create_connection((node.proxy.host, node.proxy.port), 5) as talk:
        talk.sendall(encode("PING"))
        assert talk.recv(100) == b"+PONG\r\n"
        node.proxy.cut_now()
        with pytest.raises(ConnectionResetError):
            talk.recv(100)
    assert node.proxy.connections == before + 1


@pytest.mark.parametrize(("kind", "tls"), [("valkey", False), ("redis7", True)])
def test_toxics_do_not_part_the_nodes(fresh_cluster: Start, kind: str, tls: bool) -> None:
    cluster = fresh_cluster(kind, replicas=1, proxied=True, tls=tls, node_timeout_ms=1000)
    for proxy in cluster.proxies:
        proxy.black_hole()
        proxy.down.delay_s = 100
    source, target = cluster.primary(0), cluster.primary(1)
    key = keys_of_slot(5, 1)[0]
    source.cli("SET", key, "value")
    cluster.migrate_slots(source, target, [5])
    replica = cluster.failover(1)
    assert replica.cli("GET", key) == b"value"
    replica.restart()
    cluster.wait_until_whole()
    assert cluster.proxies[0].connections == 0
