"""The native client and a whole cluster: every verb on every shard, and all shards at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvferry import AsyncRedisClient
from kvferry.client.batch import Status
from support.clients import NATIVE, completions, opened
from support.cluster import SLOTS, Cluster, key_slot, keys_of_slot
from support.pure import payload
from support.stamps import KIB, MIB, STAMP_BYTES, fetch, poisoned, store, until, within

StartCluster = Callable[..., Cluster]

IDENTITY = bytes(range(16))
STRIPE_BYTES = 4 * MIB
KEYS = [f"key-{index}" for index in range(60)]
SIZES = {key: STAMP_BYTES + 997 * index for index, key in enumerate(KEYS)}


@pytest.fixture(params=NATIVE)
def client(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Any]:
    with opened(request.param, cluster) as opened_client:
        yield opened_client


def keys_in(cluster: Cluster, key: str) -> list[int]:
    """For each node whether it has that key."""
    return [int(key.encode() in node.cli("KEYS", "*")) for node in cluster.nodes]


def traffic(client: Any, direction: str) -> dict[str, int]:
    """For each node of the client the bytes that went that way."""
    return {node["address"]: node[f"bytes_{direction}"] for node in client.nodes()}


# Every verb.


def test_every_verb_on_all_shards(client: Any, cluster: Cluster) -> None:
    assert store(client, SIZES).ok
    on_nodes = [node.cli("DBSIZE") for node in cluster.nodes]
    assert sum(on_nodes) == len(KEYS)
    assert all(on_nodes)
    assert fetch(client, SIZES).result.ok
    assert client.batch_exists(KEYS).ok
    assert client.batch_exists(KEYS, touch=True).ok
    mixed = client.batch_exists([*KEYS[:5], "none", *KEYS[5:]])
    assert [index for index, status in enumerate(mixed) if status is not Status.OK] == [5]
    assert mixed[5] is Status.MISS
    assert client.batch_delete(KEYS).ok
    assert client.batch_delete(KEYS).count(Status.MISS) == len(KEYS)
    assert fetch(client, SIZES).result.count(Status.MISS) == len(KEYS)
    assert [node.cli("DBSIZE") for node in cluster.nodes] == [0, 0, 0]


@pytest.mark.parametrize("size", [1, 31, 4 * KIB, MIB, 9 * MIB])
def test_values_of_any_length(client: Any, cluster: Cluster, size: int) -> None:
    """The plain client keeps them whole; one for each shard."""
    keys = [keys_of_slot(cluster.slots_of(node)[0], 1)[0].decode() for node in cluster.nodes]
    values = [payload(size, index) for index in range(3)]
    targets = [poisoned(size) for _ in keys]
    assert client.batch_set(keys, values).ok
    result = client.batch_get(keys, targets)
    assert result.ok
    assert list(result.sizes) == [size] * 3
    assert targets == values
    for node, key in zip(cluster.nodes, keys, strict=True):
        assert node.cli("STRLEN", key) == size


def test_every_status_is_its_keys_own(client: Any, cluster: Cluster) -> None:
    assert store(client, SIZES).ok
    for index in range(6):  # on some node or other
        cluster.node_of(f"list-{index}").cli("RPUSH", f"list-{index}", "item")
    keys, sizes, expected = [], [], []
    for index in range(6):
        keys += [f"none-{index}", KEYS[index], f"list-{index}", KEYS[index + 6]]
        sizes += [7, SIZES[KEYS[index]], 7, 7]
        expected += [Status.MISS, Status.OK, Status.SERVER_ERROR, Status.SIZE_MISMATCH]
    result = client.batch_get(keys, [poisoned(size) for size in sizes])
    assert list(result) == expected
    assert "WRONGTYPE" in result.error
    assert result.sizes[3] == SIZES[KEYS[6]]


@pytest.mark.parametrize("hole", [0, 1, 31, len(KEYS) - 1])
def test_prefix_is_that_of_the_keys_and_not_of_a_shard(client: Any, hole: int) -> None:
    assert store(client, SIZES).ok
    assert client.delete(KEYS[hole])
    targets = [poisoned(size) for size in SIZES.values()]
    for result in (
        client.batch_get(KEYS, targets, prefix=True),
        client.batch_exists(KEYS, prefix=True),
    ):
        assert result.prefix_len == hole
        assert result[hole] is Status.MISS
        assert set(list(result)[hole + 1 :]) <= {Status.OK, Status.CANCELLED}


def test_ttl_on_all_shards(client: Any, cluster: Cluster) -> None:
    assert store(client, SIZES, ttl_s=100).ok
    for key in KEYS[:12]:
        assert 0 < cluster.node_of(key).cli("PTTL", key) <= 100_000
    assert store(client, SIZES, version=2, ttl_s=0.05).ok
    until(lambda: client.batch_exists(KEYS).count(Status.MISS) == len(KEYS), 10)


def test_touch_counts_as_use(client: Any, cluster: Cluster) -> None:
    assert store(client, SIZES).ok

    homes = {key: cluster.node_of(key) for key in KEYS}

    def idle_s(key: str) -> int:
        return int(homes[key].cli("OBJECT", "IDLETIME", key))

    # The server's clock of idleness has seconds.
    until(lambda: all(idle_s(key) >= 2 for key in KEYS[:6]), 10, pause_s=0.1)
    assert client.batch_exists(KEYS[:6]).ok
    assert all(idle_s(key) >= 2 for key in KEYS[:6])
    assert client.batch_exists(KEYS[:6], touch=True).ok
    for key in KEYS[:6]:  # another one there that was not touched; meanwhile a second may end
        assert idle_s(key) < idle_s(next(k for k in KEYS[6:] if homes[k] is homes[key]))


def test_tags_keep_keys_together(client: Any, cluster: Cluster) -> None:
    sizes = {f"{{together}}:{index}": 4 * KIB for index in range(30)}
    odd = {"{}a": 64, "{}b": 64, "x{{y}z": 64, "{open": 64, "a{b}c{d}": 64, "\N{BLACK STAR}": 64}
    assert store(client, sizes | odd).ok
    assert fetch(client, sizes | odd).result.ok
    home = cluster.node_of("{together}")
    assert all(key.encode() in home.cli("KEYS", "*") for key in sizes)
    assert sum(int(node["commands_retried"]) for node in client.nodes()) == 0  # all found at once


def test_one_key_of_every_hundredth_slot(client: Any) -> None:
    """What the client computes as the slot is what the servers compute."""
    sizes = {keys_of_slot(slot, 1)[0].decode(): 64 for slot in range(0, SLOTS, 100)}
    assert store(client, sizes).ok
    assert fetch(client, sizes).result.ok
    assert len({key_slot(key) for key in sizes}) == len(sizes)


# All shards at once.


def test_a_batch_streams_from_every_shard(client: Any, cluster: Cluster) -> None:
    sizes = {f"chunk-{index}": MIB for index in range(48)}
    assert store(client, sizes).ok
    before = traffic(client, "received")
    assert fetch(client, sizes).result.ok
    after = traffic(client, "received")
    by_node = dict.fromkeys(after, 0)
    for key in sizes:
        node = cluster.node_of(key)
        by_node[f"{node.host}:{node.client_port}"] += MIB
    assert len(by_node) == 3
    for address, expected in by_node.items():
        assert expected <= after[address] - before[address] < expected + MIB
    nodes = client.nodes()
    assert {node["role"] for node in nodes} == {"primary"}
    assert all(node["available"] for node in nodes)
    assert client.stats()["nodes"] == 3

    def agree() -> bool:  # at a moment in which no connection is being greeted or asked
        each = [node["bytes_received"] for node in client.nodes()]
        return bool(client.stats()["bytes_received"] == sum(each))

    until(agree, 10)


def test_shards_answer_side_by_side(proxied_cluster: Cluster) -> None:
    """Three slow shards take as long as one: nobody waits for the others to finish."""
    sizes: dict[str, int] = {}
    for node in proxied_cluster.nodes:
        first = proxied_cluster.slots_of(node)[0]
        sizes |= {key.decode(): 512 * KIB for key in keys_of_slot(first, 8)}
    with opened("native", proxied_cluster) as client:
        assert store(client, sizes).ok
        for proxy in proxied_cluster.proxies:
            proxy.down.bandwidth_bytes_per_s = 5e6  # 4 MiB of each shard: 0.84 s
            proxy.down.shared = True  # by all connections to it
        started = time.monotonic()
        with within(1.9):  # one after the other: 2.5 s
            assert fetch(client, sizes).result.ok
        assert time.monotonic() - started > 0.7


def test_a_slow_shard_does_not_hold_up_the_others(proxied_cluster: Cluster) -> None:
    slow, *others = proxied_cluster.nodes
    assert slow.proxy
    keys = [keys_of_slot(proxied_cluster.slots_of(node)[0], 8) for node in proxied_cluster.nodes]
    with opened("native", proxied_cluster) as client:
        assert store(client, {key.decode(): 256 * KIB for shard in keys for key in shard}).ok
        slow.proxy.down.reading = False
        waiting = client.submit_batch_get(keys[0], [poisoned(256 * KIB) for _ in keys[0]])
        for shard in keys[1:]:
            with within(2):
                assert fetch(client, {key.decode(): 256 * KIB for key in shard}).result.ok
        slow.proxy.heal()
        assert completions(client, 1)[waiting].ok
    assert len(others) == 2


# Stripes.


@pytest.mark.parametrize("size", [4 * KIB, STRIPE_BYTES + 1, 9 * MIB])
def test_stripes_of_a_value_live_on_several_nodes(client: Any, cluster: Cluster, size: int) -> None:
    here = client.namespace("kv:", identity=IDENTITY, value_size_bytes=size)
    keys = [f"v{index}" for index in range(4)]
    values = [payload(size, index) for index in range(4)]
    targets = [poisoned(size) for _ in keys]
    assert here.batch_set(keys, values).ok
    assert here.batch_get(keys, targets).ok
    assert targets == values
    stripes = -(-size // STRIPE_BYTES)
    homes = []
    for key in keys:
        names = [f"kv:{key}", *(f"kv:{key}#{index}" for index in range(1, stripes))]
        where = [keys_in(cluster, name) for name in names]
        assert all(sum(one) == 1 for one in where)
        homes.append({one.index(1) for one in where})
    if stripes > 2:
        assert max(len(home) for home in homes) > 1
    assert here.batch_exists(keys).ok
    assert here.batch_delete(keys).ok
    assert [node.cli("DBSIZE") for node in cluster.nodes] == [0, 0, 0]


def test_a_value_without_one_of_its_stripes_is_a_miss(client: Any, cluster: Cluster) -> None:
    here = client.namespace("kv:", identity=IDENTITY, value_size_bytes=9 * MIB)
    value = payload(9 * MIB)
    for lost in ("kv:v", "kv:v#1", "kv:v#2"):
        here.set("v", value)
        cluster.node_of(lost).cli("DEL", lost)
        assert here.get("v", poisoned(9 * MIB)) is False
        assert here.exists("v") is False


def test_a_damaged_value_is_deleted_where_it_lies(client: Any, cluster: Cluster) -> None:
    here = client.namespace("kv:", identity=IDENTITY, value_size_bytes=64 * KIB)
    keys = [f"v{index}" for index in range(9)]
    assert here.batch_set(keys, [payload(64 * KIB, index) for index in range(9)]).ok
    for key in keys[:6]:
        cluster.node_of(f"kv:{key}").cli("SETRANGE", f"kv:{key}", 5000, "damage")
    result = here.batch_get(keys, [poisoned(64 * KIB) for _ in keys])
    assert list(result) == [Status.CORRUPT] * 6 + [Status.OK] * 3
    until(lambda: sum(node.cli("DBSIZE") for node in cluster.nodes) == 3, 10)


# The other shapes of a call.


def test_raw_batches_come_back_whole(cluster: Cluster) -> None:
    with opened("native", cluster) as client:
        assert store(client, SIZES).ok
        submitted = {client.submit_batch_exists(KEYS) for _ in range(50)}
        completed = completions(client, 50)
        assert set(completed) == submitted
        assert all(result.ok for result in completed.values())


def test_many_asyncio_batches_at_once(cluster: Cluster) -> None:
    async def work() -> None:
        async with AsyncRedisClient.from_url(cluster.url) as client:
            values = [payload(SIZES[key], 5) for key in KEYS]
            assert (await client.batch_set(KEYS, values)).ok
            targets = [[poisoned(size) for size in SIZES.values()] for _ in range(12)]
            results = await asyncio.gather(*(client.batch_get(KEYS, one) for one in targets))
            assert all(result.ok for result in results)
            assert all(target == values for target in targets)

    with within(30):
        asyncio.run(work())


def test_cancelled_in_the_middle(proxied_cluster: Cluster) -> None:
    sizes = {f"chunk-{index}": MIB for index in range(24)}
    with opened("native", proxied_cluster) as client:
        assert store(client, sizes).ok
        for proxy in proxied_cluster.proxies:
            proxy.down.bandwidth_bytes_per_s = 1e6  # 8 MiB of each shard: 8 s
        before = client.stats()["bytes_received"]
        batch = client.submit_batch_get(list(sizes), [poisoned(MIB) for _ in sizes])
        until(lambda: client.stats()["bytes_received"] > before + KIB, 5)
        client.cancel(batch)
        result = completions(client, 1, 5)[batch]
        assert set(result) <= {Status.OK, Status.CANCELLED}
        assert result.count(Status.CANCELLED) > 4
        for proxy in proxied_cluster.proxies:
            proxy.heal()
        with within(10):
            assert fetch(client, sizes).result.ok
