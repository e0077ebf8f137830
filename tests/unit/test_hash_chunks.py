"""The native chunk hashes against kvferry.chunks.keys, for everything that tokens may come in."""

from __future__ import annotations

import random
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry._native import hash_chunks
from kvferry.base.errors import UsageError
from kvferry.chunks.keys import chunk_hashes

TOKENS = random.Random(1).choices(range(2**32), k=100)
SMALL = [token % 100 for token in TOKENS]


def oracle(tokens: Any, chunk_size: int, salt: bytes = b"") -> bytes:
    return b"".join(chunk_hashes(tokens, chunk_size, salt))


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 9), st.binary(max_size=200))
def test_they_are_those_of_keys(tokens: list[int], chunk_size: int, salt: bytes) -> None:
    assert hash_chunks(tokens, chunk_size, salt) == oracle(tokens, chunk_size, salt)


@pytest.mark.parametrize(
    "tokens",
    [
        tuple(TOKENS),
        array("I", TOKENS),
        array("L", TOKENS),
        array("q", TOKENS),
        np.array(TOKENS, np.uint32),
        np.array(TOKENS, np.int64),
        np.array(TOKENS, np.uint64),
        np.array(TOKENS, ">u8"),
        np.array(TOKENS, np.uint32)[::1],
        list(np.array(TOKENS, np.uint32)),
        memoryview(array("I", TOKENS)),
        iter(TOKENS),
    ],
    ids=lambda tokens: type(tokens).__name__,
)
def test_any_sequence_or_buffer_of_integers(tokens: Any) -> None:
    assert hash_chunks(tokens, 7) == oracle(TOKENS, 7)


@pytest.mark.parametrize(
    "tokens",
    [bytes(SMALL), bytearray(SMALL), np.array(SMALL, np.int32), np.array(SMALL, np.uint8)],
    ids=lambda tokens: type(tokens).__name__,
)
def test_narrow_types_are_numbers_and_not_words(tokens: Any) -> None:
    assert hash_chunks(tokens, 7) == oracle(SMALL, 7)


def test_every_other_token_of_an_array() -> None:
    tokens = np.array(TOKENS, np.int64)
    assert hash_chunks(tokens[::2], 5) == oracle(TOKENS[::2], 5)


@pytest.mark.parametrize(
    "tokens",
    [
        [-1],
        [2**32],
        [2**70],
        [1.0],
        ["1"],
        [None],
        "text",
        7,
        array("q", [-1]),
        array("i", [-1]),
        array("Q", [2**32]),
        array("d", [1.0]),
        np.array([2**40], np.int64),
        np.array([1.5]),
        np.array([[1, 2], [3, 4]], np.int64),
    ],
    ids=repr,
)
def test_what_is_no_token_is_refused(tokens: Any) -> None:
    with pytest.raises(UsageError):
        hash_chunks(tokens, 1)


def test_a_parent_continues_a_chain() -> None:
    whole = hash_chunks(TOKENS, 5, b"tenant")
    assert hash_chunks(TOKENS[25:], 5, parent=whole[64:80]) == whole[80:]
    assert hash_chunks([], 5, parent=whole[64:80]) == b""


@pytest.mark.parametrize(
    ("chunk_size", "salt", "parent"),
    [(0, b"", None), (-1, b"", None), (1, b"", b"short"), (1, b"salt", bytes(16))],
)
def test_calls_that_cannot_be_right(chunk_size: int, salt: bytes, parent: bytes | None) -> None:
    with pytest.raises(UsageError):
        hash_chunks(TOKENS, chunk_size, salt, parent)


def test_a_list_that_shrinks_while_it_is_read() -> None:
    tokens: list[Any] = []

    class Sly:
        def __index__(self) -> int:
            tokens.clear()
            return 1

    tokens.extend([Sly(), 2, 3])
    assert hash_chunks(tokens, 1) == oracle([1], 1)
