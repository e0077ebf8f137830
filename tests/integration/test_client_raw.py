"""The raw interface: submit, wait for the descriptor, drain. And what the clients share by name."""

from __future__ import annotations

import inspect
import select
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kvferry import AsyncCacheNamespace, AsyncRedisClient, CacheNamespace, RedisClient, Status
from kvferry.client.batch import BatchResult
from kvferry.client.methods import BatchMethods
from kvferry.client.pure.client import PureRedisClient
from support import clock
from support.pure import MIB, payload
from support.scripted import MiniStore, ScriptedServer, silent
from support.servers import TestServer
from support.stamps import until, within


@pytest.fixture
def client(server: TestServer) -> Iterator[RedisClient]:
    with RedisClient(server.host, server.port) as opened:
        yield opened


@pytest.fixture
def deaf() -> Iterator[ScriptedServer]:
    with ScriptedServer(silent(), MiniStore()) as server:
        yield server


def drain(client: RedisClient, count: int, limit_s: float = 20) -> dict[int, BatchResult]:
    """`count` completions, as they come; each wake-up must have brought at least one."""
    results: dict[int, BatchResult] = {}
    poller = select.poll()
    poller.register(client.event_fd(), select.POLLIN)
    deadline = clock.now_s() + limit_s
    while len(results) < count:
        left_ms = (deadline - clock.now_s()) * 1000
        assert left_ms > 0, f"{len(results)} of {count} batches ended"
        if not poller.poll(left_ms):
            continue
        completions = client.drain_completions()
        assert completions
        for batch_id, result in completions:
            assert batch_id not in results, "a batch completed twice"
            results[batch_id] = result
    return results


def readable(client: RedisClient) -> bool:
    poller = select.poll()
    poller.register(client.event_fd(), select.POLLIN)
    return bool(poller.poll(0))


def test_each_verb_completes_once(client: RedisClient) -> None:
    keys, values = ["a", "b"], [payload(1000), payload(MIB)]
    targets = [bytearray(1000), bytearray(MIB)]
    assert not readable(client)
    stored = client.submit_batch_set(keys, values, ttl_s=100)
    deleted = client.submit_batch_delete(["c"])
    results = drain(client, 2)
    assert list(results[stored]) == [Status.OK, Status.OK]
    assert list(results[deleted]) == [Status.MISS]
    rounds = [
        (client.submit_batch_get(keys, targets), [Status.OK, Status.OK]),
        (client.submit_batch_exists([*keys, "c"], touch=True), [Status.OK, Status.OK, Status.MISS]),
    ]
    results = drain(client, 2)
    assert [list(results[batch_id]) for batch_id, _ in rounds] == [want for _, want in rounds]
    assert targets == values
    assert not readable(client)
    assert client.drain_completions() == []


def test_many_batches_share_a_wake_up(client: RedisClient) -> None:
    client.set("k", payload(5000))
    targets = [bytearray(5000) for _ in range(500)]
    ids = [client.submit_batch_get(["k", "none"], [target, bytearray(1)]) for target in targets]
    assert len(set(ids)) == 500
    assert ids == sorted(ids)
    settled = 1 + 2 * len(ids)  # all are finished, or as good as, and none was drained
    until(lambda: int(client.stats()["commands_settled"]) >= settled, 20)
    poller = select.poll()
    poller.register(client.event_fd(), select.POLLIN)
    wake_ups = 0
    results: dict[int, BatchResult] = {}
    while len(results) < 500:
        assert poller.poll(10_000)
        results.update(client.drain_completions())
        wake_ups += 1
    assert wake_ups < 50
    assert sorted(results) == ids
    assert all(list(result) == [Status.OK, Status.MISS] for result in results.values())
    assert all(target == payload(5000) for target in targets)


def test_blocking_calls_do_not_wake_the_descriptor(client: RedisClient) -> None:
    client.set("k", b"v")
    assert client.get("k", bytearray(1)) is True
    assert not readable(client)
    assert client.drain_completions() == []


def test_buffers_belong_to_the_batch_until_it_is_drained(client: RedisClient) -> None:
    client.set("k", payload(100))
    target = bytearray(100)
    batch_id = client.submit_batch_get(["k"], [target])
    poller = select.poll()
    poller.register(client.event_fd(), select.POLLIN)
    assert poller.poll(10_000)
    with pytest.raises(BufferError):
        target.append(0)
    assert client.drain_completions()[0][0] == batch_id
    target.append(0)
    assert target[:100] == payload(100)


def test_a_cancelled_batch_completes_once_and_soon(deaf: ScriptedServer) -> None:
    with RedisClient(deaf.host, deaf.port) as client:
        target = bytearray(MIB)
        waiting = [client.submit_batch_get(["k"], [target]), client.submit_batch_exists(["k"])]
        time.sleep(0.1)
        assert client.drain_completions() == []
        with within(1):
            for batch_id in waiting:
                client.cancel(batch_id)
                client.cancel(batch_id)
            results = drain(client, 2)
        assert all(list(result) == [Status.CANCELLED] for result in results.values())
        target.append(0)
        for batch_id in waiting:
            client.cancel(batch_id)  # too late, and harmless
        time.sleep(0.1)
        assert client.drain_completions() == []
        client.cancel(10**9)


