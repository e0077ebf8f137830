"""How many round trips a hit and a miss take, one behind the other: counted, and not timed.

A hit costs one: the question and the reads of the first chunks leave together. A miss costs one
where nobody knows what is there and none where a presence view does, and it costs no page.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kvferry import StoreConfig, TieredCache
from kvferry.cache.cost.prefill import PrefillModel
from kvferry.config import ClientConfig
from kvferry.connectors.base import Connector
from kvferry.connectors.redis import RedisConnector
from kvferry.integrations.vllm.connector.lookup_threads import CacheFinder
from kvferry.server import Client
from support.cache_server import running
from support.cluster import Cluster
from support.counted import CountedStore
from support.engines import (
    CHUNK,
    IDENTITY,
    LAYOUT,
    check,
    expected,
    memory_store,
    open_engine,
    pages_gb,
    prompt,
    space,
)
from support.proxy import FaultProxy
from support.servers import TestServer, wait_for

LIMIT_S = 15.0
FEW = 6  # chunks
CONNECTIONS = 8  # for values, by default


@contextmanager
def counted(
    url: str,
    *,
    presence: str = "off",
    pages: int = 64,
    enable_async_loading: bool = False,
    **settings: Any,
) -> Iterator[tuple[TieredCache, CountedStore]]:
    """An engine whose store is counted and is thought to be far away."""
    config = ClientConfig.from_url(url, presence=presence, **settings)
    store = CountedStore(RedisConnector(space(), config))
    with open_engine(
        cast("Connector", store),
        max_local_cpu_size=pages_gb(pages),
        enable_async_loading=enable_async_loading,
    ) as engine:
        assert engine.contains(prompt(CHUNK, seed=99), timeout_s=LIMIT_S) == 0  # it is connected
        engine.tiers[0].tier.learn(0, 0.1)  # far away: all of a prompt fits into a round trip
        yield engine, store


def put(engine: TieredCache, tokens: list[int]) -> list[int]:
    """The prompt is in the store, and not in memory."""
    engine.store(tokens, expected(tokens))
    assert engine.flush()
    engine.clear(stores=False)
    return tokens


def memory_of(engine: TieredCache) -> tuple[int, int]:
    stats = engine.stats()["memory"]
    return stats["resident"], stats["evictions"]


@pytest.mark.ways("tcp")
def test_a_hit_waits_once(valkey: TestServer) -> None:
    with counted(valkey.url) as (engine, store):
        tokens = put(engine, prompt(FEW * CHUNK, seed=1))
        with store.counting() as waits, engine.retrieve(tokens) as hit:
            assert hit.tokens == len(tokens)
            assert [bytes(page) for page in hit.pages] == [c.tobytes() for c in expected(tokens)]
        assert waits.depth == 1, waits.jobs
        assert waits.of("ask") == [(1, FEW)]
        assert waits.of("read") == [(1, FEW)]
        assert not waits.of("get")
        engine.clear(stores=False)
        check(engine, tokens, want=len(tokens))
        assert engine.stats()["stores"]["store0"]["drained_chunks"] == 0


def replies(server: TestServer) -> dict[str, int]:
    """What the server has sent on each connection, in bytes."""
    found = server.cli("CLIENT", "LIST")
    text = found.decode() if isinstance(found, bytes) else str(found)
    lines = [dict(word.split("=", 1) for word in line.split()) for line in text.splitlines()]
    return {line["id"]: int(line["tot-net-out"]) for line in lines}


@pytest.mark.ways("tcp")
def test_far_away_all_connections_carry_a_hit(valkey: TestServer) -> None:
    """TCP begins with ten segments on each, and sends so much ahead: over one or two of them 8 MB
    took two round trips more than over eight."""
    with FaultProxy(valkey.host, valkey.port) as way:
        way.down.delay_s = 0.02
        url = f"{way.url}?same_host=tcp"
        with counted(url, presence="off") as (engine, store):
            tokens = put(engine, prompt(2 * CONNECTIONS * CHUNK, seed=1))
            wait_for(
                "all connections",
                lambda: store.stats()["client_connections_up"] == CONNECTIONS,
                LIMIT_S,
            )
            way.down.delay_s = 1.0  # nobody who wakes late finds its share taken
            before = replies(valkey)
            with store.counting() as waits, engine.retrieve(tokens) as hit:
                assert hit.tokens == len(tokens)
            sent = [count - before.get(which, 0) for which, count in replies(valkey).items()]
            size = LAYOUT.chunk_bytes
            values = [count // size for count in sent if count >= size]
            assert values == [2] * CONNECTIONS
            assert waits.depth == 1, waits.jobs


@pytest.mark.ways("tcp")
def test_behind_what_memory_has_a_hit_waits_once_too(valkey: TestServer) -> None:
    with counted(valkey.url) as (engine, store):
        tokens = put(engine, prompt(2 * FEW * CHUNK, seed=1))
        check(engine, tokens[: FEW * CHUNK], want=FEW * CHUNK)
        with store.counting() as waits, engine.retrieve(tokens) as hit:
            assert hit.tokens == len(tokens)
        assert waits.depth == 1, waits.jobs
        assert waits.of("ask") == [(1, FEW)]
        assert waits.of("read") == [(1, FEW)]


@pytest.mark.ways("tcp")
def test_a_miss_waits_once_and_costs_no_page_and_evicts_nothing(valkey: TestServer) -> None:
    with counted(valkey.url, pages=FEW) as (engine, store):
        here = prompt(FEW * CHUNK, seed=1)
        engine.store(here, expected(here))
        before = memory_of(engine)
        assert before[0] == FEW, "memory is full"
        with store.counting() as waits:
            assert engine.retrieve(prompt(FEW * CHUNK, seed=2)).tokens == 0
        assert waits.depth == 1, waits.jobs
        assert waits.of("read") == [(1, FEW)]
        assert len(waits.jobs) == 2, "nothing follows"
        assert engine._retriever.pending.sweep(LIMIT_S) == 0
        assert memory_of(engine) == before
        check(engine, here, want=len(here))


@pytest.mark.ways("tcp")
def test_what_ends_in_the_window_costs_as_many_pages_as_came(valkey: TestServer) -> None:
    with counted(valkey.url, pages=FEW) as (engine, store):
        tokens = prompt(FEW * CHUNK, seed=1)
        put(engine, tokens[: 2 * CHUNK])
        engine.store(other := prompt(FEW * CHUNK, seed=2), expected(other))
        assert engine.flush()
        with store.counting() as waits, engine.retrieve(tokens) as hit:
            assert hit.tokens == 2 * CHUNK
            assert hit.reason == "never_stored"
        assert waits.depth == 1
        assert memory_of(engine) == (FEW, 2)


@pytest.mark.ways("tcp")
def test_a_lookup_and_the_retrieve_behind_it_wait_once(valkey: TestServer) -> None:
    """As vLLM does: it asks, makes room, and loads."""
    with counted(valkey.url, enable_async_loading=True) as (engine, store):
        tokens = put(engine, prompt(FEW * CHUNK, seed=1))
        with store.counting() as waits:
            assert engine.lookup(tokens).worth_tokens == len(tokens)
            with engine.retrieve(tokens) as hit:
                assert hit.tokens == len(tokens)
                assert hit.tiers["store0"] == len(tokens), "not out of memory"
        assert waits.depth == 1, waits.jobs
        assert waits.of("ask") + waits.of("read") == [(1, FEW)] * 2
        metrics = engine.stats()["metrics"]
        assert metrics["kvferry_load_bytes_total"]["store0"] == FEW * LAYOUT.chunk_bytes
        resident = memory_of(engine)
        with store.counting() as waits:
            assert engine.lookup(prompt(FEW * CHUNK, seed=2)).tokens == 0
            assert engine._retriever.pending.sweep(LIMIT_S) == 0
        assert waits.depth == 1, waits.jobs
        assert memory_of(engine) == resident


@pytest.mark.ways("tcp")
def test_what_a_lookup_began_is_there_whoever_comes_for_it(valkey: TestServer) -> None:
    with counted(valkey.url, enable_async_loading=True) as (engine, _):
        tokens = put(engine, prompt(FEW * CHUNK, seed=1))
        assert engine.lookup(tokens).tokens == len(tokens)
        wait_for("it to be loaded", lambda: engine.lookup(tokens).tiers["l1"], LIMIT_S)
        longer = tokens + prompt(CHUNK, seed=3)
        check(engine, longer, want=len(tokens))
        assert not engine._retriever._lookup_loads._open, "it counts once"
        again = put(engine, prompt(FEW * CHUNK, seed=4))
        assert engine.lookup(again).tokens == len(again)
        engine.clear(stores=False)  # what comes now is nobody's
        check(engine, again, want=len(again))


@pytest.mark.ways("tcp")
def test_prompts_that_wait_do_not_evict_each_other(valkey: TestServer) -> None:
    """Whoever asks for all that wait, and loads one of them at a time, reads each of them once."""
    with counted(valkey.url, pages=4 * FEW, enable_async_loading=True) as (engine, store):
        prompts = [put(engine, prompt(FEW * CHUNK, seed=seed)) for seed in range(12)]
        with store.counting() as waits:
            for tokens in prompts:
                assert engine.lookup(tokens).worth_tokens == len(tokens)
            assert sum(count for _, count in waits.of("read")) == 2 * FEW, "half of the memory"
            for tokens in prompts:
                with engine.retrieve(tokens) as hit:
                    assert hit.tokens == len(tokens)
        assert sum(count for _, count in waits.of("read") + waits.of("get")) == 12 * FEW


@pytest.mark.ways("tcp")
def test_what_the_engine_has_itself_is_not_asked_for(valkey: TestServer) -> None:
    with counted(valkey.url) as (engine, store):
        tokens = put(engine, prompt(FEW * CHUNK, seed=1))
        asked = replace(engine._read(tokens), computed_tokens=4 * CHUNK + 3)
        with store.counting() as waits:
            found = engine.lookup(asked)
        assert waits.jobs == [("ask", 1, 2)], "two chunks are left"
        assert (found.tokens, found.worth_tokens) == (len(tokens), len(tokens))
        assert found.tiers == {"l1": 4 * CHUNK, "store0": 2 * CHUNK}
        with store.counting() as waits:
            whole = replace(asked, computed_tokens=len(tokens))
            assert engine.lookup(whole).tokens == len(tokens)
        assert not waits.jobs


@pytest.mark.presence
@pytest.mark.ways("tcp")
def test_with_a_presence_view_a_miss_waits_for_nobody(valkey: TestServer) -> None:
    with counted(valkey.url, presence="auto", pages=FEW) as (engine, store):
        wait_for("the view", lambda: store.presence == "synced", LIMIT_S)
        tokens = put(engine, prompt(FEW * CHUNK, seed=1))
        wait_for(
            "what was written to be known", lambda: store.leading(engine.keys(tokens)), LIMIT_S
        )
        with store.counting() as waits:
            assert engine.retrieve(prompt(FEW * CHUNK, seed=2)).tokens == 0
        assert waits.depth == 0, waits.jobs
        with store.counting() as waits, engine.retrieve(tokens) as hit:
            assert hit.tokens == len(tokens)
        assert waits.depth == 1, waits.jobs


@pytest.mark.ways("tcp")
def test_what_cannot_pay_is_not_read(valkey: TestServer) -> None:
    """What was sent cannot be withdrawn, so nothing is sent to a store that is not waited for."""
    with counted(valkey.url) as (engine, store):
        tokens = put(engine, prompt(FEW * CHUNK, seed=1))
        check(engine, tokens, want=len(tokens))
        engine.clear(stores=False)
        quick = PrefillModel(0.0, 1e-9, 0.0, fixed=True)
        engine._retriever._prefill = quick
        with store.counting() as waits:
            engine.retrieve(tokens)
        assert not waits.of("read")


@pytest.mark.ways("tcp")
def test_ten_requests_at_once_read_a_prefix_once(valkey: TestServer) -> None:
    with counted(valkey.url) as (engine, store):
        tokens = put(engine, prompt(FEW * CHUNK, seed=1))
        start, seen = threading.Barrier(10), list[int]()

        def ask() -> None:
            start.wait(LIMIT_S)
            seen.append(engine.retrieve(tokens).tokens)

        with store.counting() as waits:
            threads = [threading.Thread(target=ask) for _ in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LIMIT_S)
        assert seen == [len(tokens)] * 10
        assert sum(count for _, count in waits.of("read") + waits.of("get")) == FEW


@pytest.mark.ways("tcp")
def test_ten_requests_at_once_for_what_is_not_there_cost_no_page(valkey: TestServer) -> None:
    with counted(valkey.url) as (engine, _):
        tokens, seen = prompt(FEW * CHUNK, seed=1), list[int]()
        start = threading.Barrier(10)

        def ask() -> None:
            start.wait(LIMIT_S)
            seen.append(engine.retrieve(tokens).tokens)

        threads = [threading.Thread(target=ask) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert seen == [0] * 10
        assert engine.stats()["memory"]["resident"] == 0


@pytest.mark.ways("tcp")
def test_two_stores_are_asked_at_the_same_moment(valkey: TestServer) -> None:
    """The second one has what the first one lacks; still nobody waits twice."""
    config = ClientConfig.from_url(valkey.url, presence="off")
    redis = CountedStore(RedisConnector(space(), config))
    other = memory_store("at the same moment")
    with other, open_engine(other) as writer:
        tokens = put(writer, prompt(FEW * CHUNK, seed=1))
        second = CountedStore(memory_store("at the same moment"))
        stores = [cast("Connector", redis), cast("Connector", second)]
        with open_engine(*stores) as engine:
            assert engine.contains(prompt(CHUNK, seed=99), timeout_s=LIMIT_S) == 0
            with redis.counting() as asked, second.counting() as given:
                check(engine, tokens, want=len(tokens))
            assert asked.of("ask") == [(1, FEW)]
            assert given.of("ask") == [(1, FEW)]
            assert asked.depth == 1


@pytest.mark.ways("tcp")
def test_what_is_written_between_the_question_and_the_read_is_not_deleted(
    valkey: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read was answered before the value was written, the question behind it: it is asked
    anew, and the value stays."""
    with counted(valkey.url) as (engine, store):
        tokens = put(engine, prompt(FEW * CHUNK, seed=1))
        assert engine.flush()
        keys = engine.keys(tokens)
        ask = store.submit_exists
        values = expected(tokens)

        def written_late(*words: Any, **options: Any) -> Any:
            monkeypatch.setattr(store, "submit_exists", ask)
            # What a read of this moment finds: nothing. Then somebody writes it.
            store.batch_delete(keys)
            return _Late(store, keys, values, words, options)

        monkeypatch.setattr(store, "submit_exists", written_late)
        with engine.retrieve(tokens) as hit:
            assert hit.tokens == len(tokens)
        assert [status == 0 for status in store.batch_exists(keys)] == [True] * FEW


