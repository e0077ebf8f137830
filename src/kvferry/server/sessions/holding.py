"""What moves pages between engines, memory and stores: reservations, leases, and pins.

All of it happens in the loop. What may wait is the work of a `Later`: in threads it brings chunks
into memory, or room, and waits for stores without one. Its reply is made in the loop, from what
memory has then: also when the work has not come to its end in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kvferry.cache.load.retriever import Gathered
from kvferry.cache.memory import Reserved as Pages
from kvferry.cache.steps import Steps
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.chunks.prompt import Prompt
from kvferry.config.server import ServerConfig
from kvferry.server import protocol as p
from kvferry.server.loop.dispatch import Later, RequestRefused
from kvferry.server.memory.pools import page_index
from kvferry.server.sessions.sessions import Session, Sessions, Writing
from kvferry.server.sessions.shard import IdentityShard

__all__ = ["Holding", "seconds_of"]

T = TypeVar("T")

# Requests of one session that may wait, for stores as a rule. One more is answered from memory. It
# is less than the sockets of a client, so some are always free for what memory can answer.
_RUNNING_MAX = 48
_TIMEOUT_MS_MAX = 3_600_000


class Holding:
    """The requests by which engines hold pages.

    Args:
        config: Of the server; read at each use, it may be replaced.
        sessions: Of the server.

    Attributes:
        draining: No new sessions or reservations: the server ends.
    """

    def __init__(self, config: ServerConfig, sessions: Sessions) -> None:
        self.config = config
        self.draining = False
        self._sessions = sessions

    # --- Writing ---

    def _reserve(self, session: Session, request: p.Reserve) -> p.Reply | Later:
        prompt = session.shard.prompt(request.hashes, generation=request.generation)
        first = min(max(0, request.first), prompt.chunks)
        if self.draining:
            return p.ReservedPages(request.id, 0, [], [], prompt.chunks - first)
        end = self._end(session, prompt, first)
        if not session.shard.memory.waits_for_room(end - first):
            return self._reserved(session, request, prompt, first)
        return self._later(
            session,
            lambda: session.shard.memory.room_for(end - first),
            lambda _: self._reserved(session, request, prompt, first),
        )

    def _end(self, session: Session, prompt: Prompt, first: int) -> int:
        """How far it may write. What is there already needs no page."""
        room = self._sessions.room(session, writing=True)
        here = session.shard.memory.cache.lookup(prompt.hashes)[0]
        return min(prompt.chunks, max(here, first) + room)

    def _reserved(
        self, session: Session, request: p.Reserve, prompt: Prompt, first: int
    ) -> p.Reply:
        _check_open(session)
        shard, lease_s = session.shard, self.config.lease_s
        shard.cache.storer.offer_again(prompt)
        end = self._end(session, prompt, first)
        if not shard.memory.waits_for_room(end - first):
            shard.memory.room_for(end - first)
        id, chunks, handles, shed = shard.memory.cache.reserve(prompt.first(end), first, lease_s)
        if shed or end < prompt.chunks:
            shed += prompt.chunks - end
            shard.cache.metrics.shed("pool_full", shed)
        if not id:
            return p.ReservedPages(request.id, 0, [], [], shed)
        writing = Writing(prompt, Pages(id, chunks, handles, 0), time.monotonic() + lease_s)
        session.writings[id] = writing
        session.hold(len(handles))
        return p.ReservedPages(request.id, id, chunks, _indexes(handles), shed)

    def _commit(self, session: Session, request: p.Commit) -> p.Reply:
        writing = session.writings.get(request.reservation)
        if writing is None:
            return p.Committed(request.id, 0)
        reserved, shard = writing.reserved, session.shard
        if request.ok and len(request.ok) != len(reserved.handles):
            raise RequestRefused(
                "usage", f"ok has {len(request.ok)} bytes for {len(reserved.handles)} pages"
            )
        del session.writings[request.reservation]
        session.hold(-len(reserved.handles))
        if request.ok and 0 in request.ok:
            done = shard.memory.commit(reserved.id, request.ok)
            return p.Committed(request.id, done)
        done, queued, dropped = shard.cache.storer.written(writing.prompt, reserved)
        return p.Committed(request.id, done, queued, dropped)

    def _abort(self, session: Session, request: p.Abort) -> p.Reply:
        writing = session.writings.pop(request.reservation, None)
        if writing is not None:
            session.hold(-len(writing.reserved.handles))
            session.shard.memory.abort(request.reservation)
        return p.Done(request.id)

    # --- Reading ---

    def _retrieve(self, session: Session, request: p.Retrieve) -> p.Reply | Later:
        shard = session.shard
        what = (request.tokens, request.generation, request.about, request.source)
        prompt = shard.prompt(request.hashes, *what)
        began = time.monotonic()
        room = self._sessions.room(session, writing=False)
        wanted = prompt.first(room)
        ready, coming = shard.memory.cache.lookup(request.hashes)
        asks = shard.cache.tiers or prompt.source
        if ready == prompt.chunks or not (coming or asks):
            lease, handles = shard.memory.cache.acquire(wanted, self.config.lease_s)
            if len(handles) * DIGEST_BYTES == len(wanted) or not asks:
                shard.cache.reader.from_memory(prompt, len(handles), time.monotonic() - began)
                return self._leased(session, request, prompt, lease, handles, room)
            shard.memory.cache.release(lease)  # somebody evicted between these two lines
        full = session.running >= _RUNNING_MAX

        def gathered(found: Gathered | None) -> p.Reply:
            _check_open(session)
            room = self._sessions.room(session, writing=False)
            lease, handles = shard.memory.cache.acquire(prompt.first(room), self.config.lease_s)
            if found is None:
                reason = "unavailable" if full else "deadline"
                found = Gathered(ready, bytearray(), reason=reason)
            return self._leased(session, request, prompt, lease, handles, room, found)

        return self._later(
            session, self._gather(shard, prompt, request), gathered, seconds_of(request)
        )

    def _gather(
        self, shard: IdentityShard, prompt: Prompt, request: p.Request
    ) -> Callable[[], Steps[Gathered]]:
        """The work of bringing it into memory, whenever it begins."""
        deadline = time.monotonic() + seconds_of(request)
        return lambda: shard.cache.reader.gathering(prompt, deadline)

    def _leased(
        self,
        session: Session,
        request: p.Retrieve,
        prompt: Prompt,
        lease: int,
        handles: list[int],
        room: int,
        found: Gathered | None = None,
    ) -> p.Reply:
        if lease:
            session.leases[lease] = (len(handles), time.monotonic() + self.config.lease_s)
            session.hold(len(handles))
        reason = ""
        if len(handles) < prompt.chunks:
            reason = "pool_full" if len(handles) == room else "never_stored"
            if found is not None and reason != "pool_full":
                reason = found.reason or "evicted"
        loaded = found.chunks if found is not None else {}
        here = max(0, len(handles) - sum(loaded.values()))
        tiers = {"l1": here, **loaded}
        lookup_s, load_s = (found.lookup_s, found.load_s) if found is not None else (0.0, 0.0)
        pages, shared = _indexes(handles), session.shard.shared
        return p.Leased(request.id, lease, pages, tiers, reason, lookup_s, load_s, shared)

    def _release(self, session: Session, request: p.Release) -> p.Reply:
        cache, count = session.shard.memory.cache, 0
        for lease in request.leases:
            held = session.leases.pop(lease, None)
            if held is not None:
                session.hold(-held[0])
                count += cache.release(lease)
        return p.Count(request.id, count)

    def _prefetch(self, session: Session, request: p.Prefetch) -> p.Reply | Later:
        shard = session.shard
        prompt = shard.prompt(request.hashes, request.tokens, request.generation)

        def fetched(_: Gathered | None) -> p.Reply:
            return p.Count(request.id, shard.memory.cache.lookup(request.hashes)[0])

        work = self._gather(shard, prompt, request)
        found = self._later(session, work, fetched, seconds_of(request))
        if isinstance(found, Later) and not request.wait:
            found.at_once = fetched(None)
        return found

    # --- Keeping ---

    def _pin(self, session: Session, request: p.Pin) -> p.Reply | Later:
        shard = session.shard
        # Like leases, pins count as held, and end with the session.
        some = shard.prompt(request.hashes).first(self._sessions.room(session, writing=False))
        wanted = shard.prompt(some, request.tokens, request.generation)

        def pinned(_: Gathered | None) -> p.Reply:
            _check_open(session)
            room = self._sessions.room(session, writing=False)
            count = shard.memory.cache.pin(wanted.first(room))
            session.pins.append((request.hashes, wanted.first(count)))
            session.hold(count)
            return p.Count(request.id, count)

        return self._later(
            session, self._gather(shard, wanted, request), pinned, seconds_of(request)
        )

    def _unpin(self, session: Session, request: p.Unpin) -> p.Reply:
        prompt = session.shard.prompt(request.hashes)
        for index, (hashes, pinned) in enumerate(session.pins):
            if hashes == prompt.hashes:
                del session.pins[index]
                session.hold(-(len(pinned) // DIGEST_BYTES))
                return p.Count(request.id, session.shard.memory.cache.unpin(pinned))
        return p.Count(request.id, 0)

    # --- Inside ---

    def _later(
        self,
        session: Session,
        work: Callable[[], T | Steps[T]],
        reply: Callable[[T | None], p.Reply],
        limit_s: float | None = None,
    ) -> p.Reply | Later:
        """Have it done in a thread; for stores, `limit_s` says how long."""
        if session.running >= _RUNNING_MAX:
            return reply(None)
        session.running += 1

        def over() -> None:
            session.running -= 1

        return Later(work, reply, over, session.process, limit_s)


def _indexes(handles: list[int]) -> list[int]:
    return [page_index(handle) for handle in handles]


def seconds_of(request: p.Request) -> float:
    """How long the sender of a request waits."""
    return min(max(0, request.timeout_ms), _TIMEOUT_MS_MAX) / 1000


def _check_open(session: Session) -> None:
    if session.ended:
        raise RequestRefused("session", "the session has ended")
