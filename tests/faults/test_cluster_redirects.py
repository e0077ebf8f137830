"""Slots that move under the native client: MOVED, ASK, TRYAGAIN, and whole shards that are carried
to other nodes and back while it works. Nothing is lost, no byte is wrong, no redirect is endless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvferry.client.batch import Status
from support.clients import NATIVE, opened
from support.cluster import Cluster, ClusterNode, ClusterOptions, key_slot, start_cluster
from support.load import Load
from support.pure import payload
from support.servers import wait_for
from support.stamps import KIB, MIB, fetch, poisoned, store, until, within

StartCluster = Callable[..., Cluster]

SIZES = {f"key-{index}": 100 + 37 * index for index in range(60)}
IDENTITY = bytes(range(16))
PATIENT: dict[str, Any] = {"timeout_s": 20.0, "stall_timeout_s": 10.0}  # nobody is away
RARELY: dict[str, Any] = {"topology_refresh_s": 3600}  # the map changes by what servers answer


@pytest.fixture(scope="module")
def moving() -> Iterator[Cluster]:
    """A cluster whose slots are moved about; every test works with what the last one has left."""
    try:
        cluster = start_cluster("valkey")
    except LookupError as reason:
        pytest.skip(str(reason))
    with cluster:
        yield cluster


@pytest.fixture
def movable(moving: Cluster) -> Cluster:
    moving.flush()
    return moving


def elsewhere(cluster: Cluster, node: ClusterNode) -> ClusterNode:
    return next(other for other in cluster.nodes if other is not node)


def slots_with(cluster: Cluster, node: ClusterNode, keys: Any) -> list[int]:
    """The slots of these keys that are that node's."""
    return sorted({key_slot(key) for key in keys} & set(cluster.slots_of(node)))


def redirects(cluster: Cluster, kind: str) -> int:
    """How often its nodes said MOVED or ASK."""
    said = [node.info("errorstats").get(f"errorstat_{kind}", "count=0") for node in cluster.nodes]
    return sum(int(one.split("=")[1]) for one in said)


# MOVED.


@pytest.mark.parametrize("kind", NATIVE)
def test_slots_that_moved_behind_the_clients_back(movable: Cluster, kind: str) -> None:
    first, second = movable.primary(0), movable.primary(1)
    slots = slots_with(movable, first, SIZES)
    with opened(kind, movable, **RARELY) as client:
        assert store(client, SIZES).ok
        movable.migrate_slots(first, second, slots)
        with within(10):
            assert fetch(client, SIZES).result.ok
        assert redirects(movable, "MOVED") > 0
        assert client.batch_exists([*SIZES, "none"]).prefix_len == len(SIZES)
        assert store(client, SIZES, 2).ok
        assert client.batch_delete(list(SIZES)[::2]).ok
        kept = {key: SIZES[key] for key in list(SIZES)[1::2]}

        def is_right() -> bool:
            """The map: nothing is redirected any more."""
            before = redirects(movable, "MOVED")
            assert client.batch_exists(list(kept), touch=True).ok
            assert fetch(client, kept, {2}).result.ok
            return redirects(movable, "MOVED") == before

        until(is_right, 5)
    movable.migrate_slots(second, first, slots)


@pytest.mark.parametrize("verb", ["get", "set", "exists", "touch", "delete", "prefix"])
def test_every_verb_is_redirected(movable: Cluster, verb: str) -> None:
    """One slot, and a new client that has an old map."""
    source = movable.node_of("{moved}")
    target = elsewhere(movable, source)
    keys = [f"{{moved}}{index}" for index in range(20)]
    sizes = dict.fromkeys(keys, 8 * KIB)
    with opened("native", movable, **RARELY) as client:
        assert store(client, sizes).ok
        movable.migrate_slots(source, target, [key_slot("{moved}")])
        targets = [poisoned(8 * KIB) for _ in keys]
        calls: dict[str, Callable[[], Any]] = {
            "get": lambda: fetch(client, sizes).result,
            "set": lambda: store(client, sizes, 2),
            "exists": lambda: client.batch_exists(keys),
            "touch": lambda: client.batch_exists(keys, touch=True),
            "delete": lambda: client.batch_delete(keys),
            "prefix": lambda: client.batch_get(keys, targets, prefix=True),
        }
        with within(10):
            assert calls[verb]().ok
        assert 0 < redirects(movable, "MOVED") <= len(keys)
        left = target.cli("CLUSTER", "COUNTKEYSINSLOT", key_slot("{moved}"))
        assert left == (0 if verb == "delete" else 20)