class _Late:
    """A question that is answered when its answer is waited for, behind a write."""

    def __init__(self, store: Any, keys: Any, values: Any, words: Any, options: Any) -> None:
        self._store, self._keys, self._values = store, keys, values
        self._words, self._options = words, options
        self._ticket: Any = None

    def wait(self, timeout_s: float) -> Any:
        if self._ticket is None:
            # The reads have left by now, and find nothing.
            wait_for("the reads", lambda: "read" in str(self._store._waits.jobs), LIMIT_S)
            self._store.batch_set(self._keys, self._values)
            self._ticket = self._store.submit_exists(*self._words, **self._options)
        return self._ticket.wait(max(timeout_s, LIMIT_S))

    def cancel(self) -> None:
        """Nothing was sent."""

    done = False
    prefix_len = 0


def commands(cluster: Cluster) -> list[tuple[int, int]]:
    """How often each node was asked and read."""
    found = []
    for node in cluster.running():
        stats = node.info("commandstats")
        texts = [stats.get(f"cmdstat_{verb}", "calls=0") for verb in ("touch", "get")]
        asked, read = (int(text.split(",")[0].removeprefix("calls=")) for text in texts)
        found.append((asked, read))
    return found


def test_in_a_cluster_every_node_is_asked_and_read_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_EVERY_S", "_VALID_S"):  # else the mark of clears is a GET more, once a second
        monkeypatch.setattr(f"kvferry.cache.store.generations.{name}", 3600.0)
    with counted(cluster.url, **cluster.settings) as (engine, store):
        tokens = put(engine, prompt(FEW * 2 * CHUNK, seed=1))
        before = commands(cluster)
        with store.counting() as waits, engine.retrieve(tokens) as hit:
            assert hit.tokens == len(tokens)
        assert waits.depth == 1, waits.jobs
        assert waits.of("read") == [(1, 2 * FEW)]
        more = [(a[0] - b[0], a[1] - b[1]) for a, b in zip(commands(cluster), before, strict=True)]
        assert [sum(counts) for counts in zip(*more, strict=True)] == [2 * FEW, 2 * FEW]
        assert sum(1 for asked, read in more if asked and read) >= 2, "each node that has some"
        held = memory_of(engine)
        with store.counting() as waits:
            assert engine.retrieve(prompt(2 * FEW * CHUNK, seed=2)).tokens == 0
        assert waits.depth == 1, waits.jobs
        assert memory_of(engine) == held


