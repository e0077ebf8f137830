"""Run by LMCache's interpreter: our remote connector in its in-process engine's own objects.

KVFERRY_TEST_SERVER is host:port of a real server, KVFERRY_TEST_PID its process, to stop and resume.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_allocators.pin_memory_allocator import PinMemoryAllocator
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend import LocalCPUBackend
from lmcache.v1.storage_backend.connector import CreateConnector
from lmcache.v1.storage_backend.remote_backend import RemoteBackend

from kvferry import RedisClient

HOST, _, PORT = os.environ["KVFERRY_TEST_SERVER"].partition(":")
PID = int(os.environ["KVFERRY_TEST_PID"])
SHAPE = (2, 2, 16, 2, 32)  # layers, K and V, tokens, heads, head size
CHUNK_BYTES = 2 * 2 * 16 * 2 * 32 * 2
POOL_BYTES = 64 * CHUNK_BYTES
LOADER = "remote_storage_plugin.kvferry."


def key(number: int) -> CacheEngineKey:
    return CacheEngineKey("test_model", 1, 0, number, torch.bfloat16)


class World:
    """What LMCache makes around a connector, in a small size."""

    def __init__(self, url: str | None = None, **extra: Any) -> None:
        settings = {f"{LOADER}host": HOST, f"{LOADER}port": int(PORT), f"{LOADER}num_workers": 2}
        settings |= {f"{LOADER}{name}": value for name, value in extra.items()}
        loading = {"module_path": "kvferry.integrations.lmcache", "class_name": "KvferryAdapter"}
        settings |= {f"{LOADER}{name}": value for name, value in loading.items()}
        self.config = LMCacheEngineConfig.from_defaults(chunk_size=16, extra_config=settings)
        self.config.remote_storage_plugins = None if url else ["kvferry"]
        self.config.remote_url = url
        self.config.blocking_timeout_secs = 1
        self.metadata = LMCacheMetadata(
            model_name="test_model",
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=torch.bfloat16,
            kv_shape=SHAPE,
            chunk_size=16,
        )
        self.cpu = LocalCPUBackend(
            config=self.config,
            metadata=self.metadata,
            memory_allocator=PinMemoryAllocator(POOL_BYTES),
        )
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.url = url or "plugin://kvferry"
        try:
            self.connector: Any = CreateConnector(
                self.url,
                self.loop,
                self.cpu,
                self.config,
                self.metadata,
                plugin_name=None if url else "kvferry",
            )
        except BaseException:  # expected of some: the process has to end nevertheless
            self._stop()
            raise

    def run(self, coroutine: Any, limit_s: float = 20) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(limit_s)

    def chunk(self, seed: int, tokens: int = 16) -> Any:
        made = self.cpu.allocate(torch.Size([2, 2, tokens, 64]), torch.bfloat16)
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(made.tensor.shape, generator=generator)
        made.tensor.copy_(values.to(torch.bfloat16))
        return made

    def put(self, *numbers: int) -> dict[int, torch.Tensor]:
        chunks = [self.chunk(number) for number in numbers]
        copies = {n: each.tensor.clone() for n, each in zip(numbers, chunks, strict=True)}
        self.run(self.connector.batched_put([key(n) for n in numbers], chunks))
        return copies

    def free_chunks(self) -> int:
        """How many chunks of memory nobody holds."""
        held = []
        while True:
            made = self.cpu.allocate(
                torch.Size([2, 2, 16, 64]), torch.bfloat16, eviction=False, busy_loop=False
            )
            if made is None:
                break
            held.append(made)
        for each in held:
            each.ref_count_down()
        return len(held)

    def close(self) -> None:
        self.run(self.connector.close())
        self._stop()

    def _stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


@pytest.fixture(autouse=True)
def _an_empty_server() -> None:
    with socket.create_connection((HOST, int(PORT)), 5) as talk:
        talk.sendall(b"FLUSHALL\r\n")
        assert talk.recv(64).startswith(b"+OK")


@pytest.fixture(params=[False, True], ids=["plain", "verified"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(verify=request.param)
    yield made
    made.close()


@pytest.fixture
def asleep() -> Iterator[None]:
    os.kill(PID, signal.SIGSTOP)
    yield
    os.kill(PID, signal.SIGCONT)


def equal(found: Any, tensor: torch.Tensor) -> bool:
    return found is not None and torch.equal(found.tensor, tensor)


def test_round_trip(world: World) -> None:
    stored = world.put(1, 2, 3)
    assert world.run(world.connector.exists(key(2)))
    assert world.connector.exists_sync(key(3))
    assert not world.connector.exists_sync(key(9))
    found = world.run(world.connector.batched_get([key(1), key(2), key(3)]))
    assert all(equal(each, stored[i + 1]) for i, each in enumerate(found))
    assert equal(world.run(world.connector.get(key(3))), stored[3])


def test_the_other_form_of_the_url() -> None:
    url = f"external://{HOST}:{PORT}/kvferry.integrations.lmcache/?connector_name=KvferryConnector"
    made = World(url)
    stored = made.put(1)
    assert equal(made.run(made.connector.get(key(1))), stored[1])
    made.close()


def test_what_is_missing_is_none_and_gives_its_memory_back(world: World) -> None:
    """LMCache's RESP connector hands out memory that was never filled."""
    stored = world.put(1, 3)
    before = world.free_chunks()
    assert world.run(world.connector.get(key(2))) is None
    found = world.run(world.connector.batched_get([key(n) for n in (1, 2, 3)]))
    assert [each is None for each in found] == [False, True, False]
    assert equal(found[0], stored[1])
    assert equal(found[2], stored[3])
    for each in found:
        if each is not None:
            each.ref_count_down()
    prefix = world.run(world.connector.batched_get_non_blocking("", [key(n) for n in (1, 2, 3)]))
    assert len(prefix) == 1
    assert equal(prefix[0], stored[1])
    prefix[0].ref_count_down()
    assert world.free_chunks() == before


