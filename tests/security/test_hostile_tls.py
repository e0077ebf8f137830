"""Handshakes that never end, and floods inside of TLS, cost no more than plain ones."""

from __future__ import annotations

import os
from itertools import product
from typing import Any

import pytest

from security.hostile import ATTACKS, MIB, endless
from security.test_hostile_replies import GROWTH_MAX, SETTINGS, TIMEOUT_S, TOPOLOGIES, bear
from security.victim import Victim
from support.certificates import Certificates
from support.scripted import MiniStore, Pieces, ScriptedServer, answer
from support.tls_front import TlsFront

pytestmark = pytest.mark.usefixtures("certs")


def record(kind: int, body: bytes) -> bytes:
    """As it stands on the wire: type, version, length, content."""
    return bytes((kind, 3, 3)) + len(body).to_bytes(2, "big") + body


_HELLO = b"\x02\xff\xff\xff"  # a ServerHello of 16 MiB
_CERTIFICATE = b"\x0b\xff\xff\xff"
HANDSHAKES: dict[str, Pieces] = {
    "noise": endless(b"", os.urandom(MIB)),
    "zeros": endless(b"", bytes(MIB)),
    "a web server": endless(b"HTTP/1.1 400 Bad Request\r\n", b"x: y\r\n"),
    "a ServerHello without end": endless(record(22, _HELLO), record(22, b"x" * 16_000)),
    "certificates without end": endless(record(22, _CERTIFICATE), record(22, b"x" * 16_000)),
    "empty records": endless(b"", record(22, b"")),
    "one byte a record": endless(b"", record(22, b"\x02")),
    "changes of ciphers": endless(b"", record(20, b"\x01")),
    "warnings": endless(b"", record(21, b"\x01\x5a")),
    "requests to begin anew": endless(b"", record(22, b"\x00\x00\x00\x00")),
    "data before keys": endless(b"", record(23, b"x" * 16_000)),
    "a record that is too long": endless(b"\x16\x03\x03\xff\xff", b"x" * MIB),
}


@pytest.fixture(scope="module")
def victim() -> Any:
    with Victim() as victim:
        yield victim


@pytest.mark.parametrize("kind", ["native", "pure"])
@pytest.mark.parametrize("attack", HANDSHAKES)
def test_handshakes(victim: Victim, certs: Certificates, kind: str, attack: str) -> None:
    settings = SETTINGS | {"tls": True, "tls_ca_file": certs.ca_file}
    with ScriptedServer(greeting=HANDSHAKES[attack]) as server:
        cost = victim.suffer(kind, server.host, server.port, **settings)
    bear(cost, TIMEOUT_S, GROWTH_MAX[False])


@pytest.mark.parametrize(
    "attack",
    ["pushes", "attributes", "endless line", "bulk of 1 GB", "array of megabytes", "long push"],
)
@pytest.mark.parametrize(
    ("kind", "command"),  # the pure client knows no clusters
    [*product(("native", "pure"), ("GET", "HELLO")), ("native", "CLUSTER")],
)
def test_floods_inside(victim: Victim, kind: str, attack: str, command: str) -> None:
    topology = TOPOLOGIES.get(command, {})
    handlers = answer(ATTACKS[attack], command.encode()), MiniStore()
    with ScriptedServer(*handlers) as server, TlsFront(server.host, server.port) as front:
        settings = SETTINGS | topology | front.settings
        cost = victim.suffer(kind, front.host, front.port, **settings, calls=("get", "get"))
    bear(cost, TIMEOUT_S, GROWTH_MAX[bool(topology)])
    assert "OK" not in cost.statuses
