"""The presence view of one server: whatever happens to keys, what is said of them is right."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvferry import AsyncRedisClient, RedisClient
from kvferry.base.errors import UsageError
from kvferry.chunks.keys import identity_digest
from kvferry.client.batch import Status
from kvferry.config import ClientConfig
from support.presence import (
    LIMIT_S,
    PREFIX,
    await_synced,
    settle,
    settle_with,
    view_connections,
    watched,
)
from support.secrets import secret
from support.servers import TestServer, wait_for
from support.tuned import tuned

Start = Callable[..., TestServer]
PASSWORD = secret("presence")


# What others do.


def test_keys_that_others_made_and_make(server: TestServer) -> None:
    for index in range(2500):  # several replies of SCAN
        server.cli("SET", f"kv:{index}", "x") if index % 500 == 0 else None
    server.cli("EVAL", "for i=1,2500 do redis.call('SET', 'kv:many' .. i, i) end", 0)
    server.cli("SET", "other", "x")
    with watched(server) as client:
        many = [f"kv:many{index}" for index in range(1, 2501)]
        assert client.presence(many) == [True] * len(many)
        assert client.presence(["kv:0", "kv:1", "other", "kv:many2501"]) == [
            True,
            False,
            None,
            False,
        ]
        assert client.presence_stats()["keys"] == 2505
        server.cli("SET", "kv:1", "x")
        settle(client, {"kv:1": True, "kv:2": False})
        server.cli("DEL", "kv:1", "kv:0")
        settle(client, {"kv:1": False, "kv:0": False, "kv:500": True})
        server.cli("RENAME", "kv:500", "kv:new")
        settle(client, {"kv:500": False, "kv:new": True})
        server.cli("RENAME", "kv:new", "elsewhere")
        server.cli("RENAME", "other", "kv:came")
        settle(client, {"kv:new": False, "kv:came": True})
        server.cli("COPY", "kv:came", "kv:copied")
        settle(client, {"kv:copied": True})


def test_expiry(server: TestServer) -> None:
    with watched(server) as client:
        server.cli("SET", "kv:short", "x", "PX", 3_600_000)
        server.cli("SET", "kv:long", "x", "EX", 3600)
        settle(client, {"kv:short": True, "kv:long": True})
        before = int(server.info("stats")["expired_keys"])
        server.cli("PEXPIRE", "kv:short", 300)  # now, that it was seen
        settle(client, {"kv:short": False, "kv:long": True})  # nobody reads it: the server's cycle
        assert int(server.info("stats")["expired_keys"]) == before + 1
        server.cli("PEXPIRE", "kv:long", 1)
        settle(client, {"kv:long": False})
        client.set("kv:ours", b"x", ttl_s=0.3)
        wait_for(  # it to be known, if it lives as long as we are kept waiting
            "it to be known",
            lambda: client.presence(["kv:ours"]) == [True] or not server.cli("EXISTS", "kv:ours"),
            LIMIT_S,
        )
        settle(client, {"kv:ours": False})


def test_eviction_is_seen_for_each_key(start: Start) -> None:
    server = start("valkey", "--maxmemory", "24mb", "--maxmemory-policy", "allkeys-lru")
    keys = [f"kv:{index}" for index in range(120)]
    with watched(server) as client:
        for key in keys:
            client.set(key, bytes(500_000))
        wait_for("calm", lambda: client.presence_stats()["changing"] == 0, LIMIT_S)
        truth = settle_with(client, server, keys)
        evicted = int(server.info("stats")["evicted_keys"])
        assert 20 < evicted == list(truth.values()).count(False)
        assert client.presence_stats()["keys"] == server.cli("DBSIZE") == len(keys) - evicted
        # Each SET and each eviction was announced, if several sometimes in one message.
        assert client.presence_stats()["announced"] >= evicted + len(keys)


@pytest.mark.parametrize("command", ["FLUSHALL", "FLUSHDB"])
def test_flush(server: TestServer, command: str) -> None:
    keys = [f"kv:{index}" for index in range(10)]
    with watched(server) as client:
        client.batch_set(keys, [b"x"] * 10)
        settle(client, dict.fromkeys(keys, True))
        server.cli(command)
        settle(client, dict.fromkeys(keys, False))
        client.set(keys[0], b"x")
        settle(client, {keys[0]: True, keys[1]: False})


def test_other_databases_are_not_ours(server: TestServer) -> None:
    def elsewhere(*words: str) -> None:
        called = ", ".join(f"'{word}'" for word in words)
        server.cli("EVAL", f"redis.call('SELECT', 3) return redis.call({called})", 0)

    with watched(server) as client:
        client.set("kv:here", b"x")
        settle(client, {"kv:here": True})
        elsewhere("SET", "kv:there", "x")
        elsewhere("SET", "kv:here", "x")
        settle(client, {"kv:here": True, "kv:there": False})
        elsewhere("FLUSHDB")  # announced as if everything were gone
        for _ in range(50):
            assert client.presence(["kv:here"]) != [False]
            time.sleep(0.002)
        settle(client, {"kv:here": True, "kv:there": False})
        with watched(server, db=3) as other:
            assert other.presence(["kv:here"]) == [False]


# What we do.


def test_what_we_stored_is_never_absent(server: TestServer) -> None:
    with watched(server) as client:
        for index in range(300):
            key = f"kv:{index}"
            settle(client, {key: False})
            client.set(key, b"x")
            for _ in range(20):
                assert client.presence([key]) != [False]
        settle(client, {f"kv:{index}": True for index in range(300)})
        client.batch_delete([f"kv:{index}" for index in range(300)])
        settle(client, {f"kv:{index}": False for index in range(300)})


def test_no_round_trip_and_no_miss(server: TestServer) -> None:
    keys = [f"kv:{'x' * 40}{index}" for index in range(1000)]
    with watched(server) as client:
        before = server.info("stats")
        best_s = 1.0
        for _ in range(50):
            started = time.thread_time()  # it waits for nothing: counters tell, below
            assert client.presence(keys) == [False] * len(keys)
            best_s = min(best_s, time.thread_time() - started)
        after = server.info("stats")
        assert after["keyspace_misses"] == before["keyspace_misses"]
        asked = int(after["total_commands_processed"]) - int(before["total_commands_processed"])
        assert asked < 100  # beats, and this test
        assert best_s / len(keys) < 1e-6
        assert after["tracking_total_prefixes"] == "1"
        assert after["tracking_total_keys"] == "0"  # the server keeps nothing for us


def test_asyncio_and_namespaces(valkey: TestServer) -> None:
    size = 9 << 20  # three stripes

    async def main() -> None:
        async with AsyncRedisClient(valkey.host, valkey.port, presence_prefix=PREFIX) as client:
            await asyncio.to_thread(await_synced, client)
            identity = identity_digest("model m")
            namespace = client.namespace(PREFIX, identity, size)
            assert namespace.presence(["chunk", "none"]) == [False, False]
            await namespace.set("chunk", bytes(size))
            assert namespace.presence(["chunk"]) != [False]
            await asyncio.to_thread(settle, client, {"kv:chunk": True, "kv:chunk#1": True})
            assert namespace.presence(["chunk", "none"]) == [True, False]
            await namespace.delete("chunk")
            await asyncio.to_thread(settle, client, {"kv:chunk": False, "kv:chunk#1": False})

    asyncio.run(main())
    with watched(valkey) as client:
        blocking = client.namespace(PREFIX, identity_digest("model m"), size)
        blocking.set("chunk", bytes(size))
        settle(client, {"kv:chunk": True})
        assert blocking.presence(["chunk", "none"]) == [True, False]


# Connections that end.


def test_killed_connection_and_what_happened_meanwhile(server: TestServer) -> None:
    with watched(server) as client:
        client.set("kv:gone", b"x")
        settle(client, {"kv:gone": True, "kv:new": False})
        for round_ in range(5):
            (connection,) = view_connections(server)
            server.cli("CLIENT", "KILL", "ID", connection)
            server.cli("SET", f"kv:new{round_}", "x")
            server.cli("DEL", "kv:gone")
            settle(client, {f"kv:new{round_}": True, "kv:gone": False})
        assert client.presence_stats()["forgotten"] == 5
        assert view_connections(server) != [connection]


def test_restart(fresh_server: TestServer) -> None:
    with watched(fresh_server) as client:
        client.set("kv:a", b"x")
        settle(client, {"kv:a": True, "kv:b": False})
        fresh_server.kill()
        settle(client, {"kv:a": None, "kv:b": None})
        fresh_server.restart()
        fresh_server.cli("SET", "kv:b", "x")
        settle(client, {"kv:a": False, "kv:b": True})
    assert client.presence(["kv:a"]) == [None]  # closed


def test_silence_is_not_absence(fresh_server: TestServer) -> None:
    with watched(fresh_server) as client:
        settle(client, {"kv:a": False})
        fresh_server.pause()
        try:
            settle(client, {"kv:a": None})
        finally:
            fresh_server.resume()
        settle(client, {"kv:a": False})


# Limits and refusals.


def test_too_many_keys_are_unknown(server: TestServer) -> None:
    server.cli("EVAL", "for i=1,3000 do redis.call('SET', 'kv:' .. i, i) end", 0)
    settings: dict[str, Any] = {"presence_prefix": PREFIX, "presence_keys_max": 1000}
    with RedisClient(server.host, server.port, **tuned(ClientConfig, **settings)) as client:
        ends = time.monotonic() + 0.5
        while time.monotonic() < ends:
            assert client.presence(["kv:1", "kv:none"]) == [None, None]
            time.sleep(0.01)

        def is_given_up() -> bool:
            stats = client.presence_stats()
            assert (stats["nodes"], stats["nodes_synced"]) == (1, 0)
            return stats["keys"] == 0 and stats["memory_bytes"] < 200_000

        wait_for("the keys to be let go", is_given_up, LIMIT_S)
    with watched(server, presence_keys_max=3000) as client:
        settle(client, {"kv:1": True, "kv:none": False})
        server.cli("SET", "kv:one-more", "x")
        settle(client, {"kv:1": None, "kv:none": None})


def test_a_user_that_may_not(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start("redis7", users=[f"user limited on >{PASSWORD} ~* &* +@all -client|tracking"])
    settings: dict[str, Any] = {"username": "limited", "password": PASSWORD}
    with (
        caplog.at_level(logging.INFO, "kvferry.client"),
        RedisClient(server.host, server.port, presence_prefix=PREFIX, **settings) as client,
    ):

        def told() -> list[logging.LogRecord]:
            return [record for record in caplog.records if "presence" in record.getMessage()]

        def asked_in_vain() -> list[logging.LogRecord]:
            client.set("kv:a", b"x")
            assert client.presence(["kv:a", "kv:b"]) == [None, None]
            return told()

        wait_for("a line in the log", asked_in_vain, LIMIT_S)
        for _ in range(50):
            asked_in_vain()
            time.sleep(0.01)
        lines = told()
        assert len(lines) == 1
        assert "NOPERM" in lines[0].getMessage()
        assert PASSWORD not in lines[0].getMessage()


def test_a_user_that_may_do_just_that(start: Start) -> None:
    rights = "+get +set +del +exists +client|setname +client|tracking +scan +ping"
    server = start("redis7", users=[f"user cache on >{PASSWORD} ~kv:* -@all {rights}"])
    with watched(server, username="cache", password=PASSWORD) as client:
        client.set("kv:a", b"x")
        settle(client, {"kv:a": True, "kv:b": False})


def test_prefixes_are_taken_literally(server: TestServer) -> None:
    prefix = "k*[v]?\\^-:"
    with watched(server, presence_prefix=prefix) as client:
        client.set(f"{prefix}1", b"x")
        server.cli("SET", "kxv?:1", "x")
        settle(client, {f"{prefix}1": True, f"{prefix}2": False, "kxv?:1": None})
    with watched(server, presence_prefix=prefix) as client:
        assert client.presence([f"{prefix}1", "kxv?:1"]) == [True, None]
        assert client.presence_stats()["keys"] == 1
    with watched(server, presence_prefix="") as client:
        assert client.presence([f"{prefix}1", "kxv?:1", "none"]) == [True, True, False]


def test_without_a_prefix_nothing_is_known(valkey: TestServer) -> None:
    with RedisClient(valkey.host, valkey.port) as client:
        client.set("a", b"x")
        assert client.presence(["a", b"b"]) == [None, None]
        assert client.presence([]) == []
        assert set(client.presence_stats().values()) == {0}
        for bad in ("a", b"a", [1], [""]):
            with pytest.raises(UsageError):
                client.presence(bad)  # type: ignore[arg-type]


def test_touch_protects_what_is_to_be_loaded(start: Start) -> None:
    server = start("redis7", "--maxmemory", "16mb", "--maxmemory-policy", "allkeys-lfu")
    with watched(server) as client:
        client.set("kv:hot", bytes(100_000))
        server.cli("OBJECT", "FREQ", "kv:hot")
        before = server.cli("OBJECT", "FREQ", "kv:hot")
        assert client.batch_exists(["kv:hot"] * 50)[0] is Status.OK
        assert server.cli("OBJECT", "FREQ", "kv:hot") <= before
        assert client.batch_exists(["kv:hot"] * 200, touch=True)[0] is Status.OK
        assert server.cli("OBJECT", "FREQ", "kv:hot") > before
