"""The limit of a store: what it holds is asked of the store, and the oldest chunks make room.

Several processes on one store stay under the limit together, and a restart forgets nothing, because
nobody counts what he has written: before each batch the store is asked what it holds. Above the
watermark, chunks go until it holds `eviction_ratio` less; a batch that would not fit even then is
not written.

Which chunks go is for a policy over an index of what the store holds, the same as that of memory:
leaf-first, so that a prefix is shortened and never beheaded. The index learns from what this
process stores and uses, and from scans: of keys that others have written, of uses that others made
(as the store tells their age), and of keys that are gone. Chunks that are being read here are
leased, and stay. Of several processes one at a time evicts, where the store can tell them apart.

Threads: any; one at a time makes room.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from kvferry import _native
from kvferry.client.batch import Status
from kvferry.connectors.base import Connector
from kvferry.errors import KVFerryError
from kvferry.keys import DIGEST_BYTES

__all__ = ["Capacity"]

_log = logging.getLogger("kvferry.engine")

_ASK_S = 1.0  # limit for asking a store what it holds
_LEASE_S = 120.0
_DELETE_KEYS = 512  # at a time
_ROUNDS_MAX = 8
# Others may have written since the last scan; a scan reads all keys, so it is not made often.
_SCAN_EVERY_S = 5.0
# Of the store's keys: beyond it, what the index does not know matters.
_UNKNOWN_SHARE = 0.1


class Capacity:
    """Keeps one store below a limit.

    Args:
        connector: The store.
        chunk_bytes: Length of a chunk.
        limit_bytes: What the whole store may hold, as it counts its bytes.
        policy: Name of the eviction policy.
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
        self._index = _native.ChunkCache(limit_bytes // chunk_bytes + 1024, policy)
        self._evicted = evicted
        self._lock = threading.Lock()
        self._scanned_at: float | None = None
        self.used_bytes = 0  # as the store said it last

    # --- What happens to the store ---

    def stored(self, hashes: bytes, first: int) -> None:
        """The chunks from `first` on were written, or were there; `hashes` begin at the root."""
        self._index.touch(hashes)
        self._index.insert(hashes, first)

    def used(self, hashes: bytes) -> None:
        """These chunks of a prefix, from the root, were asked for and are there."""
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

    def known(self, hashes: bytes) -> bytes:
        """What the index knows of each chunk; see ``ChunkCache.states``."""
        return self._index.states(hashes)

    # --- Making room ---

    def make_room(self, size_bytes: int) -> bool:
        """Whether `size_bytes` may be written now; evicts above the watermark.

        False when the store cannot say what it holds, too: then nobody knows.
        """
        with self._lock:
            used = self._used_bytes()
            if used is None:
                return False
            if used + size_bytes <= self._watermark_bytes:
                return True
            self._evict(used + size_bytes)
            used = self._used_bytes()
            return used is not None and used + size_bytes <= self.limit_bytes

    def _used_bytes(self) -> int | None:
        try:
            self.used_bytes = self._connector.usage(timeout_s=_ASK_S).used_bytes
            return self.used_bytes
        except KVFerryError as error:
            _log.warning("the store does not say what it holds: %s", error)
            return None

    def _evict(self, needed_bytes: int) -> None:
        """Delete victims until the store holds enough less, or no victim is left."""
        if not self._connector.lock_eviction(_ASK_S * _ROUNDS_MAX):
            return  # somebody else is at it
        try:
            goal = min(self._watermark_bytes, int(needed_bytes * (1 - self._ratio)))
            for _ in range(_ROUNDS_MAX):
                excess = needed_bytes - goal
                if excess <= 0:
                    return
                self._learn(needed_bytes)
                if not self._delete(-(-excess // self._chunk_bytes)):
                    return
                used = self._used_bytes()
                if used is None:
                    return
                needed_bytes = used
        finally:
            self._connector.unlock_eviction()

    def _delete(self, count: int) -> int:
        """Delete `count` chunks that are there, if there are so many victims; how many went."""
        size, went = 2 * DIGEST_BYTES, 0
        until = time.monotonic() + _ASK_S * _ROUNDS_MAX
        while went < count and time.monotonic() < until:
            victims = self._index.evict(min(count - went, _DELETE_KEYS)).hex()
            keys = [victims[i : i + size] for i in range(0, len(victims), size)]
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
        found: list[tuple[float, bytes]] = []
        for batch in self._connector.scan():
            if len(found) > 2 * self._index.capacity:
                break
            for key, age_s in batch:
                try:
                    digest = bytes.fromhex(key if isinstance(key, str) else key.decode("ascii"))
                except ValueError:
                    continue  # not ours, whatever it is
                if len(digest) == DIGEST_BYTES:
                    found.append((age_s, digest))
        # The oldest first, so that they are the oldest in the index too.
        found.sort(reverse=True)
        for age_s, digest in found:
            if age_s < since_s:
                self._index.touch(digest)
            self._index.insert(digest, 0)
        return len(found)
