"""The pure-Python client and servers that say too much: errors, pushes."""

from __future__ import annotations

import socket

import pytest

from kvferry.client.batch import Status
from kvferry.client.pure import connection as pure_connection
from kvferry.client.pure.connection import HEADER_READ_BYTES, Connection
from support.pure import MIB, connect
from support.resp import bulk
from support.scripted import MiniStore, ScriptedServer, answer
from support.stamps import within

# Errors.


@pytest.mark.parametrize("code", [b"CLUSTERDOWN", b"TRYAGAIN", b"MOVED", b"ERR"])
def test_an_error_is_a_short_line_whatever_was_sent(code: bytes) -> None:
    words = code + b" \x1b[2J\x07\r\n" + b"x" * MIB
    error = b"!" + bulk(words)[1:]
    with (
        ScriptedServer(answer(error, b"GET"), MiniStore()) as server,
        connect(server, protocol=3) as client,
        within(10),
    ):
        result = client.batch_get(["k"], [bytearray(1)])
        assert result[0] in (Status.UNAVAILABLE, Status.SERVER_ERROR)
        assert result.error
        assert result.error.isprintable()
        assert len(result.error) <= 200


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
