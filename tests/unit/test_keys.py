"""Keys: golden values, the chain, salts, and independence from the process."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.base.errors import UsageError
from kvferry.chunks.keys import chunk_hashes, chunk_keys, describe_identity, identity_digest

IDENTITY = identity_digest(describe_identity(model="tiny", dtype="float32"))
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def test_golden_values() -> None:
    """Stored data outlives releases: these values never change under format v1."""
    assert describe_identity(model="tiny", dtype="float32") == "dtype=float32\nmodel=tiny\n"
    assert chunk_keys(range(11), 4, IDENTITY) == [
        "kvf:d4468d685fdcc8563dd294960a79ab15:85cbf446a4563b00db6128ef21e7b465",
        "kvf:d4468d685fdcc8563dd294960a79ab15:87f3e4ed4b77afb8af412a4d9e3bfc65",
    ]
    assert chunk_keys(range(8), 4, IDENTITY, b"tenant") == [
        "kvf:d4468d685fdcc8563dd294960a79ab15:38d55cbb2aebb23b29700a8fd5b20917",
        "kvf:d4468d685fdcc8563dd294960a79ab15:857bb83f3dc574f95bc1c607bb1b0073",
    ]


@given(TOKENS, st.integers(1, 9), st.binary(max_size=20))
def test_hashes_follow_the_formula(tokens: list[int], chunk_size: int, salt: bytes) -> None:
    parent = hashlib.sha256(b"kvferry chunk v1\0" + salt).digest()[:16]
    expected = []
    for start in range(0, len(tokens) // chunk_size * chunk_size, chunk_size):
        words = struct.pack(f"<{chunk_size}I", *tokens[start : start + chunk_size])
        parent = hashlib.sha256(parent + words).digest()[:16]
        expected.append(parent)
    assert chunk_hashes(tokens, chunk_size, salt) == expected


@given(TOKENS, TOKENS)
def test_a_longer_prompt_begins_with_the_keys_of_its_prefix(a: list[int], b: list[int]) -> None:
    short = chunk_keys(a, 3, IDENTITY)
    assert chunk_keys(a + b, 3, IDENTITY)[: len(short)] == short


def test_a_changed_token_changes_every_key_from_there_on() -> None:
    tokens = list(range(20))
    before = chunk_hashes(tokens, 4)
    tokens[9] += 1
    after = chunk_hashes(tokens, 4)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, False, False]


def test_salt_and_identity_separate() -> None:
    other = identity_digest(describe_identity(model="tiny", dtype="bfloat16"))
    sets = [
        set(chunk_keys(range(8), 4, IDENTITY)),
        set(chunk_keys(range(8), 4, IDENTITY, b"a")),
        set(chunk_keys(range(8), 4, IDENTITY, b"b")),
        set(chunk_keys(range(8), 4, other)),
    ]
    assert len(set().union(*sets)) == 8


def test_bytes_are_one_token_each() -> None:
    assert chunk_hashes(b"abcdefgh", 4) == chunk_hashes([97, 98, 99, 100, 101, 102, 103, 104], 4)


def test_another_process_with_another_hash_seed_agrees() -> None:
    code = (
        "from kvferry.chunks.keys import *;"
        "i = identity_digest(describe_identity(model='tiny', dtype='float32'));"
        "print(*chunk_keys(range(8), 4, i))"
    )
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        out = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert out.stdout.split() == chunk_keys(range(8), 4, IDENTITY)


@pytest.mark.parametrize("token", [-1, 2**32, 1.5, "a"])
def test_bad_tokens_are_named(token: object) -> None:
    with pytest.raises(UsageError, match="token ids"):
        chunk_hashes([token], 1)  # type: ignore[list-item]  # that is the point


def test_bad_sizes_and_fields_are_refused() -> None:
    with pytest.raises(UsageError, match="chunk_size"):
        chunk_hashes([1], 0)
    with pytest.raises(UsageError, match="16 bytes"):
        chunk_keys([1], 1, b"short")
    with pytest.raises(UsageError, match="one line"):
        describe_identity(model="tiny\ndtype=float32")
    with pytest.raises(UsageError, match="one line"):
        describe_identity(**{"model=tiny": 1})