@pytest.mark.parametrize("size", [MIB, 9 * MIB])
def test_a_big_value_is_redirected_without_harm(movable: Cluster, size: int) -> None:
    """The payload of a SET that is refused has been sent already, or is on its way."""
    source = movable.node_of("{big}")
    target = elsewhere(movable, source)
    slot = key_slot("{big}")
    keys = [f"{{big}}{index}" for index in range(4)]
    sizes = dict.fromkeys(keys, size)
    with opened("native", movable, **RARELY) as client:
        assert store(client, sizes).ok
        for version in (2, 3):
            movable.migrate_slots(source, target, [slot])
            with within(20):
                assert store(client, sizes, version).ok
            movable.migrate_slots(target, source, [slot])
            with within(20):
                assert fetch(client, sizes, {version}).result.ok


def test_striped_values_on_the_move(movable: Cluster) -> None:
    names = ["kv:v", "kv:v#1", "kv:v#2"]
    value, target = payload(9 * MIB), poisoned(9 * MIB)
    with opened("native", movable, **RARELY) as client:
        here = client.namespace("kv:", identity=IDENTITY, value_size_bytes=9 * MIB)
        here.set("v", value)
        for name in names:
            source = movable.node_of(name)
            movable.migrate_slots(source, elsewhere(movable, source), [key_slot(name)])
            assert here.get("v", target)
            assert target == value
        here.set("v", payload(9 * MIB, 2))
        assert here.get("v", target)
        assert target == payload(9 * MIB, 2)
        assert here.exists("v")
        assert here.delete("v")
        assert [node.cli("DBSIZE") for node in movable.nodes] == [0, 0, 0]


# ASK.


@pytest.mark.parametrize("kind", NATIVE)
def test_a_slot_that_is_half_moved(movable: Cluster, kind: str) -> None:
    keys = [f"{{tag}}{index}" for index in range(20)]
    sizes = dict.fromkeys(keys, 4 * KIB)
    source = movable.node_of("{tag}")
    target = elsewhere(movable, source)
    with opened(kind, movable, **RARELY) as client:
        assert store(client, sizes).ok
        migration = movable.begin_migration(source, target, key_slot("{tag}"))
        migration.move_keys(7)
        for _ in range(3):
            assert fetch(client, sizes).result.ok
            assert client.batch_exists([*keys, "{tag}none"]).prefix_len == 20
        assert client.batch_exists(["{tag}none"])[0] is Status.MISS
        assert client.batch_delete(["{tag}none"])[0] is Status.MISS
        assert redirects(movable, "ASK") > 0
        assert redirects(movable, "MOVED") == 0  # ASK is for one key: the map stays as it is
        client.set("{tag}new", b"new")  # an absent key is stored where the slot goes
        assert target.cli("CLUSTER", "COUNTKEYSINSLOT", key_slot("{tag}")) == 8
        assert store(client, sizes, 2).ok  # each where it is
        assert target.cli("CLUSTER", "COUNTKEYSINSLOT", key_slot("{tag}")) == 8
        migration.move_keys()
        migration.finish()
        assert fetch(client, sizes, {2}).result.ok
        assert client.batch_delete([*keys, "{tag}new"]).ok
        assert client.batch_exists(keys).count(Status.MISS) == 20


def test_a_migration_that_is_given_up(movable: Cluster) -> None:
    keys = [f"{{tag}}{index}" for index in range(20)]
    sizes = dict.fromkeys(keys, 4 * KIB)
    source = movable.node_of("{tag}")
    with opened("native", movable, **RARELY) as client:
        assert store(client, sizes).ok
        migration = movable.begin_migration(source, elsewhere(movable, source), key_slot("{tag}"))
        migration.move_keys(10)
        assert fetch(client, sizes).result.ok
        migration.abort()
        assert fetch(client, sizes).result.ok
        assert store(client, sizes, 2).ok


