"""Membership and directory of a controller, without sockets, on a clock of the test."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kvferry.rpc.link import encode
from kvferry.sharing.controller.journal import Journal
from kvferry.sharing.controller.members import Members
from kvferry.sharing.membership.messages import (
    Begin,
    End,
    InstanceRefused,
    Malformed,
    MemoryUsage,
    RegisterInstance,
    SnapshotPart,
    Synced,
    Update,
    WorkDone,
    decoded,
)
from support.holdings import IDENTITY, OTHER, hashes

ONE, TWO = ("one", 0), ("two", 0)
FIRST, SECOND = b"1" * 16, b"2" * 16
MINE = IDENTITY.digest


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def members(clock: Clock) -> Members:
    return Members(Journal(), clock=clock)


def facts(started: float = 1.0, **more: Any) -> RegisterInstance:
    return RegisterInstance(started, "127.0.0.1:7000", (IDENTITY,), MemoryUsage(), **more)


def join(members: Members, key: tuple[str, int] = ONE, incarnation: bytes = FIRST) -> None:
    assert members.register(key, incarnation, "127.0.0.1", facts()) == []


def snapshot(members: Members, held: bytes, seq: int = 1, **of: Any) -> int:
    key, incarnation = of.get("key", ONE), of.get("incarnation", FIRST)
    for change in (
        Begin(seq, MINE, True),
        SnapshotPart(seq + 1, MINE, held),
        End(seq + 2, MINE),
        Synced(seq + 3, (MINE,)),
    ):
        assert members.change(key, incarnation, change)
    return seq + 3


def prefixes(members: Members, asked: bytes) -> dict[str, int]:
    return {found.member.instance: found.chunks for found in members.lookup(asked)}


def kinds(members: Members) -> list[str]:
    return [event["type"] for event in members._journal.since(0)]


def pass_time(members: Members, clock: Clock, seconds: float) -> list[str]:
    """Let the clock run in steps, as the controller does; who died."""
    dead = []
    for _ in range(round(seconds / 0.25)):
        clock.now += 0.25
        for key, seats in members.tick():
            dead.append(key[0])
            members.drop(seats)
    return dead


def test_a_silent_instance_is_suspect_then_dead_and_its_entries_are_gone(
    members: Members, clock: Clock
) -> None:
    join(members)
    join(members, TWO)
    snapshot(members, hashes(5))
    snapshot(members, hashes(3), key=TWO)
    for _ in range(11):
        assert members.beat(TWO, FIRST, MemoryUsage(), WorkDone()) is False
        assert pass_time(members, clock, 0.25) == []
    assert prefixes(members, hashes(5)) == {"one": 5, "two": 3}
    for _ in range(4):
        members.beat(TWO, FIRST, MemoryUsage(), WorkDone())
        pass_time(members, clock, 0.25)
    # The suspect comes last, although it holds more.
    assert [found.member.instance for found in members.lookup(hashes(5))] == ["two", "one"]
    died = []
    for _ in range(28):
        members.beat(TWO, FIRST, MemoryUsage(), WorkDone())
        died += pass_time(members, clock, 0.25)
    assert died == ["one"]
    assert prefixes(members, hashes(5)) == {"two": 3}
    assert members.directory.stats()["entries"] == 3
    assert members.beat(ONE, FIRST, MemoryUsage(), WorkDone()) is None  # it registers again
    assert [kind for kind in kinds(members) if kind in ("suspect", "dead")] == ["suspect", "dead"]


def test_one_heartbeat_makes_a_suspect_alive_again(members: Members, clock: Clock) -> None:
    join(members)
    snapshot(members, hashes(2))
    pass_time(members, clock, 5)
    assert members.all()[0].state == "suspect"
    assert members.beat(ONE, FIRST, MemoryUsage(), WorkDone()) is False
    assert members.all()[0].state == "alive"
    assert prefixes(members, hashes(2)) == {"one": 2}


def test_nobody_dies_of_a_pause_of_the_controller(members: Members, clock: Clock) -> None:
    join(members)
    snapshot(members, hashes(2))
    pass_time(members, clock, 1)
    clock.now += 3600  # it was stopped
    assert members.tick() == []
    assert members.all()[0].state == "alive"
    assert pass_time(members, clock, 11) == ["one"]  # but it does die of its own silence


def test_an_idle_instance_lives_by_its_heartbeats_alone(members: Members, clock: Clock) -> None:
    join(members)
    snapshot(members, hashes(2))
    for _ in range(60):
        members.beat(ONE, FIRST, MemoryUsage(), WorkDone())
        assert pass_time(members, clock, 1) == []
    assert prefixes(members, hashes(2)) == {"one": 2}


def test_a_new_process_takes_the_place_of_the_one_before(members: Members) -> None:
    join(members)
    seq = snapshot(members, hashes(5))
    gone = members.register(ONE, SECOND, "127.0.0.1", facts(started=2.0))
    assert isinstance(gone, list)
    members.drop(gone)
    assert prefixes(members, hashes(5)) == {}
    # What the old one still says counts for nothing.
    assert not members.change(ONE, FIRST, Update(seq + 1, MINE, hashes(5)))
    assert members.beat(ONE, FIRST, MemoryUsage(), WorkDone()) is None
    refused = members.register(ONE, FIRST, "127.0.0.1", facts(started=1.0))
    assert isinstance(refused, InstanceRefused)
    assert refused.code == "replaced"
    snapshot(members, hashes(1), incarnation=SECOND)
    assert prefixes(members, hashes(5)) == {"one": 1}
    assert members.directory.stats()["seats"] == 1


def test_behind_a_gap_nothing_counts_until_the_next_snapshot(members: Members) -> None:
    join(members)
    seq = snapshot(members, hashes(3))
    assert members.change(ONE, FIRST, Update(seq + 2, MINE, hashes(5)))  # one is missing
    assert prefixes(members, hashes(5)) == {"one": 3}  # hints go on
    assert members.beat(ONE, FIRST, MemoryUsage(), WorkDone()) is True
    assert members.change(ONE, FIRST, Update(seq + 3, MINE, b"", hashes(5)))
    assert prefixes(members, hashes(5)) == {"one": 3}
    seq = snapshot(members, hashes(4), seq + 4)
    assert prefixes(members, hashes(5)) == {"one": 4}
    assert members.beat(ONE, FIRST, MemoryUsage(), WorkDone()) is False
    assert members.counts["gaps"] == 1


def test_a_snapshot_with_a_gap_in_it_is_none(members: Members) -> None:
    join(members)
    snapshot(members, hashes(3))
    for change in (
        Begin(5, MINE, True),
        End(7, MINE),  # a part is missing
        Begin(8, OTHER.digest),
        End(9, OTHER.digest),
        Synced(10, (MINE, OTHER.digest)),
    ):
        assert members.change(ONE, FIRST, change)
    assert prefixes(members, hashes(5)) == {"one": 3}
    assert members.beat(ONE, FIRST, MemoryUsage(), WorkDone()) is True


def test_what_was_said_already_counts_once(members: Members) -> None:
    join(members)
    seq = snapshot(members, hashes(3))
    members.change(ONE, FIRST, Update(seq + 1, MINE, b"", hashes(3)))
    members.change(ONE, FIRST, Update(seq, MINE, hashes(3)))
    assert prefixes(members, hashes(3)) == {}


def test_a_snapshot_forgets_identities_that_it_does_not_name(members: Members) -> None:
    join(members)
    snapshot(members, hashes(3))
    members.change(ONE, FIRST, Update(5, OTHER.digest, hashes(3, seed=1)))
    assert prefixes(members, hashes(3, seed=1)) == {"one": 3}
    snapshot(members, hashes(3), 6)
    assert prefixes(members, hashes(3, seed=1)) == {}
    assert members.change(ONE, FIRST, Synced(10, ()))  # it holds nothing at all
    assert members.directory.stats() == members.directory.stats() | {"entries": 0, "seats": 0}


def test_nonsense_is_refused(members: Members) -> None:
    join(members)
    with pytest.raises(Malformed):
        members.change(ONE, FIRST, Update(1, MINE, b"123"))
    snapshot(members, hashes(1), 2)
    with pytest.raises(Malformed):
        members.change(ONE, FIRST, Update(6, MINE, b"123"))
    assert not members.change(("nobody", 0), FIRST, Update(1, MINE, b""))


def test_there_is_a_limit_on_instances(clock: Clock) -> None:
    members = Members(Journal(), members_max=1, clock=clock)
    join(members)
    refused = members.register(TWO, FIRST, "127.0.0.1", facts())
    assert isinstance(refused, InstanceRefused)
    assert refused.code == "full"


def test_one_host_fills_the_table_and_every_other_one_finds_a_place(clock: Clock) -> None:
    members = Members(Journal(), members_max=64, clock=clock)
    for n in range(64):
        assert members.register((f"forged-{n}", 0), FIRST, "10.0.0.1", facts()) == []
    refused = members.register(("forged-64", 0), FIRST, "10.0.0.1", facts())
    assert isinstance(refused, InstanceRefused)
    for n in range(20):  # of hosts of their own, and two of some
        assert members.register((f"ours-{n}", 0), FIRST, f"10.0.1.{n // 2}", facts()) == []
    names = {one.instance for one in members.living()}
    assert len(names) == 64
    assert {f"ours-{n}" for n in range(20)} <= names
    assert {f"forged-{n}" for n in range(44)} <= names  # who came last made room
    again = members.register(("forged-63", 0), FIRST, "10.0.0.1", facts())
    assert isinstance(again, InstanceRefused)
    gone = [key[0] for key, _ in members.tick()]
    assert gone == [f"forged-{n}" for n in range(63, 43, -1)]
    assert members.tick() == []
    assert "10.0.0.1 has the most" in members._journal.since(0)[-1]["text"]


def test_who_was_never_heard_makes_room_first(clock: Clock) -> None:
    members = Members(Journal(), members_max=4, clock=clock)
    for n in range(4):
        join(members, (f"one-{n}", 0))
    for n in (0, 2, 3):
        assert members.beat((f"one-{n}", 0), FIRST, MemoryUsage(), WorkDone()) is not None
    assert members.register(TWO, FIRST, "10.0.0.2", facts()) == []
    assert [key[0] for key, _ in members.tick()] == ["one-1"]


def test_addresses_of_one_network_of_ipv6_are_one_origin(clock: Clock) -> None:
    members = Members(Journal(), members_max=4, clock=clock)
    for n in range(4):
        assert members.register((f"six-{n}", 0), FIRST, f"2001:db8::{n}", facts()) == []
    full = members.register(("six-4", 0), FIRST, "2001:db8::ffff", facts())
    assert isinstance(full, InstanceRefused)
    assert members.register(("other", 0), FIRST, "2001:db8:1::1", facts()) == []


def test_who_says_that_it_begins_in_the_future_keeps_no_name(members: Members) -> None:
    now = time.time()
    assert members.register(ONE, FIRST, "10.0.0.1", facts(9e10)) == []
    assert members.register(ONE, SECOND, "10.0.0.2", facts(now + 1)) == []
    assert members.find(ONE, SECOND) is not None
    assert isinstance(members.register(ONE, FIRST, "10.0.0.1", facts(1.0)), InstanceRefused)


def test_a_process_says_once_when_it_began(members: Members) -> None:
    now = time.time()
    assert members.register(ONE, FIRST, "10.0.0.1", facts(now)) == []
    assert members.register(ONE, FIRST, "10.0.0.1", facts(now + 3_600)) == []
    assert members.register(ONE, SECOND, "10.0.0.1", facts(now + 1)) == []


@pytest.mark.parametrize("started", [float("inf"), float("-inf"), float("nan"), -1.0, 1e300])
def test_a_time_that_is_none_is_no_message(started: float) -> None:
    with pytest.raises(Malformed):
        decoded(encode(facts(started)))
