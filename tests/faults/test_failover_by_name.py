"""A failover behind a name: connections that are up stay at the server that was demoted.

The first of them that is told so (READONLY) tells the others: all dial anew, those that only read
as well, and nothing that is in flight is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvferry import RedisClient
from support.proxy import FaultProxy
from support.servers import TestServer
from support.stamps import MIB, fetch, store, until

Connect = Callable[..., Any]
CONNECTIONS = 8
OLD, NEW = 1, 2


def who_answers(client: Any) -> set[int]:
    """Of which servers a hundred reads are, several at a time and one by one."""
    seen = set()
    for count in (*[CONNECTIONS] * 8, *[1] * 36):
        targets = [bytearray(MIB) for _ in range(count)]
        result = client.batch_get(["name"] * count, targets)
        assert result.ok, result.error
        seen |= {target[0] for target in targets}
    return seen


@pytest.fixture
def two(start: Callable[..., TestServer]) -> tuple[TestServer, TestServer]:
    """A server and the one that will be promoted; a value tells which of them it is of."""
    servers = start("valkey"), start("valkey")
    for server, name in zip(servers, (OLD, NEW), strict=True):
        with RedisClient(host=server.host, port=server.port) as client:
            client.set("name", bytes([name]) * MIB)
    return servers


@pytest.mark.ways("tcp")
def test_all_connections_leave_a_demoted_server(
    two: tuple[TestServer, TestServer], proxied: Callable[..., FaultProxy], connect: Connect
) -> None:
    old, new = two
    proxy = proxied(old)
    client = connect(proxy, connections=CONNECTIONS, workers=2)
    # Every connection is up and works.
    until(lambda: store(client, {f"k{n}": MIB for n in range(2 * CONNECTIONS)}).ok, 10)
    assert who_answers(client) == {OLD}
    old.cli("REPLICAOF", "127.0.0.1", "1")
    proxy.lead_to(new.host, new.port)
    until(lambda: store(client, {"k": MIB}).ok, 10)
    until(lambda: who_answers(client) == {NEW}, 10)
    for _ in range(3):
        assert who_answers(client) == {NEW}


@pytest.mark.ways("tcp")
def test_what_is_in_flight_ends_before_its_connection_leaves(
    two: tuple[TestServer, TestServer], proxied: Callable[..., FaultProxy], connect: Connect
) -> None:
    old, new = two
    proxy = proxied(old)
    client = connect(proxy, connections=CONNECTIONS, workers=2, timeout_s=20)
    sizes = {f"k{n}": MIB for n in range(32)}
    assert store(client, sizes).ok
    assert store(connect(new), sizes).ok
    old.cli("REPLICAOF", "127.0.0.1", "1")
    proxy.lead_to(new.host, new.port)
    failed: list[object] = []
    enough = threading.Event()

    def read() -> None:
        while not enough.is_set():
            result = fetch(client, sizes).result
            if not result.ok:
                failed.append(result.error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        until(lambda: store(client, {"other": MIB}).ok, 10)
        until(lambda: who_answers(client) == {NEW}, 20)
    finally:
        enough.set()
        for reader in readers:
            reader.join(30)
    assert failed == []
