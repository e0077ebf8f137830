"""The pure-Python client and servers that say too much: nodes, redirects, errors, pushes."""

from __future__ import annotations

import itertools
import socket
import time
from typing import Any

import pytest

from kvferry.base import errors
from kvferry.client.batch import Status
from kvferry.client.pure import connection as pure_connection
from kvferry.client.pure.client import PureRedisClient
from kvferry.client.pure.cluster import STRANGERS_MAX
from kvferry.client.pure.connection import HEADER_READ_BYTES, Connection
from kvferry.config import ClientConfig
from security.crowd import SLOTS, Crowd, loopback, slots_reply
from support.pure import MIB
from support.resp import bulk
from support.scripted import Action, Command, Handler, MiniStore, ScriptedServer
from support.stamps import within
from support.tuned import tuned

KEYS = [f"key-{index}" for index in range(100)]


def client_of(server: Crowd | ScriptedServer, **settings: Any) -> PureRedisClient:
    settings = tuned(ClientConfig, topology="cluster", **settings)
    return PureRedisClient(server.host, server.port, **settings)


# Nodes.


def test_a_map_of_more_nodes_than_allowed_is_refused() -> None:
    with Crowd(nodes=5) as crowd, client_of(crowd, nodes_max=4) as client, within(10):
        with pytest.raises(errors.UnavailableError, match="5 nodes, which is more than nodes_max"):
            client.exists("k")
        assert crowd.connections == 1


def test_a_map_of_as_many_nodes_as_allowed_is_followed() -> None:
    with Crowd(nodes=4) as crowd, client_of(crowd, nodes_max=4) as client, within(10):
        assert client.batch_exists(KEYS).count(Status.MISS) == len(KEYS)
        assert client.stats()["connects"] == 5  # the seed, and each by its name


def test_the_map_stays_when_the_next_one_is_too_large() -> None:
    asked = 0
    server: ScriptedServer

    def growing(command: Command) -> Action | None:
        nonlocal asked
        if command.name != b"CLUSTER":
            return None
        asked += 1
        ports = [server.port] if asked == 1 else [1, 2, 3]
        share = SLOTS // len(ports)
        return slots_reply(
            (index * share, share, b"127.0.0.1", port) for index, port in enumerate(ports)
        )

    with (
        ScriptedServer(growing, MiniStore()) as server,
        client_of(server, nodes_max=2, topology_refresh_s=0.001) as client,
        within(10),
    ):
        for key in KEYS:
            client.set(key, b"v")
            time.sleep(0.002)
        assert asked > 1


@pytest.mark.parametrize("word", [b"MOVED", b"ASK"])
def test_redirects_lead_to_few_strangers(word: bytes) -> None:
    liars = itertools.count()

    def elsewhere(turn: int) -> bytes:
        if turn >= 20 * len(KEYS):  # then it stops lying
            return b"$-1\r\n"
        stranger = loopback(next(liars)).encode()
        return b"-%b 7 %b:%d\r\n" % (word, stranger, crowd.port)

    targets = [bytearray(1) for _ in KEYS]
    with Crowd(redirect=elsewhere) as crowd, client_of(crowd, timeout_s=2) as client, within(30):
        result = client.batch_get(KEYS, targets)
        assert set(result) <= {Status.UNAVAILABLE, Status.TIMEOUT, Status.MISS}
        # Those of one map may be closing while those of the next are met.
        assert crowd.most_at_once <= 2 * STRANGERS_MAX + 2
        assert next(liars) > 3 * STRANGERS_MAX
        for _ in range(200):
            if client.batch_get(KEYS, targets).count(Status.MISS) == len(KEYS):
                break
        else:
            pytest.fail("it does not recover")


# Errors.


def owned(*handlers: Handler) -> ScriptedServer:
    """A cluster of one node."""
    server: ScriptedServer

    def slots(command: Command) -> Action | None:
        if command.name != b"CLUSTER":
            return None
        return slots_reply([(0, SLOTS, b"127.0.0.1", server.port)])

    server = ScriptedServer(slots, *handlers, MiniStore())
    return server


@pytest.mark.parametrize("code", [b"CLUSTERDOWN", b"TRYAGAIN", b"MOVED", b"ERR"])
def test_an_error_is_a_short_line_whatever_was_sent(code: bytes) -> None:
    words = code + b" \x1b[2J\x07\r\n" + b"x" * MIB
    error = b"!" + bulk(words)[1:]
    with (
        owned(lambda command: error if command.name == b"GET" else None) as server,
        client_of(server, protocol=3) as client,
        within(10),
    ):
        result = client.batch_get(["k"], [bytearray(1)])
        assert result[0] in (Status.UNAVAILABLE, Status.SERVER_ERROR)
        assert result.error
        assert result.error.isprintable()
        assert len(result.error) <= 200


def test_a_redirect_is_not_cut_as_an_error_is() -> None:
    host = b"a" * 240  # no label of a name is that long, so nobody is asked for it
    moved = b"-MOVED 1 %b:6379\r\n" % host
    with (
        owned(lambda command: moved if command.name == b"GET" else None) as server,
        client_of(server) as client,
        within(10),
    ):
        result = client.batch_get(["k"], [bytearray(1)])
        assert result[0] is Status.UNAVAILABLE
        assert f"{host.decode()}:6379 can be no host name" in str(result.error)


# Pushes.


def test_an_idle_connection_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pure_connection, "IDLE_READS_MAX", 4)
    ours, theirs = socket.socketpair()
    connection = Connection(ours, 1.0, MIB)
    push = b">1\r\n+x\r\n"
    try:
        theirs.send(push * (3 * HEADER_READ_BYTES // len(push)))
        assert connection.is_clean()
        theirs.send(push * (5 * HEADER_READ_BYTES // len(push)))
        assert not connection.is_clean()
    finally:
        connection.close()
        theirs.close()
