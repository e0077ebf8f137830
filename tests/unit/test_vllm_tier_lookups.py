"""What the tier remembers of a store: bounded, and never a step's time to keep so."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvferry._native import Answers, KnownChunks
from kvferry.base.errors import UsageError
from kvferry.integrations.vllm.tier.lookups import KNOWN_MAX, chunk_name, chunk_names


def numbered(first: int, count: int) -> list[bytes]:
    return [number.to_bytes(32, "little") + bytes(4) for number in range(first, first + count)]


def test_the_oldest_known_chunks_are_forgotten_first() -> None:
    known = KnownChunks(keys_max=8)
    keys = numbered(0, 12)
    known.add(keys[:8])
    known.add(keys[8:])
    assert [key in known for key in keys] == [False] * 4 + [True] * 8


def test_a_chunk_that_is_gone_is_not_known_and_can_be_known_again() -> None:
    known = KnownChunks(keys_max=4)
    keys = numbered(0, 4)
    known.add(keys)
    known.discard(keys[1:3])
    assert [key in known for key in keys] == [True, False, False, True]
    known.add(keys)
    assert all(key in known for key in keys)
    for _ in range(50):  # what comes and goes takes no room for good
        known.discard(keys[:2])
        known.add(keys[:2])
    assert all(key in known for key in keys)
    known.add(numbered(100, 4))
    assert not any(key in known for key in keys)


def test_to_remember_costs_the_same_when_it_is_full() -> None:
    """Forgetting the oldest took 3 ms for 64 chunks, in a step of the scheduler."""
    known = KnownChunks(KNOWN_MAX)
    took = []
    for filled in range(0, 2 * KNOWN_MAX, 64):
        keys = numbered(filled, 64)
        began = time.thread_time()
        known.add(keys)
        took.append(time.thread_time() - began)
    half = len(took) // 2
    assert sum(took[half:]) < 10 * sum(took[:half])


@pytest.mark.parametrize("length", [20, 36, 68])
def test_names_are_those_of_each_key_alone(length: int) -> None:
    keys = [bytes([index]) * (length - 4) + bytes(4) for index in range(1, 9)]
    others = [b"\x07" * (length - 4) + b"\0\0\0\1", b"\x07" * 19, b"\x07" * 16 + bytes(4)]
    assert chunk_names(keys + others) == [chunk_name(key) for key in keys + others]
    assert chunk_names(keys) == [key[:16].hex() for key in keys]
    assert len(set(chunk_names(keys + others[:2]))) == len(keys) + 2


def test_keys_of_other_groups_are_named_by_all_that_is_in_them() -> None:
    key = b"\x07" * 32 + b"\0\0\0\1"
    assert chunk_name(key) == hashlib.sha256(key).hexdigest()[:32]
    assert chunk_name(b"") == hashlib.sha256(b"").hexdigest()[:32]


def test_a_question_is_what_is_new_and_its_answer_is_found_again() -> None:
    answers, keys = Answers(), numbered(1, 4)
    assert [answers.ask(key) for key in keys] == [3] * 4
    question, names = answers.take()
    assert names == chunk_names(keys)
    assert answers.take() == (b"", [])
    assert [answers.ask(key) for key in keys] == [2] * 4
    answers.resolve(question, bytes([0, 1, 4, 0]))  # OK, MISS, TIMEOUT, OK
    assert [answers.ask(key) for key in keys] == [1, 0, 0, 1]
    answers.miss({keys[0], numbered(9, 1)[0]})
    assert [answers.ask(key) for key in [*keys, *numbered(9, 1)]] == [0, 0, 0, 1, 3]
    answers.take_back()
    assert answers.take() == (b"", [])


def test_what_a_store_says_is_known_and_what_it_does_not_say_is_left() -> None:
    answers, known, keys = Answers(), KnownChunks(keys_max=8), numbered(1, 4)
    known.add([keys[1], keys[2]])
    for key in keys:
        answers.ask(key)
    question, _ = answers.take()
    assert known.hear(question, bytes([0, 1, 4, 4])) == (1, 1)
    assert [key in known for key in keys] == [True, False, True, False]
    assert known.unknown(keys) == [1, 3]
    assert len(known) == 2


def test_what_is_no_key_and_no_question_is_refused() -> None:
    answers, known = Answers(), KnownChunks(keys_max=1)
    text: Any = "text"
    refused: list[Callable[[], object]] = [
        lambda: answers.ask(text),
        lambda: known.add([b"", text]),
        lambda: answers.resolve(bytes(16), b""),
        lambda: known.hear(bytes(17), b"\0"),
        lambda: KnownChunks(keys_max=0),
    ]
    for call in refused:
        with pytest.raises(UsageError):
            call()
    number: Any = 7
    with pytest.raises(TypeError):
        known.add(number)
    with pytest.raises(TypeError):
        chunk_names(number)
