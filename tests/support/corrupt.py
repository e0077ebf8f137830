"""Stored values that somebody changes behind the cache's back.

    spoiled, causes = spoil("flip_payload", values, index, strangers, rng)

A cause is a word of a connector's counters, ``refused_<cause>``; where a change can be seen in more
than one way, any of them will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from kvferry import RedisClient
from kvferry.config import ClientConfig

__all__ = ["KINDS", "FileBytes", "ServerBytes", "Spoiled", "Values", "spoil"]

FRAME_BYTES = 64


class ServerBytes:
    """Values as they lie on a server."""

    head_bytes = FRAME_BYTES
    header_causes = frozenset({"magic", "version", "header_checksum"})
    asks_for_lengths = False

    def __init__(self, url: str) -> None:
        self._client = RedisClient.from_config(ClientConfig.from_url(url, connections=1))

    def read(self, keys: Sequence[str], size_bytes: int) -> list[bytes]:
        buffers = [bytearray(FRAME_BYTES + size_bytes) for _ in keys]
        assert self._client.batch_get(keys, buffers).ok
        return [bytes(buffer) for buffer in buffers]

    def write(self, values: Mapping[str, bytes]) -> None:
        assert self._client.batch_set(list(values), list(values.values())).ok

    def held(self, keys: Sequence[str]) -> int:
        """How many of them are there."""
        return sum(not status for status in self._client.batch_exists(keys))

    def close(self) -> None:
        self._client.close()


class FileBytes:
    """Values as they lie in a directory. A key keeps its file once it was read."""

    head_bytes = 4096
    header_causes = frozenset({"magic", "version", "header_checksum", "shape"})
    asks_for_lengths = True  # a file of another length is not there, and the next SET replaces it

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, Path] = {}

    def read(self, keys: Sequence[str], size_bytes: int) -> list[bytes]:
        found = {}
        for path in self._directory.glob("??/*"):
            data = path.read_bytes()
            key = data[96:][: int.from_bytes(data[66:68], "little")]
            found[key.decode(errors="replace")] = (path, data)
        self._files.update({key: found[key][0] for key in keys})
        return [found[key][1] for key in keys]

    def write(self, values: Mapping[str, bytes]) -> None:
        for key, data in values.items():
            self._files[key].write_bytes(data)

    def held(self, keys: Sequence[str]) -> int:
        return sum(self._files[key].exists() for key in keys)

    def close(self) -> None:
        """Nothing is open."""


Values = ServerBytes | FileBytes
Spoiled = tuple[bytes, frozenset[str]]
_Spoil = Callable[[Values, Sequence[bytes], int, Sequence[bytes], Random], Spoiled]


def _flipped(data: bytes, start: int, end: int, rng: Random) -> bytes:
    """Some bits between two offsets turned over; one, mostly."""
    changed = bytearray(data)
    for at in rng.sample(range(8 * start, 8 * end), rng.choice((1, 1, 1, 2, 5))):
        changed[at // 8] ^= 1 << at % 8
    return bytes(changed)


def _flip_payload(
    at: Values, values: Sequence[bytes], index: int, _: Sequence[bytes], rng: Random
) -> Spoiled:
    data = values[index]
    return _flipped(data, at.head_bytes, len(data), rng), frozenset({"payload_checksum"})


def _flip_header(
    at: Values, values: Sequence[bytes], index: int, _: Sequence[bytes], rng: Random
) -> Spoiled:
    return _flipped(values[index], 0, at.head_bytes, rng), at.header_causes


def _truncate(
    at: Values, values: Sequence[bytes], index: int, _: Sequence[bytes], rng: Random
) -> Spoiled:
    data = values[index]
    size = rng.choice((0, 1, FRAME_BYTES - 1, FRAME_BYTES, len(data) - 1, rng.randrange(len(data))))
    return data[:size], frozenset({"size", "shape", "magic", "header_checksum"})


def _extend(
    at: Values, values: Sequence[bytes], index: int, _: Sequence[bytes], rng: Random
) -> Spoiled:
    more = rng.randbytes(rng.choice((1, 64, 4095, rng.randrange(4097, 10_000))))
    return values[index] + more, frozenset({"size", "shape"})


def _replace_payload(
    at: Values, values: Sequence[bytes], index: int, _: Sequence[bytes], rng: Random
) -> Spoiled:
    """The header of one value, the payload of another."""
    other = values[index - 1]
    data = values[index][: at.head_bytes] + other[at.head_bytes :]
    return data, frozenset({"payload_checksum"})


def _zero(
    at: Values, values: Sequence[bytes], index: int, _: Sequence[bytes], rng: Random
) -> Spoiled:
    """What a disk or a page that was lost leaves: zeros to the end, or all of it."""
    data = values[index]
    start = rng.choice((0, rng.randrange(at.head_bytes, len(data) - 64)))
    causes = {"payload_checksum"} if start else {"magic"}
    return data[:start] + bytes(len(data) - start), frozenset(causes)


def _foreign(
    at: Values, values: Sequence[bytes], index: int, _: Sequence[bytes], rng: Random
) -> Spoiled:
    """Another program's value, of our length or not."""
    size = len(values[index])
    other = rng.choice((size, size, rng.randrange(2 * size)))
    return b"PK\x03\x04" + rng.randbytes(max(0, other - 4)), frozenset({"magic", "size", "shape"})


def _version(
    at: Values, values: Sequence[bytes], index: int, _: Sequence[bytes], rng: Random
) -> Spoiled:
    """A format from before, or from after, this release."""
    data = bytearray(values[index])
    data[4] = rng.choice((0, 2, 3, 255))
    return bytes(data), frozenset({"version"})


def _swap(
    at: Values, values: Sequence[bytes], index: int, _: Sequence[bytes], rng: Random
) -> Spoiled:
    """The whole value of another key."""
    return values[index - 1], frozenset({"key"})


def _identity(
    at: Values, values: Sequence[bytes], index: int, strangers: Sequence[bytes], rng: Random
) -> Spoiled:
    """The value of another model under this key."""
    return strangers[index], frozenset({"identity"})


KINDS: dict[str, _Spoil] = {
    "flip_payload": _flip_payload,
    "flip_header": _flip_header,
    "truncate": _truncate,
    "extend": _extend,
    "replace_payload": _replace_payload,
    "zero": _zero,
    "foreign": _foreign,
    "version": _version,
    "identity": _identity,
    "swap": _swap,
}


def spoil(
    kind: str,
    at: Values,
    values: Sequence[bytes],
    index: int,
    strangers: Sequence[bytes],
    rng: Random,
) -> Spoiled:
    """One of `values` changed in a way of KINDS, and what a reader may call it.

    Args:
        values: As they were stored, no two alike.
        strangers: The same keys as another identity has stored them.
    """
    return KINDS[kind](at, values, index, strangers, rng)
