"""Replays against a real store: the same hits as in memory, every byte checked, nothing left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from kvferry.base.errors import CorruptError, KVFerryError, UnavailableError
from kvferry.client.sync import RedisClient
from kvferry.config import ClientConfig
from kvferry_lab.trace.format import Trace, TraceOptions, load_trace
from kvferry_lab.trace.replay import replay
from kvferry_lab.trace.store_replay import StoreReplay, payload
from support.servers import TestServer

np = pytest.importorskip("numpy")
DATA = Path(__file__).resolve().parents[1] / "data" / "traces"
CHUNK_BYTES = 8192


@pytest.fixture(scope="module")
def trace() -> Trace:
    return load_trace(DATA / "lmcache_agent.jsonl.gz", TraceOptions(chunk_tokens=64))


@pytest.fixture
def client(fresh_server: TestServer) -> Iterator[RedisClient]:
    with RedisClient.from_config(ClientConfig.from_url(fresh_server.url, timeout_s=2)) as client:
        yield client


def test_payload_is_a_function_of_the_key() -> None:
    buffers = [np.empty(1000, np.uint8) for _ in range(3)]
    for buffer, key in zip(buffers, (b"a" * 16, b"a" * 16, b"b" * 16), strict=True):
        payload(key, buffer)
    assert (buffers[0] == buffers[1]).all()
    assert (buffers[0] != buffers[2]).any()


@pytest.mark.parametrize("capacity", [5, 40, 1000])
def test_hits_are_those_of_memory_and_nothing_is_left(
    client: RedisClient, fresh_server: TestServer, trace: Trace, capacity: int
) -> None:
    heard: list[int] = []
    point = StoreReplay(client, CHUNK_BYTES).run(trace, "LRU", capacity, progress=heard.append)
    alone = replay(trace, "LRU", capacity)
    assert (point.prefix_hits, point.block_hits) == (alone.prefix_hits, alone.block_hits)
    assert point.verified_bytes == point.prefix_hits * CHUNK_BYTES > 0
    assert point.evictions == alone.evictions
    assert sum(heard) == len(trace.requests)
    with redis.Redis.from_url(fresh_server.url) as other:
        assert other.dbsize() == 0


def test_the_store_holds_what_the_index_says_and_no_more(
    client: RedisClient, fresh_server: TestServer, trace: Trace
) -> None:
    sizes: list[int] = []
    with redis.Redis.from_url(fresh_server.url) as other:
        StoreReplay(client, CHUNK_BYTES).run(
            trace, "LRU", 30, progress=lambda _: sizes.append(other.dbsize())
        )
    assert max(sizes) == 30


@pytest.mark.parametrize("damage", ["flip", "delete", "swap"])
def test_a_chunk_that_is_not_what_was_stored_ends_the_replay(
    client: RedisClient, fresh_server: TestServer, trace: Trace, damage: str
) -> None:
    with redis.Redis.from_url(fresh_server.url) as other:

        def spoil(_: int) -> None:
            names = sorted(other.keys())
            values = [bytearray(other.get(name)) for name in names]
            if damage == "swap":
                values = values[1:] + values[:1]
            for name, value in zip(names, values, strict=True):
                if damage == "delete":
                    other.delete(name)
                    continue
                if damage == "flip":
                    value[len(value) // 2] ^= 1
                other.set(name, bytes(value))

        with pytest.raises(CorruptError, match="should be in the store, which says"):
            StoreReplay(client, CHUNK_BYTES).run(trace, "LRU", 100, progress=spoil)
        assert other.dbsize() == 0


def test_a_store_that_dies_ends_the_replay_in_time(
    client: RedisClient, fresh_server: TestServer, trace: Trace
) -> None:
    def kill(_: int) -> None:
        fresh_server.kill()

    failed: list[KVFerryError] = []

    def run() -> None:
        try:
            StoreReplay(client, CHUNK_BYTES).run(trace, "LRU", 100, progress=kill)
        except KVFerryError as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert [type(error) for error in failed] == [UnavailableError]


def test_a_full_store_is_said(client: RedisClient, fresh_server: TestServer, trace: Trace) -> None:
    with redis.Redis.from_url(fresh_server.url) as other:
        other.config_set("maxmemory", "3mb")
        other.config_set("maxmemory-policy", "noeviction")
        with pytest.raises(UnavailableError, match="did not take a chunk"):
            StoreReplay(client, 64 * CHUNK_BYTES).run(trace, "LRU", 1000)
