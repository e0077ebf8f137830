"""What each request does: sessions, shards, and the index in between.

Handlers run in the loop, one at a time, and return within microseconds. Whatever may wait is in
functions that `Later` runs in threads; these touch the session only under its guard, and give back
what they leased when it has ended meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from kvferry.engine.memory import Reserved as Pages
from kvferry.engine.prompt import Prompt
from kvferry.engine.retriever import Gathered
from kvferry.keys import DIGEST_BYTES
from kvferry.server import protocol as p
from kvferry.server.config import ServerConfig
from kvferry.server.dispatch import Later, Refused
from kvferry.server.pools import page_index
from kvferry.server.registry import Registry
from kvferry.server.sessions import Session, Sessions, Writing

__all__ = ["Handlers"]

# Requests of one session that threads may be working on.
_RUNNING_MAX = 64
_TIMEOUT_MS_MAX = 3_600_000
_BEFORE = (p.Attached, p.Ping, p.Unregister)  # what a session may say before it is attached
_HASHES_BYTES_MAX = p.HASHES_MAX * DIGEST_BYTES


class Handlers:
    """From requests to replies.

    Args:
        config: Of the server; read at each use, it may be replaced.
        incarnation: Of the server.
        registry, sessions: Of the server.

    Attributes:
        draining: No new sessions or reservations: the server ends.
    """

    def __init__(
        self, config: ServerConfig, incarnation: str, registry: Registry, sessions: Sessions
    ) -> None:
        self.config = config
        self.draining = False
        self._incarnation = incarnation
        self._registry = registry
        self._sessions = sessions
        self._began = time.monotonic()
        self._of: dict[type, Callable[..., p.Reply | Later]] = {
            p.Attached: self._attached,
            p.Lookup: self._lookup,
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
            p.Observe: self._observe,
            p.Clear: self._clear,
            p.Unregister: self._unregister,
            p.Explain: self._explain,
        }

    def handle(self, request: p.Request) -> p.Reply | Later:
        """The reply, or the work that makes it.

        Raises:
            Refused, UsageError: It is refused.
        """
        if type(request) is p.Register:
            return self._register(request)
        session = self._sessions.by_token.get(request.session)
        if session is None:
            raise Refused("session", "the session is unknown or has ended; register anew")
        session.seen = time.monotonic()
        session.requests += 1
        # Who cannot map the memory is somebody else's process, and is told nothing.
        if not session.attached and type(request) not in _BEFORE:
            raise Refused("attach", "map the segment, lock its byte, and say so first")
        return self._of[type(request)](session, request)

    # --- Beginning and ending ---

    def _register(self, request: p.Register) -> Later:
        self._registry.check(request)
        if self.draining:
            raise Refused("draining", "the server is shutting down")
        return Later(lambda: self._registry.begin(request), _nothing)

    def _attached(self, session: Session, request: p.Attached) -> p.Reply:
        if not self._sessions.attach(session):
            raise Refused("attach", "the lock of the session is not held on its segment")
        return p.Done(request.id)

    def _ping(self, session: Session, request: p.Ping) -> p.Reply:
        return p.Pong(request.id, self._incarnation, time.monotonic() - self._began)

    def _unregister(self, session: Session, request: p.Unregister) -> p.Reply:
        self._sessions.end(session, "left")
        return p.Done(request.id)

    # --- Asking ---

    def _lookup(self, session: Session, request: p.Lookup) -> p.Reply | Later:
        shard, hashes = session.shard, request.hashes
        if len(hashes) <= _HASHES_BYTES_MAX:  # what is most often asked, as quickly as can be
            ready, coming = shard.memory.cache.lookup(hashes)
            if ready * DIGEST_BYTES == len(hashes) or not request.stores or not shard.engine.tiers:
                return p.Found(request.id, {"l1": ready}, coming)
        prompt = shard.prompt(hashes)

        def look() -> p.Reply:
            limit_s = _seconds(request)
            if request.touch:
                found = shard.engine.lookup(prompt, timeout_s=limit_s)
            else:
                found = shard.engine.look(prompt, limit_s, touch=False)
            size = prompt.chunk_size
            tiers = {name: tokens // size for name, tokens in found.tiers.items()}
            return p.Found(request.id, tiers, found.arriving_tokens // size)

        return self._later(session, look)

    def _stats(self, session: Session, request: p.Stats) -> Later:
        return self._later(session, lambda: p.Report(request.id, session.shard.status()))

    def _explain(self, session: Session, request: p.Explain) -> Later:
        prompt = session.shard.prompt(request.hashes, request.tokens)

        def explain() -> p.Reply:
            found = session.shard.engine.explain(prompt, timeout_s=_seconds(request))
            return p.Report(request.id, {"text": str(found), **msgspec.to_builtins(found)})

        return self._later(session, explain)

    def _observe(self, session: Session, request: p.Observe) -> p.Reply:
        if not (0 <= request.cached_tokens <= request.tokens and 0 <= request.took_s < 86_400):
            raise Refused("usage", "cached_tokens, tokens and took_s do not go together")
        session.shard.engine.observe_prefill(request.tokens, request.cached_tokens, request.took_s)
        return p.Done(request.id)

    # --- Writing ---

    def _reserve(self, session: Session, request: p.Reserve) -> p.Reply | Later:
        prompt = session.shard.prompt(request.hashes)
        first = min(max(0, request.first), prompt.chunks)
        if self.draining:
            return p.Reserved(request.id, 0, [], [], prompt.chunks - first)
        if session.shard.memory.waits_for_room(prompt.chunks - first):
            return self._later(session, lambda: self._reserved(session, request, prompt, first))
        return self._reserved(session, request, prompt, first)

    def _reserved(
        self, session: Session, request: p.Reserve, prompt: Prompt, first: int
    ) -> p.Reply:
        shard = session.shard
        shard.engine.storer.offer_again(prompt)
        room = self._sessions.room(session, writing=True)
        # What is there already needs no page, so what is asked for may be less.
        end = min(prompt.chunks, max(shard.memory.cache.lookup(request.hashes)[0], first) + room)
        lease_s = self.config.lease_s
        shard.memory.room_for(end - first)
        id, chunks, handles, shed = shard.memory.cache.reserve(prompt.first(end), first, lease_s)
        if shed or end < prompt.chunks:
            shed += prompt.chunks - end
            shard.engine.metrics.shed("pool_full", shed)
        if not id:
            return p.Reserved(request.id, 0, [], [], shed)
        writing = Writing(prompt, Pages(id, chunks, handles, 0), time.monotonic() + lease_s)
        with session.guard:
            if not session.ended:
                session.writings[id] = writing
        if session.ended:
            shard.memory.abort(id)
            raise Refused("session", "the session has ended")
        return p.Reserved(request.id, id, chunks, _indexes(handles), shed)

    def _commit(self, session: Session, request: p.Commit) -> p.Reply:
        writing = session.writings.get(request.reservation)
        if writing is None:
            return p.Committed(request.id, 0)
        reserved, shard = writing.reserved, session.shard
        if request.ok and len(request.ok) != len(reserved.handles):
            raise Refused(
                "usage", f"ok has {len(request.ok)} bytes for {len(reserved.handles)} pages"
            )
        del session.writings[request.reservation]
        if request.ok and 0 in request.ok:
            done = shard.memory.commit(reserved.id, request.ok)
            return p.Committed(request.id, done)
        done, queued, dropped = shard.engine.storer.written(writing.prompt, reserved)
        return p.Committed(request.id, done, queued, dropped)

    def _abort(self, session: Session, request: p.Abort) -> p.Reply:
        if session.writings.pop(request.reservation, None) is not None:
            session.shard.memory.abort(request.reservation)
        return p.Done(request.id)

    # --- Reading ---

    def _retrieve(self, session: Session, request: p.Retrieve) -> p.Reply | Later:
        prompt = session.shard.prompt(request.hashes, request.tokens)
        shard = session.shard
        began = time.monotonic()
        room = self._sessions.room(session, writing=False)
        wanted = prompt.first(room)
        ready, coming = shard.memory.cache.lookup(request.hashes)
        if ready == prompt.chunks or not (coming or shard.engine.tiers):
            lease, handles = shard.memory.cache.acquire(wanted, self.config.lease_s)
            if len(handles) * DIGEST_BYTES == len(wanted) or not shard.engine.tiers:
                shard.engine.reader.from_memory(prompt, len(handles), time.monotonic() - began)
                return self._leased(session, request, prompt, lease, handles, room)
            shard.memory.cache.release(lease)  # somebody evicted between these two lines
        return self._later(session, lambda: self._gathered(session, request, prompt))

    def _gathered(self, session: Session, request: p.Retrieve, prompt: Prompt) -> p.Reply:
        shard = session.shard
        found = shard.engine.reader.gather(prompt, time.monotonic() + _seconds(request))
        room = self._sessions.room(session, writing=False)
        lease, handles = shard.memory.cache.acquire(prompt.first(room), self.config.lease_s)
        return self._leased(session, request, prompt, lease, handles, room, found)

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
            until = time.monotonic() + self.config.lease_s
            with session.guard:
                if not session.ended:
                    session.leases[lease] = (len(handles), until)
            if session.ended:
                session.shard.memory.cache.revoke(lease)
                raise Refused("session", "the session has ended")
        reason = ""
        if len(handles) < prompt.chunks:
            reason = "pool_full" if len(handles) == room else "never_stored"
            if found is not None and reason != "pool_full":
                reason = found.reason or "evicted"
        loaded = found.chunks if found is not None else {}
        here = max(0, len(handles) - sum(loaded.values()))
        tiers = {"l1": here, **loaded}
        lookup_s, load_s = (found.lookup_s, found.load_s) if found is not None else (0.0, 0.0)
        return p.Leased(request.id, lease, _indexes(handles), tiers, reason, lookup_s, load_s)

    def _release(self, session: Session, request: p.Release) -> p.Reply:
        cache, count = session.shard.memory.cache, 0
        for lease in request.leases:
            if session.leases.pop(lease, None) is not None:
                count += cache.release(lease)
        return p.Count(request.id, count)

    def _prefetch(self, session: Session, request: p.Prefetch) -> p.Reply | Later:
        shard = session.shard
        prompt = shard.prompt(request.hashes, request.tokens)
        if not request.wait:
            shard.engine.prefetch(prompt, timeout_s=_seconds(request))
            return p.Count(request.id, shard.memory.cache.lookup(request.hashes)[0])

        def fetch() -> p.Reply:
            shard.engine.reader.gather(prompt, time.monotonic() + _seconds(request))
            return p.Count(request.id, shard.memory.cache.lookup(request.hashes)[0])

        return self._later(session, fetch)

    # --- Keeping ---

    def _pin(self, session: Session, request: p.Pin) -> Later:
        prompt = session.shard.prompt(request.hashes, request.tokens)

        def pin() -> p.Reply:
            # Like leases, pins count as held, and end with the session.
            some = prompt.first(self._sessions.room(session, writing=False))
            wanted = session.shard.prompt(some, request.tokens)
            tokens = session.shard.engine.pin(wanted, timeout_s=_seconds(request))
            pinned = wanted.first(tokens // prompt.chunk_size)
            with session.guard:
                if not session.ended:
                    session.pins.append((request.hashes, pinned))
            if session.ended:
                session.shard.memory.cache.unpin(pinned)
                raise Refused("session", "the session has ended")
            return p.Count(request.id, tokens // prompt.chunk_size)

        return self._later(session, pin)

    def _unpin(self, session: Session, request: p.Unpin) -> p.Reply:
        prompt = session.shard.prompt(request.hashes)
        for index, (hashes, pinned) in enumerate(session.pins):
            if hashes == prompt.hashes:
                del session.pins[index]
                return p.Count(request.id, session.shard.memory.cache.unpin(pinned))
        return p.Count(request.id, 0)

    def _clear(self, session: Session, request: p.Clear) -> Later:
        def clear() -> p.Reply:
            return p.Count(request.id, session.shard.engine.clear(stores=request.stores))

        return self._later(session, clear)

    # --- Inside ---

    def _later(self, session: Session, work: Callable[[], p.Reply]) -> Later:
        if session.running >= _RUNNING_MAX:
            raise Refused("busy", f"{_RUNNING_MAX} requests of this session are under way already")
        session.running += 1

        def over() -> None:
            session.running -= 1

        return Later(work, over)


def _indexes(handles: list[int]) -> list[int]:
    return [page_index(handle) for handle in handles]


def _seconds(request: p.Request) -> float:
    return min(max(0, request.timeout_ms), _TIMEOUT_MS_MAX) / 1000


def _nothing() -> None: ...
