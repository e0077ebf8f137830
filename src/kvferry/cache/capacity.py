"""The limit of a store: what it holds is asked of the store, and the oldest chunks make room.

Several processes on one store stay under the limit together, and a restart forgets nothing, because
nobody counts what he has written: before each batch the store is asked what it holds. Above the
watermark, chunks go until it holds `eviction_ratio` less; a batch that would not fit even then is
not written. Batches are so small that several processes, which ask and write at the same moment,
end below the limit all the same; while another process evicts, this one waits for it.

Which chunks go is for a policy over an index of what the store holds, the same as that of memory:
leaf-first, so that a prefix is shortened and never beheaded. The index learns from what this
process stores and uses, and from scans: of keys that others have written, of uses that others made
(as the store tells their age), and of keys that are gone. Chunks that are being read here are
leased, and stay. Of several processes one at a time evicts, where the store can tell them apart.

Identities that share a store lose chunks in proportion to what they hold, each its oldest: so none
is starved by another that was there first.

Threads: any; one at a time makes room.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from kvferry import _native
from kvferry.chunks.generation import FIRST, chunk_name, read_name
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.client.batch import Status
from kvferry.connectors.base import Connector
from kvferry.errors import KVFerryError

__all__ = ["Capacity"]

_log = logging.getLogger("kvferry.cache")

_ASK_S = 1.0  # limit for asking a store what it holds
_LEASE_S = 120.0
_DELETE_KEYS = 512  # at a time
_ROUNDS_MAX = 8
# Others may have written since the last scan; a scan reads all keys, so it is not made often.
_SCAN_EVERY_S = 5.0
# A value takes more than its bytes: names, and what the server's allocator rounds up.
_OVERHEAD = 1.3
# Where nothing is evicted: the server's own tables grow in leaps.
_FULL = 0.99
# How many processes may write at the same moment.
_WRITERS = 8
# How long to wait for another process that evicts, and how often to look.
_WAIT_S = 2.0
_LOOK_S = 0.05
# Of the store's keys: beyond it, what the index does not know matters.
_UNKNOWN_SHARE = 0.1


class Capacity:
    """Keeps one store below a limit.

    Args:
        connector: The store.
        chunk_bytes: Length of a chunk.
        limit_bytes: What the whole store may hold, as it counts its bytes.
        policy: Name of the eviction policy; "none": nothing is evicted.
        watermark: Share of the limit above which chunks are evicted.
        ratio: Share of what the store holds that an eviction frees.
        evicted: Called with the number of chunks that went.
    """

    def __init__(
        self,
        connector: Connector,
        chunk_bytes: int,
        limit_bytes: int,
        *,
        policy: str,
        watermark: float,
        ratio: float,
        evicted: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._connector = connector
        self._chunk_bytes = chunk_bytes
        self._watermark_bytes = int(limit_bytes * watermark)
        self._ratio = ratio
        self._evicts = policy != "none"
        # Twice, because encoded chunks take less than their length.
        self._index = _native.ChunkCache(
            2 * limit_bytes // chunk_bytes + 1024, policy if self._evicts else "LRU"
        )
        self._generations: dict[bytes, bytes] = {}  # of chunks in the index that have one
        self._evicted = evicted
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._scanned_at: float | None = None
        self.used_bytes = 0  # as the store said it last

    # --- What happens to the store ---

    def stored(self, hashes: bytes, first: int, generation: bytes = FIRST) -> None:
        """The chunks from `first` on were written, or were there; `hashes` begin at the root."""
        self._named(hashes, generation)
        self._index.touch(hashes)
        self._index.insert(hashes, first)

    def used(self, hashes: bytes, generation: bytes = FIRST) -> None:
        """These chunks of a prefix, from the root, were asked for and are there."""
        self._named(hashes, generation)
        self._index.insert(hashes, 0)
        self._index.touch(hashes)

    def lease(self, hashes: bytes) -> int:
        """Keep a prefix from being evicted here; for `release`."""
        return self._index.acquire(hashes, _LEASE_S)[0]

    def release(self, lease: int) -> None:
        """The prefix may go again."""
        self._index.release(lease)

    def gone(self, hashes: bytes) -> None:
        """These chunks are not there any more."""
        self._index.remove(hashes)
        for digest in _split(hashes) if self._generations else ():
            self._generations.pop(digest, None)

    def known(self, hashes: bytes) -> bytes:
        """What the index knows of each chunk; see ``ChunkCache.states``."""
        return self._index.states(hashes)

    def stop(self) -> None:
        """Nobody waits for room any more."""
        self._stopped.set()

    # --- Making room ---

    @property
    def step_bytes(self) -> int:
        """How much may be written between two questions for room."""
        held = max(self._watermark_bytes, self.used_bytes)
        return int(max(0, self.limit_bytes - held) / (_WRITERS * _OVERHEAD))

    def make_room(self, size_bytes: int) -> bool:
        """Whether `size_bytes` may be written now; evicts above the watermark.

        False when the store cannot say what it holds, too: then nobody knows.
        """
        size_bytes = int(size_bytes * _OVERHEAD)
        with self._lock:
            used = self._used_bytes()
            if used is None or not self._evicts:
                return used is not None and used + size_bytes <= _FULL * self.limit_bytes
            until = time.monotonic() + _WAIT_S
            while used + size_bytes > self._watermark_bytes:
                if self._connector.lock_eviction(_ASK_S * _ROUNDS_MAX):
                    try:
                        used = self._evict(used + size_bytes) - size_bytes
                    finally:
                        self._connector.unlock_eviction()
                    return used + size_bytes <= self._watermark_bytes
                # Somebody else is at it. Whoever wrote meanwhile might write beyond the limit.
                if time.monotonic() > until or self._stopped.wait(_LOOK_S):
                    return False
                asked = self._used_bytes()
                if asked is None:
                    return False
                used = asked
            return True

    def _used_bytes(self) -> int | None:
        try:
            self.used_bytes = self._connector.usage(timeout_s=_ASK_S).used_bytes
            return self.used_bytes
        except KVFerryError as error:
            _log.warning("the store does not say what it holds: %s", error)
            return None

    def _evict(self, needed_bytes: int) -> int:
        """Delete victims until so many bytes fit; how many bytes are needed then."""
        goal = min(self._watermark_bytes, int(needed_bytes * (1 - self._ratio)))
        size_bytes = needed_bytes - self.used_bytes
        for _ in range(_ROUNDS_MAX):
            excess = needed_bytes - goal
            if excess <= 0 or self._stopped.is_set():
                break
            self._learn(self.used_bytes)
            others_share = self._others_share()
            went = self._delete_others(int(excess * others_share)) if others_share else 0
            wanted = -(-int(excess * (1 - others_share)) // self._chunk_bytes)
            deleted = self._delete(wanted)
            if deleted < wanted:  # nothing of ours is left that could go
                went += self._delete_others((wanted - deleted) * self._chunk_bytes)
            went += deleted
            used = self._used_bytes()
            if used is None or not went:
                break
            needed_bytes = used + size_bytes
        return needed_bytes

    def _others_share(self) -> float:
        """How much of what the store holds is not this identity's; 0: little, or none."""
        own_bytes = self._index.stats()["resident"] * self._chunk_bytes * _OVERHEAD
        share = 1 - own_bytes / max(1, self.used_bytes)
        return share if share > _UNKNOWN_SHARE else 0.0

    def _delete_others(self, size_bytes: int) -> int:
        try:
            went = self._connector.evict_others(size_bytes, _ASK_S * _ROUNDS_MAX / 2)
        except KVFerryError as error:
            _log.warning("the store does not say what others have in it: %s", error)
            return 0
        self._evicted(went)
        return went

    def _delete(self, count: int) -> int:
        """Delete `count` chunks that are there, if there are so many victims; how many went."""
        went = 0
        until = time.monotonic() + _ASK_S * _ROUNDS_MAX
        while went < count and time.monotonic() < until:
            victims = _split(self._index.evict(min(count - went, _DELETE_KEYS)))
            keys = [chunk_name(v, self._generations.pop(v, FIRST)) for v in victims]
            if not keys:
                break
            # A key that has expired, or that others deleted, frees nothing.
            went += self._connector.batch_delete(keys).count(Status.OK)
        self._evicted(went)
        return went

    # --- Learning from the store ---

    def _learn(self, used_bytes: int) -> None:
        """Scan, if it is the first time or the store holds much that the index does not know."""
        now = time.monotonic()
        known_bytes = self._index.stats()["resident"] * self._chunk_bytes
        unknown = known_bytes < (1 - _UNKNOWN_SHARE) * used_bytes
        if self._scanned_at is None or (unknown and now - self._scanned_at > _SCAN_EVERY_S):
            self.scan()

    def scan(self) -> int:
        """Read what this space has in the store; how many chunks there are."""
        began = time.monotonic()
        since_s = float("inf") if self._scanned_at is None else began - self._scanned_at
        self._scanned_at = began
        found: list[tuple[float, bytes, bytes]] = []
        for batch in self._connector.scan():
            if len(found) > 2 * self._index.capacity:
                break
            for key, age_s in batch:
                if (named := read_name(key)) is not None:  # else not ours, whatever it is
                    found.append((age_s, *named))
        # The oldest first, so that they are the oldest in the index too.
        found.sort(reverse=True)
        for age_s, digest, generation in found:
            self._named(digest, generation)
            if age_s < since_s:
                self._index.touch(digest)
            self._index.insert(digest, 0)
        return len(found)

    def _named(self, hashes: bytes, generation: bytes) -> None:
        """Their names have this generation. Of the first one, nothing needs to be kept."""
        if generation:
            self._generations.update(dict.fromkeys(_split(hashes), generation))
            while len(self._generations) > self._index.capacity:
                del self._generations[next(iter(self._generations))]


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[i : i + DIGEST_BYTES] for i in range(0, len(hashes), DIGEST_BYTES)]
