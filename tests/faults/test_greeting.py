"""Servers and proxies that refuse a greeting in words of their own: an older greeting follows.

Both clients have one list of what ends a greeting: wrong credentials, and servers that take nobody
now. `native/redis/handshake_test.cpp` has such cases without a socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvferry.client.batch import Status
from support.scripted import Command, Handler, MiniStore, ScriptedServer
from support.stamps import KIB, fetch, store

Connect = Callable[..., Any]
PASSWORD = "correct-horse"
OLDER = [
    "ERR unknown command 'HELLO'",
    "ERR unknown command `HELLO`, with args beginning with: `3`, ",
    "ERR command not supported",
    "ERR unsupported command",
    "ERR Unknown Redis command",
    "unknown command `hello`",
    "ERR syntax error",
    "ERR wrong number of arguments for 'hello' command",
    "NOPROTO unsupported protocol version",
    "ERR Protocol version is not supported",
    "ERR HELLO is disabled",
    "NOPERM this user has no permissions to run the 'hello' command",
    "proxy: no",
]
ENDS = [
    "WRONGPASS invalid username-password pair or user is disabled.",
    "ERR invalid password",
    "ERR max number of clients reached",
    "LOADING Redis is loading the dataset in memory",
]


def old(refusal: str, seen: list[list[bytes]]) -> Handler:
    """A server that knows no HELLO, and AUTH with a password alone."""

    def handle(command: Command) -> bytes | None:
        if command.name == b"HELLO":
            return f"-{refusal}\r\n".encode()
        if command.name == b"AUTH":
            seen.append(command[1:])
            if len(command) != 2:
                return b"-ERR wrong number of arguments for 'auth' command\r\n"
            right = command[1] == PASSWORD.encode()
            return b"+OK\r\n" if right else b"-ERR invalid password\r\n"
        return None

    return handle


@pytest.mark.ways("tcp")
@pytest.mark.parametrize("refusal", OLDER)
@pytest.mark.parametrize("user", [{}, {"password": PASSWORD}])
def test_whatever_words_refuse_hello_an_older_greeting_follows(
    refusal: str, user: dict[str, str], connect: Connect
) -> None:
    seen: list[list[bytes]] = []
    with ScriptedServer(old(refusal, seen), MiniStore()) as server:
        client = connect(server, **user)
        assert store(client, {"k": KIB}).ok
        assert fetch(client, {"k": KIB}).result.ok
    assert all(words == [PASSWORD.encode()] for words in seen)
    assert bool(seen) == bool(user)


@pytest.mark.ways("tcp")
def test_the_default_user_is_also_named_by_no_name(connect: Connect) -> None:
    seen: list[list[bytes]] = []
    with ScriptedServer(old(OLDER[0], seen), MiniStore()) as server:
        client = connect(server, username="default", password=PASSWORD)
        assert store(client, {"k": KIB}).ok
        # Connections greet side by side, so only the first of all has its place.
        assert seen[0] == [b"default", PASSWORD.encode()]
        assert [PASSWORD.encode()] in seen
        other = connect(server, username="somebody", password=PASSWORD)
        assert store(other, {"k": KIB})[0] is Status.UNAVAILABLE
        wrong = connect(server, username="default", password="wrong")
        assert store(wrong, {"k": KIB})[0] is Status.UNAVAILABLE


@pytest.mark.ways("tcp")
@pytest.mark.parametrize("refusal", ENDS)
def test_no_other_greeting_follows_where_none_would_do(refusal: str, connect: Connect) -> None:
    seen: list[list[bytes]] = []
    with ScriptedServer(old(refusal, seen), MiniStore()) as server:
        client = connect(server, password=PASSWORD)
        result = store(client, {"k": KIB})
        assert result[0] is Status.UNAVAILABLE
        assert seen == []