def test_cancelling_spares_other_batches(client: RedisClient) -> None:
    values = [payload(4 * MIB, seed) for seed in range(8)]
    keys = [f"k{index}" for index in range(8)]
    assert client.batch_set(keys, values).ok
    for _ in range(5):
        targets = [bytearray(4 * MIB) for _ in range(16)]
        doomed = client.submit_batch_get(keys, targets[:8])
        kept = client.submit_batch_get(keys, targets[8:])
        client.cancel(doomed)
        results = drain(client, 2)
        assert results[kept].ok
        assert targets[8:] == values
        assert set(results[doomed]) <= {Status.OK, Status.CANCELLED}
        for index, status in enumerate(results[doomed]):
            assert status is Status.CANCELLED or targets[index] == values[index]


def test_a_batch_that_times_out_completes(deaf: ScriptedServer) -> None:
    with RedisClient(deaf.host, deaf.port) as client, within(1):
        began = time.monotonic()
        batch_id = client.submit_batch_get(["k", "l"], [bytearray(9), bytearray(9)], timeout_s=0.2)
        result = drain(client, 1)[batch_id]
        assert list(result) == [Status.TIMEOUT] * 2
        assert 0.15 < result.elapsed_s <= time.monotonic() - began


def test_close_completes_what_is_in_flight(deaf: ScriptedServer) -> None:
    client = RedisClient(deaf.host, deaf.port)
    target = bytearray(100)
    ids = [client.submit_batch_get(["k"], [target])]
    ids += [client.submit_batch_exists(["k"] * 100) for _ in range(50)]
    with within(1):
        client.close()
    assert readable(client)
    results = dict(client.drain_completions())
    assert sorted(results) == ids
    assert all(set(result) == {Status.CANCELLED} for result in results.values())
    target.append(0)


def test_an_abandoned_batch_does_no_harm(server: TestServer) -> None:
    """Nobody drains; the client ends; the memory is let go."""
    target = bytearray(8 * MIB)
    client = RedisClient(server.host, server.port)
    client.set("k", target)
    client.submit_batch_get(["k"], [target])
    client.close()
    del client
    target.append(0)


# What they share by name.


def public(kind: type) -> dict[str, inspect.Signature]:
    members = inspect.getmembers(kind, callable)
    return {name: inspect.signature(member) for name, member in members if not name.startswith("_")}


def same(one: inspect.Signature, other: inspect.Signature) -> bool:
    return one.replace(return_annotation=None) == other.replace(return_annotation=None)


ONLY_NATIVE = {
    "announce",
    "namespace",
    "event_fd",
    "from_file",
    "nodes",
    "presence",
    "presence_stats",
    "drain_completions",
    "cancel",
    "submit_batch_get",
    "submit_batch_set",
    "submit_batch_exists",
    "submit_batch_delete",
}


@pytest.mark.parametrize(
    ("other", "more", "less"),
    [(AsyncRedisClient, {"aclose"}, set()), (PureRedisClient, set(), ONLY_NATIVE)],
)
def test_clients_have_one_interface(other: type, more: set[str], less: set[str]) -> None:
    ours, theirs = public(RedisClient), public(other)
    assert set(theirs) == set(ours) - less | more
    for name in set(theirs) - more:
        assert same(ours[name], theirs[name]), f"{name}: {ours[name]} or {theirs[name]}"


def test_namespaces_have_one_interface() -> None:
    ours, theirs = public(CacheNamespace), public(AsyncCacheNamespace)
    assert set(ours) == set(theirs)
    for name, signature in ours.items():
        assert same(signature, theirs[name])
        assert same(signature, public(RedisClient)[name])


@pytest.mark.parametrize("kind", [AsyncRedisClient, AsyncCacheNamespace])
def test_asyncio_awaits_what_others_wait_for(kind: type[Any]) -> None:
    waits = {"get", "set", "exists", "delete", "ping", "server_info", "aclose", "perform"}
    batches = {name: getattr(BatchMethods, name) for name in vars(BatchMethods) if "batch" in name}
    assert len(batches) == 4
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        if name in batches:  # these return what `perform` does
            assert member is batches[name]
        elif not name.startswith("_"):
            assert inspect.iscoroutinefunction(member) is (name in waits), name


@pytest.mark.parametrize(
    "kind",
    [RedisClient, AsyncRedisClient, PureRedisClient, CacheNamespace, AsyncCacheNamespace],
)
def test_every_method_says_what_it_does(kind: type) -> None:
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        assert name.startswith("_") or member.__doc__, f"{kind.__name__}.{name}"
