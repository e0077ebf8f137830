"""Stores that are full below their limit: that is said once, and chunks keep turning over."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kvferry import TieredCache
from kvferry.client.batch import Status
from kvferry.connectors.base import ScanBatch
from support.cluster import Cluster
from support.dict_store import DictStore
from support.engines import CHUNK, LAYOUT, MIB, check, expected, open_engine, pages_gb, prompt
from support.servers import TestServer
from support.stamps import until

SIZE = LAYOUT.chunk_bytes
GB = 1 << 30
LIMIT_GB = 64 * MIB / GB
CHUNKS = 16  # of a prompt
LIMIT_S = 60.0


def put(engine: TieredCache, seed: int) -> list[int]:
    tokens = prompt(CHUNKS * CHUNK, seed)
    engine.store(tokens, expected(tokens, engine.identity))
    assert engine.flush(LIMIT_S)
    return tokens


def kept(engine: TieredCache, made: list[list[int]]) -> int:
    """How many of these the store has whole, every byte as it should be."""
    engine.clear(stores=False)
    whole = 0
    for tokens in made:
        whole += check(engine, tokens) == CHUNKS * CHUNK
        engine.clear(stores=False)
    return whole


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name == "kvferry.cache"
    ]


def turns_over(engine: TieredCache, caplog: pytest.LogCaptureFixture, prompts: int) -> None:
    """The last ten prompts of many are kept as the first ten were, and one line says why."""
    first = [put(engine, seed) for seed in range(10)]
    assert kept(engine, first) == 10
    made = [put(engine, 100 + seed) for seed in range(prompts)]
    assert kept(engine, made[-10:]) == 10
    (line,) = told(caplog)
    assert "is full: it takes no more than" in line
    assert engine.stats()["metrics"]["kvferry_shed_chunks_total"]["store_full"] == 0


def file_store(path: Path) -> dict[str, Any]:
    return {"type": "file", "path": str(path), "max_capacity_gb": LIMIT_GB}


def redis_store(server: TestServer | Cluster, limit_gb: float = LIMIT_GB) -> dict[str, Any]:
    return {"type": "redis", "url": server.url, "max_capacity_gb": limit_gb}


@contextmanager
def small_disk(path: Path, options: str) -> Iterator[Path]:
    path.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("a file system of its own takes root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("options", ["size=4m", "size=64m,nr_inodes=700"], ids=["bytes", "inodes"])
def test_a_disk_that_is_full_below_the_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: str
) -> None:
    with small_disk(tmp_path / "disk", options) as disk:
        store, pages = file_store(disk / "kv"), pages_gb(64)
        with open_engine(stores=[store], max_local_cpu_size=pages) as engine:
            turns_over(engine, caplog, 60)
        with suppress(OSError):  # others take what is left
            for number in range(10_000):
                (disk / str(number)).write_bytes(bytes(4096))
        with open_engine(stores=[store], max_local_cpu_size=pages) as engine:
            made = [put(engine, 1000 + seed) for seed in range(30)]
            assert kept(engine, made[-5:]) == 5


class Quota(DictStore):
    """Takes so many bytes of values, and refuses the rest in the words of a quota."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.refusals = 0
        self.deleted = 0
        self.by_others = 0  # bytes

    def set_one(self, name: bytes, value: memoryview, ttl_s: float | None, left_s: float) -> Status:
        if (len(self.held) + 1) * SIZE + self.by_others > self.most:
            self.refusals += 1
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return super().set_one(name, value, ttl_s, left_s)

    def delete_one(self, name: bytes, left_s: float) -> Status:
        status = super().delete_one(name, left_s)
        self.deleted += status is Status.OK
        return status

    def scan(self, limit: int = 1000) -> Iterator[ScanBatch]:
        prefix = len(self.space.prefix)
        yield [(name[prefix:].decode(), 0.0) for name in list(self.held)]


def test_a_quota_of_which_nobody_told_us(caplog: pytest.LogCaptureFixture) -> None:
    store = Quota(2 * MIB)
    with open_engine(store, max_local_cpu_size=pages_gb(64)) as engine:
        turns_over(engine, caplog, 60)
    assert store.refusals < 200  # far below one for each of the 1,120 chunks


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru"])
@pytest.mark.parametrize("limit_gb", [LIMIT_GB, 0.0], ids=["limit", "no-limit"])
def test_a_server_that_is_full_below_the_limit(
    start: Callable[..., TestServer],
    caplog: pytest.LogCaptureFixture,
    policy: str,
    limit_gb: float,
) -> None:
    server = start("redis7", "--maxmemory", "8mb", "--maxmemory-policy", policy)
    with open_engine(
        stores=[redis_store(server, limit_gb)], max_local_cpu_size=pages_gb(64)
    ) as engine:
        turns_over(engine, caplog, 120)


