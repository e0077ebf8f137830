"""Pages for all identities, within one budget of bytes.

Identities whose chunks have the same length share a pool, which is one segment; each has an index
of its own over it. A segment is as long as the budget, but only the pages that its pool was granted
are backed by memory, and all grants together stay within the budget.

Memory is taken a little ahead of what is used, or all of it at once (`prefault`), and never so much
that the host or a cgroup has hardly any left: there a pool ends for as long as that is so, and its
policies choose what leaves. What stays free goes back to the system: after a clear, and when the
budget is lowered.

Who needs room gets it from what nobody has, then from free pages of other pools, then from the
identity that has most: one without engines before those with some. So under pressure all get equal
shares in bytes, and while there is room any of them may have everything. Within an identity, its
eviction policy chooses.

Threads: any. One lock, held while the kernel backs a step's pages.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kvferry import _native
from kvferry.base.errors import UsageError
from kvferry.base.host import available_memory_bytes, memory_limit_bytes
from kvferry.base.threads import Guarded
from kvferry.cache.memory import Memory, Reserved
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.config.setting import GB
from kvferry.server.memory.segments import create_segment

if TYPE_CHECKING:
    from kvferry.config.server import ServerConfig

__all__ = ["Pool", "Pools", "SharedMemory", "page_index"]

_log = logging.getLogger("kvferry.server")

# Pages of one pool: the index takes memory for each, and tiny chunks must not make it larger than
# the pool.
_PAGES_MAX = 1 << 22
# How much is backed at a time, so that requests that wait for a part of it go on soon.
_STEP_BYTES = 64 << 20
_STEP_PAGES = 4096
# How often a pool is tended when there is nothing to be done.
_TEND_S = 0.5
# How many bytes are free and backed, as a part of the budget and at most: engines that store faster
# than the kernel clears memory wait for it (see `waits_for_room`).
_AHEAD_PART = 1 / 8
_AHEAD_BYTES = 256 << 20
_AHEAD_PAGES = 1 << 16
# Pages that were free for so long are given back; a clear is mostly followed by other chunks.
_UNUSED_S = 5.0
# Memory of the host that is left to others, as a part of it and at most.
_SPARE_PART = 1 / 20
_SPARE_BYTES = 256 << 20
# After memory was scarce, how long until the pool tries again to grow.
_SCARCE_S = 1.0


def page_index(handle: int) -> int:
    """Which page a handle is of: what clients are told. Behind it is a generation."""
    return handle & 0xFFFF_FFFF


class Pool:
    """The pages of one length, in one segment.

    Attributes:
        held: How many of them engines hold, by leases, pins and reservations.
    """

    def __init__(self, segment: _native.SharedSegment, chunk_bytes: int, pages: int) -> None:
        self.segment = segment
        self.chunk_bytes = chunk_bytes
        self.pages = _native.PagePool.over(segment, chunk_bytes, pages, prefault=True)
        self.taken = threading.Event()  # so much that more is to be backed ahead
        self.unused_since: float | None = None  # that far more is free than is to be
        self.stride = self.pages.page_stride_bytes
        self.members: list[SharedMemory] = []
        self.held = 0
        self.lock = threading.Lock()  # of `coming`: pages of loads that may not have them yet
        self.coming: weakref.WeakKeyDictionary[_native.OnDemandPages, int] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def granted_bytes(self) -> int:
        """Bytes of its pages that are backed."""
        return self.pages.granted_count * self.stride


class SharedMemory(Memory):
    """The memory of one identity: its index over the pool of its chunks' length.

    Attributes:
        engines: Sessions of this identity now.
    """

    def __init__(self, pools: Pools, pool: Pool, policy: str) -> None:
        cache = _native.ChunkCache(pool.pages.pages_count, policy, pool=pool.pages)
        super().__init__(pool.pages, cache, pool.chunk_bytes)
        self.pool = pool
        self.engines = 0
        self._pools = pools

    @property
    def used_bytes(self) -> int:
        """Bytes of its chunks."""
        return self.cache.stats()["resident"] * self.pool.stride

    @property
    def pages_max(self) -> int:
        """How many pages it could have if nobody else had any."""
        return min(self._pools.budget_bytes // self.pool.stride, self.pages)

    def reserve(self, hashes: bytes, first: int) -> Reserved:
        """See `Memory.reserve`; others may have to give up chunks."""
        self.room_for(len(hashes) // DIGEST_BYTES - first)
        try:
            return super().reserve(hashes, first)
        finally:
            self._pools.look_ahead(self.pool)

    def on_demand(self, hashes: bytes, first: int) -> _native.OnDemandPages:
        """See `Memory.on_demand`; what nobody has is backed ahead, and nobody gives up any.

        Pages are taken later, where nothing can be backed, so there are some for all that may come.
        """
        wanted = len(hashes) // DIGEST_BYTES - first
        coming = super().on_demand(hashes, first)
        with self.pool.lock:
            self.pool.coming[coming] = wanted
            wanted = sum(self.pool.coming.values())
        self._pools.back(self.pool, wanted)
        self._pools.look_ahead(self.pool)
        return coming

    def room_for(self, wanted: int) -> None:
        """Have so many pages free, as far as others can and must give them."""
        if self.pool.pages.free_count < wanted:
            self._pools.make_room(self, wanted)

    def waits_for_room(self, wanted: int) -> bool:
        """Whether so many pages take the kernel's time: milliseconds, and not microseconds."""
        return self.pool.pages.free_count < wanted and not self._pools.exhausted


