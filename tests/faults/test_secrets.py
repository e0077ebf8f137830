"""The password and the values are told to nobody: no error, repr, log line, count or result."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvferry import AsyncRedisClient, ClientConfig, RedisClient
from kvferry.base.errors import KVFerryError
from kvferry.client.pure.client import PureRedisClient
from support.scripted import Close, Command, MiniStore, ScriptedServer, answer, resp2_only
from support.servers import TestServer, free_port
from support.stamps import until

Connect = Callable[..., Any]
Start = Callable[..., TestServer]

SECRET = "hunter2-Zx9Qw7"
SPELLINGS = (SECRET, SECRET[:9], SECRET.encode().hex(), repr(SECRET.encode()))


class Heard:
    """Everything that was said, to be searched at the end."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def result(self, result: Any) -> None:
        self.texts += [repr(result), str(result.error), repr(list(result))]

    def error(self, error: BaseException) -> None:
        while True:
            self.texts += [str(error), repr(error), repr(error.args), repr(vars(error))]
            self.texts += traceback.format_exception(error)
            if (cause := error.__cause__ or error.__context__) is None:
                return
            error = cause

    def client(self, client: Any) -> None:
        self.texts += [repr(client), str(client), repr(client.config), repr(client.stats())]
        self.texts += [str(client.config), client.config.address]


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture, capfd: Any) -> Iterator[Heard]:
    caplog.set_level(logging.DEBUG)
    heard = Heard()
    yield heard
    assert heard.texts
    heard.texts += [caplog.text, *(repr(record.__dict__) for record in caplog.records)]
    heard.texts += [*capfd.readouterr()]
    for text in heard.texts:
        for spelling in SPELLINGS:
            assert spelling not in text, "the password was told"


def _try_everything(client: Any, heard: Heard) -> None:
    heard.client(client)
    target = bytearray(8)
    calls: list[Callable[[], Any]] = [
        lambda: client.get("k", target),
        lambda: client.set("k", b"v"),
        lambda: client.exists("k"),
        lambda: client.delete("k"),
        client.ping,
        client.server_info,
    ]
    for call in calls:
        try:
            call()
        except KVFerryError as error:
            heard.error(error)
    for result in (
        client.batch_get(["k"], [target]),
        client.batch_set(["k"], [b"v"]),
        client.batch_exists(["k"]),
        client.batch_delete(["k"]),
    ):
        heard.result(result)
        try:
            result.raise_for_errors()
        except KVFerryError as error:
            heard.error(error)
    heard.client(client)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("username", [None, "alice"])
def test_refused_credentials(
    start: Start, connect: Connect, heard: Heard, protocol: int, username: str | None
) -> None:
    server = start("valkey", password="another", users=["user alice on >another ~* +@all"])
    client = connect(server, password=SECRET, username=username, protocol=protocol)
    _try_everything(client, heard)
    assert any("WRONGPASS" in text for text in heard.texts)


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_accepted_credentials(start: Start, connect: Connect, heard: Heard, kind: str) -> None:
    server = start(kind, password=SECRET)
    client = connect(server, password=SECRET)
    _try_everything(client, heard)
    server.cli("CLIENT", "KILL", "TYPE", "normal")
    _try_everything(client, heard)
    server.kill()
    _try_everything(client, heard)


def _quoting(command: Command) -> bytes:
    """What an old or a curious server does: it repeats what it did not understand."""
    words = " ".join(f"'{word.decode()}'" for word in command[1:])
    name = command[0].decode()
    return f"-ERR unknown command '{name}', with args beginning with: {words}\r\n".encode()


@pytest.mark.ways("tcp", soak=("tls",))
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("username", [None, "alice"])
def test_server_that_quotes_us(
    connect: Connect, heard: Heard, protocol: int, username: str | None
) -> None:
    for handlers in (
        (_quoting,),
        (lambda c: _quoting(c) if c.name == b"AUTH" else None, resp2_only(), MiniStore()),
        (answer(b"-WRONGPASS '%b' is wrong\r\n" % SECRET.encode(), b"HELLO", b"AUTH"),),
        (answer(b"-ERR bad password\r\n:%b\r\n" % SECRET.encode(), b"HELLO", b"AUTH"),),
        (answer(b"-ERR Client sent AUTH, but " + SECRET.encode() + b"\r\n"),),
        (answer(Close(b"-NOPERM no " + SECRET.encode() + b"\r\n"), b"HELLO", b"AUTH"),),
    ):
        with ScriptedServer(*handlers) as server:
            client = connect(server, password=SECRET, username=username, protocol=protocol)
            _try_everything(client, heard)
            client.close()


def test_server_that_is_away(connect: Connect, heard: Heard) -> None:
    client = connect(host="127.0.0.1", port=free_port(), password=SECRET)
    _try_everything(client, heard)
    client.close()
    heard.texts.append(repr(client))
    with pytest.raises(KVFerryError) as caught:
        client.exists("k")
    heard.error(caught.value)


def test_urls_and_settings(heard: Heard) -> None:
    secret = SECRET
    for url in (
        f"redis://:{secret}@host:notaport/0",
        f"redis://:{secret}@host:1/x",
        f"redis://:{secret}@host:1/0?unknown=1",
        f"redis://:{secret}@ho st/0",
        f"rediss://:{secret}@host/0",
        f"foo://:{secret}@host/0",
        f"redis://:{secret}@",
        f"redis://user:{secret}@[::1/0",
        f"redis://:{secret}%zz@host/0",
        f"{secret}",
    ):
        for make in (ClientConfig.from_url, RedisClient.from_url, PureRedisClient.from_url):
            try:
                made: Any = make(url)
            except KVFerryError as error:
                heard.error(error)
            else:
                heard.texts += [repr(made), str(made)]
    for settings in ({"port": 0}, {"host": ""}, {"username": 5}, {"protocol": 9}):
        with pytest.raises(KVFerryError) as caught:
            ClientConfig(**{"password": secret, **settings})  # type: ignore[arg-type]
        _without_source_lines(caught.value, heard)


def _without_source_lines(error: BaseException, heard: Heard) -> None:
    heard.texts += [str(error), repr(error), repr(error.args)]


@contextmanager
def _loop_errors(heard: Heard) -> Iterator[Callable[..., None]]:
    yield lambda _loop, context: heard.texts.append(repr(context))


@pytest.mark.ways("tcp")
def test_asyncio(start: Start, heard: Heard) -> None:
    server = start("valkey", password="another")

    async def scenario() -> None:
        with _loop_errors(heard) as hear:
            asyncio.get_running_loop().set_exception_handler(hear)
            async with AsyncRedisClient(server.host, server.port, password=SECRET) as client:
                heard.client(client)
                for call in (client.exists("k"), client.get("k", bytearray(3))):
                    try:
                        await call
                    except KVFerryError as error:
                        heard.error(error)
                heard.result(await client.batch_exists(["k"]))

    asyncio.run(scenario())


def test_values_and_what_they_hold_are_not_logged(
    start: Start, connect: Connect, heard: Heard
) -> None:
    server = start("valkey")
    client = connect(server)
    value = (SECRET * 100).encode()
    client.set("k", value)
    with pytest.raises(KVFerryError) as caught:
        client.get("k", bytearray(3))
    heard.error(caught.value)
    target = bytearray(len(value))
    assert client.get("k", target)
    server.kill()
    until(lambda: not client.batch_get(["k"], [target]).ok, 3)
    _try_everything(client, heard)
