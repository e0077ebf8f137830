"""The engine without a server: memory, and stores in this process."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry import Hashes, Identity, KVLayout, TieredCache
from kvferry.base.errors import BadBufferError, ClosedError, ConfigError, UsageError
from kvferry.chunks.keys import chunk_hashes
from kvferry.client.batch import Status
from support import clock
from support.dict_store import DictStore
from support.engines import (
    CHUNK,
    IDENTITY,
    LAYOUT,
    blanks,
    check,
    expected,
    memory_store,
    open_engine,
    pages_gb,
    prompt,
)
from support.servers import TestServer
from support.stamps import until


@pytest.fixture
def engine() -> Iterator[TieredCache]:
    with open_engine() as opened:
        yield opened


@pytest.fixture
def shared() -> str:
    """The name of a store that engines of one test share."""
    return uuid4().hex


def put(engine: TieredCache, tokens: Sequence[int], **options: Any) -> None:
    first = options.get("first_chunk", 0)
    chunks = expected(tokens, engine.identity, engine._salt)[first:]
    stored = engine.store(tokens, chunks, **options)
    assert stored.shed == 0


class Slow(DictStore):
    """It counts what was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = 0

    def get_one(self, name: bytes, target: memoryview, left_s: float) -> Status:
        found = super().get_one(name, target, left_s)
        self.gets += 1
        return found


# What goes in comes out.


def test_what_was_stored_is_retrieved_at_once(engine: TieredCache) -> None:
    tokens = prompt(100)
    put(engine, tokens)
    assert check(engine, tokens, want=96) == 96
    assert engine.lookup(tokens).tiers == {"l1": 96}
    assert engine.contains(tokens) == 96


def test_tokens_behind_the_last_full_chunk_are_left_out(engine: TieredCache) -> None:
    for length, want in [(0, 0), (1, 0), (15, 0), (16, 16), (17, 16), (31, 16), (32, 32)]:
        tokens = prompt(length, seed=length)
        put(engine, tokens)
        check(engine, tokens, want=want)


def test_a_longer_prompt_begins_with_what_a_shorter_one_left(engine: TieredCache) -> None:
    tokens = prompt(200)
    put(engine, tokens[:100])
    check(engine, tokens, want=96)
    put(engine, tokens, first_chunk=6)
    check(engine, tokens, want=192)
    other = prompt(200, seed=1)
    check(engine, tokens[:64] + other, want=64)
    check(engine, other, want=0)


@settings(max_examples=30)
@given(st.data())
def test_no_prompt_ever_gets_the_chunks_of_another(data: st.DataObject) -> None:
    alphabet = data.draw(st.integers(1, 3))
    with open_engine(max_local_cpu_size=pages_gb(40)) as engine:
        for _ in range(12):
            length = data.draw(st.integers(0, 150))
            rng = random.Random(data.draw(st.integers(0, 5)))
            tokens = [rng.randrange(alphabet) for _ in range(length)]
            if data.draw(st.booleans()):
                engine.store(tokens, expected(tokens))
            check(engine, tokens)


def test_salts_separate_tenants(shared: str) -> None:
    tokens = prompt(64)
    with open_engine(memory_store(shared), salt=b"a") as a:
        put(a, tokens)
        assert a.flush()
        with open_engine(memory_store(shared), salt=b"b") as b:
            check(b, tokens, want=0)
        with open_engine(memory_store(shared), salt=b"a") as again:
            check(again, tokens, want=64)


def test_hashes_of_an_engine_name_chunks_as_well(engine: TieredCache) -> None:
    tokens = prompt(64)
    hashes = chunk_hashes(tokens, CHUNK)
    put(engine, tokens)
    with engine.retrieve(Hashes([digest + b"more" for digest in hashes])) as hit:
        assert hit.tokens == 64
    with engine.retrieve(Hashes(hashes[:2], tokens=40)) as hit:
        assert hit.tokens == 32
    with pytest.raises(UsageError, match="at least 16"):
        Hashes([b"short"])
    with pytest.raises(UsageError, match="4 hashes"):
        engine.lookup(Hashes(hashes, tokens=63))


