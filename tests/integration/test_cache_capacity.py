"""The limit of a store: many write to it, it stays below, and what is left is of use."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from kvferry import Identity, TieredCache
from kvferry.chunks.keys import chunk_hashes
from support.engines import (
    CHUNK,
    LAYOUT,
    MIB,
    check,
    expected,
    open_engine,
    pages_gb,
    prompt,
    space,
)
from support.programs import Program
from support.servers import TestServer

LIMIT = 8 * MIB
SIZE = LAYOUT.chunk_bytes
GB = 1 << 30

WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from support.engines import *
url, seed, prompts, policy, limit = sys.argv[2], *map(str, sys.argv[3:])
stores = [{"type": "file" if url.startswith("/") else "redis",
           ("path" if url.startswith("/") else "url"): url, "max_capacity_gb": int(limit) / 2**30,
           "eviction": {"eviction_policy": policy}}]
identity = Identity(model=sys.argv[7], layout=LAYOUT) if len(sys.argv) > 7 else IDENTITY
with open_engine(identity=identity, stores=stores, max_local_cpu_size=pages_gb(512)) as engine:
    print("open", flush=True)
    for number in range(int(prompts)):
        tokens = prompt(32 * CHUNK, int(seed) * 100_000 + number)
        engine.store(tokens, expected(tokens, identity))
        assert engine.flush(20)
    metrics = engine.stats()["metrics"]
    print(sum(metrics["kvferry_evicted_chunks_total"].values())
          - metrics["kvferry_evicted_chunks_total"]["l1"],
          sum(metrics["kvferry_shed_chunks_total"].values()), flush=True)
"""


def store_of(server: TestServer, policy: str = "LRU") -> dict[str, Any]:
    return {
        "type": "redis",
        "url": server.url,
        "max_capacity_gb": LIMIT / GB,
        "eviction": {"eviction_policy": policy},
    }


def writer(where: str, seed: int, prompts: int, policy: str = "LRU", *model: str) -> Program:
    here = str(Path(__file__).parents[1])
    return Program(WRITER, here, where, seed, prompts, policy, LIMIT, *model)


def used(server: TestServer) -> int:
    return int(server.info("memory")["used_memory_dataset"])


def put(engine: TieredCache, tokens: list[int]) -> None:
    engine.store(tokens, expected(tokens, engine.identity))
    assert engine.flush(20)


def fill(engine: TieredCache, prompts: int, seed: int = 0) -> list[list[int]]:
    made = [prompt(32 * CHUNK, seed * 100_000 + number) for number in range(prompts)]
    for tokens in made:
        put(engine, tokens)
    return made


def shed(engine: TieredCache) -> dict[str, float]:
    counts = engine.stats()["metrics"]["kvferry_shed_chunks_total"]
    return {reason: count for reason, count in counts.items() if count}


