"""The limit of a store: the store is asked what it holds, and the oldest chunks are evicted.

Several processes on one store stay under the limit together, and a restart forgets nothing, because
no process counts what it has written: before each batch the store is asked what it holds. Above the
watermark, chunks are evicted until the store holds `eviction_ratio` less; a batch that would not
fit even then is not written. Batches are so small that several processes, which ask and write at
the same moment, end below the limit all the same; while another process evicts, this one waits for
it.

Which chunks are evicted is decided by a policy over an index of what the store holds, the same as
that of memory: leaf-first, so that a prefix is shortened and never beheaded. The index learns from
what this process stores and uses, and from scans: keys that other processes have written, uses that
they made (as the store tells the age of a key), and keys that are gone. Chunks that are being read
here are leased, and stay. Of several processes one at a time evicts, where the store can tell them
apart.

Identities that share a store lose chunks in proportion to what they hold, each its oldest: so no
identity is starved by another one that was there first.

A store that refuses chunks for want of room below the limit, or without one, has said what it can
hold (`kvferry.cache.store.measured_limit`). From then on chunks are evicted below that, first of
all for what the store refused. Where one node of a cluster is full, the oldest chunks of all nodes
are evicted until the full one has room: a prefix lies on all nodes, and behind a hole it is of no
use.

Threads: any; one at a time makes room.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from kvferry import _native
from kvferry.base.errors import KVFerryError, ServerError
from kvferry.cache.store.measured_limit import MeasuredLimit
from kvferry.chunks.generation import FIRST, chunk_name, read_name
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import Status
from kvferry.connectors.base import Connector, Usage

__all__ = ["Capacity"]

_log = logging.getLogger("kvferry.cache")

_USAGE_TIMEOUT_S = 1.0  # for asking a store what it holds
_LEASE_S = 120.0
_DELETE_KEYS_MAX = 512  # of one batch
_ROUNDS_MAX = 8  # of one eviction
_SCAN_EVERY_S = 5.0  # at most: a scan reads all keys of the store
_OVERHEAD = 1.3  # of a value: names, and what the server's allocator rounds up
_FULL_SHARE = 0.99  # of a limit without eviction: the server's own tables grow in leaps
_WRITERS_MAX = 8  # processes that can write at the same moment without passing the limit
_EVICTION_WAIT_S = 2.0  # for another process that evicts
_LOOK_S = 0.05
_UNKNOWN_SHARE = 0.1  # of what a store holds; beyond it a scan, or other identities, are worth it
# Where the store has no room for a lock, processes evict beside each other, one part at a time.
_UNLOCKED_PARTS = 8
_NO_LIMIT = 1 << 62


class Capacity:
    """Keeps one store below a limit.

    Args:
        name: Of the store.
        connector: The store.
        chunk_bytes: Length of a chunk.
        limit_bytes: What the whole store may hold, as it counts its bytes; None: there is no limit
            but what it refuses.
        policy: Name of the eviction policy; "none": nothing is evicted.
        watermark: Share of the limit above which chunks are evicted.
        ratio: Share of what the store holds that an eviction frees.
        evicted: Called with the number of chunks that went.

    Attributes:
        used_bytes: What the store holds, as it said last.
        silent: The store did not say what it holds.
        recall: Chunks that are known to be there, with the prompts that they belong to.
    """

    def __init__(
        self,
        name: str,
        connector: Connector,
        chunk_bytes: int,
        limit_bytes: int | None,
        *,
        policy: str,
        watermark: float,
        ratio: float,
        evicted: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._name = name
        self._configured_bytes = limit_bytes
        self._connector = connector
        self._chunk_bytes = chunk_bytes
        self._watermark_bytes = int((limit_bytes or _NO_LIMIT) * watermark)
        self._ratio = ratio
        self._evicts = policy != "none"
        self._policy = policy if self._evicts else "LRU"
        self._measured = MeasuredLimit(watermark, ratio)
        self._index: _native.ChunkCache | None = None
        if limit_bytes is not None:
            self._index = self._new_index(limit_bytes)
        self._generations: dict[bytes, bytes] = {}  # of chunks in the index that have one
        self._evicted = evicted
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._scanned_at: float | None = None
        self._usage = Usage(0, None, None)
        self.silent = False
        self.recall: Callable[[], Sequence[tuple[Prompt, list[int]]]] = tuple

    @property
    def used_bytes(self) -> int:
        """See the class."""
        return self._usage.used_bytes

    @property
    def limit_bytes(self) -> int | None:
        """What the store may hold, or turned out to hold at most; None: neither is known."""
        found = [each for each in (self._configured_bytes, self._measured.held_bytes) if each]
        return min(found, default=None)

    def _new_index(self, size_bytes: int) -> _native.ChunkCache:
        # Twice, because encoded chunks take less than their length.
        return _native.ChunkCache(2 * size_bytes // self._chunk_bytes + 1024, self._policy)

    # --- What happens to the store ---

    def stored(self, hashes: bytes, first: int, generation: bytes = FIRST) -> None:
        """The chunks from `first` on were written, or were there; `hashes` begin at the root."""
        if (index := self._index) is not None:
            self._named(index, hashes, generation)
            index.touch(hashes)
            index.insert(hashes, first)

    def used(self, hashes: bytes, generation: bytes = FIRST) -> None:
        """These chunks of a prefix, from the root, were asked for and are there."""
        if (index := self._index) is not None:
            self._named(index, hashes, generation)
            index.insert(hashes, 0)
            index.touch(hashes)

    def lease(self, hashes: bytes) -> int:
        """Keep a prefix from being evicted here; for `release`."""
        return 0 if self._index is None else self._index.acquire(hashes, _LEASE_S)[0]

    def release(self, lease: int) -> None:
        """The prefix may go again."""
        if self._index is not None and lease:
            self._index.release(lease)

    def gone(self, hashes: bytes) -> None:
        """These chunks are not there any more."""
        if self._index is not None:
            self._index.remove(hashes)
        for digest in _split(hashes) if self._generations else ():
            self._generations.pop(digest, None)

    def known(self, hashes: bytes) -> bytes:
        """What the index knows of each chunk; see ``ChunkCache.states``."""
        unknown = bytes(len(hashes) // DIGEST_BYTES)
        return unknown if self._index is None else self._index.states(hashes)

    def stop(self) -> None:
        """Nobody waits for room any more."""
        self._stopped.set()

    # --- Making room ---

    @property
    def step_bytes(self) -> int:
        """How much may be written between two questions for room."""
        limit, held = self._configured_bytes, max(self._watermark_bytes, self.used_bytes)
        if self._measured.believed:
            limit, held = self.limit_bytes, self.used_bytes
        if limit is None:
            return _NO_LIMIT
        return int(max(0, limit - held) / (_WRITERS_MAX * _OVERHEAD))

    def make_room(self, size_bytes: int) -> bool:
        """Whether `size_bytes` may be written now; evicts above the watermark.

        False when the store cannot say what it holds, too: then nobody knows.
        """
        if self._configured_bytes is None and self._measured.held_bytes is None:
            return True
        with self._lock:
            return self._ask() and self._make_room(int(size_bytes * _OVERHEAD))

    def refused(self, size_bytes: int) -> bool:
        """So much was refused for want of room; whether some was made, to try again."""
        with self._lock:
            before = self._usage.parts
            if not self._ask():
                return False
            if self._index is None:
                self._index = self._new_index(self.used_bytes)
                self.scan()
                for prompt, chunks in self.recall():
                    self.stored(prompt.first(chunks[-1] + 1), chunks[0], prompt.generation)
            elif self._evicts:
                self._learn(self.used_bytes)
            own_bytes = int(self._own_bytes(self._index))
            if self._measured.refused(self._usage.parts, before, min(own_bytes, self.used_bytes)):
                self._tell()
            return self._evicts and self._make_room(int(size_bytes * _OVERHEAD))

    def wrote(self, size_bytes: int) -> None:
        """So much was written."""
        self._measured.wrote(size_bytes)

    def _tell(self) -> None:
        limit, held = self._configured_bytes, self._measured.held_bytes or 0
        allowed = "has no limit here" if limit is None else f"may hold {limit / 1e9:.3f} GB"
        done = "the oldest chunks make room for new ones, and" if self._evicts else "from now on"
        _log.warning(
            "%s is full: it takes no more than %.3f GB, although it %s; %s more is tried from time "
            "to time",
            *(self._name, held / 1e9, allowed, done),
        )

    def _make_room(self, size_bytes: int) -> bool:
        """See `make_room`; with the lock, and `_usage` as the store said it just now."""
        until = time.monotonic() + _EVICTION_WAIT_S
        while self._evicts and self._excess(size_bytes) > 0:
            locked = self._locked()
            went = False
            if locked is not False:
                try:
                    went = self._evict(size_bytes, 1 if locked else _UNLOCKED_PARTS)
                finally:
                    if locked:
                        self._connector.unlock_eviction()
                if locked or not went:
                    break
            # Another process evicts. Who wrote meanwhile could write beyond the limit.
            elif self._stopped.wait(_LOOK_S) or not self._ask():
                return False
            if time.monotonic() > until:
                break
        return self._fits(size_bytes)

    def _fits(self, size_bytes: int) -> bool:
        needed, limit = self.used_bytes + size_bytes, self._watermark_bytes
        if not self._evicts and self._configured_bytes is not None:
            limit = int(_FULL_SHARE * self._configured_bytes)
        return needed <= limit and self._measured.fits(self._usage.parts, size_bytes)

    def _locked(self) -> bool | None:
        """Whether this process alone evicts now; None: the store has no room for a lock."""
        try:
            return self._connector.lock_eviction(_USAGE_TIMEOUT_S * _ROUNDS_MAX)
        except ServerError:
            return None

    def _ask(self) -> bool:
        """Ask the store what it holds; False: the store does not say."""
        try:
            self._usage = self._connector.usage(timeout_s=_USAGE_TIMEOUT_S)
        except KVFerryError as error:
            if not self.silent:
                _log.warning("%s does not say what it holds: %s", self._name, error)
            self.silent = True
            return False
        self.silent = False
        if self._measured.seen(self._usage.parts):
            _log.info("%s takes more than it did: there is room again", self._name)
        return True

    def _excess(self, size_bytes: int, *, goal: bool = False) -> int:
        """How many bytes must be evicted before so many may be written; `goal`: how many should."""
        needed = self.used_bytes + size_bytes
        end = self._watermark_bytes
        over = needed - end
        if goal and over > 0:
            over = needed - min(end, int(needed * (1 - self._ratio)))
        return max(over, self._measured.excess(self._usage.parts, size_bytes, goal=goal))

    def _evict(self, size_bytes: int, parts: int) -> bool:
        """Delete victims until the batch fits: all that should go, or one of `parts` parts of it;
        whether any went."""
        # Below the limit, for what was refused.
        bounded = self.used_bytes + size_bytes <= self._watermark_bytes
        goal = self._excess(size_bytes, goal=True)
        if bounded:
            goal = min(goal, self._measured.allowed(size_bytes))
        goal, began_at = -(-goal // parts), self.used_bytes
        others, any_went = True, False
        for _ in range(_ROUNDS_MAX):
            excess = goal - (began_at - self.used_bytes)
            if excess <= 0 or self._stopped.is_set():
                break
            self._learn(self.used_bytes)
            others_share = self._others_share() if others else 0.0
            went = self._delete_others(int(excess * others_share)) if others_share else 0
            if not went:  # what other identities hold is no chunks
                others, others_share = False, 0.0
            wanted = -(-int(excess * (1 - others_share)) // self._chunk_bytes)
            deleted = self._delete(wanted)
            if deleted < wanted:  # this identity has nothing left that could go
                went += self._delete_others((wanted - deleted) * self._chunk_bytes)
            went += deleted
            any_went |= went > 0
            self._measured.evicted(went * self._chunk_bytes)
            if not self._ask() or not went:
                break
        return any_went

    def _own_bytes(self, index: _native.ChunkCache) -> float:
        return index.stats()["resident"] * self._chunk_bytes * _OVERHEAD

    def _others_share(self) -> float:
        """The share of what the store holds that is not this identity's; 0: little, or none."""
        assert self._index is not None
        share = 1 - self._own_bytes(self._index) / max(1, self.used_bytes)
        return share if share > _UNKNOWN_SHARE else 0.0

    def _delete_others(self, size_bytes: int) -> int:
        try:
            went = self._connector.evict_others(size_bytes, _USAGE_TIMEOUT_S * _ROUNDS_MAX / 2)
        except KVFerryError as error:
            _log.warning("the store does not say what others have in it: %s", error)
            return 0
        self._evicted(went)
        return went

    def _delete(self, count: int) -> int:
        """Delete `count` chunks of this identity, if there are so many victims; how many went."""
        assert self._index is not None
        went = 0
        until = time.monotonic() + _USAGE_TIMEOUT_S * _ROUNDS_MAX
        while went < count and time.monotonic() < until:
            victims = _split(self._index.evict(min(count - went, _DELETE_KEYS_MAX)))
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
        assert self._index is not None
        now = time.monotonic()
        known_bytes = self._index.stats()["resident"] * self._chunk_bytes
        unknown = known_bytes < (1 - _UNKNOWN_SHARE) * used_bytes
        if self._scanned_at is None or (unknown and now - self._scanned_at > _SCAN_EVERY_S):
            self.scan()

    def scan(self) -> int:
        """Read what this space has in the store; how many chunks there are."""
        index = self._index
        assert index is not None
        began = time.monotonic()
        since_s = float("inf") if self._scanned_at is None else began - self._scanned_at
        self._scanned_at = began
        found: list[tuple[float, bytes, bytes]] = []
        for batch in self._connector.scan():
            if len(found) > 2 * index.capacity:
                break
            for key, age_s in batch:
                if (named := read_name(key)) is not None:  # else not ours, whatever it is
                    found.append((age_s, *named))
        # The oldest first, so that they are the oldest in the index too.
        found.sort(reverse=True)
        for age_s, digest, generation in found:
            self._named(index, digest, generation)
            if age_s < since_s:
                index.touch(digest)
            index.insert(digest, 0)
        return len(found)

    def _named(self, index: _native.ChunkCache, hashes: bytes, generation: bytes) -> None:
        """Keep the generation of chunks, for their names; the first one needs no place."""
        if generation:
            self._generations.update(dict.fromkeys(_split(hashes), generation))
            while len(self._generations) > index.capacity:
                del self._generations[next(iter(self._generations))]


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[i : i + DIGEST_BYTES] for i in range(0, len(hashes), DIGEST_BYTES)]