def test_counting_a_prefix(world: World) -> None:
    world.put(1, 2, 4)
    keys = [key(n) for n in (1, 2, 3, 4)]
    assert world.connector.batched_contains(keys) == 2
    assert world.run(world.connector.batched_async_contains("", keys)) == 2
    assert world.connector.batched_contains([]) == 0


def test_more_chunks_than_memory_are_misses_at_once(world: World) -> None:
    """To wait for memory on the loop would be to wait for ever: who frees it runs there."""
    world.put(*range(20))
    held = [world.chunk(0) for _ in range(world.free_chunks() - 5)]
    found = world.run(world.connector.batched_get([key(n) for n in range(20)]))
    assert sum(each is not None for each in found) == 5
    assert all(each is not None for each in found[:5])
    assert held


def test_many_threads_ask_and_none_waits_for_ever(world: World) -> None:
    """LMCache's sync calls lose a completion now and then."""
    world.put(1)
    answers: list[bool] = []

    def ask() -> None:
        answers.extend(world.connector.exists_sync(key(1)) for _ in range(400))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert answers == [True] * 1600


def test_a_shorter_last_chunk(world: World) -> None:
    short = world.chunk(5, tokens=7)
    copy = short.tensor.clone()
    world.run(world.connector.put(key(5), short))
    found = world.run(world.connector.get(key(5)))
    assert found.tensor.shape == copy.shape
    assert torch.equal(found.tensor, copy)


def test_remove_list_and_ping(world: World) -> None:
    world.put(1, 2)
    assert world.run(world.connector.ping()) == 0
    assert sorted(world.run(world.connector.list())) == [key(1).to_string(), key(2).to_string()]
    assert world.connector.remove_sync(key(1))
    assert not world.connector.remove_sync(key(1))
    assert not world.connector.exists_sync(key(1))


def test_plain_values_are_the_bytes_under_lmcaches_keys() -> None:
    made = World()
    stored = made.put(7)
    raw = bytearray(CHUNK_BYTES)
    with RedisClient(HOST, int(PORT)) as client:
        assert client.get(key(7).to_string(), raw)
    assert bytes(raw) == stored[7].view(torch.uint8).numpy().tobytes()
    made.close()


def test_a_silent_store_costs_a_deadline_and_no_memory(asleep: None) -> None:
    made = World(timeout_s=0.5, connect_timeout_s=0.5)
    before = made.free_chunks()
    start = time.monotonic()
    assert made.run(made.connector.batched_get([key(n) for n in range(8)])) == [None] * 8
    assert made.connector.batched_contains([key(1)]) == 0
    assert not made.connector.exists_sync(key(1))
    assert made.run(made.connector.ping()) != 0
    with pytest.raises(Exception, match=r"."):
        made.run(made.connector.put(key(1), made.chunk(1)))
    assert time.monotonic() - start < 15
    assert made.free_chunks() == before
    made.close()


def test_a_get_that_lmcache_gives_up_leaves_its_memory_alone(asleep: None) -> None:
    """The memory is free again only when nothing can be written into it any more."""
    made = World()  # deadlines of seconds
    before = made.free_chunks()
    backend = made.connector.getWrappedConnector()
    future = asyncio.run_coroutine_threadsafe(backend.get(key(1)), made.loop)
    until = time.monotonic() + 10
    while made.free_chunks() == before and time.monotonic() < until:
        time.sleep(0.01)
    assert made.free_chunks() == before - 1
    future.cancel()
    while made.free_chunks() < before and time.monotonic() < until:
        time.sleep(0.01)
    assert made.free_chunks() == before
    assert made.run(_batches_running(backend)) == 0
    made.close()


async def _batches_running(connector: Any) -> int:
    return int(connector.stats()["batches_running"])


def test_failed_puts_are_counted_and_closing_ends() -> None:
    """In LMCache's backend; its RESP connector's close waits for itself."""
    made = World(port=1, timeout_s=0.5)  # nobody listens there
    backend = RemoteBackend(
        made.config, made.metadata, made.loop, made.cpu, "cpu", plugin_name="kvferry"
    )
    future = backend.submit_put_task(key(1), made.chunk(1))
    with pytest.raises(Exception, match=r"."):
        future.result(10)
    until = time.monotonic() + 10
    while backend.put_failed_count < 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert backend.put_failed_count == 1
    assert backend.get_blocking(key(1)) is None
    assert backend.batched_contains([key(1)]) == 0
    closing = threading.Thread(target=backend.close)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    made.close()


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"num_worker": 2}, "num_workers"),
        ({"timeout_s": "soon"}, "timeout_s"),
        ({"verify": "yes"}, "verify"),
    ],
)
def test_a_wrong_setting_is_named(extra: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        World(**extra)


def test_what_we_cannot_do_is_refused() -> None:
    from kvferry.integrations.lmcache.remote import engine_settings

    config = LMCacheEngineConfig.from_defaults(chunk_size=16)
    config.remote_serde = "cachegen"
    with pytest.raises(ValueError, match="remote_serde"):
        engine_settings(config)
    config.remote_serde = "naive"
    config.use_layerwise = True
    with pytest.raises(ValueError, match="use_layerwise"):
        engine_settings(config)


def test_after_close_everything_misses() -> None:
    made = World()
    made.put(1)
    connector = made.connector
    made.run(connector.close())
    assert made.run(connector.get(key(1))) is None
    assert not connector.exists_sync(key(1))
    assert connector.batched_contains([key(1)]) == 0
    made.close()
