"""The engine's side of the cache server: the calls of `kvferry.TieredCache`, for a pool of others.

    client = Client(identity, "ipc:///run/kvferry.sock")
    client.store(tokens, chunks)
    with client.retrieve(tokens) as hit:      # pages of the server, in place
        use(hit.tokens, hit.arrays)

Every engine process of a host has a client, and all of them share what any of them stores. Chunks
are copied straight into the server's shared memory, and out of it: over the socket go hashes and
page numbers only, which `stats` counts.

What its calls promise is said by `kvferry.cache.interface`. Without a server there is no cache:
nothing is found, nothing is stored, and it costs next to nothing to ask. The log says once that it
is away. When it is back, or another one is, all goes on by itself. What `retrieve` brings was there
all the time; a lease that ended too soon makes it a miss.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import msgspec
from typing_extensions import override

from kvferry.base.errors import UnavailableError
from kvferry.base.threads import Workers
from kvferry.cache import Lookup, Retrieved, Stored
from kvferry.cache.clearing import check_clear
from kvferry.cache.cost.load_or_compute import decide
from kvferry.cache.cost.prefill import Coefficients, PrefillModel
from kvferry.cache.explain import ChunkPlace, Explanation
from kvferry.cache.interface import FLUSH_S, Cache
from kvferry.cache.results import RequestLog
from kvferry.cache.store.store_tiers import MEMORY
from kvferry.chunks.generation import (
    FIRST,
    after_clear,
    drawn_here,
    joined,
    named,
    own_of,
    shared_of,
)
from kvferry.chunks.identity import Identity
from kvferry.chunks.prompt import Prompt, Tokens, read_prompt
from kvferry.client.buffers import BufferLike
from kvferry.server import protocol
from kvferry.server.client.address import read_url, token_reader
from kvferry.server.client.caller import Caller
from kvferry.server.client.counters import Counters
from kvferry.server.client.feedback import EngineFeedback
from kvferry.server.client.session_thread import SUSPECT_S, SessionThread
from kvferry.server.client.transfer import Transfer, in_tokens
from kvferry.server.protocol import HASHES_MAX, Count, Found, LookupRequest, Reply, Report, Request

__all__ = ["Client"]

R = TypeVar("R", bound=Reply)

_log = logging.getLogger("kvferry.server.client")

_FIRST_WAIT_S = 0.5  # for the server, when a client is made
_COPY_THREADS_MAX = 4
_BACKGROUND_THREADS = 8
_OVER_MAX = 1000  # generations that this client remembers to have ended
# The part of a lookup's time that the server may spend on asking stores.
_STORES_SHARE = 0.8
_EVERYBODY_S = 15.0  # for a clear for everybody: all stores answer, one after the other


class Client(Cache):
    """A cache in the memory of a server on this host.

    Args:
        identity: What the bytes are; its layout says how long and of what shape a chunk is.
        url: Of the server: "tcp://localhost:6555" or "ipc:///run/kvferry.sock". Default:
            ``KVFERRY_SERVER_URL``, else "tcp://localhost:5555".
        salt: Separates tenants: with another salt, the same tokens are other chunks. The server is
            not told.
        timeout_s: Limit of each question that the server answers from memory.
        lookup_timeout_s: How long the server may be silent while it brings what a lookup leases;
            default: half of what computing the prompt takes.
        retrieve_timeout_s: Limit for calls that may load from stores.
        copy_threads: Threads that copy; default: the processors of this machine, 4 at most.
        token_file: Holds the token for a server that asks for one; read for each session. Default:
            ``KVFERRY_SERVER_TOKEN_FILE``, else ``KVFERRY_SERVER_TOKEN`` is the token.
        weights_version: Of engines on the same stores, those with the same name share; for weights
            that were changed in place.
        prefault: Fill the page tables at the beginning, where that takes no memory of the server.

    It waits for the server for half a second, so that short programs find it, and never longer.

    Raises:
        ConfigError: The URL or the file of the token cannot be.
    """

    def __init__(
        self,
        identity: Identity,
        url: str | None = None,
        *,
        salt: bytes = b"",
        timeout_s: float = 0.5,
        lookup_timeout_s: float | None = None,
        retrieve_timeout_s: float = 10.0,
        copy_threads: int | None = None,
        token_file: str | os.PathLike[str] | None = None,
        weights_version: str = "",
        prefault: bool = True,
    ) -> None:
        super().__init__(identity, salt, Workers(_BACKGROUND_THREADS, "client"))
        self.url = read_url(url)
        self._lines = RequestLog(_log)
        self._own = named(weights_version)
        self._over: OrderedDict[bytes, None] = OrderedDict()
        self._over_lock = threading.Lock()
        self._lookup_timeout_s = lookup_timeout_s
        self._retrieve_timeout_s = retrieve_timeout_s
        token = token_reader(token_file)
        self._counters = Counters()
        self._sessions = SessionThread(self.url, identity, token, self._counters, prefault=prefault)
        # At the latest at the end of the program.
        self._finalizer = weakref.finalize(self, self._sessions.close)
        self._feedback = EngineFeedback(self._sessions, self.layout.chunk_bytes)
        self.metrics = self._feedback.metrics
        self._caller = Caller(self._sessions, self._counters, timeout_s)
        threads = copy_threads or min(_COPY_THREADS_MAX, os.cpu_count() or 1)
        self._transfer = Transfer(self._caller, self.layout, threads)
        self._sessions.wait(_FIRST_WAIT_S)

    @property
    @override
    def available(self) -> bool:
        session = self._sessions.session
        return session is not None and not session.doubted and not self._closed

    @property
    @override
    def asks_stores(self) -> bool:
        return self.available

    @property
    def refused(self) -> str:
        """Why the server does not work with us, for people; "" if it does, or is away."""
        return self._sessions.refused

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is a server, or one that refuses us; whether there is one to use."""
        self._check_open()
        return self._sessions.wait(timeout_s)

    # --- Asking ---

    @override
    def lookup(
        self, tokens: Tokens, *, timeout_s: float | None = None, lease: bool = False
    ) -> Lookup:
        look = partial(self._leased, timeout_s) if lease else partial(self._look, timeout_s)
        prompt = self._read(tokens)
        found = look(prompt)
        return look(self._read(tokens)) if self._outdated(tokens, prompt) else found

    @override
    def contains(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        return self._look(timeout_s, self._read(tokens), touch=False).tokens

    @override
    def explain(self, tokens: Tokens, *, timeout_s: float = 5.0) -> Explanation:
        prompt = self._read(tokens)
        report = self._ask(Report, protocol.Explain, prompt.cut(HASHES_MAX), waits_s=timeout_s)
        if report is not None:
            try:
                return msgspec.convert(report.report, Explanation)
            except msgspec.ValidationError:
                self._caller.nonsense()
        why = "no cache server answers"
        return Explanation(
            tokens=prompt.tokens,
            chunk_size=prompt.chunk_size,
            places=tuple(
                ChunkPlace(chunk=chunk, where=(), memory="absent", why=why)
                for chunk in range(prompt.chunks)
            ),
            decision=decide(prompt.tokens, 0, [], PrefillModel()),
            stores={},
            identities=(),
        )

    # --- Loading ---

    @override
    def retrieve(
        self,
        tokens: Tokens,
        into: Sequence[BufferLike] | None = None,
        *,
        limit_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Retrieved:
        prompt = self._read(tokens, limit_tokens)
        limit_s, began = self._limit(timeout_s), time.monotonic()
        found = self._transfer.retrieve(prompt, into, limit_s)
        if self._outdated(tokens, prompt):
            found.release()
            prompt = self._read(tokens, limit_tokens)
            found = self._transfer.retrieve(prompt, into, limit_s)
        took_s = time.monotonic() - began
        self.metrics.retrieved(took_s)
        size_bytes = found.tokens // self.layout.chunk_size * self.layout.chunk_bytes
        self._lines.retrieved(prompt.tokens, found.tiers, size_bytes, took_s, found.reason)
        return found

    @override
    def prefetch(self, tokens: Tokens, *, timeout_s: float | None = None) -> Future[int]:
        prompt, limit_s = self._read(tokens), self._limit(timeout_s)
        ask = partial(self._count, prompt, protocol.Prefetch, waits_s=limit_s)
        return self._start(ask)

    # --- Storing ---

    @override
    def store(
        self, tokens: Tokens, chunks: Sequence[BufferLike], *, first_chunk: int = 0
    ) -> Stored:
        prompt = self._read(tokens)
        if isinstance(tokens, Prompt) and prompt.chunks < tokens.chunks:  # of before a clear
            return Stored(chunks=0, known=0, shed=len(chunks))
        began = time.monotonic()
        stored = self._transfer.store(prompt, chunks, first_chunk)
        given = prompt.tokens - first_chunk * self.layout.chunk_size
        took_s = time.monotonic() - began
        self._feedback.stored(stored, took_s)
        self._lines.offered(given, stored, self.layout, took_s)
        return stored

    # --- Keeping ---

    @override
    def pin(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        return self._count(self._read(tokens), protocol.Pin, waits_s=self._limit(timeout_s))

    @override
    def unpin(self, tokens: Tokens) -> int:
        prompt = self._read(tokens)
        return self._tokens(prompt, self._ask(Count, protocol.Unpin, prompt.first(HASHES_MAX)))

    @property
    @override
    def generation(self) -> bytes:
        session = self._sessions.session
        return joined(self._own, session.shared if session is not None else shared_of(FIRST))

    @override
    def clear(
        self,
        *,
        stores: bool = True,
        everybody: bool = False,
        weights_version: str | None = None,
    ) -> int:
        # It is done when this returns, whether the server is there or not. Other engines of the
        # server go on with what they have.
        self._check_open()
        check_clear(stores=stores, everybody=everybody, weights_version=weights_version)
        if stores and not everybody:
            ended = self._own
            self._own = after_clear(weights_version)
            return self._renewed(ended, self._own)
        count = self._clear(stores=stores, everybody=everybody, ended=b"")
        if everybody and count is None:
            raise UnavailableError(f"{self.url} did not clear for everybody; do it again")
        return count or 0

    @override
    def renewed(self, ended: bytes, own: bytes) -> None:
        self._check_open()
        self._renewed(ended, own)

    def _renewed(self, ended: bytes, own: bytes) -> int:
        """`renewed`; how many chunks the server's memory lost at once."""
        self._own = own
        if ended == own:
            return 0
        with self._over_lock:
            self._over[ended] = None
            self._over.pop(own, None)
            while len(self._over) > _OVER_MAX:
                self._over.popitem(last=False)
        gone = ended if drawn_here(ended) else b""  # others may go on with all else
        return self._clear(stores=True, everybody=False, ended=gone) or 0

    # --- Knowing ---

    @override
    def observe_step(self, new_tokens: int, pairs: int, decodes: int, took_s: float) -> None:
        self._feedback.observe_step(new_tokens, pairs, decodes, took_s)

    @override
    def expect_prefill(self, coefficients: Coefficients, step_tokens: int | None = None) -> None:
        self._check_open()
        self._feedback.expect(coefficients, step_tokens)

    @override
    def stats(self) -> dict[str, Any]:
        """What this client counted, and under "server" what its server did; {} without one.

        The bytes of sockets are those of all messages: chunks are in none.
        """
        self._check_open()
        session = self._sessions.session
        known = {
            **self._counters.read(),
            "url": self.url,
            "available": self.available,
            "refused": self.refused,
            "incarnation": session.incarnation if session is not None else "",
        }
        report = self._ask(Report, protocol.Stats)
        return {**known, "server": report.report if report is not None else {}}

    @override
    def close(self, timeout_s: float = FLUSH_S) -> bool:
        """End the session: what it holds is released, what it stored stays, and is written by the
        server. Calls under way end at once, with a miss."""
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._finalizer()
        return True

    def __repr__(self) -> str:
        state = "closed" if self._closed else "available" if self.available else "away"
        return f"<Client {self.identity.model!r} {self.url} {state}>"

    # --- Questions: what moves no chunk ---

    def _look(self, timeout_s: float | None, prompt: Prompt, *, touch: bool = True) -> Lookup:
        """How much of a prompt there is; without a server, nothing."""
        limits = {"waits_s": timeout_s}
        if timeout_s is None:
            limit_s = self._caller.timeout_s
            limits = {"waits_s": limit_s * _STORES_SHARE, "limit_s": limit_s}
        return self._found(prompt, touch, **limits)

    def _leased(self, timeout_s: float | None, prompt: Prompt) -> Lookup:
        """`_look`; what pays is in the server's memory then, and kept until it is loaded."""
        if not self.available:  # nobody was asked, so nothing was missed
            return Lookup(tokens=0, tiers={MEMORY: 0}, reason="unavailable")
        limit_s, silent_s = self._limit(timeout_s), self._lookup_timeout_s
        if silent_s is None:
            silent_s = self._feedback.patience_s(prompt, limit_s)
        # Of that, the server has a part to show that it lives.
        silent_s = max(silent_s / 2, silent_s - SUSPECT_S)
        began, limits = time.monotonic(), {"waits_s": limit_s, "silent_s": silent_s}
        found = self._found(prompt, True, True, **limits)
        self._feedback.looked_up(prompt, found, time.monotonic() - began)
        self._count_rest(prompt, found.tokens // prompt.chunk_size, found.reason)
        return found

    def _found(self, prompt: Prompt, *fields: bool, **limits: float | None) -> Lookup:
        nothing = Lookup(tokens=0, tiers={MEMORY: 0})
        if not prompt.chunks:
            return nothing
        found = self._ask(Found, LookupRequest, prompt.cut(HASHES_MAX), *fields, **limits)
        if found is None:
            return nothing
        size = prompt.chunk_size
        tiers = in_tokens(found.tiers, size)
        # Chunks that are coming into memory may be in a store as well, and count in both sums.
        ends = (sum(tiers.values()), tiers.get(MEMORY, 0) + found.coming * size)
        if max(ends) > prompt.chunks * size or found.coming < 0:
            self._caller.nonsense()
            return nothing
        return Lookup(
            tokens=sum(tiers.values()),
            tiers=tiers,
            arriving_tokens=found.coming * size,
            reason=found.reason,
        )

    def _clear(self, *, stores: bool, everybody: bool, ended: bytes) -> int | None:
        """Forget chunks, see `protocol.Clear`; how many in memory, None if nobody answers.

        Raises:
            UsageError, UnavailableError: `everybody`, and the server refuses.
        """
        limits = {}
        if everybody:
            limits = {"waits_s": max(self._retrieve_timeout_s, _EVERYBODY_S), "raises": True}
        count = self._ask(Count, protocol.Clear, stores, everybody, ended, **limits)
        return max(0, count.count) if count is not None else None

    def _count(self, prompt: Prompt, kind: type[Request], **limits: float) -> int:
        """A request about a prompt that is answered with a number of chunks; in tokens."""
        if not prompt.chunks:
            return 0
        told = self._ask(Count, kind, prompt.cut(HASHES_MAX), **limits)
        return self._tokens(prompt, told)

    @staticmethod
    def _tokens(prompt: Prompt, told: Count | None) -> int:
        return min(max(0, told.count), prompt.chunks) * prompt.chunk_size if told else 0

    def _ask(self, answer: type[R], kind: type[Request], *fields: Any, **limits: Any) -> R | None:
        session = self._caller.session()
        return self._caller.ask(session, answer, kind, *fields, **limits) if session else None

    # --- Inside ---

    @override
    def _read(self, tokens: Tokens, limit_tokens: int | None = None) -> Prompt:
        self._check_open()
        prompt = read_prompt(
            tokens, self.layout.chunk_size, self._salt, limit_tokens, self.generation
        )
        if isinstance(tokens, Prompt) and own_of(tokens.generation) in self._over:
            return Prompt(b"", prompt.tokens, prompt.chunk_size, prompt.generation)
        return prompt

    def _outdated(self, tokens: Tokens, prompt: Prompt) -> bool:
        """Whether the answer has said that others cleared, so that it is to be asked anew."""
        return not isinstance(tokens, Prompt) and prompt.generation != self.generation

    def _limit(self, timeout_s: float | None) -> float:
        return self._retrieve_timeout_s if timeout_s is None else timeout_s

    @override
    def _retrieving(
        self, prompt: Prompt, into: Sequence[BufferLike] | None, timeout_s: float | None
    ) -> Callable[[], Retrieved]:
        return partial(self._transfer.retrieve, prompt, into, self._limit(timeout_s))
