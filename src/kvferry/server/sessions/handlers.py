"""What each request does: sessions, reservations, leases and pins, questions, clears.

Handlers run in the loop, one at a time, and return within microseconds. What may take longer is the
work of a `Later`: it brings chunks into memory, or makes room, in threads, and waits for stores
without one. The reply of a `Later` is made in the loop, from what memory has then, also when the
work has not come to its end in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from kvferry.base.errors import UsageError
from kvferry.cache import Lookup
from kvferry.cache.load.retriever import Gathered
from kvferry.cache.memory import Reserved as Pages
from kvferry.cache.steps import Steps
from kvferry.chunks.generation import own_of
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.chunks.prompt import Prompt
from kvferry.config.server import ServerConfig
from kvferry.server import protocol as p
from kvferry.server.dispatch import Later, RequestRefused
from kvferry.server.memory.pools import page_index
from kvferry.server.sessions.registry import Registry
from kvferry.server.sessions.sessions import (
    LOOKUP_LEASE_S,
    LookupLease,
    Session,
    Sessions,
    Writing,
)

__all__ = ["Handlers"]

T = TypeVar("T")

_BEFORE = (p.Attached, p.Ping, p.Unregister)  # what a session may say before it is attached
# Requests of one session that may wait, for stores as a rule; one more is answered from memory. The
# limit is below the sockets of a client (64), so some are always free for what memory can answer.
_RUNNING_MAX = 48
_TIMEOUT_MS_MAX = 3_600_000  # an hour: a client that says more is held to it


class Handlers:
    """From requests to replies.

    Args:
        config: Of the server; read at each use, it may be replaced.
        incarnation: Of the server.
        registry, sessions: Of the server.

    Attributes:
        draining: The server ends: no new sessions, no new reservations.
    """

    def __init__(
        self, config: ServerConfig, incarnation: str, registry: Registry, sessions: Sessions
    ) -> None:
        self.config = config
        self.draining = False
        self._sessions = sessions
        self._incarnation = incarnation
        self._registry = registry
        self._began = time.monotonic()
        self._of: dict[type, Callable[..., p.Reply | Later]] = {
            p.Attached: self._attached,
            p.LookupRequest: self._lookup,
            p.Reserve: self._reserve,
            p.Commit: self._commit,
            p.Abort: self._abort,
            p.Retrieve: self._retrieve,
            p.Release: self._release,
            p.Prefetch: self._prefetch,
            p.Pin: self._pin,
            p.Unpin: self._unpin,
            p.Stats: self._stats,
            p.Ping: self._ping,
            p.Speed: self._speed,
            p.Counted: self._counted,
            p.Clear: self._clear,
            p.Unregister: self._unregister,
            p.Explain: self._explain,
        }

    def handle(self, request: p.Request) -> p.Reply | Later:
        """The reply, or the work that makes it.

        Raises:
            RequestRefused, UsageError: It is refused.
        """
        if type(request) is p.Register:
            return self._register(request)
        if type(request) is p.Hello:
            self._registry.admit(request)
            return p.Welcome(request.id, p.VERSION, self.config.chunk_size or 0)
        session = self._sessions.by_token.get(request.session)
        if session is None:
            raise RequestRefused("session", "the session is unknown or has ended; register anew")
        session.seen = time.monotonic()
        session.requests += 1
        # A client that cannot map the memory is another user's process, and is told nothing.
        if not session.attached and type(request) not in _BEFORE:
            raise RequestRefused("attach", "map the segment, lock its byte, and say so first")
        prompt = getattr(request, "prompt", None)
        if prompt is not None and not session.shard.is_current(prompt.generation):
            return self._obsolete(session, request)
        return self._of[type(request)](session, request)

    # --- Beginning and ending ---

    def _register(self, request: p.Register) -> Later:
        self._registry.admit(request)
        if self.draining:
            raise RequestRefused("draining", "the server is shutting down")
        self._registry.check(request)
        who = request.process or request.digest
        return Later(lambda: self._registry.begin(request), _known, _nothing, who)

    def _attached(self, session: Session, request: p.Attached) -> p.Reply:
        if not self._sessions.attach(session):
            raise RequestRefused("attach", "the lock of the session is not held on its segment")
        return p.Done(request.id)

    def _ping(self, session: Session, request: p.Ping) -> p.Reply:
        uptime_s = time.monotonic() - self._began
        return p.Pong(request.id, self._incarnation, uptime_s, session.shard.shared)

    def _unregister(self, session: Session, request: p.Unregister) -> p.Reply:
        self._sessions.end(session, "left")
        return p.Done(request.id)

    # --- Writing ---

    def _reserve(self, session: Session, request: p.Reserve) -> p.Reply | Later:
        prompt = session.shard.prompt(request.prompt)
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
        shard, lease_s = session.shard, self.config.tuning.lease_s
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
        prompt = shard.prompt(request.prompt)
        began = time.monotonic()
        room = self._sessions.room(session)
        wanted = prompt.first(room)
        asked = session.kept_for(prompt.hashes) if session.lookups and prompt.chunks else None
        if asked is not None and (leased := self._loaded(session, request, prompt, asked)):
            return leased
        ready, coming = shard.memory.cache.lookup(prompt.hashes)
        asks = shard.cache.tiers or prompt.source
        if ready == prompt.chunks or not (coming or asks):
            lease, handles = shard.memory.cache.acquire(wanted, self.config.tuning.lease_s)
            if len(handles) * DIGEST_BYTES == len(wanted) or not asks:
                shard.cache.reader.from_memory(prompt, len(handles), time.monotonic() - began)
                return self._leased(session, request, prompt, lease, handles, room)
            shard.memory.cache.release(lease)  # somebody evicted between these two lines
        full = session.running >= _RUNNING_MAX

        def gathered(found: Gathered | None) -> p.Reply:
            found = _in_time(session, found, ready, full)
            room = self._sessions.room(session)
            lease, handles = shard.memory.cache.acquire(
                prompt.first(room), self.config.tuning.lease_s
            )
            return self._leased(session, request, prompt, lease, handles, room, found)

        return self._gather(session, prompt, request, gathered)

    def _loaded(
        self, session: Session, request: p.Retrieve, prompt: Prompt, asked: bytes
    ) -> p.Reply | None:
        """What a lookup has leased is loaded: the lookup counted it. None: there is not all of it.

        Between the two leases nobody can evict.
        """
        cache, pages = session.shard.memory.cache, session.lookups[asked].pages
        room = self._sessions.room(session) + pages
        lease, handles = cache.acquire(prompt.first(room), self.config.tuning.lease_s)
        session.let_go(asked)
        if len(handles) < prompt.chunks:
            cache.release(lease)
            return None
        return self._leased(session, request, prompt, lease, handles, room)

    def _gather(
        self,
        session: Session,
        prompt: Prompt,
        request: p.Request,
        reply: Callable[[Gathered | None], p.Reply],
    ) -> p.Reply | Later:
        """Bring what pays of a prompt into memory, whenever that begins, and reply."""
        limit_s, gathering = _seconds_of(request), session.shard.cache.reader.gathering
        deadline = time.monotonic() + limit_s
        return self._later(session, lambda: gathering(prompt, deadline), reply, limit_s)

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
            session.leases[lease] = (len(handles), time.monotonic() + self.config.tuning.lease_s)
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
        prompt = shard.prompt(request.prompt)

        def fetched(_: Gathered | None) -> p.Reply:
            return p.Count(request.id, shard.memory.cache.lookup(prompt.hashes)[0])

        return self._gather(session, prompt, request, fetched)

    # --- Pinning ---

    def _pin(self, session: Session, request: p.Pin) -> p.Reply | Later:
        shard = session.shard
        # Like leases, pins count as held, and end with the session.
        hashes = request.prompt.hashes
        wanted = shard.prompt(request.prompt).cut(self._sessions.room(session))

        def pinned(_: Gathered | None) -> p.Reply:
            _check_open(session)
            room = self._sessions.room(session)
            count = shard.memory.cache.pin(wanted.first(room))
            session.pins.append((hashes, wanted.first(count)))
            session.hold(count)
            return p.Count(request.id, count)

        return self._gather(session, wanted, request, pinned)

    def _unpin(self, session: Session, request: p.Unpin) -> p.Reply:
        for index, (hashes, pinned) in enumerate(session.pins):
            if hashes == request.hashes:
                del session.pins[index]
                session.hold(-(len(pinned) // DIGEST_BYTES))
                return p.Count(request.id, session.shard.memory.cache.unpin(pinned))
        return p.Count(request.id, 0)

    # --- Asking ---

    def _lookup(self, session: Session, request: p.LookupRequest) -> p.Reply | Later:
        shard, cache = session.shard, session.shard.cache
        prompt = shard.prompt(request.prompt)
        if request.lease:
            return self._look_and_lease(session, request, prompt)
        hashes = prompt.hashes
        ready, coming = shard.memory.cache.lookup(hashes)  # what is most often asked
        if cache.tiers and ready and cache.storer.looks:
            cache.storer.observe(prompt, ready)
        if ready == prompt.chunks or not (cache.tiers or prompt.source):
            return p.Found(request.id, {"l1": ready}, coming, shard.shared)
        size, limit_s = prompt.chunk_size, _seconds_of(request)

        def look() -> Steps[Lookup]:
            if request.touch:
                return shard.cache.lookup_steps(prompt, limit_s)
            return shard.cache.looking(prompt, limit_s, touch=False)

        def found(known: Lookup | None) -> p.Reply:
            if known is None:
                ready, coming = shard.memory.cache.lookup(hashes)
                return p.Found(request.id, {"l1": ready}, coming, shard.shared)
            tiers = {name: tokens // size for name, tokens in known.tiers.items()}
            coming = known.arriving_tokens // size
            return p.Found(request.id, tiers, coming, shard.shared, known.reason)

        return self._later(session, look, found, limit_s)

    def _look_and_lease(
        self, session: Session, request: p.LookupRequest, prompt: Prompt
    ) -> p.Reply | Later:
        """Bring what pays into memory, as a `Retrieve` does, and lease it until that comes."""
        shard, began = session.shard, time.monotonic()
        first, rest = prompt.behind_computed()  # the engine has these itself
        ready, coming = shard.memory.cache.lookup(rest.hashes)
        asks = shard.cache.tiers or rest.source
        if (before := session.lookups.get(rest.hashes)) and ready >= before.pages:
            return self._found(session, request, first, rest)  # asked again
        if ready == rest.chunks or not (coming or asks):
            if rest.chunks:
                shard.cache.reader.from_memory(rest, ready, time.monotonic() - began)
            return self._found(session, request, first, rest)
        full = session.running >= _RUNNING_MAX

        def gathered(found: Gathered | None) -> p.Reply:
            found = _in_time(session, found, ready, full)
            return self._found(session, request, first, rest, found)

        return self._gather(session, rest, request, gathered)

    def _found(
        self,
        session: Session,
        request: p.LookupRequest,
        first: int,
        rest: Prompt,
        found: Gathered | None = None,
    ) -> p.Reply:
        """What is in memory of the rest behind the first chunks, leased as far as there is room.

        What lies there beyond that is likely to be there in a moment, and counts too.
        """
        cache = session.shard.memory.cache
        before = session.lookups.get(rest.hashes)
        room = self._sessions.room(session, looking=True) + (before.pages if before else 0)
        leased = rest.first(room)
        seconds = min(LOOKUP_LEASE_S, self.config.tuning.lease_s)
        lease, handles = cache.acquire(leased, seconds)
        leased = leased[: len(handles) * DIGEST_BYTES]
        session.keep(rest.hashes, LookupLease(lease, leased, time.monotonic() + seconds))
        ready = cache.lookup(rest.hashes)[0]
        loaded = found.chunks if found is not None else {}
        tiers = {"l1": first + max(0, ready - sum(loaded.values())), **loaded}
        reason = found.reason if found is not None else "never_stored"
        reason = (reason or "evicted") if ready < rest.chunks else ""
        return p.Found(request.id, tiers, 0, session.shard.shared, reason)

    def _stats(self, session: Session, request: p.Stats) -> p.Reply | Later:
        return self._later(
            session, session.shard.status, lambda found: p.Report(request.id, _known(found))
        )

    def _explain(self, session: Session, request: p.Explain) -> p.Reply | Later:
        prompt = session.shard.prompt(request.prompt)
        limit_s = _seconds_of(request)

        def explain() -> dict[str, Any]:
            found = session.shard.cache.explain(prompt, timeout_s=limit_s)
            return {"text": str(found), **msgspec.to_builtins(found)}

        return self._later(
            session, explain, lambda found: p.Report(request.id, _known(found)), limit_s
        )

    def _counted(self, session: Session, request: p.Counted) -> p.Reply:
        try:
            session.shard.cache.metrics.add(request.sums, request.histograms)
        except UsageError as error:
            raise RequestRefused("usage", str(error)) from None
        return p.Done(request.id)

    def _speed(self, session: Session, request: p.Speed) -> p.Reply:
        told, step_tokens = request.coefficients, max(0, request.step_tokens)
        session.shard.cache.learning.expect(told, step_tokens)
        return p.Done(request.id)

    # --- Everything ---

    def _clear(self, session: Session, request: p.Clear) -> p.Reply | Later:
        shard, ended = session.shard, request.ended
        if not request.stores:
            return p.Count(request.id, shard.cache.clear(stores=False))
        if not request.everybody:
            session.let_all_go()
            # Chunks of this engine in memory leave when there is need, others use the rest.
            count = shard.memory.cache.clear() if shard.memory.engines == 1 else 0
            if any(ended):  # all engines of the identity share the first one
                shard.cache.clearing.forget(lambda each: own_of(each) == ended, delete=True)
            return p.Count(request.id, count)
        return self._later(
            session,
            shard.clear_everybody,
            lambda count: p.Count(request.id, _known(count)),
            _seconds_of(request),
        )

    def _obsolete(self, session: Session, request: p.Request) -> p.Reply:
        """Everything was cleared since these hashes were made: nothing is there, or is taken."""
        id, shared = request.id, session.shard.shared
        match request:
            case p.LookupRequest():
                return p.Found(id, {"l1": 0}, 0, shared)
            case p.Retrieve():
                return p.Leased(id, 0, [], {"l1": 0}, "never_stored", 0.0, 0.0, shared)
            case p.Reserve():
                left = max(0, request.prompt.chunks - request.first)
                return p.ReservedPages(id, 0, [], [], left)
            case p.Explain():
                raise RequestRefused("usage", "everything was cleared meanwhile; ask again")
        return p.Count(id, 0)

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


def _seconds_of(request: p.Request) -> float:
    """How long the sender of a request waits."""
    return min(max(0, request.timeout_ms), _TIMEOUT_MS_MAX) / 1000


def _check_open(session: Session) -> None:
    if session.ended:
        raise RequestRefused("session", "the session has ended")


def _in_time(session: Session, found: Gathered | None, ready: int, full: bool) -> Gathered:
    """What came; nothing beyond the chunks that were ready, and why, where it did not in time."""
    _check_open(session)
    why = "unavailable" if full else "deadline"
    return Gathered(ready, bytearray(), reason=why) if found is None else found


def _nothing() -> None: ...


def _known(found: T | None) -> T:
    if found is None:
        raise RequestRefused("busy", "it was not done in time")
    return found
