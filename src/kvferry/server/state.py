"""The index on disk, so that a server that was ended on purpose finds its chunks again.

The file says which segments there are, which chunk of which identity lies in which page, in which
order they were used, and the checksum of each page. It is written when a server ends, after its
clients were sent away, and read once: whoever reads it removes it, so a server that is killed later
does not find a state that is no longer true. Every page is verified before anybody sees it.

A page that a client could still write to is no chunk, and stays out of use until that has ended,
also in the next server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from kvferry import _native
from kvferry.errors import ConfigError, KVFerryError
from kvferry.identity import Identity
from kvferry.server.pools import Pool
from kvferry.server.shard import Shard

__all__ = ["ChunkRecord", "State", "adopt", "read", "write"]

# For a pool: locks, and the pages that their holders may write to.
Fences: TypeAlias = Callable[[Pool], list[tuple[int, list[int]]]]

_log = logging.getLogger("kvferry.server")

_FORMAT = 1
_SIZE_BYTES_MAX = 4 << 30


class SegmentRecord(msgspec.Struct, array_like=True, frozen=True):
    """A segment that was left behind.

    Attributes:
        fences: Locks, and the pages that whoever holds one may still write to.
    """

    path: str
    size_bytes: int
    chunk_bytes: int
    pages: int
    fences: list[tuple[int, list[int]]]


class ChunkRecord(msgspec.Struct, array_like=True, frozen=True):
    """A chunk: its hash, the index of the one before it in the list or -1, its page, and XXH3-64
    of that."""

    hash: bytes
    parent: int
    page: int
    checksum: int


class ShardRecord(msgspec.Struct, array_like=True, frozen=True):
    """An identity, and its chunks, parents before children, the longest unused first."""

    identity: dict[str, Any]
    digest: bytes
    chunks: list[ChunkRecord]


class State(msgspec.Struct, array_like=True, frozen=True):
    """What the file holds."""

    format: int
    segments: list[SegmentRecord]
    shards: list[ShardRecord]


def fields_of(identity: Identity) -> dict[str, Any]:
    """An identity as messages and files have it."""
    return asdict(identity)


def write(path: Path, pools: Sequence[Pool], shards: Sequence[Shard], fences: Fences) -> int:
    """Write the state; how many chunks are in it.

    Args:
        fences: For each pool, as in `SegmentRecord`.

    Raises:
        OSError: It cannot be written.
    """
    state = State(
        _FORMAT,
        [
            SegmentRecord(
                pool.segment.path,
                pool.segment.size_bytes,
                pool.chunk_bytes,
                pool.pages.pages_count,
                fences(pool),
            )
            for pool in pools
        ],
        [
            ShardRecord(fields_of(shard.identity), shard.identity.digest, _chunks(shard))
            for shard in shards
        ],
    )
    beside = path.with_name(f".{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(msgspec.msgpack.encode(state))
        file.flush()
        os.fsync(descriptor)
    beside.replace(path)
    return sum(len(shard.chunks) for shard in state.shards)


def _chunks(shard: Shard) -> list[ChunkRecord]:
    entries = shard.memory.cache.entries()
    handles = [handle for _, _, handle in entries]
    checksums = _native.page_checksums(shard.memory.pool.pages, handles)
    return [
        ChunkRecord(digest, parent, handle & 0xFFFF_FFFF, checksum)
        for (digest, parent, handle), checksum in zip(entries, checksums, strict=True)
    ]


def read(path: Path) -> State | None:
    """Read and remove the state; None: there is none that can be used.

    Raises:
        ConfigError: The file is not ours alone.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"state file {path}: {error.strerror}") from None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o77:
            raise ConfigError(f"state file {path}: others can write or read it; chmod 600 it")
        content = file.read(_SIZE_BYTES_MAX)
    path.unlink(missing_ok=True)
    try:
        state = msgspec.msgpack.decode(content, type=State)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        _log.warning("the state in %s cannot be read and is not used: %s", path, error)
        return None
    if state.format != _FORMAT:
        _log.warning("the state in %s has format %d and is not used", path, state.format)
        return None
    return state


def adopt(shard: Shard, record: ShardRecord) -> tuple[int, int]:
    """Take the chunks of a record whose pages hold what they held; how many, and how many not.

    A chunk whose parent is not taken is not taken either: nobody could reach it.
    """
    pool = shard.memory.pool.pages
    handles: list[int] = []
    for chunk in record.chunks:
        with contextlib.suppress(KVFerryError):
            handles.append(pool.claim(chunk.page))
            continue
        handles.append(0)
    sums = iter(_native.page_checksums(pool, [handle for handle in handles if handle]))
    right = [
        bool(handle) and next(sums) == chunk.checksum
        for handle, chunk in zip(handles, record.chunks, strict=True)
    ]
    for index, chunk in enumerate(record.chunks):
        if chunk.parent >= index or (chunk.parent >= 0 and not right[chunk.parent]):
            right[index] = False
    kept = [index for index, good in enumerate(right) if good]
    taken = shard.memory.cache.adopt(
        [(record.chunks[index].hash, record.chunks[index].parent, handles[index]) for index in kept]
    )
    for index, good in enumerate(right):
        if handles[index] and not good:
            pool.free(handles[index])
    return taken, len(record.chunks) - taken
