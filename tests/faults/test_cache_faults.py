"""An engine whose stores fail: every call ends in time, no byte is wrong, and it recovers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kvferry import TieredCache
from kvferry.base.errors import KVFerryError
from kvferry.config import ClientConfig
from support import clock
from support.cluster import Cluster
from support.engines import (
    CHUNK,
    LAYOUT,
    check,
    expected,
    memory_store,
    open_engine,
    pages_gb,
    prompt,
)
from support.programs import Program
from support.proxy import FaultProxy
from support.servers import TestServer, wait_for
from support.stamps import within
from support.toxics import apply, names
from support.tuned import tuned

Start = Callable[..., TestServer]
QUICK = {"connect_timeout_s": 0.3, "stall_timeout_s": 0.4, "timeout_s": 1.5}
PATIENT = {"connect_timeout_s": 5, "stall_timeout_s": 20, "timeout_s": 40}
RETRIEVE_S = 0.8
SLACK_S = 0.7  # for a machine that does other things as well
PROMPT = 40 * CHUNK


def engine_of(
    url: str, limits_of_store: Mapping[str, float] = QUICK, **settings: Any
) -> TieredCache:
    """One that gives up soon."""
    store = {"type": "redis", "url": url, **tuned(ClientConfig, **limits_of_store)}
    limits = {"retrieve_timeout_s": RETRIEVE_S, "lookup_timeout_s": 0.3}
    return open_engine(stores=[store], **{**limits, **settings})


def is_settled(engine: TieredCache) -> bool:
    """Nothing is held that nobody uses."""
    memory = engine.stats()["memory"]
    return not any(memory[name] for name in ("writing", "leases", "reservations"))


def settles(engine: TieredCache) -> None:
    wait_for("pages are given back", lambda: is_settled(engine), 10)


def recovers(engine: TieredCache, seed: int = 1_000_000) -> None:
    """What is stored now can be had from the store again, soon."""
    tokens = prompt(PROMPT, seed)

    def works() -> bool:
        engine.store(tokens, expected(tokens))
        engine.flush()
        engine.clear(stores=False)
        return check(engine, tokens) == PROMPT

    wait_for("the store is used again", works, 15)


class Traffic:
    """Threads that store and retrieve and check every byte and the time of every call."""

    def __init__(self, engine: TieredCache, threads: int = 3, prompts: int = 6) -> None:
        self.calls = 0
        self.problems: list[BaseException] = []
        self._engine = engine
        self._prompts = [prompt(PROMPT, seed, shared=8 * CHUNK) for seed in range(prompts)]
        self._chunks = [expected(tokens) for tokens in self._prompts]
        self._enough = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not self._enough.is_set():
                which = rng.randrange(len(self._prompts))
                tokens = self._prompts[which]
                if rng.random() < 0.4:
                    with within(SLACK_S):
                        self._engine.store(tokens, self._chunks[which])
                elif rng.random() < 0.2:
                    self._engine.clear(stores=False)
                elif rng.random() < 0.2:
                    with within(0.3 + SLACK_S):
                        self._engine.lookup(tokens)
                else:
                    with within(2 * (RETRIEVE_S + SLACK_S)):
                        check(self._engine, tokens[: rng.randrange(len(tokens))])
                self.calls += 1
        except BaseException as problem:
            self.problems.append(problem)

    def goes_on(self, calls: int = 20, limit_s: float = 30.0) -> None:
        """Until so many more calls have ended."""
        goal = self.calls + calls
        wait_for("calls end", lambda: self.calls >= goal or self.problems, limit_s)

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive(), "a call does not return"
        if self.problems:
            raise self.problems[0]


@contextmanager
def closing_soon(engine: TieredCache, limit_s: float = 3.0) -> Iterator[TieredCache]:
    try:
        yield engine
    finally:
        with within(limit_s + 2.0):
            engine.close(limit_s)


@pytest.mark.ways("tcp")
def test_a_server_that_dies_and_comes_back(start: Start) -> None:
    server = start("valkey")
    with closing_soon(engine_of(server.url)) as engine:
        with Traffic(engine) as traffic:
            for _ in range(3):
                traffic.goes_on(30)
                server.kill()
                traffic.goes_on(30)
                server.restart()
        settles(engine)
        recovers(engine)
        settles(engine)


@pytest.mark.ways("tcp")
def test_a_server_that_is_frozen(start: Start) -> None:
    server = start("valkey")
    with closing_soon(engine_of(server.url)) as engine:
        with Traffic(engine) as traffic:
            traffic.goes_on(20)
            server.pause()
            traffic.goes_on(20)
            server.resume()
            traffic.goes_on(20)
        settles(engine)
        recovers(engine)


@pytest.mark.ways("tcp")
@pytest.mark.parametrize("toxic", names("breaks", "slows", "alters"))
def test_every_fault_of_the_way(valkey: TestServer, toxic: str) -> None:
    with (
        FaultProxy(valkey.host, valkey.port) as proxy,
        closing_soon(engine_of(f"redis://{proxy.host}:{proxy.port}")) as engine,
    ):
        with Traffic(engine, threads=2) as traffic:
            traffic.goes_on(10)
            for seed in range(3):
                apply(toxic, proxy, seed)
                traffic.goes_on(8)
                proxy.heal()
                traffic.goes_on(4)
        settles(engine)
        recovers(engine)


@pytest.mark.ways("tcp")
def test_closing_over_a_frozen_server_is_bounded(start: Start) -> None:
    server = start("valkey")
    engine = engine_of(server.url)
    tokens = prompt(PROMPT)
    prompts = [prompt(PROMPT, seed) for seed in range(5)]
    chunks = [expected(tokens) for tokens in prompts]
    server.pause()
    began = clock.now_s()
    for each, its_chunks in zip(prompts, chunks, strict=True):
        engine.store(each, its_chunks)
    future = engine.begin_retrieve(prompt(PROMPT, 99))
    assert engine.close(0.5) is False
    assert clock.now_s() - began < 4.0 + SLACK_S
    assert future.cancelled() or future.done() or future.running()
    server.resume()
    with engine_of(server.url) as other:
        check(other, tokens)


def refuses(engine: TieredCache, tokens: list[int]) -> dict[str, float]:
    """Store what the store will refuse; why it was not written."""
    engine.store(tokens, expected(tokens))
    assert engine.flush()
    counts = engine.stats()["metrics"]["kvferry_shed_chunks_total"]
    return {reason: count for reason, count in counts.items() if count}


@pytest.mark.ways("tcp")
@pytest.mark.parametrize("how", ["oom", "readonly", "wrong_type", "no_rights"])
def test_what_a_server_refused_is_offered_again(start: Start, how: str) -> None:
    server = start("valkey")
    tokens = prompt(PROMPT)
    with closing_soon(engine_of(server.url)) as engine:
        if how == "oom":
            server.cli("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1mb")
        elif how == "readonly":
            server.cli("REPLICAOF", "127.0.0.1", "1")
        elif how == "wrong_type":
            for key in engine._read(tokens).keys(0, 40):
                server.cli("RPUSH", f"kvf:{engine.identity.digest.hex()}:{key}", "item")
        else:
            server.cli("ACL", "SETUSER", "default", "-set")
        if how == "wrong_type":
            check(engine, tokens, want=0)  # SET would replace it; EXISTS says it is there
            engine.clear()
        assert refuses(engine, tokens) or how == "wrong_type"
        check(engine, tokens, want=PROMPT)  # memory has it
        server.cli("CONFIG", "SET", "maxmemory", "0")
        server.cli("REPLICAOF", "NO", "ONE")
        server.cli("ACL", "SETUSER", "default", "+set")

        def arrived() -> bool:
            assert engine.store(tokens, expected(tokens)).chunks == 0  # it is known, and offered
            assert engine.flush()
            return (
                engine.lookup(tokens).tokens == PROMPT and len(server.cli("KEYS", "kvf:*:*")) >= 40
            )

        wait_for("what was refused is written", arrived, 10)

        def is_read() -> bool:
            engine.clear(stores=False)
            return check(engine, tokens) == PROMPT

        wait_for("it is read again", is_read, 15)
        settles(engine)


@pytest.mark.ways("tcp")
def test_a_server_that_loses_everything(valkey: TestServer) -> None:
    with closing_soon(engine_of(valkey.url)) as engine:
        with Traffic(engine) as traffic:
            for _ in range(10):
                traffic.goes_on(5)
                valkey.cli("FLUSHALL")
        settles(engine)
        recovers(engine)


def test_a_cluster_with_a_shard_that_is_away(proxied_cluster: Cluster) -> None:
    store = {
        "type": "redis",
        "topology": "cluster",
        "nodes": list(proxied_cluster.seeds),
        **tuned(ClientConfig, **QUICK),
    }
    engine = open_engine(stores=[store], retrieve_timeout_s=RETRIEVE_S, lookup_timeout_s=0.3)
    with closing_soon(engine):
        with Traffic(engine) as traffic:
            traffic.goes_on(20)
            for proxy in proxied_cluster.proxies[:2]:
                proxy.black_hole()
                traffic.goes_on(20)
                proxy.heal()
                traffic.goes_on(20)
        settles(engine)
        recovers(engine)


def _play(engine: TieredCache, seed: int, until: float, problems: list[BaseException]) -> None:
    rng = random.Random(seed)
    prompts = [prompt(24 * CHUNK, n, shared=6 * CHUNK) for n in range(12)]
    pinned: list[list[int]] = []
    try:
        while time.monotonic() < until:
            tokens = rng.choice(prompts)[: rng.randrange(24 * CHUNK + 1)]
            choice = rng.randrange(12)
            if choice < 4:
                first = rng.choice((0, 0, rng.randrange(len(tokens) // CHUNK + 1)))
                engine.store(tokens, expected(tokens)[first:], first_chunk=first)
            elif choice < 8:
                check(engine, tokens)
            elif choice == 8:
                engine.prefetch(tokens)
            elif choice == 9:
                with engine.begin_retrieve(tokens).result(10) as hit:
                    assert [bytes(page) for page in hit.pages] == [
                        chunk.tobytes() for chunk in expected(tokens)[: len(hit.pages)]
                    ]
            elif choice == 10 and len(pinned) < 2:
                engine.pin(tokens)
                pinned.append(tokens)
            elif pinned:
                engine.unpin(pinned.pop())
            if rng.random() < 0.01:
                engine.clear(stores=rng.random() < 0.5)
            if rng.random() < 0.02:
                assert "chunk" in str(engine.explain(tokens))
        for tokens in pinned:
            engine.unpin(tokens)
    except BaseException as problem:
        problems.append(problem)


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.soak)])
@pytest.mark.parametrize("local_cpu", [True, False])
@pytest.mark.ways("tcp")
def test_many_threads_on_a_small_memory_with_two_stores(
    valkey: TestServer, seconds: int, local_cpu: bool
) -> None:
    stores = [{"type": "redis", "url": f"{valkey.url}?connections=4"}]
    with (
        memory_store(uuid4().hex, capacity_bytes=100 * LAYOUT.chunk_bytes) as second,
        closing_soon(
            open_engine(second, stores=stores, max_local_cpu_size=pages_gb(40), local_cpu=local_cpu)
        ) as engine,
    ):
        problems: list[BaseException] = []
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=_play, args=(engine, seed, until, problems))
            for seed in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + 30)
            assert not thread.is_alive(), "a call does not return"
        if problems:
            raise problems[0]
        assert engine.flush(30)
        settles(engine)
        recovers(engine)


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
from support.engines import *
stores = [{"type": "file", "path": sys.argv[2], "max_capacity_gb": 0.01} if sys.argv[2][0] == "/"
          else {"type": "redis", "url": sys.argv[2], "max_capacity_gb": 0.004}]
with open_engine(stores=stores, max_local_cpu_size=pages_gb(64)) as engine:
    print("open", flush=True)
    for number in range(100_000):
        tokens = prompt(40 * CHUNK, number % 40, shared=8 * CHUNK)
        engine.store(tokens, expected(tokens))
        check(engine, tokens)
        engine.clear(stores=False)
"""


