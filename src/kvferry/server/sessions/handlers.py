"""What each request does: sessions and questions.

Handlers run in the loop, one at a time, and return within microseconds. What may wait is the work
of a `Later`; see `holding.py`, which has all that moves pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from kvferry.base.errors import UsageError
from kvferry.cache import Lookup
from kvferry.cache.steps import Steps
from kvferry.chunks.generation import own_of
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.config.server import ServerConfig
from kvferry.server import protocol as p
from kvferry.server.loop.dispatch import Later, RequestRefused
from kvferry.server.sessions.holding import Holding, seconds_of
from kvferry.server.sessions.registry import Registry
from kvferry.server.sessions.sessions import Session, Sessions

__all__ = ["Handlers"]

T = TypeVar("T")

_BEFORE = (p.Attached, p.Ping, p.Unregister)  # what a session may say before it is attached
_HASHES_BYTES_MAX = p.HASHES_MAX * DIGEST_BYTES


class Handlers(Holding):
    """From requests to replies.

    Args:
        config: Of the server; read at each use, it may be replaced.
        incarnation: Of the server.
        registry, sessions: Of the server.
    """

    def __init__(
        self, config: ServerConfig, incarnation: str, registry: Registry, sessions: Sessions
    ) -> None:
        super().__init__(config, sessions)
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
            p.Observe: self._observe,
            p.Speed: self._speed,
            p.Counted: self._counted,
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
        if type(request) is p.Hello:
            self._registry.admit(request)
            return p.Welcome(request.id, p.VERSION, self.config.chunk_size or 0)
        session = self._sessions.by_token.get(request.session)
        if session is None:
            raise RequestRefused("session", "the session is unknown or has ended; register anew")
        session.seen = time.monotonic()
        session.requests += 1
        # Who cannot map the memory is somebody else's process, and is told nothing.
        if not session.attached and type(request) not in _BEFORE:
            raise RequestRefused("attach", "map the segment, lock its byte, and say so first")
        generation = getattr(request, "generation", None)
        if generation is not None and not session.shard.is_current(generation):
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

    # --- Asking ---

    def _lookup(self, session: Session, request: p.LookupRequest) -> p.Reply | Later:
        shard, hashes = session.shard, request.hashes
        if len(hashes) <= _HASHES_BYTES_MAX:  # what is most often asked, as quickly as can be
            ready, coming = shard.memory.cache.lookup(hashes)
            cache = shard.cache
            if cache.tiers and ready and cache.storer.looks:
                cache.storer.observe(shard.prompt(hashes, 0, request.generation), ready)
            asks = request.stores and (cache.tiers or request.source)
            if ready * DIGEST_BYTES == len(hashes) or not asks:
                return p.Found(request.id, {"l1": ready}, coming, shard.shared)
        prompt = shard.prompt(hashes, 0, request.generation, request.about, request.source)
        size, limit_s = prompt.chunk_size, seconds_of(request)

        def look() -> Steps[Lookup]:
            if request.about:
                return shard.cache.looking(
                    prompt,
                    None,
                    touch=request.touch,
                    limit_s=limit_s,
                    begin=request.touch,  # a retrieve of what is found follows
                )
            if request.touch:
                return shard.cache.lookup_steps(prompt, limit_s)
            return shard.cache.looking(prompt, limit_s, touch=False)

        def found(known: Lookup | None) -> p.Reply:
            if known is None:
                ready, coming = shard.memory.cache.lookup(hashes)
                return p.Found(request.id, {"l1": ready}, coming, shard.shared)
            left = known.tokens
            if request.about and known.worth_tokens is not None:
                left = known.worth_tokens
            tiers = {}
            for name, tokens in known.tiers.items():
                tiers[name] = min(tokens, left) // size
                left -= min(tokens, left)
            coming = known.arriving_tokens // size
            return p.Found(request.id, tiers, coming, shard.shared, known.reason)

        return self._later(session, look, found, limit_s)

    def _stats(self, session: Session, request: p.Stats) -> p.Reply | Later:
        return self._later(
            session, session.shard.status, lambda found: p.Report(request.id, _known(found))
        )

    def _explain(self, session: Session, request: p.Explain) -> p.Reply | Later:
        prompt = session.shard.prompt(request.hashes, request.tokens, request.generation)
        limit_s = seconds_of(request)

        def explain() -> dict[str, Any]:
            found = session.shard.cache.explain(prompt, timeout_s=limit_s)
            return {"text": str(found), **msgspec.to_builtins(found)}

        return self._later(
            session, explain, lambda found: p.Report(request.id, _known(found)), limit_s
        )

    def _observe(self, session: Session, request: p.Observe) -> p.Reply:
        if not (0 <= request.cached_tokens <= request.tokens and 0 <= request.took_s < 86_400):
            raise RequestRefused("usage", "cached_tokens, tokens and took_s do not go together")
        session.shard.cache.observe_prefill(request.tokens, request.cached_tokens, request.took_s)
        return p.Done(request.id)

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
            # Chunks of this engine in memory leave when there is need, others use the rest.
            count = shard.memory.cache.clear() if shard.memory.engines == 1 else 0
            if any(ended):  # all engines of the identity share the first one
                shard.cache.clearing.forget(lambda each: own_of(each) == ended, delete=True)
            return p.Count(request.id, count)
        return self._later(
            session,
            shard.clear_everybody,
            lambda count: p.Count(request.id, _known(count)),
            seconds_of(request),
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
                chunks = len(request.hashes) // DIGEST_BYTES
                return p.ReservedPages(id, 0, [], [], max(0, chunks - max(0, request.first)))
            case p.Explain():
                raise RequestRefused("usage", "everything was cleared meanwhile; ask again")
        return p.Count(id, 0)


def _nothing() -> None: ...


def _known(found: T | None) -> T:
    if found is None:
        raise RequestRefused("busy", "it was not done in time")
    return found
