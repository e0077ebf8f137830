"""The presence view over TLS, over a Unix socket, and behind Sentinels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from kvferry import RedisClient
from support.presence import LIMIT_S, PREFIX, await_synced, settle, view_connections, watched
from support.proxy import FaultProxy
from support.resp import ReplyError
from support.sentinel import SentinelGroup
from support.servers import TestServer, wait_for

SETTINGS: dict[str, Any] = {"presence_prefix": PREFIX, "connections": 2}


@pytest.mark.parametrize("way", ["tls", "unix"])
def test_every_way(tls_server: TestServer, way: str) -> None:
    assert tls_server.tls is not None
    many = "for i=1,3000 do redis.call('SET', 'kv:' .. string.rep('x', 200) .. i, i) end"
    tls_server.cli("EVAL", many, 0)
    url = tls_server.tls_url if way == "tls" else tls_server.unix_url
    settings = SETTINGS | (tls_server.tls.client_settings if way == "tls" else {})
    assert url is not None
    with RedisClient.from_url(url, **settings) as client:
        await_synced(client)
        keys = ["kv:" + "x" * 200 + str(index) for index in range(3002)]
        assert client.presence(keys) == [False, *[True] * 3000, False]
        tls_server.cli("EVAL", many.replace("'SET'", "'DEL'").replace(", i)", ")"), 0)
        settle(client, dict.fromkeys(keys, False))
        client.set(keys[0], b"x")
        assert client.presence(keys[:1]) != [False]
        settle(client, {keys[0]: True})


def test_the_master_is_followed(fresh_sentinels: Callable[..., SentinelGroup]) -> None:
    group = fresh_sentinels()
    with RedisClient.from_url(group.url, **(group.settings | SETTINGS)) as client:
        await_synced(client)
        client.set("kv:both", b"x")
        settle(client, {"kv:both": True, "kv:new": False})
        old = group.master()
        wait_for(
            "the replica to have it",
            lambda: all(replica.cli("DBSIZE") == 1 for replica in group.replicas()),
            LIMIT_S,
        )
        new = group.failover()
        assert new is not old
        new.cli("SET", "kv:new", "x")
        settle(client, {"kv:both": True, "kv:new": True, "kv:none": False})
        assert client.presence_stats()["nodes"] == 1
        new.cli("DEL", "kv:both")
        settle(client, {"kv:both": False})


def test_another_server_behind_the_same_name_is_noticed(start: Callable[..., TestServer]) -> None:
    """A name moves to another server, and the old one lives on: only our data connections end."""
    old, new = start("valkey"), start("valkey")
    with FaultProxy(old.host, old.port) as way, watched(way) as client:
        (view,) = view_connections(old)
        way._target = (new.host, new.port)
        lines = old.cli("CLIENT", "LIST").decode().splitlines()
        for id in [int(line.split(" ")[0].removeprefix("id=")) for line in lines]:
            if id != view:
                with suppress(ReplyError):  # the one that asks
                    old.cli("CLIENT", "KILL", "ID", id, "SKIPME", "yes")
        wait_for("the view to follow", lambda: len(view_connections(new)) == 1, LIMIT_S)
        new.cli("SET", "kv:there", "x")
        settle(client, {"kv:there": True, "kv:absent": False})