@pytest.mark.ways("tcp")
@pytest.mark.parametrize("kind", ["server", "directory"])
def test_one_of_two_processes_is_killed_again_and_again(
    valkey: TestServer, tmp_path: Path, kind: str
) -> None:
    """Whatever it was about to write or to evict, the other reads no wrong byte and goes on."""
    where = str(tmp_path) if kind == "directory" else valkey.url
    rng = random.Random(5)
    store: dict[str, Any] = {"type": "redis", "url": where, "max_capacity_gb": 0.004}
    if kind == "directory":
        store = {"type": "file", "path": where, "max_capacity_gb": 0.01}
    with closing_soon(open_engine(stores=[store], max_local_cpu_size=pages_gb(64))) as engine:
        for _ in range(4):
            with Program(KILLED, Path(__file__).parents[1], where) as program:
                assert program.read_line(60) == "open"
                until = time.monotonic() + rng.uniform(0.2, 1.0)
                while time.monotonic() < until:
                    tokens = prompt(PROMPT, rng.randrange(40), shared=8 * CHUNK)
                    if rng.random() < 0.3:
                        engine.store(tokens, expected(tokens))
                    check(engine, tokens)
                    engine.clear(stores=False)
                program.process.kill()
        assert engine.flush(20)
        settles(engine)
        recovers(engine)