class Pools:
    """All pools of a server.

    Args:
        config: Size, policy, and where segments are made.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self.budget_bytes = config.cache.l1_bytes
        self.pools: dict[int, Pool] = {}
        self._lock = threading.RLock()
        self._closing = False
        self._ahead_bytes = min(_AHEAD_BYTES, int(self.budget_bytes * _AHEAD_PART))
        self._scarce_until = float("-inf")
        self._said_scarce = False

    def memory(self, chunk_bytes: int) -> SharedMemory:
        """Memory for one more identity.

        Raises:
            UsageError: The budget holds no such chunk.
            OSError: The system refused the segment.
        """
        with self._lock:
            pool = self.pools.get(chunk_bytes) or self._create(chunk_bytes)
            memory = SharedMemory(self, pool, self._config.cache.eviction_policy)
            pool.members.append(memory)
        return memory

    def _create(self, chunk_bytes: int) -> Pool:
        stride = _native.PagePool.stride_bytes(chunk_bytes)
        pages = min(self.budget_bytes // stride, _PAGES_MAX)
        if pages < 1:
            raise UsageError(
                f"{self.budget_bytes / 1e9:g} GB of memory hold no chunk of {chunk_bytes} bytes; "
                "raise --l1-size-gb or lower the chunk size"
            )
        segment = create_segment(
            self._config.shm_name, pages * stride, hugepages=self._config.cache.hugetlb
        )
        pool = self.add(segment, chunk_bytes, pages)
        self.tend(pool)
        return pool

    def add(self, segment: _native.SharedSegment, chunk_bytes: int, pages: int) -> Pool:
        """A pool over a segment; `tend` has to follow."""
        pool = self.pools[chunk_bytes] = Pool(segment, chunk_bytes, pages)
        return pool

    def tend(self, pool: Pool) -> None:
        """Begin to back its pages ahead of their use, and to forget what of them is mapped here: it
        would delay the moment when clients see us gone."""
        Guarded(self._tend, "pages", pool).start()

    def _tend(self, pool: Pool) -> None:
        step = min(_STEP_PAGES, max(1, _STEP_BYTES // pool.stride))
        while not self._closing:
            pool.taken.clear()
            wanted = self._ahead(pool) - pool.pages.free_count
            grown = self._grow(pool, min(step, wanted)) if wanted > 0 else 0
            self._give_back(pool, step)
            pool.segment.forget()
            if not grown:
                pool.taken.wait(_TEND_S)

    def _ahead(self, pool: Pool) -> int:
        """How many pages are to be free and backed."""
        if self._config.prefault:
            return pool.pages.pages_count
        return min(_AHEAD_PAGES, max(1, self._ahead_bytes // pool.stride))

    def look_ahead(self, pool: Pool) -> None:
        """Some of its pages were taken: have more backed before they are needed."""
        if pool.pages.free_count < self._ahead(pool) // 2 + 1 and self._can_grow(pool):
            pool.taken.set()

    def _can_grow(self, pool: Pool) -> bool:
        return (
            self.budget_bytes - self.granted_bytes >= pool.stride
            and pool.pages.granted_count < pool.pages.pages_count
            and time.monotonic() >= self._scarce_until
        )

    def _give_back(self, pool: Pool, step: int) -> None:
        """The memory of pages that have been free for long goes to the system, `step` at a time."""
        ahead, now = self._ahead(pool), time.monotonic()
        if pool.pages.free_count <= 2 * ahead:
            pool.unused_since = None
        elif pool.unused_since is None:
            pool.unused_since = now
        elif now - pool.unused_since > _UNUSED_S:
            while (over := pool.pages.free_count - ahead) > 0 and not self._closing:
                if not pool.pages.shrink(min(over, step))[0]:
                    return

    # --- Room ---

    @property
    def granted_bytes(self) -> int:
        """Bytes that are backed, of all pools."""
        return sum(pool.granted_bytes for pool in self.pools.values())

    @property
    def members(self) -> Iterable[SharedMemory]:
        """The memories of all identities."""
        return [member for pool in list(self.pools.values()) for member in pool.members]

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to be backed, and no other pool could give any."""
        pools = list(self.pools.values())
        if len(pools) != 1:
            return False
        return not self._can_grow(pools[0])

    def back(self, pool: Pool, wanted: int) -> None:
        """Have `wanted` pages free, as far as the budget has any that no pool has."""
        short = wanted - pool.pages.free_count
        if short > 0:
            self._grow(pool, short)

    def make_room(self, memory: SharedMemory, wanted: int) -> None:
        """Have `wanted` pages free for it, as far as others can and must give them."""
        pool = memory.pool
        self._grow(pool, wanted - pool.pages.free_count)
        for other in list(self.pools.values()):
            if other is not pool and (short := wanted - pool.pages.free_count) > 0:
                self._move(other, pool, short)
        tried: set[int] = set()
        while (short := wanted - pool.pages.free_count) > 0:
            giver = self._giver(memory, tried)
            if giver is None:
                return  # it evicts its own, or sheds
            tried.add(id(giver))
            own = memory.used_bytes if giver.engines else 0
            most = max(1, (giver.used_bytes - own) // (2 if giver.engines else 1))
            pages = -(-min(short * pool.stride, most) // giver.pool.stride)
            gone = len(giver.cache.evict(pages)) // DIGEST_BYTES
            if giver.pool is not pool and gone:
                self._move(giver.pool, pool, short)

    def _giver(self, memory: SharedMemory, tried: set[int]) -> SharedMemory | None:
        """The identity that gives pages next: one without engines, else the one with most memory,
        if that is more than ours."""
        own = memory.used_bytes
        able = [
            (not other.engines, other.used_bytes, index, other)
            for index, other in enumerate(self.members)
            if other is not memory
            and id(other) not in tried
            and other.used_bytes >= other.pool.stride
            and (not other.engines or other.used_bytes > own + other.pool.stride)
        ]
        return max(able)[-1] if able else None

    def _grow(self, pool: Pool, pages: int) -> int:
        """Back up to so many more pages, within the budget; how many it became."""
        with self._lock:
            left = (self.budget_bytes - self.granted_bytes) // pool.stride
            pages = min(pages, left, pool.pages.pages_count - pool.pages.granted_count)
            if pages > 0:
                pages = min(pages, self._affordable_bytes() // pool.stride)
            if pages <= 0:
                return 0
            grown, problem = pool.pages.grow(pages)
            if problem is not None:
                _log.error("the pool ends at %.2f GB: %s", self.granted_bytes / 1e9, problem)
                self.budget_bytes = self.granted_bytes
            return grown

    def _affordable_bytes(self) -> int:
        """How much of the memory that is available now may be taken; with the lock."""
        if self._config.cache.hugetlb:  # they were set aside: whoever takes too many is told so
            return self.budget_bytes
        if time.monotonic() < self._scarce_until:
            return 0
        limit = memory_limit_bytes()
        left = available_memory_bytes() - min(_SPARE_BYTES, int(limit * _SPARE_PART))
        if left < _STEP_BYTES:
            self._scarce_until = time.monotonic() + _SCARCE_S
            if not self._said_scarce:
                _log.warning(
                    "the pool stays at %.2f of %.2f GB for now: there is hardly any memory left "
                    "(%.2f GB, the host's or that of its cgroup); chunks leave earlier; lower "
                    "--l1-size-gb, or free memory",
                    *(size / GB for size in (self.granted_bytes, self.budget_bytes, max(0, left))),
                )
                self._said_scarce = True
            return 0
        self._said_scarce = False
        return left

    def _move(self, source: Pool, target: Pool, wanted: int) -> None:
        """Free pages of one pool become pages of another."""
        needed = wanted * target.stride - max(0, self.budget_bytes - self.granted_bytes)
        source.pages.shrink(max(0, -(-needed // source.stride)))
        self._grow(target, wanted)

    def resize(self, budget_bytes: int) -> None:
        """Another budget, while it runs: chunks leave if it is smaller. It cannot outgrow the
        segments that are there."""
        self.budget_bytes = budget_bytes
        self._ahead_bytes = min(_AHEAD_BYTES, int(budget_bytes * _AHEAD_PART))
        for pool in list(self.pools.values()):
            over = -(-(self.granted_bytes - budget_bytes) // pool.stride)
            if over > 0:
                short = over - pool.pages.free_count
                for member in pool.members:
                    if short > 0:
                        short -= len(member.cache.evict(short)) // DIGEST_BYTES
                pool.pages.shrink(over)

    def status(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "bytes": self.budget_bytes,
            "granted_bytes": self.granted_bytes,
            "segments": [
                {
                    "path": pool.segment.path,
                    "chunk_bytes": pool.chunk_bytes,
                    "pages": pool.pages.granted_count,
                    "free": pool.pages.free_count,
                    "identities": len(pool.members),
                }
                for pool in list(self.pools.values())
            ],
        }

    def close(self, *, keep: bool) -> None:
        """No more pages; remove the segments, or leave them to the next server."""
        self._closing = True
        for pool in self.pools.values():
            pool.taken.set()
            pool.segment.keep = keep
            if not keep:
                pool.segment.unlink()
