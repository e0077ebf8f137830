"""When a store is asked for its generation: not while it is known not to answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from kvferry.cache.generations import StoreGenerations
from kvferry.cache.newest import Newest
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
    generations = StoreGenerations("store", cast(Any, store), Newest(int))
    try:
        for _ in range(30):  # whoever wants to read would have it asked at once
            generations.wait(time.monotonic() + 0.2)
            time.sleep(0.05)
        assert store.asked == 0
        assert not generations.known
        store.available = True
        until(lambda: generations.known, 30)
        assert store.asked
    finally:
        generations.close()
