"""Any command, asked over the native client: one server, a cluster's, and what Sentinels watch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from kvferry import AsyncRedisClient, RedisClient
from kvferry.base import errors
from kvferry.client.commands import ask, ask_each, information, key_pages, primaries, sparing
from kvferry.config import ClientConfig
from support.clients import opened, tls_port_of
from support.cluster import Cluster
from support.pure import MIB
from support.scripted import MiniStore, ScriptedServer, answer
from support.sentinel import SentinelGroup
from support.servers import TestServer
from support.stamps import within


def connect(target: Any, **settings: Any) -> RedisClient:
    return RedisClient(target.host, target.port, **settings)


def test_replies_of_every_kind(server: TestServer) -> None:
    for protocol in (2, 3):
        with connect(server, tuning={"protocol": protocol}) as client:
            assert ask(client, b"PING") == "PONG"
            assert ask(client, b"SET", b"k", b"\0\r\nv") == "OK"
            assert ask(client, b"GET", b"k") == b"\0\r\nv"
            assert ask(client, b"GET", b"none") is None
            assert ask(client, b"STRLEN", b"k") == 4
            assert ask(client, b"HSET", b"h", b"f", b"1") in (0, 1)
            assert ask(client, b"HGETALL", b"h") == [b"f", b"1"]
            assert ask(client, b"MGET", b"k", b"none") == [b"\0\r\nv", None]
            assert information(client, "memory")["used_memory"].isdigit()
            assert ask(client, b"DEL", b"k", b"h") == 2


def test_large_ones_both_ways(valkey: TestServer) -> None:
    value = os.urandom(1_000_000)
    with connect(valkey) as client:
        assert ask(client, b"SET", b"k", value) == "OK"
        assert ask(client, b"GET", b"k") == value
        assert (
            ask_each(client, [(b"GETRANGE", b"k", b"0", b"9999")] * 300)
            == [(True, value[:10_000])] * 300
        )
        with pytest.raises(errors.UsageError, match="a command has"):
            ask(client, b"SET", b"k", bytes(MIB))
        for turn in range(5):
            assert ask(client, b"SET", b"%d" % turn, bytes(MIB - 100)) == "OK"
        with pytest.raises(errors.ServerError, match="too much text"):
            ask(client, b"MGET", *(b"%d" % turn for turn in range(5)))
        assert ask(client, b"PING") == "PONG"


def test_what_a_server_refuses(start: Callable[..., TestServer]) -> None:
    server = start("valkey", password="right", users=["user few on >few ~k* +get +hello"])
    with connect(server, password="right") as client:
        with pytest.raises(errors.ServerError, match="unknown command"):
            ask(client, b"NONSENSE")
        ask(client, b"RPUSH", b"list", b"v")
        with pytest.raises(errors.ServerError) as caught:
            ask(client, b"GET", b"list")
        assert caught.value.server_code == "WRONGTYPE"
        mixed = ask_each(client, [(b"GET", b"list"), (b"LLEN", b"list"), (b"NONSENSE",)])
        assert mixed == [(False, None), (True, 1), (False, None)]
        assert ask_each(client, []) == []
    with (
        connect(server, username="few", password="few") as client,
        pytest.raises(errors.ServerError, match="NOPERM"),
    ):
        ask(client, b"INFO")
    with connect(server, password="wrong") as client, pytest.raises(errors.AuthError), within(5):
        ask(client, b"PING")


def test_who_does_not_answer() -> None:
    with (
        ScriptedServer(answer(b"", b"INFO"), MiniStore()) as server,
        connect(server, same_host="tcp") as client,
    ):
        with within(5), pytest.raises(errors.DeadlineExceeded):
            ask(client, b"INFO", timeout_s=0.2)
        assert ask(client, b"PING", timeout_s=5) == "PONG"
    with RedisClient("127.0.0.1", 1) as client, within(10):
        with pytest.raises(errors.UnavailableError):
            ask(client, b"PING", timeout_s=5)
        with pytest.raises(errors.UnavailableError):
            ask_each(client, [(b"PING",)] * 3, timeout_s=5)
    with pytest.raises(errors.ClosedError):
        ask(client, b"PING")


def test_a_command_that_is_answered_late_is_no_others_answer(valkey: TestServer) -> None:
    with connect(valkey) as client:
        ask(client, b"SET", b"k", b"v")
        valkey.cli("CLIENT", "PAUSE", "300", "ALL")
        with pytest.raises(errors.DeadlineExceeded):
            ask(client, b"MGET", b"k", b"k", timeout_s=0.05)
        assert ask(client, b"GET", b"k", timeout_s=5) == b"v"


def test_over_tls_and_a_unix_socket(tls_server: TestServer, valkey: TestServer) -> None:
    with opened("native", tls_port_of(tls_server)) as client:
        assert ask(client, b"PING") == "PONG"
    with RedisClient(unix_path=valkey.unix_path) as client:
        assert ask(client, b"PING") == "PONG"
        assert primaries(client) == [f"unix:{valkey.unix_path}"]


def test_a_cluster_is_asked_by_key_or_server_by_server(cluster: Cluster) -> None:
    keys = [b"key-%d" % index for index in range(50)]
    config = ClientConfig.from_url(cluster.url, **cluster.settings)
    with RedisClient.from_config(sparing(config)) as client:
        nodes = primaries(client)
        assert sorted(nodes) == sorted(f"{node.host}:{node.port}" for node in cluster.nodes)
        for key in keys:
            assert ask(client, b"SET", key, b"v", key=key) == "OK"
        sizes = [ask(client, b"DBSIZE", node=node) for node in nodes]
        assert all(sizes)
        found = [
            key for node in nodes for page in key_pages(client, node, b"key-*", 5) for key in page
        ]
        assert sorted(found) == sorted(keys)
        told = [information(client, node=node)["tcp_port"] for node in nodes]
        assert sorted(told) == sorted(str(node.port) for node in cluster.nodes)
        assert ask_each(client, [(b"EXISTS", key) for key in keys], node=nodes[0]) == [
            (True, 1)
        ] * len(keys), "keys of other nodes are found"
        with pytest.raises(errors.UnavailableError, match="no node of the cluster"):
            ask(client, b"PING", node="127.0.0.1:1")


def test_what_sentinels_watch(sentinels: SentinelGroup) -> None:
    with opened("native", sentinels) as client:
        assert information(client)["role"] == "master"
        master = sentinels.master()
        assert primaries(client) == [f"{master.host}:{master.port}"]


def test_nobody_knows_the_servers() -> None:
    with (
        RedisClient("127.0.0.1", 1, topology="cluster") as client,
        within(10),
        pytest.raises(errors.UnavailableError),
    ):
        primaries(client, 5)


def test_a_client_that_awaits_asks_in_a_thread(valkey: TestServer) -> None:
    async def main() -> str:
        async with AsyncRedisClient(valkey.host, valkey.port) as client:
            return (await client.server_info())["tcp_port"]

    assert asyncio.run(main()) == str(valkey.port)
