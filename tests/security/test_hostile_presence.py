"""A presence view believes a server only up to its limits: names, changes, cursors, floods."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from security.hostile import ATTACKS, MIB, endless
from security.test_hostile_replies import LATE_S, SETTINGS
from security.victim import Cost, Victim
from support.resp import bulk
from support.scripted import Action, Command, Handler, MiniStore, ScriptedServer, answer

VIEW: dict[str, Any] = {"presence_prefix": "key", "presence_keys_max": 20_000, "wait_s": 0.5}
# For the values, which come however much the machine has to do.
PATIENCE = {"timeout_s": 5.0, "connect_timeout_s": 2.0, "stall_timeout_s": 2.0}
FLOODS = (
    *("endless line", "bulk of 1 GB", "array of 10^9", "array of megabytes", "deep nesting"),
    *("pushes", "pushes of megabytes", "long push", "attributes", "long attribute"),
)

pytestmark = pytest.mark.presence
GROWTH_MAX = 64 * MIB  # a reply's 4 MiB and 15 MB of values, twice; the view's own is 1 MB


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    with Victim() as victim:
        yield victim


def attack(victim: Victim, *handlers: Handler, **changes: Any) -> Cost:
    """The values must be had all the same: it is a view, not the way to them."""
    with ScriptedServer(*handlers, MiniStore()) as server:
        settings = SETTINGS | PATIENCE | VIEW | changes
        cost = victim.suffer("native", server.host, server.port, **settings)
    print(cost)
    assert cost.statuses == ["MISS"] * 3
    assert cost.growth_bytes < GROWTH_MAX
    assert cost.close_s < LATE_S
    assert cost.said_bytes < 64 << 10
    return cost


def tracking(action: Action) -> Handler:
    """What the connection that asks for announcements gets."""
    return lambda c: action if c.name == b"CLIENT" and c[1].upper() == b"TRACKING" else None


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("where", ["SCAN", "TRACKING"])
def test_replies(victim: Victim, flood: str, where: str) -> None:
    action = ATTACKS[flood]
    attack(victim, answer(action, b"SCAN") if where == "SCAN" else tracking(action))


def test_names_without_end(victim: Victim) -> None:
    """Each page of the snapshot has new keys, and another one follows."""
    numbers = itertools.count()

    def scan(command: Command) -> Action | None:
        if command.name != b"SCAN":
            return None
        keys = [bulk(b"key:%d" % next(numbers)) for _ in range(10_000)]
        return b"*2\r\n" + bulk(b"7") + b"*%d\r\n" % len(keys) + b"".join(keys)

    attack(victim, scan, wait_s=3.0)
    assert next(numbers) > VIEW["presence_keys_max"]


@pytest.mark.parametrize("length", [10, 400, 5_000])
def test_changes_without_end(victim: Victim, length: int) -> None:
    """More keys are said to have changed than can be asked for."""
    word = b"key:%07d" + b"x" * length
    pushes = b"".join(
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n" + bulk(word % number)
        for number in range(40_000 if length < 5000 else 1000)
    )
    attack(victim, tracking(endless(b"+OK\r\n", pushes)))


@pytest.mark.parametrize(
    "cursor",
    [b"9" * MIB, b"-1", b"", b"1\r\nFLUSHALL\r\n", b"1 2", b"\x00", b"18446744073709551616"],
)
def test_cursors(victim: Victim, cursor: bytes) -> None:
    seen: list[bytes] = []

    def scan(command: Command) -> Action | None:
        if command.name != b"SCAN":
            return None
        seen.append(command[1])
        return b"*2\r\n" + bulk(cursor) + b"*0\r\n"

    attack(victim, scan)
    assert all(len(each) <= 20 for each in seen)


def test_replies_of_a_wrong_kind(victim: Victim) -> None:
    for reply in (
        b"*0\r\n",
        b"*1\r\n*0\r\n",
        b"*2\r\n*0\r\n*0\r\n",
        b":1\r\n",
        b"_\r\n",
        b"+OK\r\n",
    ):
        attack(victim, answer(reply, b"SCAN"))
