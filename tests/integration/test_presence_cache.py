"""The presence view behind a cache: what is not there is not asked for, and nothing is missed.

Judge is the server: what it counted of the commands that ask for keys.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvferry import TieredCache
from kvferry.client.batch import Status
from kvferry.config import ClientConfig
from kvferry.connectors.redis import RedisConnector
from kvferry.integrations.lmcache import KvferryClient
from kvferry.server import Client
from support.cache_server import CacheServerProcess
from support.connectors import space_of, value_of
from support.engines import CHUNK, IDENTITY, blanks, check, expected, open_engine, prompt
from support.lmcache_client import Caller
from support.presence import await_synced
from support.servers import TestServer, wait_for
from support.stamps import until

pytestmark = pytest.mark.presence

LIMIT_S = 15.0
SIZE = 1000
Start = Callable[..., TestServer]


def questions(server: TestServer) -> int:
    """How often the server was asked for a key by whoever reads or looks."""
    stats = server.info("commandstats")
    found = [stats.get(f"cmdstat_{verb}", "calls=0") for verb in ("exists", "touch", "get")]
    return sum(int(text.split(",")[0].removeprefix("calls=")) for text in found)


def asks_nothing(server: TestServer, act: Callable[[], object]) -> bool:
    """Whether it asks nothing: the mark of clears, read once a second, may fall into one try."""
    for _ in range(5):
        before = questions(server)
        act()
        if questions(server) == before:
            return True
    return False


def presence(store: Any) -> str:
    return str(store.presence)


def await_presence(store: Any, wanted: str = "synced") -> None:
    wait_for(f"presence to be {wanted}", lambda: presence(store).startswith(wanted), LIMIT_S)


@contextmanager
def cache(server: TestServer, **settings: Any) -> Iterator[TieredCache]:
    store = {"type": "redis", "url": server.url, **settings}
    with open_engine(stores=[store]) as engine:
        yield engine


def store_of(engine: TieredCache) -> Any:
    return engine.tiers[0].tier.connector


def test_a_miss_asks_nobody_and_a_hit_is_one(server: TestServer) -> None:
    there, absent = prompt(8 * CHUNK, seed=1), prompt(8 * CHUNK, seed=2)
    with cache(server) as other:
        other.store(there, expected(there))
        assert other.flush()
    with cache(server) as engine:
        await_presence(store_of(engine))

        def miss() -> None:
            for _ in range(20):
                assert engine.lookup(absent).tokens == 0
                assert engine.contains(absent) == 0
                check(engine, absent, want=0)

        assert asks_nothing(server, miss)
        before = questions(server)
        assert engine.lookup(there).tokens == len(there)
        check(engine, there, want=len(there))
        assert questions(server) > before
        shown = engine.stats()["stores"]["redis"]
        assert shown["presence"] == "synced"
        assert shown["presence_nodes_synced"] == 1
        assert shown["keys_unasked"] >= 20 * 8
        # What the view answers is no measurement of the store.
        assert shown["fixed_s"] > 0


def test_what_was_just_written_or_came_from_others_is_found(server: TestServer) -> None:
    with cache(server) as engine, cache(server) as other:
        await_presence(store_of(engine))
        for seed in range(20):
            tokens = prompt(2 * CHUNK, seed=seed)
            engine.store(tokens, expected(tokens))
            assert engine.flush()
            engine.clear(stores=False)
            assert engine.contains(tokens) == len(tokens), "its own write is never called absent"
            more = prompt(2 * CHUNK, seed=1000 + seed)
            other.store(more, expected(more))
            assert other.flush()
            until(lambda more=more: engine.contains(more) == len(more), LIMIT_S)


def test_a_prefix_ends_where_the_view_says_and_the_rest_is_asked(server: TestServer) -> None:
    space = space_of(SIZE)
    config = ClientConfig.from_url(server.url)
    values = [value_of(SIZE, i) for i in range(6)]
    keys = [f"k{i}" for i in range(6)]
    with RedisConnector(space, config) as store:
        await_presence(store)
        chosen = [0, 1, 3, 5]
        assert store.batch_set([keys[i] for i in chosen], [values[i] for i in chosen]).ok
        missing = [keys[2], keys[4]]
        until(lambda: all(store.absent(key) for key in missing), LIMIT_S)
        found = store.batch_exists(keys, prefix=True, touch=True)
        assert found.prefix_len == 2
        assert list(found) == [Status.OK] * 2 + [Status.MISS] + [Status.CANCELLED] * 3
        targets = [bytearray(SIZE) for _ in keys]
        read = store.batch_get(keys, targets)
        miss, ok = Status.MISS, Status.OK
        assert list(read) == [ok, ok, miss, ok, miss, ok]
        assert [targets[i] for i in chosen] == [values[i] for i in chosen]
        assert store.batch_exists(missing, touch=True).elapsed_s == 0, "nobody was asked"
        ticket = store.submit_get(keys, targets, prefix=True)
        assert (result := ticket.wait(LIMIT_S)) is not None
        assert result.prefix_len == 2
        before = questions(server)
        assert list(store.batch_exists(missing)) == [miss, miss]
        # The view itself may still ask for what was written.
        assert questions(server) >= before + 2, "EXISTS of single keys is the server's own word"
        assert store.batch_delete(keys).count(ok) == 4


def test_it_is_off_where_the_setting_says_so(valkey: TestServer) -> None:
    with cache(valkey, presence="off") as engine:
        before = questions(valkey)
        assert engine.lookup(prompt(CHUNK)).tokens == 0
        assert questions(valkey) > before
        assert engine.stats()["stores"]["redis"]["presence"] == "off: the setting says so"
        assert valkey.info("clients").get("tracking_clients", "0") == "0"
    assert ClientConfig(presence=False).presence == "off"  # type: ignore[arg-type]  # YAML's off


def test_one_of_a_host_keeps_it_and_the_next_takes_over(valkey: TestServer) -> None:
    first = open_engine(stores=[{"type": "redis", "url": valkey.url}])
    try:
        await_presence(store_of(first))
        with cache(valkey) as second:
            await_presence(store_of(second), "off: another")
            assert valkey.info("clients")["tracking_clients"] == "1"
            first.close()
            await_presence(store_of(second))
            until(lambda: valkey.info("clients")["tracking_clients"] == "1", LIMIT_S)
    finally:
        first.close()


def test_a_forked_child_does_not_keep_the_seat(valkey: TestServer) -> None:
    first = open_engine(stores=[{"type": "redis", "url": valkey.url}])
    await_presence(store_of(first))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)  # until the parent is done with it
        os._exit(0)
    os.close(reading)
    try:
        first.close()
        with cache(valkey) as second:
            await_presence(store_of(second))
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_a_flood_of_changes_turns_it_off_and_quiet_on_again(
    valkey: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    flood = "for i=1,40000 do redis.call('SET', KEYS[1] .. i, 'x') end"
    with cache(valkey) as engine, caplog.at_level(logging.INFO):
        store = store_of(engine)
        await_presence(store)
        prefix = store.space.prefix

        def is_off() -> bool:
            valkey.cli("EVAL", flood, 1, f"{prefix}flood")
            return presence(store).startswith("off: ")

        wait_for("it to be off", is_off, LIMIT_S)
        assert "changes/s times 1 views pass 5000/s" in presence(store)
        tokens = prompt(CHUNK)
        assert engine.lookup(tokens).tokens == 0, "the store is asked"
        engine.stats()
        told = [line for line in caplog.messages if "off until it is calmer" in line]
        assert len(told) == 1
        valkey.cli("FLUSHALL")
        await_presence(store)


def test_a_server_that_refuses_it_is_asked_as_before(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start("valkey")
    server.cli("ACL", "SETUSER", "plain", "on", ">word", "~*", "+@all", "-client|tracking")
    with (
        caplog.at_level(logging.WARNING),
        cache(server, username="plain", password="word") as engine,
    ):
        await_presence(store_of(engine), "off: ")
        tokens = prompt(2 * CHUNK)
        engine.store(tokens, expected(tokens))
        assert engine.flush()
        engine.clear(stores=False)
        check(engine, tokens, want=len(tokens))
        engine.stats()
        assert not [line for line in caplog.messages if "presence" in line]


def test_lmcache_asks_only_for_what_may_be_there(valkey: TestServer) -> None:
    client = KvferryClient(valkey.host, valkey.port, 2)
    try:
        caller = Caller(client)
        await_synced(client._batches.client)
        assert caller.set(["there"], [bytearray(b"x" * SIZE)])[0]
        until(lambda: client._batches.client.presence(["there"]) == [True], LIMIT_S)
        before = questions(valkey)
        assert caller.exists(["a", "b"])[2] == [False, False]
        assert questions(valkey) == before
        assert caller.exists(["a", "there", "b"])[2] == [False, True, False]
        assert questions(valkey) == before + 1
    finally:
        client.close()


def test_the_cache_server_asks_nobody_for_what_is_absent(
    valkey: TestServer, tmp_path: Path
) -> None:
    store = json.dumps({"type": "resp", "host": valkey.host, "port": valkey.port})
    with (
        CacheServerProcess(tmp_path, "--l2-adapter", store, mib=4) as server,
        Client(IDENTITY, server.endpoint, timeout_s=LIMIT_S) as client,
    ):
        assert client.wait(LIMIT_S)

        def is_synced() -> bool:
            stores = client.stats()["server"]["stores"]
            return [one["presence"] for one in stores.values()] == ["synced"]

        until(is_synced, LIMIT_S)

        def miss() -> None:
            for seed in range(10):
                tokens = prompt(8 * CHUNK, seed=seed)
                assert client.lookup(tokens).tokens == 0
                assert client.retrieve(tokens, blanks(8)).tokens == 0

        assert asks_nothing(valkey, miss)


@pytest.mark.ways("tcp")
def test_what_the_view_knows_to_be_there_is_read_without_a_question(valkey: TestServer) -> None:
    """A hit is one sequential wait: the reads are the question."""
    tokens = prompt(8 * CHUNK, 5)
    stores = [{"type": "redis", "url": valkey.url}]
    with open_engine(stores=stores) as engine:
        connector: Any = engine.tiers[0].tier.connector
        until(lambda: connector.presence == "synced", 10)
        engine.store(tokens, expected(tokens))
        assert engine.flush(30)
        keys = engine.keys(tokens)
        until(lambda: connector.leading(keys) == 8, 10)
        engine.clear(stores=False)
        before = connector.stats()
        check(engine, tokens, want=8 * CHUNK)
        after = connector.stats()
        assert after["jobs"] - before["jobs"] <= 2, "one of reads; a thread may have touched"
        assert connector.leading([*keys, "0" * 32]) == 8
