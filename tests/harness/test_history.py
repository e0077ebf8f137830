"""The history checker: what it must find, and what it must not complain about."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from kvferry.client.batch import Status
from support.history import History, Operation, Verb, Violation

OK, MISS = Status.OK, Status.MISS


class Story:
    """Operations on the key "k", told in the order of their times."""

    def __init__(self, striped: bool = False) -> None:
        self.history = History(["k"], striped)

    def at(self, start: float, end: float, verb: Verb, status: Status = OK, **more: bool) -> int:
        """A write, delete or probe from start to end; the version of a write."""
        operation = self.history.begins("k", verb, start)
        self.history.ends(operation, end, status, **{"clean": True, **more})
        return operation.version

    def reads(self, start: float, end: float, version: int, **more: bool) -> None:
        operation = self.history.begins("k", "get", start)
        self.history.ends(operation, end, OK, version=version, **more)


def found(kind: str, act: Callable[[], object]) -> None:
    with pytest.raises(Violation) as caught:
        act()
    assert caught.value.kind == kind


def test_the_last_version_is_read_and_the_one_before_is_stale() -> None:
    story = Story()
    story.at(0, 1, "set")
    story.reads(2, 3, 1)
    story.at(4, 5, "set")
    story.reads(6, 7, 2)
    found("stale", lambda: story.reads(8, 9, 1))


def test_while_a_write_runs_both_versions_may_be_read() -> None:
    story = Story()
    story.at(0, 1, "set")
    second = story.history.begins("k", "set", 2)
    story.reads(3, 4, 1)
    story.history.ends(second, 6, OK, clean=True)
    story.reads(5, 7, 1)  # it began before the write had ended
    found("stale", lambda: story.reads(6.5, 8, 1))


def test_a_version_that_was_read_shuts_out_what_came_before_its_write() -> None:
    story = Story()
    story.at(0, 1, "set")
    story.history.begins("k", "set", 2)  # never ends
    story.reads(3, 4, 2)
    found("stale", lambda: story.reads(5, 6, 1))


def test_a_version_that_nobody_wrote() -> None:
    story = Story()
    found("unknown", lambda: story.reads(0, 1, 1))
    story.at(2, 3, "set")
    found("unknown", lambda: story.reads(4, 5, 2))
    found("unknown", lambda: story.reads(4, 5, 2, trusted=False))


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.CANCELLED, Status.UNAVAILABLE])
def test_a_write_that_failed_may_come_late_until_the_next_barrier(status: Status) -> None:
    story = Story()
    story.at(0, 1, "set", status)
    story.at(2, 3, "set")
    story.reads(4, 5, 2)
    story.reads(6, 7, 1)
    found("stale", lambda: story.reads(8, 9, 2))  # 1 came after it
    story.history.barrier(10, 11)
    story.reads(12, 13, 1)
    story.at(14, 15, "set")
    found("stale", lambda: story.reads(16, 17, 1))


def test_a_write_that_was_perhaps_sent_twice_may_come_late() -> None:
    story = Story()
    story.at(0, 1, "set", clean=False)
    story.at(2, 3, "set")
    story.reads(4, 5, 1)


def test_a_deleted_version_does_not_come_back() -> None:
    story = Story()
    story.at(0, 1, "set")
    story.at(2, 3, "delete")
    found("stale", lambda: story.reads(4, 5, 1))
    found("ghost", lambda: story.at(4, 5, "exists"))
    story.at(6, 7, "set", Status.TIMEOUT)
    story.at(8, 9, "exists")


def test_a_version_that_was_missed_does_not_come_back() -> None:
    story = Story()
    story.at(0, 1, "set")
    with story.history.forgetting(lambda: 5.0):
        story.at(2, 3, "get", MISS)
    found("stale", lambda: story.reads(4, 5, 1))


@pytest.mark.parametrize("verb", ["get", "exists", "touch", "delete"])
def test_a_value_is_lost(verb: Verb) -> None:
    story = Story()
    story.at(0, 1, "delete", MISS)
    story.at(2, 3, "set")
    found("lost", lambda: story.at(4, 5, verb, MISS))


def test_a_removal_that_may_have_come_late_explains_a_miss() -> None:
    story = Story()
    story.at(0, 1, "delete", Status.TIMEOUT)
    story.at(2, 3, "set")
    story.at(4, 5, "get", MISS)
    story.history.barrier(6, 7)
    story.at(8, 9, "set")
    found("lost", lambda: story.at(10, 11, "get", MISS))


def test_a_corrupt_value_is_going_to_be_deleted() -> None:
    story = Story()
    story.at(0, 1, "set")
    story.at(2, 3, "get", Status.CORRUPT)
    story.at(4, 5, "set")
    story.at(6, 7, "get", MISS)
    story.history.barrier(8, 9)
    story.at(10, 11, "set")
    found("lost", lambda: story.at(12, 13, "get", MISS))


def test_a_delete_that_was_sent_twice_misses_what_it_removed() -> None:
    story = Story()
    story.at(0, 1, "set")
    story.at(2, 3, "delete", MISS, clean=False)
    found("stale", lambda: story.reads(4, 5, 1))


def test_forgetting_explains_misses_of_what_was_stored_before() -> None:
    story = Story()
    story.at(0, 1, "set")
    with story.history.forgetting(lambda: 5.0):
        story.at(2, 3, "set")
        story.at(3, 4, "get", MISS)
    story.at(6, 7, "get", MISS)
    story.at(8, 9, "set")
    found("lost", lambda: story.at(10, 11, "get", MISS))


def test_after_a_rollback_old_versions_may_be_back_until_the_next_proof() -> None:
    story = Story()
    story.at(0, 1, "set")
    story.at(2, 3, "set")
    story.at(100, 101, "set")  # 1 is no longer listed, 2 is over
    with story.history.rolling_back(lambda: 110.0):
        story.reads(105, 106, 2)
        story.at(107, 108, "get", MISS)
    story.reads(111, 112, 1)
    story.at(113, 114, "exists")
    story.at(115, 116, "set")
    found("stale", lambda: story.reads(117, 118, 1))
    found("stale", lambda: story.reads(117, 118, 2))
    found("stale", lambda: story.reads(117, 118, 3))


def test_a_pardon_takes_all_evidence_back() -> None:
    story = Story()
    story.at(0, 1, "set")
    story.at(2, 3, "set")
    story.history.pardon(4)
    story.reads(5, 6, 1)
    story.at(5, 6, "get", MISS)


def test_untrusted_replies_prove_nothing() -> None:
    story = Story()
    story.at(0, 1, "set")
    story.at(2, 3, "delete", trusted=False, clean=False)
    story.reads(4, 5, 1)
    story.at(6, 7, "get", MISS, trusted=False)
    story.reads(8, 9, 1)


def test_stripes_of_two_writes_at_a_time_are_a_mixture() -> None:
    story = Story(striped=True)
    first = story.history.begins("k", "set", 0)
    second = story.history.begins("k", "set", 1)
    story.history.ends(first, 2, OK, clean=True)
    story.history.ends(second, 3, OK, clean=True)
    story.at(4, 5, "get", MISS)
    story.at(6, 7, "exists")  # every stripe is there, of one or the other
    story.at(8, 9, "set")
    found("lost", lambda: story.at(10, 11, "get", MISS))


def test_a_failed_write_of_stripes_may_leave_a_mixture() -> None:
    story = Story(striped=True)
    story.at(0, 1, "set")
    story.at(2, 3, "set", Status.TIMEOUT)
    story.at(4, 5, "get", MISS)


class Register:
    """A server with one key, and calls that overlap: an effect comes at some moment of its call."""

    def __init__(self, seed: int, plant: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.history = History(["k"])
        self.plant = plant  # how often a get returns the version before
        self.value = self.before = 0
        self.lies = 0

    def run(self, calls: int) -> None:
        moments: list[tuple[float, int, Callable[[float], None]]] = []
        for number in range(calls):
            start = self.rng.random() * calls
            effect, end = (start + self.rng.random() * 2 for _ in range(2))
            moments += self._call(number, *sorted((start, effect, end)))
        for now, _, act in sorted(moments, key=lambda moment: moment[:2]):
            act(now)

    def _call(
        self, number: int, start: float, effect: float, end: float
    ) -> Iterator[tuple[float, int, Callable[[float], None]]]:
        verb: Verb = self.rng.choice(["get", "get", "set", "delete", "exists"])
        operation = Operation("k", verb, start)
        seen = 0

        def begin(now: float) -> None:
            nonlocal operation
            operation = self.history.begins("k", verb, now)

        def take_effect(_: float) -> None:
            nonlocal seen
            seen = self.value
            if verb == "get" and self.before and self.rng.random() < self.plant:
                seen, self.lies = self.before, self.lies + 1
            if verb in ("set", "delete"):
                self.before, self.value = self.value, operation.version

        def finish(now: float) -> None:
            status = OK if seen or verb == "set" else MISS
            self.history.ends(operation, now, status, version=seen, clean=True)

        yield start, number, begin
        yield effect, number, take_effect
        yield end, number, finish


@pytest.mark.parametrize("seed", range(20))
def test_an_honest_register_is_never_blamed(seed: int) -> None:
    Register(seed).run(500)


@pytest.mark.parametrize("seed", range(20))
def test_a_register_that_lies_now_and_then_is_found(seed: int) -> None:
    with pytest.raises(Violation):
        Register(seed, plant=0.1).run(500)


def test_memory_is_bounded() -> None:
    story = Story(striped=True)
    for number in range(5000):
        story.at(number, number + 0.4, "set", clean=number % 3 > 0)
        story.at(number + 0.5, number + 0.9, "delete", clean=number % 5 > 0)
        if number % 50 == 0:
            story.history.barrier(number + 0.92, number + 0.95)
    state = story.history._keys["k"]
    assert len(state.writes) < 200
    assert len(state.removals) < 20
