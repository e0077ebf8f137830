"""When a store is asked for its generation: not while it is known not to answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from kvferry.base.threads import failures
from kvferry.cache.steps import finish
from kvferry.cache.store.generations import NewestMark, StoreGenerations
from kvferry.chunks.generation import Mark
from support.stamps import until


class Store:
    """A connector, as far as generations see it."""

    def __init__(self) -> None:
        self.available = True
        self.asked = 0

    def read_mark(self, timeout_s: float) -> bytes | None:
        self.asked += 1
        return None

    def write_mark(self, value: bytes, timeout_s: float, *, absent: bool) -> None:
        raise AssertionError

    def delete_generations(self, which: Callable[[bytes], bool]) -> Iterator[int]:
        yield 0


def test_a_store_that_is_away_is_not_asked_until_it_is_back() -> None:
    """Each try would dial, wait and fail, on the processor that makes tokens."""
    store = Store()
    store.available = False
    generations = StoreGenerations("store", cast(Any, store), NewestMark(int))
    try:
        for _ in range(30):  # whoever wants to read would have it asked at once
            finish(generations.waiting(time.monotonic() + 0.2))
            time.sleep(0.05)
        assert store.asked == 0
        assert not generations.known
        store.available = True
        until(lambda: generations.known, 30)
        assert store.asked
    finally:
        generations.close()


class Marked(Store):
    """A store that keeps what is written, and may fail as only a plug-in does."""

    def __init__(self, value: bytes | None) -> None:
        super().__init__()
        self.value = value
        self.breaks: Exception | None = None

    def read_mark(self, timeout_s: float) -> bytes | None:
        self.asked += 1
        if self.breaks is not None:
            raise self.breaks
        return self.value

    def write_mark(self, value: bytes, timeout_s: float, *, absent: bool) -> None:
        self.value = value


@pytest.mark.parametrize("digits", [19, 20, 100, 4299, 4300, 4301, 100_000])
@pytest.mark.parametrize("digit", [b"1", b"9"])
def test_a_mark_with_thousands_of_digits_does_not_end_who_follows_it(
    digits: int, digit: bytes
) -> None:
    """It can be read up to 4,300 of them, and one more cannot be written."""
    store, newest = Marked(digit * digits + b" " + b"ab" * 8), NewestMark(int)
    generations = StoreGenerations("store", cast(Any, store), newest)
    before = failures().get("generations", 0)
    try:
        until(lambda: generations.known, 30)
        newest.renew()  # somebody clears
        generations.tell()
        assert store.value is not None
        written = Mark.decode(store.value)
        assert written.counter > 0
        assert newest.mark.half == written.half
        # What another cache writes after that is followed.
        store.value = other = written.renewed().encode()
        until(lambda: newest.mark.half == Mark.decode(other).half, 30)
        assert store.value == other
        assert failures().get("generations", 0) == before
    finally:
        generations.close()


@pytest.mark.parametrize("error", [OSError("disk"), ValueError("a bug"), MemoryError()])
def test_a_plug_in_that_raises_is_asked_again_and_nothing_is_believed_meanwhile(
    error: Exception,
) -> None:
    store, newest = Marked(Mark(3, b"3" * 8).encode()), NewestMark(int)
    generations = StoreGenerations("store", cast(Any, store), newest)
    try:
        until(lambda: generations.known and newest.mark.half == b"3" * 8, 30)
        store.breaks = error
        until(lambda: not generations.known, 30)
        assert not finish(generations.waiting(time.monotonic() + 0.2))
        store.value = Mark(4, b"4" * 8).encode()  # others have cleared
        store.breaks = None
        until(lambda: generations.known, 30)
        assert newest.mark.half == b"4" * 8
    finally:
        generations.close()
