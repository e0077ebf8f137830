"""Tests of the presence view run against a node, with what needs other commands said anew."""

from __future__ import annotations

# ruff: noqa: F401
from integration.test_presence import (
    test_asyncio_and_namespaces,
    test_flush,
    test_prefixes_are_taken_literally,
    test_what_we_stored_is_never_absent,
    test_without_a_prefix_nothing_is_known,
)
from support.node_server import NodeServer
from support.presence import settle, watched


def test_what_a_node_evicts_is_absent_at_once() -> None:
    with NodeServer(size_gb=1 / 64) as server, watched(server) as client:  # 256 pages
        for index in range(256):
            server.cli("SET", f"kv:{index}", "x")
        settle(client, {"kv:0": True, "kv:255": True})
        for index in range(300, 303):
            server.cli("SET", f"kv:{index}", "x")
        settle(client, {"kv:0": False, "kv:2": False, "kv:3": True, "kv:302": True})


def test_what_expires_is_absent_whoever_wrote_it() -> None:
    with NodeServer(size_gb=1 / 64) as server, watched(server) as client:
        server.cli("SET", "kv:short", "x", "PX", 3_600_000)
        server.cli("SET", "kv:long", "x", "EX", 3600)
        settle(client, {"kv:short": True, "kv:long": True})
        before = int(server.info("stats")["expired_keys"])
        server.cli("SET", "kv:short", "x", "PX", 300)  # now, that it was seen
        settle(client, {"kv:short": False, "kv:long": True})  # nobody reads it: the node sweeps
        assert int(server.info("stats")["expired_keys"]) == before + 1
        client.set("kv:ours", b"x", ttl_s=0.3)
        settle(client, {"kv:ours": False})


def test_restart_without_a_state_leaves_nothing() -> None:
    with NodeServer(size_gb=1 / 64) as server, watched(server) as client:
        server.cli("SET", "kv:1", "x")
        settle(client, {"kv:1": True})
        server.restart()
        settle(client, {"kv:1": False})
