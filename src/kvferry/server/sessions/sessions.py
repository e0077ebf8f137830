"""Sessions of engines: which pages each holds, and when a session ends.

A session begins when an engine registers. It may hold pages once it has the segment mapped and
locks the byte that was named to it; the kernel ends that lock with the mapping, so the server knows
exactly until when a process may still write. A session ends

- when the engine says so,
- when its lock is gone: the process has ended, however it did,
- when it was silent for too long: it may be stopped, or worse,
- when a reservation of it was open beyond its deadline.

Its leases end with it: a reader is told when it releases them, and takes what it read for a miss.
Its reservations leave the index at once, too, but their pages stay out of use until the lock is
gone: somebody who only seemed dead could still write into them.

An engine process holds no more than its share of what no other one holds, by all its sessions
together, so there are always some pages for somebody who comes; three quarters of that share by
leases of lookups, so that its loads and stores have the rest. Open reservations are no more than
three quarters of the pool all together.

What a lookup has leased ends when it is loaded, and after some seconds if nobody loads it.

Threads: the loop's for everything; `begin`, `status` and the counters from any.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kvferry.cache.memory import Reserved
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.chunks.prompt import Prompt
from kvferry.server.memory.pools import Pool, page_index
from kvferry.server.memory.segments import FIRST_SESSION_LOCK
from kvferry.server.sessions.shard import IdentityShard

__all__ = ["LOOKUP_LEASE_S", "LookupLease", "Session", "Sessions", "Writing"]

SESSIONS_MAX = 4096
# How long a client may take to map the segment.
ATTACH_S = 10.0
# The part of what others leave of a pool that one process may hold.
_SHARE = 0.5
# The part of a pool that open reservations may hold: readers always find the rest.
_WRITTEN_SHARE = 0.75
# The part of what a process may hold that its lookups may lease.
_LOOKUP_SHARE = 0.75
# How long that lasts: then the request was aborted, or asks again.
LOOKUP_LEASE_S = 10.0


class LookupLease(NamedTuple):
    """What a lookup has leased: its lease, the hashes of the chunks, and when it ends."""

    lease: int
    hashes: bytes
    until: float

    @property
    def pages(self) -> int:
        """How many pages it holds."""
        return len(self.hashes) // DIGEST_BYTES


@dataclass(frozen=True)
class Writing:
    """A reservation: pages that a client is filling."""

    prompt: Prompt
    reserved: Reserved
    deadline: float


@dataclass(eq=False)
class Process:
    """An engine process.

    Attributes:
        held: How many pages its sessions hold, in each pool.
        looked_up: How many of them by lookups.
    """

    held: Counter[Pool] = field(default_factory=Counter)
    looked_up: Counter[Pool] = field(default_factory=Counter)
    sessions: int = 0


@dataclass(eq=False)
class Session:
    """One client; see the head of this module.

    Attributes:
        token: The secret by which it is known.
        lock: The byte of its segment that it locks.
        shard: What it registered for.
        process: Whose it is.
        software, pid: What it said of itself.
        seen: When it was last heard, by ``time.monotonic``.
        leases: Pages of each lease, and when it ends.
        lookups: What lookups have leased, by the hashes that were asked for.
        writings: Its open reservations by id.
        pins: What it pinned: hashes of the prompt, and of the part that was there.
        running: Its requests that wait for threads, or for the work of these.
        pages: How many pages it holds.
    """

    token: int
    lock: int
    shard: IdentityShard
    process: Process
    software: str
    pid: int
    began: float
    seen: float
    attached: bool = False
    ended: bool = False
    leases: dict[int, tuple[int, float]] = field(default_factory=dict)
    lookups: dict[bytes, LookupLease] = field(default_factory=dict)
    writings: dict[int, Writing] = field(default_factory=dict)
    pins: list[tuple[bytes, bytes]] = field(default_factory=list)
    running: int = 0
    requests: int = 0
    pages: int = 0

    def hold(self, pages: int) -> None:
        """Count pages that the session holds from now on; negative: that it let go of."""
        pool = self.shard.memory.pool
        self.pages += pages
        self.process.held[pool] += pages
        pool.held += pages

    def keep(self, asked: bytes, found: LookupLease) -> None:
        """A lookup of these hashes has leased what it found."""
        self.let_go(asked)
        if found.lease:
            self.lookups[asked] = found
            self.hold(found.pages)
            self.process.looked_up[self.shard.memory.pool] += found.pages

    def kept_for(self, hashes: bytes) -> bytes | None:
        """What was asked for by the lookup that has leased these chunks; None: no one has."""
        for asked, found in self.lookups.items():
            kept = found.hashes
            if kept.startswith(hashes) or kept.endswith(hashes) or hashes.startswith(kept):
                return asked
        return None

    def let_go(self, asked: bytes) -> None:
        """End what a lookup has leased, if it has."""
        found = self.lookups.pop(asked, None)
        if found is not None:
            self.hold(-found.pages)
            self.process.looked_up[self.shard.memory.pool] -= found.pages
            self.shard.memory.cache.revoke(found.lease)

    def let_all_go(self) -> None:
        """End what all lookups have leased."""
        for asked in list(self.lookups):
            self.let_go(asked)

    @property
    def writing_pages(self) -> int:
        """How many pages it may write to."""
        return sum(len(writing.reserved.handles) for writing in list(self.writings.values()))


class Sessions:
    """All sessions of a server.

    Args:
        dead_after_s: Silence after which a session ends.
        changed: Called with a session that ended, why, in a word, and how many pages it held.
    """

    def __init__(self, dead_after_s: float, changed: Callable[[Session, str, int], None]) -> None:
        self.dead_after_s = dead_after_s
        self.by_token: dict[int, Session] = {}
        self.fenced: list[tuple[Session, list[int]]] = []
        self.ended: dict[str, int] = {}
        self._changed = changed
        self._ticked = time.monotonic()
        self._old: list[tuple[Pool, int, list[int]]] = []
        # A client of an earlier server may hold a lock on the same segment still.
        self._last_lock = FIRST_SESSION_LOCK + (secrets.randbits(40) << 16)
        self._lock = threading.Lock()
        self._processes: dict[str, Process] = {}

    def begin(self, shard: IdentityShard, process: str, software: str, pid: int) -> Session:
        """A session that has still to attach; one that names no process is its own."""
        now = time.monotonic()
        with self._lock:
            self._last_lock += 1
            whose = self._processes.setdefault(process, Process()) if process else Process()
            whose.sessions += 1
            session = Session(
                secrets.randbits(62) + 1,
                self._last_lock,
                shard,
                whose,
                software[:80],
                pid,
                now,
                now,
            )
            self.by_token[session.token] = session
            shard.memory.engines += 1
        return session

    def attach(self, session: Session) -> bool:
        """Whether the session holds its lock, and may have pages from now on."""
        session.attached = session.shard.memory.pool.segment.lock_is_held(session.lock)
        return session.attached

    def room(self, session: Session, *, writing: bool = False, looking: bool = False) -> int:
        """How many more pages the session may hold: to write to, or by a lookup."""
        memory = session.shard.memory
        pages, own = memory.pages_max, session.process.held[memory.pool]
        share = int((pages - (memory.pool.held - own)) * _SHARE)
        room = share - own
        if looking:
            room = min(room, int(share * _LOOKUP_SHARE) - session.process.looked_up[memory.pool])
        if writing:
            room = min(room, int(pages * _WRITTEN_SHARE) - self._written(session))
        return max(room, 0 if own else 1)  # the smallest pool still takes a chunk

    def _written(self, session: Session) -> int:
        pool = session.shard.memory.pool
        return self._fenced_in(pool) + sum(
            other.writing_pages
            for other in list(self.by_token.values())
            if other.writings and other.shard.memory.pool is pool
        )

    @property
    def fenced_pages(self) -> int:
        """Pages that nobody may have while a process that vanished can still write to them."""
        return self._fenced_in(None)

    def _fenced_in(self, pool: Pool | None) -> int:
        old = sum(len(pages) for its, _, pages in list(self._old) if pool in (None, its))
        return old + sum(
            len(session.writings[id].reserved.handles)
            for session, ids in list(self.fenced)
            for id in ids
            if pool is None or session.shard.memory.pool is pool
        )

    # --- Endings ---

    def tick(self) -> None:
        """End sessions whose clients are gone or late. To be called several times a second."""
        now = time.monotonic()
        if now - self._ticked > self.dead_after_s / 2:  # the loop itself hung, and heard nobody
            for session in list(self.by_token.values()):
                session.seen = now
        self._ticked = now
        for session in list(self.by_token.values()):
            if session.attached and not self._locked(session):
                self.end(session, "gone")
            elif now - session.seen > self.dead_after_s:
                self.end(session, "silent")
            elif not session.attached and now - session.began > ATTACH_S:
                self.end(session, "not attached")
            elif any(writing.deadline < now for writing in list(session.writings.values())):
                self.end(session, "late")
            else:
                for lease, (pages, deadline) in list(session.leases.items()):
                    if deadline < now:
                        del session.leases[lease]
                        session.hold(-pages)
                        session.shard.memory.cache.revoke(lease)
                for asked, found in list(session.lookups.items()):
                    if found.until < now:
                        session.let_go(asked)
        for session, ids in list(self.fenced):
            if not self._locked(session):
                self._free(session, ids)
                self.fenced.remove((session, ids))
        for old in list(self._old):
            pool, lock, handles = old
            if not pool.segment.lock_is_held(lock):
                for handle in handles:
                    pool.pages.free(handle)
                self._old.remove(old)

    def fences(self, pool: Pool) -> list[tuple[int, list[int]]]:
        """Locks, and the pages that their holders may still write to."""
        found = [(lock, handles) for its, lock, handles in self._old if its is pool]
        for session, ids in self.fenced:
            if session.shard.memory.pool is pool:
                writings = [session.writings[id].reserved for id in ids]
                found.append((session.lock, [h for writing in writings for h in writing.handles]))
        return [(lock, [page_index(handle) for handle in handles]) for lock, handles in found]

    def fence(self, pool: Pool, lock: int, pages: list[int]) -> None:
        """Keep pages out of use for as long as somebody holds a lock: of an earlier server."""
        self._old.append((pool, lock, [pool.pages.claim(page) for page in pages]))

    def _locked(self, session: Session) -> bool:
        return session.shard.memory.pool.segment.lock_is_held(session.lock)

    def end(self, session: Session, why: str) -> None:
        """End a session, and whatever it holds."""
        if self.by_token.pop(session.token, None) is None:
            return
        session.ended = True
        held = session.pages
        session.let_all_go()
        session.hold(-session.pages)
        session.shard.memory.engines -= 1
        with self._lock:
            session.process.sessions -= 1
            self._processes = {k: v for k, v in self._processes.items() if v.sessions}
        self.ended[why] = self.ended.get(why, 0) + 1
        cache = session.shard.memory.cache
        for lease in session.leases:
            cache.revoke(lease)
        for _, pinned in session.pins:
            cache.unpin(pinned)
        session.leases.clear()
        session.pins.clear()
        ids = list(session.writings)
        if ids and session.attached and self._locked(session):
            for id in ids:
                cache.extend(id, 1e-9)  # the chunks leave; the pages are still somebody's
            self.fenced.append((session, ids))
        else:
            self._free(session, ids)
        session.shard.memory.announce()
        self._changed(session, why, held)

    def _free(self, session: Session, ids: list[int]) -> None:
        for id in ids:
            session.shard.memory.cache.revoke(id)
        session.shard.memory.announce()

    def status(self) -> list[dict[str, object]]:
        """For people and programs; without the secrets."""
        now = time.monotonic()
        return [
            {
                "identity": session.shard.identity.digest.hex(),
                "model": session.shard.identity.model,
                "software": session.software,
                "pid": session.pid,
                "age_s": round(now - session.began, 3),
                "silent_s": round(now - session.seen, 3),
                "attached": session.attached,
                "leases": len(session.leases) + len(session.lookups),
                "reservations": len(session.writings),
                "pages": session.pages,
                "requests": session.requests,
            }
            for session in list(self.by_token.values())
        ]