def test_big_values_are_asked_for_elsewhere(movable: Cluster) -> None:
    """ASKING and the SET behind it travel on one connection, next to others."""
    keys = [f"{{tag}}{index}" for index in range(8)]
    sizes = dict.fromkeys(keys, 3 * MIB)
    others = {f"other-{index}": MIB for index in range(24)}
    source = movable.node_of("{tag}")
    with opened("native", movable, **RARELY) as client:
        assert store(client, sizes | others).ok
        migration = movable.begin_migration(source, elsewhere(movable, source), key_slot("{tag}"))
        migration.move_keys(5)
        for version in (2, 3):
            with within(20):
                assert store(client, sizes | others, version).ok
                assert fetch(client, sizes | others, {version}).result.ok
        migration.move_keys()
        migration.finish()
        assert fetch(client, sizes | others, {3}).result.ok


# Under load.


@pytest.mark.parametrize(("kind", "tls"), [("valkey", False), ("redis7", False), ("redis7", True)])
def test_slots_move_both_ways_under_load(fresh_cluster: StartCluster, kind: str, tls: bool) -> None:
    cluster = fresh_cluster(kind, tls=tls)
    first, second, third = cluster.nodes
    keys = [f"load-{index}" for index in range(90)]
    slots = slots_with(cluster, first, keys)
    assert len(slots) > 20
    with opened("native", cluster, **PATIENT) as client:
        with Load(client, keys, size_bytes=32 * KIB, threads=3) as load:
            load.wait_for_rounds(3)
            cluster.migrate_slots(first, second, slots)
            load.wait_for_rounds(3)
            cluster.migrate_slots(second, third, slots[::2])
            cluster.migrate_slots(second, first, slots[1::2])
            load.wait_for_rounds(3)
            cluster.migrate_slots(third, first, slots[::2])
            load.wait_for_rounds(3)
        assert load.failures() == set(), load.reasons
        assert load.rounds > 12
        nodes = client.nodes()
        assert sum(node["connections_lost"] for node in nodes) == 0  # no restart of anything
        sent = client.stats()["commands_settled"]
        # A migrated key is asked for twice or so, not for ever.
        assert redirects(cluster, "MOVED") + redirects(cluster, "ASK") < sent


def test_big_values_move_under_load(fresh_cluster: StartCluster) -> None:
    cluster = fresh_cluster()
    first, second = cluster.nodes[:2]
    keys = [f"load-{index}" for index in range(24)]
    slots = slots_with(cluster, first, keys)
    with opened("native", cluster, **PATIENT) as client:
        with Load(client, keys, size_bytes=2 * MIB) as load:
            load.wait_for_rounds(1)
            for _ in range(2):
                cluster.migrate_slots(first, second, slots)
                load.wait_for_rounds(1)
                cluster.migrate_slots(second, first, slots)
        assert load.failures() == set(), load.reasons


def test_a_new_node_joins_and_gets_slots(fresh_cluster: StartCluster) -> None:
    """Half the cluster's first shard goes to a node that had none, while all work."""
    cluster = fresh_cluster()
    with fresh_node(cluster) as newcomer:
        keys = [f"load-{index}" for index in range(60)]
        first = cluster.nodes[0]
        slots = slots_with(cluster, first, keys)
        wider = Cluster([*cluster.nodes, newcomer], 4)
        often = PATIENT | {"topology_refresh_s": 0.3}
        with opened("native", cluster, **often) as client, Load(client, keys) as load:
            load.wait_for_rounds(2)
            wider.migrate_slots(first, newcomer, slots)
            load.wait_for_rounds(3)
            until(lambda: len(client.nodes()) == 4, 10)
            by_address = {node["address"]: node for node in client.nodes()}
            assert by_address[newcomer.address]["commands_settled"] > 0
            wider.migrate_slots(newcomer, first, slots)
            newcomer.cli("CLUSTER", "REPLICATE", first.node_id)  # of no use to this client
            until(lambda: len(client.nodes()) == 3, 20)
            load.wait_for_rounds(3)
        assert load.failures() == set(), load.reasons


def fresh_node(cluster: Cluster) -> ClusterNode:
    """A node that has met the others, and has no slots."""
    node = ClusterNode("valkey", ClusterOptions())
    for other in cluster.nodes:
        node.cli("CLUSTER", "MEET", other.host, other.port, other.bus_port)
    wait_for(
        "all to know the new node",
        lambda: (
            all(node.node_id in other.view() for other in cluster.nodes)
            and len(node.view()) == 4
            and node.cluster_state() == "ok"
        ),
        30,
    )
    return node
