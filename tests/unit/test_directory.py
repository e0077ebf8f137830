"""The native directory as Python sees it."""

from __future__ import annotations

import hashlib

import pytest

from kvferry import _native
from kvferry.base.errors import UsageError


def hashes(*numbers: int) -> bytes:
    return b"".join(hashlib.sha256(str(n).encode()).digest()[:16] for n in numbers)


def test_the_longest_prefix_comes_first_and_a_dead_seat_is_gone() -> None:
    directory = _native.Directory()
    one, two = directory.open(), directory.open()
    assert directory.update(one, hashes(1, 2), b"")
    assert directory.update(two, hashes(1, 2, 3, 5), b"")
    assert directory.lookup(hashes(1, 2, 3, 4)) == [(two, 3), (one, 2)]
    assert directory.states(two, hashes(1, 4, 5)) == b"\1\0\1"
    assert directory.size(two) == 4
    assert directory.drop(two)
    assert directory.lookup(hashes(1, 2, 3, 4)) == [(one, 2)]
    assert directory.stats()["entries"] == 2
    assert not directory.update(two, hashes(1), b"")


def test_a_snapshot_replaces_what_a_seat_held() -> None:
    directory = _native.Directory()
    seat = directory.open()
    directory.update(seat, hashes(1, 2, 3), b"")
    assert not directory.fill(seat, hashes(1))
    assert directory.begin(seat)
    assert directory.fill(seat, hashes(1))
    assert directory.lookup(hashes(1, 2, 3)) == [(seat, 3)]
    assert directory.finish(seat)
    assert directory.lookup(hashes(1, 2, 3)) == [(seat, 1)]


def test_hashes_have_sixteen_bytes() -> None:
    directory = _native.Directory()
    with pytest.raises(UsageError, match="16 bytes"):
        directory.lookup(b"123")
