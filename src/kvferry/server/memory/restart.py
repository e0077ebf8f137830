"""From one server to the next: chunks stay in shared memory, and their index in a state file.

A server that was ended on purpose leaves both (`keep`), and the next one takes them over (`begin`).
The file says which segments there are, which chunk of which identity lies in which page, in which
order they were used, and the checksum of each page. It is written when a server ends, after its
clients were sent away, and read once: whoever reads it removes it, so a server that is killed later
does not find a state that is no longer true. Every page is verified before anybody sees it.

A page that a client could still write to is no chunk, and stays out of use until that has ended,
also in the next server.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from kvferry import _native
from kvferry.base.errors import ConfigError, KVFerryError, UsageError
from kvferry.base.process import check_state_file
from kvferry.config.server import ServerConfig
from kvferry.server.memory.pools import Pool, Pools, page_index
from kvferry.server.memory.segments import sweep
from kvferry.server.sessions.sessions import Sessions
from kvferry.server.sessions.shard import IdentityShard, Loop, identity_of

__all__ = ["SegmentRecord", "ShardRecord", "State", "begin", "keep", "read", "write"]

# For a pool: locks, and the pages that their holders may write to.
Fences: TypeAlias = Callable[[Pool], list[tuple[int, list[int]]]]

_log = logging.getLogger("kvferry.server")

_FORMAT = 1
# First byte of every format: msgpack's for a list of three.
_BEGINNING = b"\x93"
_SIZE_BYTES_MAX = 4 << 30  # that are read of a state file


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


class ShardRecord(msgspec.Struct, array_like=True, frozen=True):
    """An identity and its chunks, parents before children, else who would be evicted last.

    Attributes:
        hashes: 16 bytes for each chunk.
        parents: For each the index of the one before it in its prompt, or -1.
        pages: For each its page.
        checksums: For each XXH3-64 of that.
        kept_as: The digest of the identity under which stores had them, which `remote_serde` may
            make another one; empty: the same.
    """

    identity: dict[str, Any]
    digest: bytes
    hashes: bytes
    parents: list[int]
    pages: list[int]
    checksums: list[int]
    kept_as: bytes = b""


class State(msgspec.Struct, array_like=True, frozen=True):
    """The content of a state file."""

    format: int
    segments: list[SegmentRecord]
    shards: list[ShardRecord]


def begin(
    config: ServerConfig,
    pools: Pools,
    sessions: Sessions,
    shards: dict[bytes, IdentityShard],
    loop: Loop,
) -> None:
    """Remove what dead servers left, and take over what one has kept for us.

    Raises:
        ConfigError: The state file is not ours alone, is no state, or could not be written.
    """
    found = None
    if config.state_file is not None:
        check_state_file(Path(config.state_file))
        found = read(Path(config.state_file))
    kept = frozenset(segment.path for segment in found.segments) if found else frozenset()
    sweep(config.shm_name, kept)
    if found is None:
        return
    for segment in found.segments:
        try:
            _take_segment(segment, pools, sessions)
        except (KVFerryError, OSError) as error:
            _log.warning("a segment of the server before is lost: %s", error)
    taken = lost = 0
    for record in found.shards:
        try:
            shard = IdentityShard(identity_of(record.identity, record.digest), config, pools, loop)
        except (KVFerryError, OSError) as error:
            _log.warning("an identity of the server before is lost: %s", error)
            continue
        shards[record.digest] = shard
        try:
            here, gone = _adopt(shard, record)
        except KVFerryError as error:
            _log.warning("the chunks of %s are lost: %s", shard.identity.model, error)
            here, gone = 0, len(record.pages)
        taken, lost = taken + here, lost + gone
    for pool in pools.pools.values():
        pool.pages.trim()
        pools.tend(pool)
    pools.resize(pools.budget_bytes)
    _log.info("%d chunks of the server before are here again, %d are lost", taken, lost)


def _take_segment(record: SegmentRecord, pools: Pools, sessions: Sessions) -> None:
    segment = _native.SharedSegment.open(record.path, record.size_bytes)
    pool = pools.add(segment, record.chunk_bytes, record.pages)
    try:
        for lock, pages in record.fences:
            if segment.lock_is_held(lock):
                sessions.fence(pool, lock, pages)
    except BaseException:  # somebody may still write to pages that we could not keep aside
        del pools.pools[record.chunk_bytes]
        raise


def keep(path: Path, pools: Pools, sessions: Sessions, shards: Sequence[IdentityShard]) -> bool:
    """Leave everything to the next server; whether that could be written down."""
    try:
        count = write(path, list(pools.pools.values()), shards, sessions.fences)
    except OSError as error:
        _log.error("the state was not written: %s", error)
        return False
    _log.info("%d chunks wait for the next server", count)
    return True


def write(
    path: Path, pools: Sequence[Pool], shards: Sequence[IdentityShard], fences: Fences
) -> int:
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
        [_record(shard) for shard in shards],
    )
    beside = path.with_name(f".{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(msgspec.msgpack.encode(state))
            file.flush()
            os.fsync(descriptor)
        beside.replace(path)
    except BaseException:  # above all a full disk, which a torn file would keep full
        beside.unlink(missing_ok=True)
        raise
    return sum(len(shard.pages) for shard in state.shards)


def _record(shard: IdentityShard) -> ShardRecord:
    hashes, parents, handles = shard.memory.cache.entries()
    checksums = _native.page_checksums(shard.memory.pool.pages, handles)
    return ShardRecord(
        asdict(shard.identity),
        shard.identity.digest,
        hashes,
        parents,
        [page_index(handle) for handle in handles],
        checksums,
        shard.cache.identity.digest,
    )


def read(path: Path) -> State | None:
    """Read and remove the state; None: there is none that can be used.

    Raises:
        ConfigError: The file is not ours alone, or no state: then it stays as it is.
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
    if content and not content.startswith(_BEGINNING):
        raise ConfigError(f"state file {path} is no state of a server; name another file")
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


def _adopt(shard: IdentityShard, record: ShardRecord) -> tuple[int, int]:
    """Take the chunks of a record whose pages hold what they held; how many, and how many not.

    Raises:
        KVFerryError: The record cannot be; nothing was taken.
    """
    if (record.kept_as or record.digest) != shard.cache.identity.digest:
        raise UsageError("they are not what remote_serde says now")
    pool, count = shard.memory.pool.pages, len(record.pages)
    if not len(record.checksums) == len(record.parents) == len(record.hashes) // 16 == count:
        raise UsageError("a record of the state file has lists of different lengths")
    handles = []
    for page in record.pages:
        try:
            handles.append(pool.claim(page))
        except KVFerryError:
            handles.append(0)
    sums = iter(_native.page_checksums(pool, [handle for handle in handles if handle]))
    for index, handle in enumerate(handles):
        if handle and next(sums) != record.checksums[index]:
            pool.free(handle)
            handles[index] = 0
    try:
        taken = shard.memory.cache.adopt(record.hashes, record.parents, handles)
    except KVFerryError:
        for handle in filter(None, handles):
            pool.free(handle)
        raise
    return taken, count - taken
