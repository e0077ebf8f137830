"""The pure-Python client against real servers: what it stores and reads, who may use it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import redis

from kvferry.base import errors
from kvferry.client.batch import Status
from kvferry.client.pure.client import PureRedisClient
from support.cluster import Cluster
from support.pure import MIB, connect, payload
from support.scripted import (
    Handler,
    MiniStore,
    ScriptedServer,
    answer,
    max_clients,
    noproto,
    resp2_only,
    silent,
)
from support.sentinel import SentinelGroup
from support.servers import TestServer
from support.stamps import until, within

Start = Callable[..., TestServer]

SIZES = [0, 1, 2, 4083, 4096, 4097, 65_536, MIB - 1, 2 * MIB + 4096, 8 * MIB + 3]


# What it stores and reads.


@pytest.mark.parametrize("protocol", [2, 3])
def test_values_of_every_size_come_back(server: TestServer, protocol: int) -> None:
    with connect(server, protocol=protocol) as client:
        for size in SIZES:
            target = bytearray(size)
            assert client.get(f"v{size}", target) is False
            client.set(f"v{size}", payload(size))
            assert client.get(f"v{size}", target) is True
            assert target == payload(size)
        assert client.stats()["connects"] == 1


def test_what_it_writes_others_read_and_the_reverse(server: TestServer) -> None:
    with connect(server, db=3) as client, redis.Redis(server.host, server.port, db=3) as other:
        client.set(b"\0\r\n\xff", payload(MIB))
        assert other.get(b"\0\r\n\xff") == payload(MIB)
        other.set("theirs", payload(5000))
        target = np.zeros(5000, "u1")
        assert client.get("theirs", target)
        assert target.tobytes() == payload(5000)


@pytest.mark.parametrize("window_bytes", [None, 1, 100_000])
def test_batches(server: TestServer, window_bytes: int | None) -> None:
    sizes = SIZES * 3
    keys = [f"key-{index}" for index in range(len(sizes))]
    values = [payload(size, index) for index, size in enumerate(sizes)]
    with connect(server, window_bytes=window_bytes) as client:
        stored = client.batch_set(keys, values)
        assert stored.ok
        assert list(stored.sizes) == sizes
        targets = [bytearray(size) for size in sizes]
        result = client.batch_get(keys, targets)
        assert result.ok
        assert list(result.sizes) == sizes
        assert all(bytes(t) == v for t, v in zip(targets, values, strict=True))
        assert client.batch_exists([*keys, "none"]).prefix_len == len(keys)
        deleted = client.batch_delete(["none", *keys])
        assert (deleted[0], deleted.count(Status.OK)) == (Status.MISS, len(keys))
        assert client.batch_exists(keys, touch=True).count(Status.MISS) == len(keys)


def test_small_commands_go_thousands_deep(server: TestServer) -> None:
    keys = [f"{'k' * (index % 500)}{index}" for index in range(20_000)]
    with connect(server) as client, within(20):
        client.batch_set(keys[::2], [b"x"] * 10_000)
        found = client.batch_exists(keys)
        assert [bool(status) for status in found] == [False, True] * 10_000
        targets = [bytearray(1) for _ in keys]
        assert client.batch_get(keys, targets).statuses == found.statuses


def test_misses_and_mismatches_leave_the_rest_intact(server: TestServer) -> None:
    with connect(server, drain_bytes_max=MIB) as client:
        for key, size in (("short", 10), ("right", 5000), ("long", MIB), ("huge", 2 * MIB)):
            client.set(key, payload(size))
        server.cli("RPUSH", "list", "item")
        keys = ["right", "none", "short", "right", "long", "list", "huge", "right"]
        targets = [bytearray(5000) for _ in keys]
        result = client.batch_get(keys, targets)
        mismatch, ok = Status.SIZE_MISMATCH, Status.OK
        expected = [ok, Status.MISS, mismatch, ok, mismatch, Status.SERVER_ERROR, mismatch, ok]
        assert list(result) == expected
        assert list(result.sizes) == [5000, 0, 10, 5000, MIB, 0, 2 * MIB, 5000]
        assert all(targets[index] == payload(5000) for index in (0, 3, 7))
        # "huge" was beyond the drain limit: it cost the connection, and only that.
        assert client.stats()["connects"] == 2


def test_single_operations_raise_what_a_batch_reports(server: TestServer) -> None:
    with connect(server) as client:
        assert client.exists("k") is False
        assert client.delete("k") is False
        client.set("k", b"12345")
        with pytest.raises(errors.SizeMismatchError, match="5 bytes"):
            client.get("k", bytearray(4))
        assert client.exists("k") is True
        assert client.delete("k") is True
        server.cli("RPUSH", "list", "item")
        with pytest.raises(errors.ServerError) as caught:
            client.get("list", bytearray(4))
        assert caught.value.server_code == "WRONGTYPE"


def test_prefix_stops_at_the_first_hole(server: TestServer) -> None:
    keys = [f"p{index}" for index in range(3000)]
    with connect(server) as client:
        client.batch_set(keys, [b"v"] * len(keys))
        client.delete("p1000")
        targets = [bytearray(1) for _ in keys]
        for result in (
            client.batch_exists(keys, prefix=True),
            client.batch_exists(keys, prefix=True, touch=True),
            client.batch_get(keys, targets, prefix=True),
        ):
            assert result.prefix_len == 1000
            assert result[1000] is Status.MISS
            assert result[-1] is Status.CANCELLED  # it was not asked for
            assert result.error is None
        assert client.batch_get(keys, targets).count(Status.OK) == 2999  # still in step


def test_time_to_live(server: TestServer) -> None:
    with connect(server, ttl_s=100) as client:
        began = time.monotonic()
        client.set("default", b"v")
        client.set("own", b"v", ttl_s=25.25)
        client.batch_set(["batch"], [b"v"], ttl_s=50.0)
        for key, given_ms in (("default", 100_000), ("own", 25_250), ("batch", 50_000)):
            left_ms = server.cli("PTTL", key)
            took_ms = (time.monotonic() - began) * 1000
            assert given_ms - took_ms - 100 < left_ms <= given_ms
        for bad in (0, -1, float("nan"), 1e-9):
            with pytest.raises(errors.UsageError):
                client.set("own", b"v", ttl_s=bad)


def test_touch_refreshes_and_exists_does_not(valkey: TestServer) -> None:
    with connect(valkey) as client:

        def idle_s(key: str) -> int:
            return int(valkey.cli("OBJECT", "IDLETIME", key))

        client.batch_set(["a", "b"], [b"v", b"v"])
        until(lambda: idle_s("a") >= 1 and idle_s("b") >= 1, 10)
        client.batch_exists(["a"])
        client.batch_exists(["b"], touch=True)
        assert idle_s("b") < idle_s("a")  # in this order: meanwhile a second may end
        assert idle_s("a") >= 1


def test_server_facts(server: TestServer) -> None:
    with connect(server, client_name="tester") as client:
        began = time.monotonic()
        with within(1):
            assert 0 < client.ping() <= time.monotonic() - began
        assert client.server_info()["redis_version"]
        assert b"name=tester" in server.cli("CLIENT", "LIST")


def test_unix_socket_and_url(server: TestServer) -> None:
    assert server.unix_url is not None
    with PureRedisClient.from_url(server.unix_url) as client:
        client.set("k", payload(5 * MIB))
        target = bytearray(5 * MIB)
        assert client.get("k", target)
        assert target == payload(5 * MIB)


def test_all_addresses_of_a_name_are_tried(server: TestServer) -> None:
    # "localhost" may have ::1 first; the server listens on 127.0.0.1 alone.
    with PureRedisClient("localhost", server.port) as client:
        client.set("k", b"v")


def test_environment_names_the_server(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_RESP_HOST", server.host)
    monkeypatch.setenv("LMCACHE_RESP_PORT", str(server.port))
    with PureRedisClient() as client:
        client.set("k", b"v")
        assert server.cli("GET", "k") == b"v"


# Who may come in.


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_credentials(start: Start, kind: str, protocol: int) -> None:
    server = start(kind, password="pa:ss/w@rd", users=["user alice on >secret ~cache:* +@all"])
    with connect(server, password="pa:ss/w@rd", protocol=protocol, db=1) as client:
        client.set("k", b"v")
    with connect(server, username="alice", password="secret", protocol=protocol) as client:
        client.set("cache:k", b"v")
        with pytest.raises(errors.ServerError, match="NOPERM"):
            client.set("other", b"v")
    for wrong in ({"password": "wr0ng-secret"}, {}):
        with connect(server, protocol=protocol, **wrong) as client:
            with pytest.raises(errors.AuthError) as caught:
                client.get("k", bytearray(1))
            assert "wr0ng-secret" not in repr(caught.value)
            result = client.batch_get(["k"], [bytearray(1)])
            assert result[0] is Status.UNAVAILABLE
            assert "WRONGPASS" in str(result.error) or "NOAUTH" in str(result.error)


def test_database_out_of_range_is_unavailable(valkey: TestServer) -> None:
    with (
        connect(valkey, db=10_000) as client,
        pytest.raises(errors.UnavailableError, match="DB index"),
    ):
        client.set("k", b"v")


def test_server_that_quotes_the_password_is_not_quoted() -> None:
    text = b"-ERR bad arguments: 'AUTH' 'default' 'hunter2'\r\n"
    with (
        ScriptedServer(answer(text, b"HELLO", b"AUTH"), MiniStore()) as server,
        connect(server, password="hunter2") as client,
    ):
        result = client.batch_exists(["k"])
        assert result[0] is Status.UNAVAILABLE
        assert result.error == "ERR bad arguments: 'AUTH' 'default' '***'"


@pytest.mark.parametrize("handler", [resp2_only(), noproto()], ids=["no HELLO", "NOPROTO"])
def test_fall_back_to_resp2(handler: Handler) -> None:
    with ScriptedServer(handler, MiniStore()) as server, connect(server, password="p") as client:
        client.set("k", b"value")
        target = bytearray(5)
        assert client.get("k", target)
        assert target == b"value"
        assert client.get("none", target) is False
        assert server.names()[:4] == [b"HELLO", b"AUTH", b"PING", b"CLIENT"]


def test_full_server_says_so() -> None:
    with ScriptedServer(MiniStore(), greeting=max_clients()) as server:
        for protocol in (2, 3):
            with (
                connect(server, protocol=protocol) as client,
                pytest.raises(errors.UnavailableError, match="max number of clients"),
            ):
                client.get("k", bytearray(1))


# Who else uses it, and how it ends.


def test_mistakes_are_told_before_anything_is_sent() -> None:
    with ScriptedServer(MiniStore()) as server:
        with connect(server, value_size_bytes_max=1000) as client:
            shared = memoryview(bytearray(10))
            for call in (
                lambda: client.batch_get([], []),
                lambda: client.batch_get(["a"], []),
                lambda: client.batch_get(["a"], [b"read-only"]),
                lambda: client.batch_get(["a", "b"], [shared, shared]),
                lambda: client.batch_exists("abc"),
                lambda: client.set("k", bytes(1001)),
                lambda: client.set("", b"v"),
            ):
                with pytest.raises(errors.UsageError):
                    call()
        assert server.connections == 0


def test_threads_share_a_client(server: TestServer) -> None:
    failures: list[object] = []
    with connect(server) as client:

        def work(number: int) -> None:
            try:
                for turn in range(20):
                    value = payload(100_000 + number, turn)
                    client.set(f"t{number}", value)
                    target = bytearray(len(value))
                    assert client.get(f"t{number}", target)
                    assert target == value
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not failures
        assert client.stats()["connects"] == 1


def test_waiting_for_another_batch_counts() -> None:
    with (
        ScriptedServer(silent(b"EXISTS"), MiniStore()) as server,
        connect(server, stall_timeout_s=30, timeout_s=30) as client,
    ):
        holder = threading.Thread(target=client.batch_exists, args=(["k"],))
        holder.start()
        until(lambda: b"EXISTS" in server.names(), 5)
        with within(0.5):
            result = client.batch_get(["k"], [bytearray(1)], timeout_s=0.2)
        assert result[0] is Status.TIMEOUT
        client.close()
        holder.join()


def test_forked_child_dials_for_itself(server: TestServer) -> None:
    with connect(server) as client:
        client.set("k", payload(MIB))
        child = os.fork()
        if child == 0:
            target = bytearray(MIB)
            good = client.get("k", target) and target == payload(MIB)
            os._exit(0 if good and client.stats()["connects"] == 2 else 1)
        target = bytearray(MIB)
        for _ in range(20):
            assert client.get("k", target)
            assert target == payload(MIB)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.stats()["connects"] == 1


def test_close_ends_a_batch_in_flight() -> None:
    with ScriptedServer(silent(b"EXISTS"), MiniStore()) as server:
        client = connect(server, stall_timeout_s=30, timeout_s=30)
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(client.batch_exists(["k", "l"])))
        thread.start()
        until(lambda: b"EXISTS" in server.names(), 5)
        with within(1):
            client.close()
            thread.join(20)
        assert list(results[0]) == [Status.CANCELLED] * 2
        client.close()
        with pytest.raises(errors.ClosedError):
            client.exists("k")


def test_buffers_are_let_go(server: TestServer) -> None:
    with connect(server) as client:
        target = bytearray(10)
        client.set("k", target)
        client.get("k", target)
        client.batch_get(["k", "none"], [target, bytearray(3)])
        target.append(0)  # BufferError if a view were still held


def test_statistics(server: TestServer) -> None:
    with connect(server) as client:
        client.batch_set(["a", "b"], [bytes(10), bytes(20)])
        client.batch_get(["a", "none", "b"], [bytearray(10), bytearray(1), bytearray(1)])
        stats = client.stats()
    assert (stats["batches"], stats["keys"], stats["connects"]) == (2, 5, 1)
    assert (stats["ok"], stats["miss"], stats["size_mismatch"]) == (3, 1, 1)
    assert (stats["bytes_sent"], stats["bytes_received"]) == (30, 10)


# Not for many servers.


@pytest.mark.parametrize(
    "url", ["redis+cluster://localhost", "redis+sentinel://localhost/mymaster"]
)
def test_the_address_of_many_servers_names_the_other_client(url: str) -> None:
    with pytest.raises(errors.ConfigError, match=r"one server; use kvferry\.RedisClient"):
        PureRedisClient.from_url(url)


def test_a_server_of_many_names_the_other_client(
    cluster: Cluster, sentinels: SentinelGroup
) -> None:
    for host, port in ((cluster.host, cluster.port), (sentinels.host, sentinels.port)):
        with (
            PureRedisClient(host, port) as client,
            within(5),
            pytest.raises(errors.UnavailableError, match=r"use kvferry\.RedisClient"),
        ):
            client.exists("k")


@pytest.mark.parametrize("word", [b"MOVED", b"ASK"])
def test_a_redirect_is_not_followed(word: bytes) -> None:
    with (
        ScriptedServer(answer(b"-%b 1 127.0.0.1:1\r\n" % word, b"GET"), MiniStore()) as server,
        connect(server) as client,
        within(5),
    ):
        client.set("k", b"v")
        with pytest.raises(errors.ServerError, match=r"cluster.*use kvferry\.RedisClient"):
            client.get("k", bytearray(1))
        assert client.exists("k")
        assert client.stats()["connects"] == 1
