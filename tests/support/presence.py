"""Waits and truths for tests of the presence view.

with watched(server) as client:          # its view knows the server
    settle(client, {"kv:a": True})       # and comes to this answer
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kvferry import ClientConfig, RedisClient
from kvferry.client.native import NativeClient
from support.servers import TestServer, wait_for
from support.tuned import tuned

LIMIT_S = 15.0  # of every wait; a view needs milliseconds
PREFIX = "kv:"


@contextmanager
def watched(server: Any, **settings: Any) -> Iterator[RedisClient]:
    """A client of a server or proxy whose view is complete."""
    settings = {"presence_prefix": PREFIX, "connections": 2} | settings
    with RedisClient(server.host, server.port, **tuned(ClientConfig, **settings)) as client:
        await_synced(client)
        yield client


def await_synced(client: NativeClient, nodes: int = 1) -> None:
    def synced() -> bool:
        stats = client.presence_stats()
        return stats["nodes"] == stats["nodes_synced"] == nodes

    wait_for(f"a view of {nodes} nodes", synced, LIMIT_S)


def settle(client: NativeClient, truth: Mapping[str, bool | None]) -> None:
    """Wait until the view says this, of all keys at once."""
    keys, wanted = list(truth), list(truth.values())
    try:
        wait_for("the view to know", lambda: client.presence(keys) == wanted, LIMIT_S)
    except TimeoutError:
        seen = dict(zip(keys, client.presence(keys), strict=True))
        wrong = {key: seen[key] for key in keys if seen[key] != truth[key]}
        raise AssertionError(f"{wrong}; {client.presence_stats()}") from None


def settle_with(client: NativeClient, server: TestServer, keys: Sequence[str]) -> dict[str, bool]:
    """Wait until the view says what the server says itself; that."""
    truth = {key: bool(server.cli("EXISTS", key)) for key in keys}
    settle(client, truth)
    return truth


def view_connections(server: TestServer) -> list[int]:
    """The ids of connections that get announcements."""
    lines = server.cli("CLIENT", "LIST").decode().splitlines()
    rows = [dict(word.split("=", 1) for word in line.split(" ") if "=" in word) for line in lines]
    return [int(row["id"]) for row in rows if "t" in row["flags"]]
