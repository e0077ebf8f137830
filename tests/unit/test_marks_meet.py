"""Caches with stores in common, in any order of what they do: they agree, and on nothing old."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import Any, cast

import pytest

from kvferry.base.errors import UnavailableError
from kvferry.cache.store.generations import NewestMark, StoreGenerations
from kvferry.chunks import generation
from kvferry.chunks.generation import Mark

STORES, CACHES, STEPS = 3, 4, 60


class Store:
    """What keeps a mark, and loses it."""

    available = True

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.away = False
        self.before: list[bytes | None] = [None]

    def read_mark(self, timeout_s: float) -> bytes | None:
        if self.away:
            raise UnavailableError("it is away")
        return self.value

    def write_mark(self, value: bytes, timeout_s: float, *, absent: bool) -> None:
        if self.away:
            raise UnavailableError("it is away")
        if not absent or self.value is None:
            self.before.append(self.value)
            self.value = value


class Cache:
    """Its marks alone."""

    def __init__(self, stores: list[Store]) -> None:
        self.newest = NewestMark(int)
        self.keepers = [StoreGenerations("s", cast(Any, store), self.newest) for store in stores]

    def clear(self) -> None:
        """As `Clearing.clear_everybody`."""
        there, failed = [], []
        for keeper in self.keepers:
            try:
                there.append(keeper.read())
            except UnavailableError:
                failed.append(keeper)
        self.newest.renew(*there)
        for keeper in self.keepers:
            with suppress(UnavailableError):
                keeper.tell(now=keeper not in failed)

    def look(self, keeper: StoreGenerations) -> None:
        """As the thread of a store does; those of others are woken when it heard something."""
        due = [keeper]
        while due:
            before = self.newest.mark
            due.pop()._ask(time.monotonic())
            if self.newest.mark != before:
                due = list(self.keepers)


@pytest.fixture
def born(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, int]:
    """When each half came into the world; there are no threads."""
    numbers: dict[bytes, int] = {}
    met = Mark.met

    def drawn() -> bytes:
        half = (len(numbers) + 1).to_bytes(8)
        numbers[half] = len(numbers) + 1
        return half

    def meets(self: Mark, other: Mark) -> Mark:
        mark = met(self, other)
        numbers.setdefault(mark.half, len(numbers) + 1)
        return mark

    monkeypatch.setattr(StoreGenerations, "_start", lambda self: None)
    monkeypatch.setattr(generation, "drawn", drawn)
    monkeypatch.setattr(Mark, "met", meets)
    return numbers


def _settle(caches: list[Cache]) -> None:
    for _ in range(3 * STEPS):
        before = [cache.newest.mark for cache in caches]
        again = False
        for cache in caches:
            for keeper in cache.keepers:
                cache.look(keeper)
                again |= not keeper.known
        if not again and before == [cache.newest.mark for cache in caches]:
            return
    raise AssertionError("they do not come to an end")


@pytest.mark.parametrize("seed", range(200))
def test_whoever_can_hear_of_a_clear_goes_on_with_a_half_that_was_drawn_behind_it(
    seed: int, born: dict[bytes, int]
) -> None:
    rng = random.Random(seed)
    stores = [Store() for _ in range(STORES)]
    # The first one is everybody's: so all of them hear of everything in the end.
    caches = [
        Cache([stores[0], *rng.sample(stores[1:], rng.randrange(STORES))]) for _ in range(CACHES)
    ]
    for cache in caches:
        for keeper in cache.keepers:
            cache.look(keeper)
    old = 0  # so many halves there were before the last clear
    for _ in range(STEPS):
        cache = rng.choice(caches)
        match rng.randrange(12):
            case 0:
                old = len(born)
                cache.clear()
            case 1:
                store = rng.choice(stores)
                store.value = rng.choice([None, b"nonsense", rng.choice(store.before)])
            case 2:
                rng.choice(stores).away ^= True
            case _:
                cache.look(rng.choice(cache.keepers))
    for store in stores:
        store.away = False
    _settle(caches)
    marks = {cache.newest.mark for cache in caches}
    assert len(marks) == 1
    [mark] = marks
    assert not old or born[mark.half] > old
