"""A batch that is withdrawn while bytes are on the way: its buffers are the caller's at once."""

from __future__ import annotations

import asyncio
import random
import select
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from kvferry import AsyncRedisClient
from kvferry.client.batch import Status
from support import clock
from support.proxy import FaultProxy
from support.servers import TestServer
from support.stamps import KIB, MIB, check, fetch, poisoned, stamped, store, until, within

Connect = Callable[..., Any]
Proxied = Callable[[TestServer], FaultProxy]
Reach = Callable[[Any], dict[str, Any]]

IDENTITY = b"12345678"
SIZE = 2 * MIB
KEYS = [f"k{index}" for index in range(8)]
MINE = b"\x3c"


@pytest.fixture
def proxy(valkey: TestServer, proxied: Proxied) -> FaultProxy:
    return proxied(valkey)


async def _bytes_move(proxy: FaultProxy, down: bool, count: int) -> None:
    """Wait until `count` more bytes were delivered."""

    def seen() -> int:
        return proxy.bytes_down if down else proxy.bytes_up

    start = seen()
    began = clock.now_s()
    while seen() < start + count:
        assert clock.now_s() - began < 3
        await asyncio.sleep(0.001)


async def _all_up(client: AsyncRedisClient, connections: int) -> None:
    """Wait until no connection greets any more: a fault would strike that one."""

    def up() -> int:
        stats = client.stats()
        return int(stats["connections_opened"]) - int(stats["connections_lost"])

    began = clock.now_s()
    while up() < connections + 1:  # and that of small commands
        assert clock.now_s() - began < 3
        await asyncio.sleep(0.001)


async def _withdrawn(
    begin: Callable[[], Coroutine[Any, Any, Any]], proxy: FaultProxy, down: bool, count: int
) -> None:
    """Cancel a batch when `count` bytes have moved; another one, where the whole was quicker."""
    task = asyncio.create_task(begin())
    await _bytes_move(proxy, down, count)
    while not task.cancel():
        task = asyncio.create_task(begin())
        await _bytes_move(proxy, down, count)
    with within(0.5), pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.ways("tcp", "tls", "unix")
@pytest.mark.parametrize("framed", [False, True], ids=["raw", "framed"])
def test_cancelled_reads_write_nothing_later(proxy: FaultProxy, reach: Reach, framed: bool) -> None:
    rng = random.Random(3)

    async def scenario() -> None:
        async with AsyncRedisClient(**reach(proxy)) as client:
            space: Any = client.namespace("ns:", IDENTITY, SIZE) if framed else client
            values = [stamped(key, 1, SIZE) for key in KEYS]
            assert (await space.batch_set(KEYS, values)).ok
            for _ in range(12):
                proxy.down.bandwidth_bytes_per_s = 80e6
                targets = [poisoned(SIZE) for _ in KEYS]
                read = partial(space.batch_get, KEYS, targets)
                await _withdrawn(read, proxy, True, rng.randrange(1, 6 * MIB))
                for target in targets:
                    target[:] = MINE * SIZE
                proxy.heal()
                again = [poisoned(SIZE) for _ in KEYS]
                result = await space.batch_get(KEYS, again)
                assert result.ok, result.error
                for key, target in zip(KEYS, again, strict=True):
                    check(key, target, {1})
                assert all(target == MINE * SIZE for target in targets)

    asyncio.run(scenario())


def test_buffers_of_a_cancelled_read_serve_the_next_one(proxy: FaultProxy, reach: Reach) -> None:
    """The same memory, for other keys, at once: old replies must not land in it."""

    async def scenario() -> None:
        async with AsyncRedisClient(**reach(proxy), connections=2) as client:
            others = [f"other{index}" for index in range(8)]
            for keys in (KEYS, others):
                values = [stamped(key, 1, SIZE) for key in keys]
                assert (await client.batch_set(keys, values)).ok
            targets = [poisoned(SIZE) for _ in KEYS]
            for turn in range(12):
                proxy.down.bandwidth_bytes_per_s = 80e6
                read = partial(client.batch_get, KEYS, targets)
                await _withdrawn(read, proxy, True, 1 + turn * 300 * KIB)
                proxy.heal()
                with within(3):
                    result = await client.batch_get(others, targets)
                assert result.ok, result.error
                for key, target in zip(others, targets, strict=True):
                    check(key, target, {1})

    asyncio.run(scenario())