def test_processes_on_one_server_stay_below_its_limit_together(server: TestServer) -> None:
    """Four write five times of what fits; asked all the time, it never holds more."""
    per_prompt = 32 * SIZE
    highest = 0
    programs = [writer(server.url, seed, 5 * LIMIT // 4 // per_prompt) for seed in range(4)]
    try:
        for program in programs:
            assert program.read_line(60) == "open"
        while any(program.process.poll() is None for program in programs):
            highest = max(highest, used(server))
            time.sleep(0.002)
        highest = max(highest, used(server))  # it may be that nobody let us look while they wrote
        told = [program.ends().split() for program in programs]
    finally:
        for program in programs:
            program.__exit__()
    assert 0.5 * LIMIT < highest <= LIMIT, highest / LIMIT
    assert sum(int(evicted) for evicted, _ in told) > 0
    with open_engine(stores=[store_of(server)]) as engine:
        for seed in range(4):  # what was stored last is there
            last = 5 * LIMIT // 4 // per_prompt - 1
            assert check(engine, prompt(32 * CHUNK, seed * 100_000 + last)) >= 0


def test_a_restarted_process_evicts_what_the_one_before_it_wrote(server: TestServer) -> None:
    with writer(server.url, 1, LIMIT * 3 // 5 // (32 * SIZE)) as program:
        program.ends(60)
    before = used(server)
    assert before > 0.5 * LIMIT
    with open_engine(stores=[store_of(server)], max_local_cpu_size=pages_gb(64)) as engine:
        made = fill(engine, LIMIT // (32 * SIZE), seed=2)
        assert used(server) <= LIMIT
        engine.clear(stores=False)
        check(engine, made[-1], want=32 * CHUNK)
        assert not shed(engine)


@pytest.mark.parametrize("policy", ["LRU", "LFU", "FIFO", "S3-FIFO", "ARC", "W-TinyLFU"])
def test_prefixes_are_shortened_and_never_beheaded(valkey: TestServer, policy: str) -> None:
    with open_engine(stores=[store_of(valkey, policy)], max_local_cpu_size=pages_gb(64)) as engine:
        made = fill(engine, 2 * LIMIT // (32 * SIZE))
        assert used(valkey) <= LIMIT
        left = 0
        for tokens in made:
            keys = [digest.hex() for digest in chunk_hashes(tokens, CHUNK)]
            there = [not status for status in engine.tiers[0].tier.connector.batch_exists(keys)]
            left += sum(there)
            assert there == sorted(there, reverse=True), "a hole"
            engine.clear(stores=False)
            check(engine, tokens, want=sum(there) * CHUNK)
        assert left * SIZE > 0.3 * LIMIT


def test_what_is_being_read_here_stays(valkey: TestServer) -> None:
    with open_engine(stores=[store_of(valkey)], max_local_cpu_size=pages_gb(64)) as engine:
        kept = fill(engine, 1)[0]
        capacity = engine.tiers[0].capacity
        assert capacity is not None
        hashes = b"".join(chunk_hashes(kept, CHUNK))
        lease = capacity.lease(hashes)
        assert lease
        fill(engine, 2 * LIMIT // (32 * SIZE), seed=1)
        assert engine.stats()["metrics"]["kvferry_evicted_chunks_total"]["redis"] > 0
        engine.clear(stores=False)
        check(engine, kept, want=32 * CHUNK)
        capacity.release(lease)


def test_without_a_policy_what_does_not_fit_is_not_stored(valkey: TestServer) -> None:
    with open_engine(stores=[store_of(valkey, "none")], max_local_cpu_size=pages_gb(64)) as engine:
        made = fill(engine, 2 * LIMIT // (32 * SIZE))
        assert used(valkey) <= LIMIT
        assert shed(engine)["store_full"] > 0
        engine.clear(stores=False)
        check(engine, made[0], want=32 * CHUNK)
        check(engine, made[-1], want=0)
        assert "it was not written to redis in time" in str(engine.explain(made[-1]))


def test_every_key_of_a_store_with_a_ttl_expires(server: TestServer) -> None:
    """So that services whose policy is volatile-lru can evict by themselves."""
    tokens = prompt(8 * CHUNK)
    with open_engine(stores=[{"type": "redis", "url": f"{server.url}?ttl_s=90"}]) as engine:
        put(engine, tokens)
        keys = [space().prefix + digest.hex() for digest in chunk_hashes(tokens, CHUNK)]
        assert all(80_000 < server.cli("PTTL", key) <= 90_000 for key in keys)


def test_an_identity_is_not_starved_by_one_that_was_there_first(server: TestServer) -> None:
    other = Identity(model="another", layout=LAYOUT)
    with open_engine(
        identity=other, stores=[store_of(server)], max_local_cpu_size=pages_gb(64)
    ) as first:
        old = fill(first, LIMIT // (32 * SIZE))
    with open_engine(stores=[store_of(server)], max_local_cpu_size=pages_gb(64)) as engine:
        made = fill(engine, LIMIT // (32 * SIZE))
        assert used(server) <= LIMIT
        assert not shed(engine)
        engine.clear(stores=False)
        whole = sum(engine.contains(tokens) for tokens in made) // CHUNK
        assert whole * SIZE > 0.4 * LIMIT, "the other one keeps its share, and it is idle"
    with open_engine(identity=other, stores=[store_of(server)]) as first:
        for tokens in old:
            check(first, tokens)


def test_what_others_keep_in_the_server_is_theirs(valkey: TestServer) -> None:
    """Keys that are no chunks are counted, and never deleted."""
    for index in range(40):
        valkey.cli("SET", f"user:{index}", bytes(100_000))
    valkey.cli("SET", "kvf:of-somebody:else", bytes(1000))
    with open_engine(stores=[store_of(valkey)], max_local_cpu_size=pages_gb(64)) as engine:
        fill(engine, LIMIT // (32 * SIZE))
        assert used(valkey) <= LIMIT
        made = fill(engine, 1, seed=9)
        engine.clear(stores=False)
        check(engine, made[0], want=32 * CHUNK)
    assert all(valkey.cli("EXISTS", f"user:{index}") for index in range(40))
    assert valkey.cli("EXISTS", "kvf:of-somebody:else")


def test_one_evicts_at_a_time(server: TestServer) -> None:
    with (
        open_engine(stores=[store_of(server)]) as one,
        open_engine(stores=[store_of(server)]) as two,
    ):
        a, b = one.tiers[0].tier.connector, two.tiers[0].tier.connector
        assert a.lock_eviction(60)
        assert not b.lock_eviction(60)
        b.unlock_eviction()  # it is not b's to end
        assert not b.lock_eviction(60)
        a.unlock_eviction()
        assert b.lock_eviction(0.05)
        time.sleep(0.2)
        assert a.lock_eviction(60)  # whoever dies loses it in time
        b.unlock_eviction()
        assert not b.lock_eviction(60)
        a.unlock_eviction()


def test_a_writer_waits_while_another_process_evicts(valkey: TestServer) -> None:
    with (
        open_engine(stores=[store_of(valkey)], max_local_cpu_size=pages_gb(64)) as engine,
        open_engine(stores=[store_of(valkey)]) as other,
    ):
        lock = other.tiers[0].tier.connector
        assert lock.lock_eviction(100)
        fill(engine, LIMIT // (32 * SIZE) * 3 // 4)
        for number in range(2):
            engine.store(tokens := prompt(32 * CHUNK, 77 + number), expected(tokens))
        assert used(valkey) <= LIMIT
        lock.unlock_eviction()
        assert engine.flush(30)
        put(engine, last := prompt(32 * CHUNK, 5_000_000))
        engine.clear(stores=False)
        check(engine, last, want=32 * CHUNK)


def stored_bytes(directory: Path) -> int:
    """Of the files that were there at once: both when they were found and when all were."""
    sizes: dict[Path, int] = {}
    for path in directory.glob("??/*"):
        with contextlib.suppress(FileNotFoundError):
            sizes[path] = path.stat().st_size
    return sum(size for path, size in sizes.items() if path.exists())


def test_two_processes_share_a_directory(tmp_path: Path) -> None:
    """Both write more than fits; it stays below the limit and both go on."""
    programs = [writer(str(tmp_path), seed, 2 * LIMIT // (32 * SIZE), "LRU") for seed in (1, 2)]
    highest = 0
    try:
        for program in programs:
            assert program.read_line(60) == "open"
        while any(program.process.poll() is None for program in programs):
            highest = max(highest, stored_bytes(tmp_path))
        highest = max(highest, stored_bytes(tmp_path))
        told = [program.ends().split() for program in programs]
    finally:
        for program in programs:
            program.__exit__()
    assert 0.5 * LIMIT < highest <= LIMIT
    assert all(int(evicted) > 0 for evicted, _ in told), told
    store = {"type": "file", "path": str(tmp_path), "max_capacity_gb": LIMIT / GB}
    with open_engine(stores=[store]) as engine:
        for seed in (1, 2):
            tokens = prompt(32 * CHUNK, seed * 100_000 + 2 * LIMIT // (32 * SIZE) - 1)
            check(engine, tokens)
        a = engine.tiers[0].tier.connector
        with open_engine(stores=[store]) as other:
            b = other.tiers[0].tier.connector
            assert a.lock_eviction(60)
            assert not b.lock_eviction(60)
            a.unlock_eviction()
            assert b.lock_eviction(60)
            b.unlock_eviction()


def test_identities_share_a_directory(tmp_path: Path) -> None:
    store = {"type": "file", "path": str(tmp_path), "max_capacity_gb": LIMIT / GB}
    other = Identity(model="another", layout=LAYOUT)
    with open_engine(identity=other, stores=[store], max_local_cpu_size=pages_gb(64)) as first:
        fill(first, LIMIT // (32 * SIZE))
    with open_engine(stores=[store], max_local_cpu_size=pages_gb(64)) as engine:
        made = fill(engine, LIMIT // (64 * SIZE))
        assert not shed(engine)
        engine.clear(stores=False)
        check(engine, made[-1], want=32 * CHUNK)
