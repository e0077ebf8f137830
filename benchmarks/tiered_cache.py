"""Bars of the engine: what it adds to the client it loads with, and to a copy in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final

from benchmarks.bars import Bar, Lab, Target
from benchmarks.prompt import PromptKV
from kvferry.base.errors import CorruptError, DeadlineExceeded
from kvferry.cache import TieredCache
from kvferry.cache.tiered_cache import LOAD_THREADS
from kvferry.client.sync import RedisClient
from kvferry.config import CacheConfig, ClientConfig
from kvferry.config.stores import StoreConfig
from kvferry.config.tuning import CacheTuning
from kvferry_lab.bench.intervals import in_turn

__all__ = ["engine_loads", "engine_memory"]

_STORE: Final = "redis"
_FLUSH_S = 120.0
_CALL_S = 60.0
_OF_CLIENT = Target(">=", 0.90, "x raw client")
_OF_MEMCPY = Target(">=", 0.90, "x memcpy")


def engine_loads(lab: Lab) -> Iterator[Bar]:
    """Retrieve of 1.3 GB from Valkey, against the raw client's batch_get of the same keys."""
    kv = PromptKV(lab)
    with (
        lab.server(needs_bytes=kv.size_bytes) as config,
        closing(_engine(kv, config)) as engine,
        closing(RedisClient.from_config(config)) as client,
    ):
        _store(engine, kv)
        if not engine.flush(_FLUSH_S):
            raise DeadlineExceeded("the store did not take the prompt in time")

        def pages() -> float:
            engine.clear(stores=False)
            return _retrieve(engine, kv, _STORE, pages=True)

        def into() -> float:
            engine.clear(stores=False)
            return _retrieve(engine, kv, _STORE, pages=False)

        def raw() -> float:
            kv.poison()
            start = time.perf_counter()
            result = client.batch_get(kv.keys, kv.frames, timeout_s=_CALL_S)
            wall_s = time.perf_counter() - start
            result.raise_for_errors()
            kv.verify(kv.targets)
            return wall_s

        in_pages, plain, in_buffers = in_turn(lab.pairs, pages, raw, into)
    for walls, words in ((in_pages, "pages"), (in_buffers, "into buffers")):
        name = f"retrieve of {kv.label} from Valkey 9, {words}"
        yield kv.compared(name, _OF_CLIENT, walls, plain, "raw client")


def engine_memory(lab: Lab) -> Iterator[Bar]:
    """Retrieve from memory, against memcpy with as many threads."""
    kv = PromptKV(lab)
    with closing(_engine(kv, None)) as engine:
        _store(engine, kv)
        threads = min(LOAD_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads) as workers:
            into, memcpy, pages = in_turn(
                lab.pairs,
                lambda: _retrieve(engine, kv, "l1", pages=False),
                lambda: kv.memcpy(workers, threads),
                lambda: _retrieve(engine, kv, "l1", pages=True),
            )
    for walls, words in ((into, "into buffers"), (pages, "leased pages, no copy")):
        name = f"retrieve of {kv.label} from L1, {words}"
        yield kv.compared(name, _OF_MEMCPY, walls, memcpy, f"memcpy, {threads} threads")


def _engine(kv: PromptKV, server: ClientConfig | None) -> TieredCache:
    """An engine of these settings alone: neither file nor environment."""
    stores = (StoreConfig(type=_STORE, name=_STORE, client=server),) if server else ()
    return TieredCache(
        kv.identity,
        CacheConfig(
            chunk_size=kv.identity.layout.chunk_size,
            max_local_cpu_size=kv.pool_gb,
            tuning=CacheTuning(write_queue_bytes_max=2 * kv.size_bytes),
            retrieve_timeout_s=_CALL_S,
            stores=stores,
        ),
    )


def _store(engine: TieredCache, kv: PromptKV) -> None:
    stored = engine.store(kv.tokens, kv.sources)
    if stored.chunks != kv.chunks or any(stored.dropped.values()):
        raise CorruptError(f"the engine did not take the prompt: {stored}")


def _retrieve(engine: TieredCache, kv: PromptKV, tier: str, *, pages: bool) -> float:
    """Seconds until all of the prompt was there; it came from that tier, and is right."""
    kv.poison()
    start = time.perf_counter()
    hit = engine.retrieve(kv.tokens, None if pages else kv.targets)
    wall_s = time.perf_counter() - start
    with hit:
        if hit.tiers.get(tier, 0) != len(kv.tokens):
            raise CorruptError(f"not all of the prompt came from {tier}: {hit}")
        kv.verify(hit.pages if pages else kv.targets)
    return wall_s
