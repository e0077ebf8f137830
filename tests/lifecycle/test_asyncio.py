"""The asyncio client and its event loops: cancelled, timed out, crowded, one after the other."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from kvferry import AsyncRedisClient, Status
from kvferry.base import errors
from kvferry.config import ClientConfig
from support.proxy import FaultProxy
from support.pure import MIB, payload
from support.scripted import MiniStore, ScriptedServer, silent
from support.servers import TestServer
from support.stamps import within
from support.tuned import tuned

SIZE_BYTES = 256 << 10
# What waits here waits until the test ends it, however long the machine has other work.
PATIENT = {"timeout_s": 60.0, "connect_timeout_s": 60.0, "stall_timeout_s": 60.0}


@pytest.fixture
def deaf() -> Iterator[ScriptedServer]:
    with ScriptedServer(silent(), MiniStore()) as server:
        yield server


def client_of(server: Any, **settings: Any) -> AsyncRedisClient:
    return AsyncRedisClient(server.host, server.port, **tuned(ClientConfig, **(PATIENT | settings)))


async def round_trip(client: AsyncRedisClient, key: str, value: bytes) -> None:
    target = bytearray(len(value))
    await client.set(key, value)
    assert await client.get(key, target) is True
    assert target == value


def test_tasks_share_a_client(valkey: TestServer) -> None:
    async def main() -> None:
        async with client_of(valkey) as client:
            await asyncio.gather(
                *(round_trip(client, f"k{n}", payload(1000 + n, n)) for n in range(1000))
            )
            assert client._waiting == {}

    asyncio.run(main())


def test_the_loop_goes_on_while_a_batch_flies(deaf: ScriptedServer) -> None:
    async def main() -> None:
        async with client_of(deaf) as client:
            waiting = asyncio.create_task(client.batch_exists(["k"]))
            for _ in range(20):
                await asyncio.sleep(0.01)
                assert not waiting.done()
            assert list(await client.batch_exists(["k"], timeout_s=0.3)) == [Status.TIMEOUT]
            assert not waiting.done()

    asyncio.run(main())


# Loops.


def test_one_loop_after_the_other(valkey: TestServer) -> None:
    client = client_of(valkey)
    for turn in range(5):
        asyncio.run(round_trip(client, "k", payload(5000, turn)))
    assert client.stats()["connections_lost"] == 0
    client.close()


def test_a_loop_that_ended_with_work_in_flight(deaf: ScriptedServer, valkey: TestServer) -> None:
    async def abandon(client: AsyncRedisClient, target: bytearray) -> None:
        client.submit_batch_get(["k"], [target])
        task = asyncio.create_task(client.batch_get(["k"], [bytearray(5)]))
        await asyncio.sleep(0.05)
        assert not task.done()

    async def check(client: AsyncRedisClient) -> None:
        assert list(await client.batch_exists(["k"], timeout_s=0.2)) == [Status.TIMEOUT]

    client, target = client_of(deaf), bytearray(5)
    with within(3):
        asyncio.run(abandon(client, target))
        asyncio.run(check(client))
        client.close()
    target.append(0)


def test_another_running_loop_is_refused(valkey: TestServer) -> None:
    async def main() -> None:
        async with client_of(valkey) as client:
            await round_trip(client, "k", b"value")
            with pytest.raises(errors.UsageError, match="event loop"):
                await asyncio.to_thread(asyncio.run, client.exists("k"))
            await round_trip(client, "k", b"value")  # and does no harm

    asyncio.run(main())


def test_outside_of_a_loop_nothing_is_sent(valkey: TestServer) -> None:
    client = client_of(valkey)
    waiting = client.exists("k")
    with pytest.raises(RuntimeError, match="no running event loop"):
        waiting.send(None)
    client.close()
    assert client.stats()["commands_settled"] == 0


def test_a_closed_client_says_so_and_lets_the_loop_go(valkey: TestServer) -> None:
    async def main() -> weakref.ref[AsyncRedisClient]:
        client = client_of(valkey)
        await round_trip(client, "k", b"value")
        await client.aclose()
        await client.aclose()
        for _ in range(2):
            with pytest.raises(errors.ClosedError):
                await client.exists("k")
        reference = weakref.ref(client)
        del client
        gc.collect()
        assert reference() is None, "the loop still watches it"
        return reference

    asyncio.run(main())


def test_close_settles_every_await(deaf: ScriptedServer) -> None:
    async def main() -> None:
        client = client_of(deaf)
        tasks = [asyncio.create_task(client.batch_exists(["k"])) for _ in range(50)]
        tasks += [asyncio.create_task(client.batch_get(["k"], [bytearray(9)])) for _ in range(50)]
        await asyncio.sleep(0.1)
        with within(1):
            await client.aclose()
            results = await asyncio.gather(*tasks)
        assert all(list(result) == [Status.CANCELLED] for result in results)

    asyncio.run(main())


def test_a_dropped_client_ends_with_its_loop(valkey: TestServer) -> None:
    def use() -> weakref.ref[AsyncRedisClient]:
        client = client_of(valkey)
        asyncio.run(round_trip(client, "k", b"value"))
        return weakref.ref(client)

    reference = use()
    gc.collect()
    assert reference() is None


# Cancelling.


def test_a_cancelled_await_gives_its_buffer_back(deaf: ScriptedServer) -> None:
    async def main() -> None:
        async with client_of(deaf) as client:
            target = bytearray(MIB)
            task = asyncio.create_task(client.batch_get(["k"], [target]))
            await asyncio.sleep(0.05)
            with pytest.raises(BufferError):
                target.append(0)
            with within(0.5):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            target.append(0)

    asyncio.run(main())


def test_wait_for(deaf: ScriptedServer) -> None:
    async def main() -> None:
        async with client_of(deaf) as client:
            for _ in range(5):
                target = bytearray(MIB)
                with within(0.5), pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.get("k", target), 0.05)
                target.append(0)
            with within(0.5), pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.batch_set(["k"] * 10, [bytes(MIB)] * 10)

    asyncio.run(main())


def test_cancelling_again_and_again_does_not_free_the_buffer_early(deaf: ScriptedServer) -> None:
    async def main() -> None:
        async with client_of(deaf) as client:
            target = bytearray(MIB)
            task = asyncio.create_task(client.batch_get(["k"], [target]))
            await asyncio.sleep(0.02)
            while not task.done():
                task.cancel()
                await asyncio.sleep(0)
            assert task.cancelled()
            target.append(0)

    asyncio.run(main())


def storm(server: Any, seed: int) -> Coroutine[Any, Any, None]:
    """Tasks that are cancelled at random moments, between others that must be right."""
    chance = random.Random(seed)
    values = {f"k{n}": payload(SIZE_BYTES, n) for n in range(8)}

    async def doomed(client: AsyncRedisClient) -> None:
        keys = chance.choices(list(values), k=6)
        targets = [bytearray(SIZE_BYTES) for _ in keys]
        task = asyncio.create_task(client.batch_get(keys, targets))
        await asyncio.sleep(chance.random() * 0.004)
        task.cancel()
        try:
            result = await task
        except asyncio.CancelledError:
            for target in targets:
                target[:] = bytes(SIZE_BYTES)  # ours again: nothing may be written any more
            await asyncio.sleep(chance.random() * 0.01)
            assert all(target == bytes(SIZE_BYTES) for target in targets)
        else:
            check(keys, targets, result)

    async def right(client: AsyncRedisClient) -> None:
        for _ in range(8):
            keys = chance.choices(list(values), k=6)
            targets = [bytearray(SIZE_BYTES) for _ in keys]
            check(keys, targets, await client.batch_get(keys, targets))

    def check(keys: list[str], targets: list[bytearray], result: Any) -> None:
        assert result.ok, result
        assert all(target == values[key] for key, target in zip(keys, targets, strict=True))

    async def main() -> None:
        async with client_of(server) as client:
            assert (await client.batch_set(list(values), list(values.values()))).ok
            for _ in range(4):
                await asyncio.gather(
                    *(doomed(client) for _ in range(25)), *(right(client) for _ in range(3))
                )
            assert client._waiting == {}
            assert client.stats()["batches_running"] == 0

    return main()


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_cancellations(valkey: TestServer, seed: int) -> None:
    asyncio.run(storm(valkey, seed))


def test_a_storm_of_cancellations_on_a_slow_way(
    valkey: TestServer, proxied: Callable[[TestServer], FaultProxy]
) -> None:
    proxy = proxied(valkey)
    proxy.down.delay_s = 0.003
    asyncio.run(storm(proxy, 9))


def test_a_task_group_that_fails_takes_its_batches_along(deaf: ScriptedServer) -> None:
    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise ZeroDivisionError

    async def main() -> None:
        async with client_of(deaf) as client:
            targets = [bytearray(1000) for _ in range(20)]

            async def together() -> None:
                async with asyncio.TaskGroup() as group:
                    for target in targets:
                        group.create_task(client.get("k", target))
                    group.create_task(fail())

            with within(1), pytest.raises(ExceptionGroup) as caught:
                await together()
            assert caught.group_contains(ZeroDivisionError)
            for target in targets:
                target.append(0)

    asyncio.run(main())