@pytest.mark.parametrize("framed", [False, True], ids=["raw", "framed"])
def test_cancelled_writes_store_whole_values_or_none(
    proxy: FaultProxy, reach: Reach, framed: bool
) -> None:
    """The source is rewritten as soon as the await has ended."""
    rng = random.Random(4)

    async def scenario() -> None:
        async with AsyncRedisClient(**reach(proxy)) as client:
            space: Any = client.namespace("ns:", IDENTITY, SIZE) if framed else client
            for version in range(1, 13):
                sources = [bytearray(stamped(key, version, SIZE)) for key in KEYS]
                proxy.up.bandwidth_bytes_per_s = 80e6
                write = partial(space.batch_set, KEYS, sources)
                await _withdrawn(write, proxy, False, rng.randrange(1, 6 * MIB))
                for source in sources:
                    source[:] = MINE * SIZE
                proxy.heal()
                targets = [poisoned(SIZE) for _ in KEYS]
                result = await space.batch_get(KEYS, targets)
                for key, target, status in zip(KEYS, targets, result, strict=True):
                    assert status in (Status.OK, Status.MISS), result.error
                    if status is Status.OK:
                        check(key, target, range(1, version + 1))

    asyncio.run(scenario())


@pytest.mark.ways("tcp", "tls", "unix")
def test_cancelled_while_nothing_comes(proxy: FaultProxy, reach: Reach) -> None:
    async def scenario() -> None:
        async with AsyncRedisClient(**reach(proxy), connections=2) as client:
            await client.batch_set(["k"], [stamped("k", 1, SIZE)])
            for offset in (0, 5, 1000, SIZE - 1):
                await _all_up(client, 2)
                proxy.stall_after(offset, times=2)  # whichever of the two it takes
                target = poisoned(SIZE)
                task = asyncio.create_task(client.batch_get(["k"], [target]))
                await asyncio.sleep(0.05)
                task.cancel()
                with within(0.3), pytest.raises(asyncio.CancelledError):
                    await task
                target[:] = MINE * SIZE
                proxy.heal()
                with within(3):
                    again = poisoned(SIZE)
                    assert (await client.batch_get(["k"], [again])).ok
                check("k", again, {1})
                assert target == MINE * SIZE

    asyncio.run(scenario())


def test_cancel_of_a_submitted_batch(proxy: FaultProxy, connect_native: Connect) -> None:
    """The raw interface: cancelled batches complete, and each exactly once."""
    client = connect_native(proxy)
    sizes = dict.fromkeys(KEYS, SIZE)
    assert store(client, sizes).ok
    proxy.down.bandwidth_bytes_per_s = 100e6
    batches = {}
    for _ in range(6):
        targets = [poisoned(SIZE) for _ in KEYS]
        batches[client.submit_batch_get(KEYS, targets)] = targets
    until(lambda: proxy.bytes_down > 3 * MIB, 3)
    for batch_id in batches:
        client.cancel(batch_id)
        client.cancel(batch_id)
    seen: list[int] = []
    with within(1):
        while len(seen) < len(batches):
            assert select.select([client.event_fd()], [], [], 20)[0]
            for batch_id, result in client.drain_completions():
                seen.append(batch_id)
                assert set(result) <= {Status.OK, Status.CANCELLED}
                for key, target, status in zip(KEYS, batches[batch_id], result, strict=True):
                    if status is Status.OK:
                        check(key, target, {1})
                    target[:] = MINE * SIZE
    assert sorted(seen) == sorted(batches)
    proxy.heal()
    assert fetch(client, sizes).result.ok
    assert all(target == MINE * SIZE for targets in batches.values() for target in targets)
    assert client.stats()["batches_running"] == 0


@pytest.mark.ways("tcp", soak=("tls", "unix"))
@pytest.mark.parametrize("connections", [1, None])
def test_others_do_not_pay_for_a_cancelled_batch(
    proxy: FaultProxy, connect_native: Connect, connections: int | None
) -> None:
    """A withdrawal may cost its connection; a batch beside it is not refused for that."""
    client = connect_native(proxy, connections=connections)
    sizes = dict.fromkeys(KEYS, SIZE)
    assert store(client, sizes).ok
    proxy.down.bandwidth_bytes_per_s = 60e6
    kept_targets = [poisoned(SIZE) for _ in KEYS]
    kept, others = -1, []
    for turn in range(12):
        if turn == 2:
            kept = client.submit_batch_get(KEYS, kept_targets, timeout_s=20)
        targets = [poisoned(SIZE) for _ in KEYS]
        others.append((client.submit_batch_get(KEYS, targets, timeout_s=20), targets))
    outcomes: dict[int, Any] = {}
    for batch_id, _ in others:
        seen = proxy.bytes_down
        until(lambda seen=seen: proxy.bytes_down > seen + 512 * KIB, 3)
        client.cancel(batch_id)
    with within(15):
        while kept not in outcomes:
            select.select([client.event_fd()], [], [], 1)
            outcomes.update(client.drain_completions())
    assert outcomes[kept].ok, outcomes[kept].error
    for key, target in zip(KEYS, kept_targets, strict=True):
        check(key, target, {1})
