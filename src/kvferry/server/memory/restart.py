"""From one server to the next: what is left in shared memory, and who finds it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from kvferry import _native
from kvferry.base.errors import KVFerryError
from kvferry.base.process import check_state_file
from kvferry.config.server import ServerConfig
from kvferry.server.memory import state
from kvferry.server.memory.pools import Pools
from kvferry.server.memory.segments import sweep
from kvferry.server.sessions.sessions import Sessions
from kvferry.server.sessions.shard import IdentityShard, Loop, identity_of

__all__ = ["begin", "keep"]

_log = logging.getLogger("kvferry.server")


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
        found = state.read(Path(config.state_file))
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
            here, gone = state.adopt(shard, record)
        except KVFerryError as error:
            _log.warning("the chunks of %s are lost: %s", shard.identity.model, error)
            here, gone = 0, len(record.pages)
        taken, lost = taken + here, lost + gone
    for pool in pools.pools.values():
        pool.pages.trim()
        pools.tend(pool)
    pools.resize(pools.budget_bytes)
    _log.info("%d chunks of the server before are here again, %d are lost", taken, lost)


def _take_segment(record: state.SegmentRecord, pools: Pools, sessions: Sessions) -> None:
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
        count = state.write(path, list(pools.pools.values()), shards, sessions.fences)
    except OSError as error:
        _log.error("the state was not written: %s", error)
        return False
    _log.info("%d chunks wait for the next server", count)
    return True
