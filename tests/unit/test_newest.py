"""The newest mark of a cache: what counts as newer, who is told, and what a break means."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from kvferry.cache.steps import finish
from kvferry.cache.store import process_breaks
from kvferry.cache.store.generations import NewestMark
from kvferry.chunks.generation import MARK_BYTES, Mark, drawn, drawn_here, named
from kvferry.client.batch import Status
from kvferry.sharing.controller.members import Marks
from kvferry.sharing.membership import HeldIdentity
from kvferry.sharing.peers.peer_tier import PeerMark


class Told:
    """Who says marks."""

    def __init__(self) -> None:
        self.asked = 0
        self.heard_at = float("-inf")

    def heard_since(self, moment: float) -> bool:
        return self.heard_at >= moment

    def ask_soon(self) -> None:
        self.asked += 1


def newest(count: int = 3) -> tuple[NewestMark, Told]:
    made, told = NewestMark(lambda: count), Told()
    made.follow(told)
    return made, told


def test_a_newer_mark_is_taken_and_told_and_an_older_one_is_not() -> None:
    one, told = newest()
    assert one.heard(Mark(2, b"12345678")) == 3
    assert (one.mark, told.asked) == (Mark(2, b"12345678"), 1)
    for older in (Mark(), Mark(1, b"abcdefgh"), one.mark):
        assert one.heard(older) == 0
    assert (one.mark, told.asked) == (Mark(2, b"12345678"), 1)


def test_two_marks_that_are_equally_new_are_both_over() -> None:
    one, _ = newest()
    one.heard(Mark(2, b"12345678"))
    one.heard(Mark(2, b"abcdefgh"))
    assert one.mark.counter == 3
    assert one.mark.half not in (b"12345678", b"abcdefgh")


@pytest.mark.parametrize("mark", [Mark(1 << 60, b"12345678"), Mark(1, bytes(8)), Mark(1, b"123")])
def test_a_mark_that_no_clear_draws_is_not_taken(mark: Mark) -> None:
    """A half of zeros would be the first generation again, and all of it old."""
    one, _ = newest()
    assert one.heard(mark) == 0
    assert one.mark == Mark()
    assert Mark.decode(mark.encode()) == Mark()


def test_a_mark_is_read_as_it_was_written() -> None:
    for counter in (1, 1 << 53):
        mark = Mark(counter, drawn())
        assert Mark.decode(mark.encode()) == mark
        assert len(mark.encode()) <= MARK_BYTES
        assert Mark.decode(mark.encode().ljust(MARK_BYTES)) == mark


def test_behind_a_break_nothing_is_fresh_until_everybody_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, told = newest()
    assert one.is_fresh
    moment = time.monotonic()
    monkeypatch.setattr(process_breaks, "since", lambda: moment)
    assert not one.is_fresh
    assert not finish(one.refreshing(time.monotonic() + 0.01))
    assert told.asked
    told.heard_at = moment
    assert finish(one.refreshing(time.monotonic() + 60))
    told.heard_at = float("-inf")
    assert one.is_fresh, "until the next break"


def test_somebody_who_hangs_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = newest()
    monkeypatch.setattr(process_breaks, "since", lambda: time.monotonic() - 3.5)
    one._heard_since = float("-inf")
    assert one.is_fresh


def test_what_was_drawn_here_is_known_and_a_name_is_not() -> None:
    half = drawn()
    assert drawn_here(half)
    assert not drawn_here(named("step-1"))
    assert not drawn_here(bytes(8))


def held(identity: bytes, mark: Mark) -> HeldIdentity:
    return HeldIdentity(identity, "m", 16, bytes(8) + mark.half, clears=mark.counter)


def test_a_controller_tells_the_newest_to_who_has_an_older_one() -> None:
    marks, a, b = Marks(), bytes(16), bytes(15) + b"b"
    first, second = Mark(1, b"12345678"), Mark(2, b"abcdefgh")
    marks.hear([held(a, second), held(b, Mark())])
    marks.hear([held(a, first)])
    assert [each.mark for each in marks.of([held(a, first), held(b, Mark())])] == [second]
    assert marks.of([held(a, second)]) == ()
    assert marks.of([held(a, Mark(3, b"87654321"))]) == ()
    met = Mark(2, b"87654321")
    assert [each.mark for each in marks.of([held(a, met)])] == [second], "it draws a newer one"


def test_a_controller_keeps_so_many_marks() -> None:
    marks = Marks()
    marks.hear(held(number.to_bytes(16), Mark(1, b"12345678")) for number in range(5000))
    assert len(marks._newest) == 4096


class Node:
    """A connector to a peer, as far as its mark goes."""

    def __init__(self) -> None:
        self.answer: tuple[Status, bytes] | None = None

    def ask_mark(self, timeout_s: float) -> None:
        pass

    def said_mark(self) -> tuple[Status, bytes] | None:
        return self.answer


def test_a_peer_whose_node_says_no_mark_for_seconds_cannot_hear_of_clears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that begins, or ends, says none for a moment: that is not why a clear is refused."""
    now = [100.0]
    monkeypatch.setattr("kvferry.sharing.peers.peer_tier.time.monotonic", lambda: now[0])
    one, node = NewestMark(int), Node()
    peer = PeerMark(cast(Any, node), one)

    def say(answer: tuple[Status, bytes]) -> None:
        node.answer = None
        peer.ask_soon()
        node.answer = answer
        peer.listen()

    say((Status.MISS, b""))
    assert not peer.is_deaf
    now[0] += 3.5
    say((Status.MISS, b""))
    assert peer.is_deaf
    say((Status.OK, Mark(1, b"12345678").encode().ljust(MARK_BYTES)))
    assert not peer.is_deaf
    assert one.mark == Mark(1, b"12345678")
    now[0] += 3.5
    say((Status.UNAVAILABLE, b""))
    assert not peer.is_deaf, "it is away"
    peer.close()
