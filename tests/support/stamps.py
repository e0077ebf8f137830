"""Stamped values: what a reader got can be told from every other value, also from a torn one.

    value = stamped("key", version=3, size=4096)
    check("key", value)   # 3; WrongBytes for anything that was not stamped for "key"

A stamp is 32 bytes in front of the value: magic, key, version, length, CRC-32 of the rest. The body
is cut out of random bytes, elsewhere for each key, version and length.
"""

from __future__ import annotations

import hashlib
import random
import struct
import time
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from kvferry.client.batch import BatchResult, Status
from support import clock

__all__ = [
    "KIB",
    "MIB",
    "STAMP_BYTES",
    "Fetched",
    "WrongBytes",
    "check",
    "fetch",
    "poisoned",
    "stamped",
    "store",
    "until",
    "within",
]

KIB, MIB = 1 << 10, 1 << 20
POISON = 0xA5
_STAMP = struct.Struct("<4s8sQQ")
_MAGIC = b"STMP"
_CRC_BYTES = 4
STAMP_BYTES = _STAMP.size + _CRC_BYTES
# No multiple of a stripe or page is a multiple of this length: a piece in a wrong place shows.
_RANDOM = random.Random(0).randbytes((1 << 20) + 7)


class WrongBytes(AssertionError):
    """A client said OK to bytes that were never written under that key."""


class Fetched(NamedTuple):
    """A checked batch_get: its result, and for each key that is OK the version that was read."""

    result: BatchResult
    versions: dict[str, int]


class Batches(Protocol):
    """The part of a client that `fetch` and `store` need."""

    def batch_get(self, keys: Sequence[str], buffers: Sequence[bytearray], **_: Any) -> Any: ...
    def batch_set(self, keys: Sequence[str], buffers: Sequence[bytes], **_: Any) -> Any: ...


def stamped(key: str, version: int, size: int) -> bytes:
    """A value of `size` bytes, at least STAMP_BYTES, that says whose and which it is."""
    at = zlib.crc32(f"{key} {version} {size}".encode()) % len(_RANDOM)
    rounds = (at + size) // len(_RANDOM) + 1
    body = (_RANDOM * rounds)[at : at + size - STAMP_BYTES]
    head = _STAMP.pack(_MAGIC, _digest(key), version, size)
    return head + _crc(head, body) + body


def check(
    key: str, data: bytes | bytearray | memoryview, versions: Container[int] | None = None
) -> int:
    """The version of a value that was read for `key`; WrongBytes if it is no such value.

    Args:
        versions: Those that may be read; None: any.
    """
    view = memoryview(data)
    head, body = view[: _STAMP.size], view[STAMP_BYTES:]
    magic, digest, version, size = _STAMP.unpack(head)
    crc = bytes(view[_STAMP.size : STAMP_BYTES])
    whole = (magic, size, crc) == (_MAGIC, len(view), _crc(head, body))
    if whole and digest != _digest(key):
        raise WrongBytes(f"{key}: these are the {size} bytes of another key")
    if not whole:
        poison = bytes(body).count(POISON)
        raise WrongBytes(
            f"{key}: {len(view)} bytes that begin {bytes(view[:16]).hex()} are not its value "
            f"({poison} poison bytes)"
        )
    if versions is not None and version not in versions:
        raise WrongBytes(f"{key}: version {version} was never written, or is gone")
    return int(version)


def poisoned(size: int) -> bytearray:
    """A target in which a byte that was never received shows."""
    return bytearray([POISON]) * size


def store(client: Batches, sizes: Mapping[str, int], version: int = 1, **options: Any) -> Any:
    """batch_set of stamped values; its result."""
    values = [stamped(key, version, size) for key, size in sizes.items()]
    return client.batch_set(list(sizes), values, **options)


def fetch(
    client: Batches,
    sizes: Mapping[str, int],
    versions: Container[int] | None = (1,),
    **options: Any,
) -> Fetched:
    """batch_get into poisoned buffers; what is OK is checked."""
    targets = [poisoned(size) for size in sizes.values()]
    result = client.batch_get(list(sizes), targets, **options)
    assert len(result) == len(sizes)
    read = {}
    for key, target, status in zip(sizes, targets, result, strict=True):
        if status is Status.OK:
            read[key] = check(key, target, versions)
    return Fetched(result, read)


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Fails the test if the block takes longer, on the clock of clock.py."""
    started = clock.now_s()
    yield
    taken_s = clock.now_s() - started
    assert taken_s < limit_s, f"took {taken_s:.2f} s, the limit is {limit_s} s"


def until(condition: Any, limit_s: float, pause_s: float = 0.01) -> float:
    """Call `condition` until it is true; returns how long that took, fails after `limit_s`.

    Both are on the clock of clock.py.
    """
    started = clock.now_s()
    while not condition():
        assert clock.now_s() - started < limit_s, f"not within {limit_s} s"
        time.sleep(pause_s)
    return clock.now_s() - started


def _crc(head: bytes | memoryview, body: bytes | memoryview) -> bytes:
    return zlib.crc32(body, zlib.crc32(head)).to_bytes(_CRC_BYTES, "little")


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=8).digest()
