"""The presence view over TLS, over a Unix socket, and behind Sentinels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvferry import RedisClient
from support.presence import LIMIT_S, PREFIX, await_synced, settle
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
