"""What a server says of itself, and why it refuses: short and printable wherever we repeat it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvferry import RedisClient
from kvferry.base.errors import KVFerryError
from kvferry.client.pure.client import PureRedisClient
from support.resp import bulk
from support.scripted import Action, Command, MiniStore, ScriptedServer, answer

CLIENTS: dict[str, Any] = {"native": RedisClient, "pure": PureRedisClient}
# What clears a terminal, rings it, forges a line of a log, or ends a C string.
EVIL = b"\x1b[2J\x07\x00\x9b31m\nINFO all is well" + b"x" * 3000
LENGTH_MAX = 400  # 200 characters of a server's, and ours around them


def hello(command: Command) -> Action | None:
    if command.name != b"HELLO":
        return None
    names = (b"server", b"version", b"mode", b"role", b"availability_zone")
    pairs = b"".join(bulk(name) + bulk(EVIL) for name in names)
    return b"%%6\r\n%b%b:3\r\n" % (pairs, bulk(b"proto"))


def refusing(*names: bytes, word: bytes = b"ERR") -> Callable[[Command], Action | None]:
    text = word + b" " + EVIL
    return answer(b"!%d\r\n%b\r\n" % (len(text), text), *names)


SERVERS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "itself": ((hello,), {}),
    "a greeting": ((refusing(b"HELLO", b"AUTH"),), {"password": "p"}),
    "a command": ((refusing(b"GET", b"EXISTS"),), {}),
    "being busy": ((refusing(b"GET", b"EXISTS", word=b"LOADING"),), {}),
    "being down": ((refusing(b"GET", b"EXISTS", word=b"CLUSTERDOWN"),), {}),
    "a role": ((refusing(b"GET", b"EXISTS", word=b"READONLY"),), {}),
    "the map": ((refusing(b"CLUSTER"),), {"topology": "cluster"}),
    "the master": (
        (refusing(b"SENTINEL"),),
        {"topology": "sentinel", "sentinel_master": "m"},
    ),
    "announcements": ((refusing(b"CLIENT"),), {"presence_prefix": "k"}),
    "a snapshot": ((refusing(b"SCAN"),), {"presence_prefix": "k"}),
    "a redirect": (
        (answer(b"-MOVED 1 " + EVIL.replace(b"\n", b" ") + b":1\r\n", b"GET", b"EXISTS"),),
        {},
    ),
}


def texts_of(value: Any) -> list[str]:
    """All texts in a structure."""
    if isinstance(value, dict):
        return [text for each in value.values() for text in texts_of(each)]
    if isinstance(value, list):
        return [text for each in value for text in texts_of(each)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("about", SERVERS)
def test_words(kind: str, about: str, caplog: pytest.LogCaptureFixture) -> None:
    handlers, settings = SERVERS[about]
    if kind == "pure" and {"presence_prefix", "topology"} & settings.keys():
        pytest.skip("it speaks to one server, and has no presence view")
    caplog.set_level(logging.DEBUG, logger="kvferry")
    said: list[str] = []
    with (
        ScriptedServer(*handlers, MiniStore()) as server,
        CLIENTS[kind](server.host, server.port, timeout_s=0.5, **settings) as client,
    ):
        until = time.monotonic() + 0.5
        while time.monotonic() < until or len(said) < 10:
            result = client.batch_get(["k"], [bytearray(1)])
            said += [result.error or "", repr(result)]
            try:
                client.exists("k")
            except KVFerryError as error:
                said += [str(error), repr(error)]
            time.sleep(0.05)
        said += [*texts_of(client.stats()), repr(client)]
        if kind == "native":
            said += texts_of(client.nodes())
    said += [record.getMessage() for record in caplog.records]
    assert len(said) > 5
    for text in said:
        assert text.isprintable(), text[:LENGTH_MAX]
        assert len(text) < LENGTH_MAX
