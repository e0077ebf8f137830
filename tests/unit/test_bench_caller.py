"""Caller: what it writes down about its calls, and what ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from benchmarks.caller import RepeatedCaller, TimedCall
from kvferry.base.errors import CorruptError, DeadlineExceeded
from kvferry.client.batch import BatchResult, Status
from kvferry_lab.bench.data import Chunks

SIZE_BYTES = 4096
COUNT = 4


class Store:
    """A client that keeps values in a dictionary, and does what it is told to."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.available = True
        self.status = Status.OK
        self.change: Callable[[memoryview], None] = lambda target: None

    def batch_get(
        self, keys: Sequence[str], targets: Sequence[memoryview], *, timeout_s: float
    ) -> BatchResult:
        statuses = []
        for key, target in zip(keys, targets, strict=True):
            if key in self.values and self.status is Status.OK:
                target[:] = self.values[key]
                self.change(target)
            statuses.append(self.status if key in self.values else Status.MISS)
        return BatchResult(bytes(statuses), [0] * len(keys), 0.0)

    def batch_set(
        self, keys: Sequence[str], values: Sequence[memoryview], *, timeout_s: float
    ) -> BatchResult:
        self.values.update((key, bytes(value)) for key, value in zip(keys, values, strict=True))
        return BatchResult(bytes(len(keys)), [0] * len(keys), 0.0)


@pytest.fixture
def store() -> Store:
    return Store()


def caller_of(store: Store) -> RepeatedCaller:
    return RepeatedCaller(store, Chunks(SIZE_BYTES, COUNT, COUNT), limit_s=1.0)


def call(
    verb: str = "get", statuses: Sequence[Status] = (), indexes: Sequence[int] = ()
) -> TimedCall:
    return TimedCall(verb, 10.0, 10.5, 2.0, False, indexes or range(len(statuses)), bytes(statuses))


def test_misses_are_stored_and_then_read_and_verified(store: Store) -> None:
    with caller_of(store) as caller:
        caller.wait_for("all keys", lambda made: made.read_all, 0.0)
    first, second = caller.calls[:2]
    assert (first.verb, first.count(Status.MISS)) == ("get", COUNT)
    assert (second.verb, second.count(Status.OK)) == ("set", COUNT)
    assert caller.verified_bytes >= COUNT * SIZE_BYTES


def test_only_calls_after_the_moment_count(store: Store) -> None:
    with caller_of(store) as caller:
        caller.wait_for("all keys", lambda made: made.read_all, 0.0)
        since_s = time.perf_counter()
        assert caller.wait_for("another", lambda made: True, since_s).ended_s >= since_s
        with pytest.raises(DeadlineExceeded, match=r"waited 0\.05 s in vain for a failure"):
            caller.wait_for("a failure", lambda made: made.refused, 0.0, timeout_s=0.05)


@pytest.mark.parametrize("wrong", [0, SIZE_BYTES - 1])
def test_a_wrong_byte_is_raised_to_whoever_waits(store: Store, wrong: int) -> None:
    def flip(target: memoryview) -> None:
        target[wrong] ^= 1

    caller = caller_of(store)
    with pytest.raises(CorruptError, match=f"wrong from byte {wrong} on"), caller:  # noqa: PT012
        caller.wait_for("all keys", lambda made: made.read_all, 0.0)
        store.change = flip
        caller.wait_for("the end", lambda made: False, 0.0)


def test_a_wrong_byte_is_raised_at_the_end(store: Store) -> None:
    changed = threading.Event()

    def cut(target: memoryview) -> None:
        target[:] = bytes(SIZE_BYTES)
        changed.set()

    store.change = cut
    with pytest.raises(CorruptError), caller_of(store):
        assert changed.wait(10)


def test_a_call_is_refused_if_the_client_said_so_before_and_after(store: Store) -> None:
    with caller_of(store) as caller:
        caller.wait_for("all keys", lambda made: made.read_all, 0.0)
        store.status, store.available = Status.UNAVAILABLE, False
        refused = caller.wait_for("a refusal", lambda made: made.refused, 0.0)
        since_s = time.perf_counter()
        store.status, store.available = Status.OK, True
        caller.wait_for("service", lambda made: made.read_all and not made.refused, since_s)
    assert refused.count(Status.UNAVAILABLE) == COUNT


def test_time_of_a_call() -> None:
    assert call().wall_s == 0.5
    assert call().late_s == -1.5


def test_fates() -> None:
    mixed = call(statuses=[Status.OK, Status.MISS, Status.TIMEOUT])
    assert [mixed.fate(index) for index in range(4)] == [*map(Status, (0, 1, 4)), None]
    assert mixed.unserved([0, 1]) == 1
    assert mixed.unserved([1, 2, 3]) == 2
    assert not mixed.read_all
    assert call(statuses=[Status.OK]).read_all
    assert not call("set", [Status.OK]).read_all
    some = call("set", [Status.OK, Status.UNAVAILABLE], indexes=[5, 7])
    assert (some.fate(7), some.fate(0)) == (Status.UNAVAILABLE, None)