@pytest.mark.ways("tcp")
def test_over_a_cache_server_finding_and_loading_wait_once(
    valkey: TestServer, tmp_path: Path
) -> None:
    """As vLLM's multiprocess connector does: what is found is brought, held, and loaded."""
    store = StoreConfig.of(type="redis", url=valkey.url, presence="off")
    tokens = prompt(FEW * CHUNK, seed=1)
    with (
        running(tmp_path, cache={"stores": (store,)}) as server,
        Client(IDENTITY, server.config.endpoints[0], timeout_s=LIMIT_S) as client,
    ):
        assert client.wait(LIMIT_S)
        (shard,) = server._registry.shards.values()
        assert shard.opened.wait(LIMIT_S)
        tier = shard.cache.tiers[0].tier
        counted = CountedStore(tier.connector)
        tier.connector = cast("Connector", counted)
        client.store(tokens, expected(tokens))
        assert shard.cache.flush()
        assert shard.cache.clear(stores=False) == FEW
        assert client.contains(prompt(CHUNK, seed=99), timeout_s=LIMIT_S) == 0
        tier.learn(0, 0.1)
        asked = replace(client._read(tokens), computed_tokens=2 * CHUNK)
        with counted.counting() as waits:
            assert CacheFinder(client).find(asked) == FEW
            _, rest = asked.behind_computed()
            with client.retrieve(rest) as hit:
                pages = [bytes(page) for page in hit.pages]
            assert pages == [chunk.tobytes() for chunk in expected(tokens)[2:]]
        assert waits.depth == 1, waits.jobs
        assert waits.of("ask") + waits.of("read") == [(1, FEW - 2)] * 2, waits.jobs
        assert not waits.of("get")
