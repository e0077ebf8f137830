"""No reply makes a client take more memory than it may, wait longer, or say more than lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from security.hostile import ATTACKS, MIB
from security.victim import Cost, Victim
from support.scripted import MiniStore, ScriptedServer, answer

TIMEOUT_S = 0.1
LATE_S = 5.0  # room for a machine that does other things as well
# By whether a map or a command is asked for: its reply may hold 4 MiB of text and 15 MB of values,
# for a moment twice, in the native client. The pure one buffers a bulk of 16 MiB where it expects
# no value.
GROWTH_MAX = {False: 40 * MIB, True: 56 * MIB}
SAID_MAX = 64 << 10
SETTINGS: dict[str, Any] = {
    "timeout_s": TIMEOUT_S,
    "connect_timeout_s": TIMEOUT_S,
    "stall_timeout_s": TIMEOUT_S,
    "reconnect_max_s": 0.05,
    "value_size_bytes_max": 64 * MIB,
    "connections": 2,
}
PATIENCE = ("timeout_s", "connect_timeout_s", "stall_timeout_s")
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "CLUSTER": {"topology": "cluster"},
    "SENTINEL": {"topology": "sentinel", "sentinel_master": "m"},
}
# Which client asks what; the pure one knows one server.
ASKED = [
    *(("native", command) for command in ("GET", "HELLO", "CLUSTER", "SENTINEL")),
    *(("pure", command) for command in ("GET", "HELLO")),
]
HOARDS = [
    "array of megabytes",
    "array of nothing",
    "arrays of arrays",
    "long push",
    "long attribute",
]


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    with Victim() as victim:
        yield victim


def bear(cost: Cost, timeout_s: float, growth_max: int) -> None:
    """What holds for every attack."""
    print(cost)
    assert cost.growth_bytes < growth_max
    assert max(cost.seconds) < timeout_s + LATE_S
    assert cost.close_s < LATE_S
    assert cost.said_bytes < SAID_MAX


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(("kind", "command"), ASKED)
def test_replies(victim: Victim, kind: str, attack: str, command: str) -> None:
    topology = TOPOLOGIES.get(command, {})
    calls = ("get", "exists", "get") if command == "GET" else ("get",)
    with ScriptedServer(answer(ATTACKS[attack], command.encode()), MiniStore()) as server:
        settings = SETTINGS | topology
        cost = victim.suffer(kind, server.host, server.port, **settings, calls=calls)
    bear(cost, TIMEOUT_S, GROWTH_MAX[bool(topology)])
    assert "OK" not in cost.statuses


@pytest.mark.parametrize("attack", HOARDS)
@pytest.mark.parametrize(
    ("kind", "command"), [("native", "GET"), ("native", "CLUSTER"), ("pure", "GET")]
)
def test_a_reply_has_an_end_before_the_deadline(
    victim: Victim, kind: str, attack: str, command: str
) -> None:
    topology = TOPOLOGIES.get(command, {})
    patience: dict[str, Any] = dict.fromkeys(PATIENCE, 2.0)
    with ScriptedServer(answer(ATTACKS[attack], command.encode()), MiniStore()) as server:
        settings = SETTINGS | topology | patience
        cost = victim.suffer(kind, server.host, server.port, **settings, calls=("get",))
    bear(cost, 2.0, GROWTH_MAX[bool(topology)])


@pytest.mark.parametrize("kind", ["native", "pure"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_information_about_the_server(victim: Victim, kind: str, attack: str) -> None:
    with ScriptedServer(answer(ATTACKS[attack], b"INFO"), MiniStore()) as server:
        cost = victim.suffer(kind, server.host, server.port, **SETTINGS, calls=("info",))
    bear(cost, TIMEOUT_S, GROWTH_MAX[kind == "native"])


@pytest.mark.parametrize("kind", ["native", "pure"])
@pytest.mark.parametrize("attack", ["pushes", "endless line", "bulk of 1 GB", "no RESP"])
def test_a_server_that_speaks_first(victim: Victim, kind: str, attack: str) -> None:
    with ScriptedServer(MiniStore(), greeting=ATTACKS[attack]) as server:
        cost = victim.suffer(kind, server.host, server.port, **SETTINGS)
    bear(cost, TIMEOUT_S, GROWTH_MAX[False])