def test_hashes_of_an_engine_are_salted(shared: str) -> None:
    hashes = chunk_hashes(prompt(64), CHUNK)
    values = blanks(4)
    with open_engine(memory_store(shared), salt=b"a") as a:
        a.store(Hashes(hashes), values)
        assert a.flush()
        with open_engine(memory_store(shared), salt=b"b") as b:
            assert b.lookup(Hashes(hashes)).tokens == 0
        assert a.lookup(Hashes(hashes)).tokens == 64


def test_tokens_may_be_arrays(engine: TieredCache) -> None:
    tokens = prompt(64)
    put(engine, tokens)
    for kind in (np.int32, np.uint32, np.int64):
        assert engine.lookup(np.array(tokens, kind)).tokens == 64  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        engine.lookup([-1] * 16)
    with pytest.raises(UsageError):
        engine.lookup([1 << 32] * 16)


@pytest.mark.parametrize(
    "layout",
    [
        replace(LAYOUT, order="page_first"),
        replace(LAYOUT, dtype="bfloat16", tp_size=2, tp_rank=1),
        replace(LAYOUT, layers=5, pp_size=2, pp_rank=1),
        KVLayout(kind="mla", layers=3, latent_dim=36, dtype="float16", chunk_size=8),
        KVLayout(layers=1, kv_heads=1, head_dim=1, dtype="fp8", chunk_size=1),
    ],
)
def test_every_layout_round_trips_and_none_sees_another(layout: KVLayout) -> None:
    identity, name = Identity(model="test", layout=layout), uuid4().hex
    tokens = prompt(100)
    with open_engine(memory_store(name, identity), identity=identity) as engine:
        put(engine, tokens)
        with engine.retrieve(tokens) as hit:
            assert hit.arrays[0].shape == layout.chunk_shape
            assert not hit.arrays[0].flags.writeable
        assert engine.flush()
        check(engine, tokens, want=100 // layout.chunk_size * layout.chunk_size)
    with open_engine(memory_store(name)) as other:
        check(other, tokens, want=0)


# Buffers.


def test_wrong_buffers_are_refused_before_anything_happens(engine: TieredCache) -> None:
    tokens = prompt(64)
    put(engine, tokens)
    with pytest.raises(UsageError, match="3 buffers for 4"):
        engine.store(tokens, blanks(3))
    with pytest.raises(UsageError, match="first_chunk"):
        engine.store(tokens, blanks(5), first_chunk=-1)
    with pytest.raises(UsageError, match="4 full chunks"):
        engine.retrieve(tokens, blanks(3))
    short = [*blanks(3), np.zeros(10, np.uint8)]
    for call in (
        lambda: engine.store(prompt(64, 1), short),
        lambda: engine.retrieve(tokens, short),
    ):
        with pytest.raises(BadBufferError):
            call()
    with pytest.raises(BadBufferError):
        engine.retrieve(tokens, [bytes(LAYOUT.chunk_bytes)] * 4)
    assert engine.stats()["memory"]["writing"] == 0
    check(engine, prompt(64, 1), want=0)


def test_more_buffers_than_chunks_are_left_alone(engine: TieredCache) -> None:
    tokens = prompt(64)
    put(engine, tokens)
    buffers = blanks(6)
    assert engine.retrieve(tokens, buffers).tokens == 64
    assert all((buffer == 0xEE).all() for buffer in buffers[4:])


def test_pages_are_held_until_released_whatever_is_stored(engine: TieredCache) -> None:
    held = prompt(64)
    put(engine, held)
    hit = engine.retrieve(held)
    pages = [bytes(page) for page in hit.pages]
    views = [memoryview(page) for page in hit.pages]
    for seed in range(1, 60):
        tokens = prompt(160, seed)
        engine.store(tokens, expected(tokens))
    assert [bytes(view) for view in views] == pages == [c.tobytes() for c in expected(held)]
    assert hit.release() is True
    assert hit.release() is True
    assert [bytes(view) for view in views] == pages  # a view holds its page as well


def test_a_result_that_is_dropped_gives_its_pages_back(engine: TieredCache) -> None:
    tokens = prompt(64)
    put(engine, tokens)
    for _ in range(3):
        engine.retrieve(tokens)
    assert engine.stats()["memory"]["leases"] == 0


# Memory.


def test_a_full_memory_makes_room_from_the_end_of_old_prompts(engine: TieredCache) -> None:
    prompts = [prompt(640, seed) for seed in range(10)]  # 400 chunks for 256 pages
    for tokens in prompts:
        put(engine, tokens)
    check(engine, prompts[-1], want=640)
    assert check(engine, prompts[0]) == 0
    whole = sum(engine.contains(tokens) for tokens in prompts)
    assert whole == 256 * CHUNK
    assert engine.stats()["metrics"]["kvferry_evicted_chunks_total"]["l1"] == 400 - 256


def test_a_prompt_larger_than_memory_is_stored_as_far_as_it_fits(engine: TieredCache) -> None:
    tokens = prompt(CHUNK * 300)
    stored = engine.store(tokens, expected(tokens))
    assert (stored.chunks, stored.shed, stored.known) == (256, 44, 0)
    check(engine, tokens, want=256 * CHUNK)
    assert engine.stats()["metrics"]["kvferry_shed_chunks_total"]["pool_full"] == 44


def test_a_prompt_larger_than_memory_is_loaded_into_buffers(valkey: TestServer) -> None:
    tokens = prompt(CHUNK * 300)
    stores = [{"type": "redis", "url": valkey.url}]
    with open_engine(stores=stores, max_local_cpu_size=pages_gb(400)) as engine:
        put(engine, tokens)
        assert engine.flush()
    with open_engine(stores=stores, max_local_cpu_size=pages_gb(50)) as small:
        buffers = blanks(300)
        hit = small.retrieve(tokens, buffers)
        assert hit.tokens == CHUNK * 300
        assert all(np.array_equal(a, b) for a, b in zip(buffers, expected(tokens), strict=True))
        check(small, tokens[: CHUNK * 20], want=CHUNK * 20)


def test_pinned_prefixes_stay(engine: TieredCache) -> None:
    kept = prompt(160)
    put(engine, kept)
    assert engine.pin(kept) == 160
    for seed in range(1, 40):
        tokens = prompt(320, seed)
        engine.store(tokens, expected(tokens))
    check(engine, kept, want=160)
    assert engine.unpin(kept) == 160
    assert engine.unpin(kept) == 0
    for seed in range(40, 80):
        tokens = prompt(320, seed)
        engine.store(tokens, expected(tokens))
    assert engine.contains(kept) == 0


def test_buffers_that_overlap_are_refused_also_by_memory() -> None:
    """All chunks were copied into one place, and it was a hit."""
    tokens, size = prompt(3 * CHUNK), LAYOUT.chunk_bytes
    whole = bytearray(3 * size)
    shifted = [memoryview(whole)[at : at + size] for at in (0, size - 1, 2 * size)]
    with open_engine() as engine:
        engine.store(tokens, expected(tokens))
        for into in (blanks(1) * 3, shifted):
            with pytest.raises(BadBufferError, match="overlap"):
                engine.retrieve(tokens, into=into)


@pytest.mark.parametrize("tokens", [None, 5, iter(range(16)), object()])
def test_what_is_no_list_of_tokens_is_refused(tokens: Any) -> None:
    with open_engine() as engine, pytest.raises(UsageError, match="tokens are a list of ids"):
        engine.retrieve(tokens)


def test_pin_brings_a_prefix_into_memory(shared: str) -> None:
    tokens = prompt(64)
    with open_engine(memory_store(shared)) as engine:
        put(engine, tokens)
        assert engine.flush()
        with open_engine(memory_store(shared)) as other:
            assert other.pin(tokens) == 64
            assert other.lookup(tokens).tiers["l1"] == 64


def test_memory_may_be_only_a_way_through(shared: str) -> None:
    tokens = prompt(64)
    with open_engine(memory_store(shared), local_cpu=False) as engine:
        put(engine, tokens)
        assert engine.flush()
        assert engine.lookup(tokens).tiers == {"l1": 0, "store0": 64}
        check(engine, tokens, want=64)
        assert engine.lookup(tokens).tiers == {"l1": 0, "store0": 64}


def test_a_memory_without_room_for_one_chunk_is_an_error() -> None:
    with pytest.raises(UsageError, match="max_local_cpu_size"):
        open_engine(max_local_cpu_size=1e-7)


# Stores.


def test_a_new_engine_finds_what_another_stored(shared: str) -> None:
    tokens = prompt(320)
    with open_engine(memory_store(shared)) as engine:
        put(engine, tokens)
        assert engine.flush()
        with open_engine(memory_store(shared)) as other:
            assert other.lookup(tokens).tiers == {"l1": 0, "store0": 320}
            assert other.contains(tokens + prompt(64, 9)) == 320
            check(other, tokens, want=320)
            assert other.lookup(tokens).tiers == {"l1": 320, "store0": 0}


def test_stores_complete_each_other() -> None:
    tokens, first, second = prompt(320), uuid4().hex, uuid4().hex
    a, b = memory_store(first), memory_store(second)
    with open_engine(a, b) as engine:
        put(engine, tokens)
        assert engine.flush()
        keys = [digest.hex() for digest in chunk_hashes(tokens, CHUNK)]
        a.batch_delete(keys[5:12])
        b.batch_delete(keys[0:4] + keys[15:])
        engine.clear(stores=False)
        check(engine, tokens, want=320)


def test_what_stores_have_not_is_named(shared: str) -> None:
    tokens = prompt(320)
    with open_engine(memory_store(shared)) as engine:
        put(engine, tokens[:160])
        assert engine.retrieve(tokens).reason == "never_stored"
        assert engine.flush()
        missed = engine.stats()["metrics"]["kvferry_missed_chunks_total"]
        assert missed["never_stored"] == 10


def test_loads_are_counted(shared: str) -> None:
    tokens = prompt(320)
    with open_engine(memory_store(shared)) as engine:
        put(engine, tokens)
        assert engine.flush()
        engine.clear(stores=False)
        check(engine, tokens, want=320)
        metrics = engine.stats()["metrics"]
        assert metrics["kvferry_load_bytes_total"]["store0"] == 20 * LAYOUT.chunk_bytes
        assert metrics["kvferry_load_seconds"]["store0"]["count"] == 1


def test_ten_requests_for_one_prefix_load_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, store = prompt(320), Slow()
    waiting: set[int] = set()
    with open_engine(store) as engine:
        await_more = engine.memory.await_more

        def noted(*words: Any) -> Any:
            waiting.add(threading.get_ident())
            return await_more(*words)

        monkeypatch.setattr(engine.memory, "await_more", noted)
        put(engine, tokens)
        assert engine.flush()
        engine.clear(stores=False)
        store.gate.clear()
        with ThreadPoolExecutor(10) as pool:
            running = [pool.submit(check, engine, tokens, 320) for _ in range(10)]
            until(lambda: len(waiting) >= 9, 10)
            store.gate.set()
            assert [job.result(20) for job in running] == [320] * 10
        assert store.gets == 20
        assert engine.stats()["metrics"]["kvferry_single_flight_waits_total"] >= 9


def test_whoever_waits_for_others_goes_on_alone_when_they_fail() -> None:
    tokens, store = prompt(320), Slow()
    with open_engine(store) as engine:
        put(engine, tokens)
        assert engine.flush()
        engine.clear(stores=False)
        store.gate.clear()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(engine.retrieve, tokens, timeout_s=0.3)
            until(lambda: first.done() or engine.stats()["memory"]["writing"], 5, 0.001)
            second = pool.submit(check, engine, tokens, 320)
            assert first.result(20).tokens == 0
            store.gate.set()
            assert second.result(20) == 320


def test_a_store_that_hangs_costs_no_more_than_the_time_limit() -> None:
    tokens, store = prompt(320), Slow()
    with open_engine(store) as engine:
        put(engine, tokens)
        assert engine.flush()
        engine.clear(stores=False)
        store.gate.clear()
        began = clock.now_s()
        hit = engine.retrieve(tokens, timeout_s=0.5)
        assert clock.now_s() - began < 0.8
        assert (hit.tokens, hit.reason) == (0, "deadline")
        assert engine.stats()["memory"]["writing"] == 20  # the store may still write there
        store.gate.set()
        check(engine, tokens, want=320)
        assert engine.stats()["memory"]["writing"] == 0


def test_a_full_queue_drops_and_counts_and_never_waits() -> None:
    store = Slow()
    with open_engine(store, tuning={"write_queue_bytes_max": 8 * LAYOUT.chunk_bytes}) as engine:
        store.gate.clear()
        a, b = prompt(96), prompt(96, 1)
        assert engine.store(a, expected(a)).queued == {"store0": 6}
        began = clock.now_s()
        assert engine.store(b, expected(b)).dropped == {"store0": 6}
        assert clock.now_s() - began < 0.5
        assert engine.stats()["metrics"]["kvferry_shed_chunks_total"]["queue_full"] == 6
        assert "store0 was not written" not in str(engine.explain(a))
        store.gate.set()
        assert engine.flush()
        check(engine, b, want=96)
        # Stored again, what was dropped is offered again.
        assert engine.store(b, expected(b)).known == 6
        assert engine.flush()
        assert len(store.held) == 12


def test_chunks_that_wait_to_be_written_are_not_evicted() -> None:
    store = Slow()
    with open_engine(store) as engine:
        store.gate.clear()
        first = prompt(320)
        put(engine, first)
        for seed in range(1, 30):
            tokens = prompt(320, seed)
            engine.store(tokens, expected(tokens))
        check(engine, first, want=320)
        store.gate.set()
        assert engine.flush()
    assert set(store.held.values()) >= {c.tobytes() for c in expected(first)}


def test_clear_forgets_everything_of_this_engine_only(shared: str) -> None:
    other = Identity(model="another", layout=LAYOUT)
    tokens = prompt(64)
    with (
        open_engine(memory_store(shared)) as engine,
        open_engine(memory_store(shared, other), identity=other) as stranger,
    ):
        for one in (engine, stranger):
            put(one, tokens)
            assert one.flush()
        assert engine.clear() == 4
        check(engine, tokens, want=0)
        stranger.clear(stores=False)
        check(stranger, tokens, want=64)


# Doing it elsewhere.


def test_futures_prefetch_and_asyncio(shared: str) -> None:
    tokens = prompt(320)
    with open_engine(memory_store(shared)) as engine:
        put(engine, tokens)
        assert engine.flush()
        engine.clear(stores=False)
        assert engine.prefetch(tokens).result(20) == 320
        assert engine.lookup(tokens).tiers["l1"] == 320
        engine.clear(stores=False)
        with engine.begin_retrieve(tokens).result(20) as hit:
            assert hit.tokens == 320
        buffers = blanks(20)
        assert asyncio.run(engine.aretrieve(tokens, buffers)).tokens == 320
        assert all(np.array_equal(a, b) for a, b in zip(buffers, expected(tokens), strict=True))


def test_lookup_begins_to_load_where_that_is_asked_for(shared: str) -> None:
    tokens = prompt(320)
    with open_engine(memory_store(shared), enable_async_loading=True) as engine:
        put(engine, tokens)
        assert engine.flush()
        engine.clear(stores=False)
        assert engine.lookup(tokens).tokens == 320
        deadline = clock.now_s() + 5
        while engine.lookup(tokens).tiers["l1"] < 320:
            assert clock.now_s() < deadline


# The end.


def test_a_closed_engine_says_so() -> None:
    engine = open_engine()
    engine.close()
    engine.close()
    for call in (engine.lookup, engine.contains, engine.retrieve, engine.pin, engine.prefetch):
        with pytest.raises(ClosedError):
            call(prompt(32))
    with pytest.raises(ClosedError):
        engine.store([], [])


def test_closing_writes_what_waits(shared: str) -> None:
    tokens, keeper = prompt(320), memory_store(shared)
    engine = open_engine(memory_store(shared))
    put(engine, tokens)
    assert engine.close() is True
    assert keeper.batch_exists([d.hex() for d in chunk_hashes(tokens, CHUNK)]).ok
    keeper.close()


def test_pages_outlive_their_engine() -> None:
    engine, tokens = open_engine(), prompt(64)
    put(engine, tokens)
    hit = engine.retrieve(tokens)
    engine.close()
    del engine
    assert [bytes(page) for page in hit.pages] == [c.tobytes() for c in expected(tokens)]
    hit.release()


def test_a_forked_child_is_told_to_open_its_own(engine: TieredCache) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            engine.lookup(prompt(32))
        except ClosedError as error:
            code = 0 if "fork" in str(error) else 2
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_settings_that_contradict_the_layout_are_refused() -> None:
    with pytest.raises(ConfigError, match="chunk_size"):
        open_engine(chunk_size=32)
    with pytest.raises(ConfigError, match="l1"):
        TieredCache(IDENTITY, open_engine().config, connectors={"l1": memory_store("x")})