def test_calls_after_a_close_say_so_and_those_in_flight_end() -> None:
    name = uuid4().hex
    for _ in range(5):
        engine = open_engine(memory_store(name))
        with Traffic(engine, threads=4) as traffic:
            traffic.goes_on(10)
            engine.close()
            wait_for("they are told", lambda: len(traffic.problems) == 4)
            assert all(isinstance(problem, KVFerryError) for problem in traffic.problems)
            traffic.problems.clear()


@pytest.mark.ways("tcp")
@pytest.mark.parametrize("local_cpu", [True, False])
def test_what_waits_to_be_written_is_written_whoever_forgets_it(
    start: Start, local_cpu: bool
) -> None:
    server, tokens = start("valkey"), prompt(PROMPT)
    patient = {"retrieve_timeout_s": 20.0, "local_cpu": local_cpu}
    with closing_soon(engine_of(server.url, PATIENT, **patient)) as engine:
        server.pause()
        engine.store(tokens, expected(tokens))
        if local_cpu:
            engine.clear(stores=False)
        else:  # memory is a way through, and the last reader takes the chunks along
            with engine.retrieve(tokens) as hit:
                assert hit.tokens == PROMPT
        assert engine.contains(tokens) == 0
        server.resume()
        assert engine.flush()
        # A store that was silent while the engine began has its generation to say first.
        wait_for("it is found", lambda: engine.contains(tokens) == PROMPT)
        check(engine, tokens, want=PROMPT)
        settles(engine)


def test_pages_show_what_they_showed_when_everything_is_cleared() -> None:
    tokens = prompt(PROMPT)
    with open_engine(max_local_cpu_size=pages_gb(40)) as engine:
        engine.store(tokens, expected(tokens))
        hit = engine.retrieve(tokens)
        assert engine.clear() == 40
        other = prompt(PROMPT, 1)
        assert engine.store(other, expected(other)).shed == 40  # nobody gets those pages
        assert [bytes(page) for page in hit.pages] == [c.tobytes() for c in expected(tokens)]
        assert [array.tobytes() for array in hit.arrays] == [c.tobytes() for c in expected(tokens)]
        assert all(page.readonly for page in hit.pages)
        hit.release()
        assert engine.store(other, expected(other)).chunks == 40