def test_a_server_whose_limit_is_lowered_while_it_is_used(
    start: Callable[..., TestServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = start("redis7", "--maxmemory", "64mb", "--maxmemory-policy", "noeviction")
    with open_engine(stores=[redis_store(server)], max_local_cpu_size=pages_gb(64)) as engine:
        made = [put(engine, 1000 + seed) for seed in range(200)]
        assert kept(engine, made[-10:]) == 10
        server.cli("CONFIG", "SET", "maxmemory", "10mb")
        turns_over(engine, caplog, 60)


def test_a_cluster_of_which_one_node_is_full(
    fresh_cluster: Callable[..., Cluster], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = fresh_cluster("redis7", primaries=3)
    for index in range(3):
        node = cluster.primary(index)
        node.cli("CONFIG", "SET", "maxmemory-policy", "noeviction")
        node.cli("CONFIG", "SET", "maxmemory", "6mb" if index == 1 else "64mb")
    with open_engine(stores=[redis_store(cluster)], max_local_cpu_size=pages_gb(64)) as engine:
        turns_over(engine, caplog, 150)


def test_room_that_comes_back_is_found(caplog: pytest.LogCaptureFixture) -> None:
    store = Quota(MIB)
    with open_engine(store, max_local_cpu_size=pages_gb(64)) as engine:
        for seed in range(30):
            put(engine, seed)
        assert len(store.held) * SIZE <= MIB
        store.most = 4 * MIB
        seeds = iter(range(1000, 10_000))

        def is_found() -> bool:
            put(engine, next(seeds))
            return len(store.held) * SIZE > 2 * MIB

        until(is_found, LIMIT_S)


def test_a_refusal_that_was_for_a_moment_costs_no_chunk() -> None:
    store = Quota(64 * MIB)
    with open_engine(store, max_local_cpu_size=pages_gb(64)) as engine:
        for seed in range(50):
            put(engine, seed)
        store.most, before = 0, store.refusals
        taken = store.set_one

        def recovers(name: bytes, value: memoryview, ttl_s: float | None, left_s: float) -> Status:
            if store.refusals > before:
                store.most = 64 * MIB
            return taken(name, value, ttl_s, left_s)

        store.set_one = recovers  # type: ignore[method-assign]
        put(engine, 1000)
        assert store.deleted == 0
        assert len(store.held) == 51 * CHUNKS


def test_what_others_fill_does_not_empty_the_store() -> None:
    """Whatever is deleted is taken by somebody else: then little more is deleted."""
    store = Quota(4 * MIB)
    with open_engine(store, max_local_cpu_size=pages_gb(64)) as engine:
        seed = 0
        while not store.refusals:
            put(engine, seed := seed + 1)
        before = len(store.held)
        for seed in range(10_000, 10_060):
            store.by_others = store.most - len(store.held) * SIZE  # again, all that there is
            put(engine, seed)
        assert len(store.held) > 0.4 * before


def test_several_that_are_refused_evict_once() -> None:
    store = Quota(4 * MIB)
    engines = [open_engine(store, max_local_cpu_size=pages_gb(64)) for _ in range(4)]
    try:
        seed = 0
        while not store.refusals:
            put(engines[0], seed := seed + 1)
        before = len(store.held)
        store.deleted = 0
        for number, engine in enumerate(engines):
            tokens = prompt(CHUNKS * CHUNK, 5000 + number)
            engine.store(tokens, expected(tokens))
        for engine in engines:
            assert engine.flush(LIMIT_S)
        assert store.deleted <= 0.3 * before
    finally:
        for engine in engines:
            engine.close()


def test_a_store_from_which_nothing_is_evicted_is_told_of_once(
    start: Callable[..., TestServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = start("redis7", "--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
    store = {**redis_store(server), "eviction": {"eviction_policy": "none"}}
    with open_engine(stores=[store], max_local_cpu_size=pages_gb(64)) as engine:
        first = [put(engine, seed) for seed in range(10)]
        for seed in range(100, 220):
            put(engine, seed)
        assert kept(engine, first) == 10
        assert len(told(caplog)) <= 2, told(caplog)
        assert engine.stats()["metrics"]["kvferry_shed_chunks_total"]["store_full"] > 0
