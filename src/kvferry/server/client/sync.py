"""The engine's side of the cache server: the calls of `kvferry.TieredCache`, for a pool of others.

    client = Client(identity, "ipc:///run/kvferry.sock")
    client.store(tokens, chunks)
    with client.retrieve(tokens) as hit:      # pages of the server, in place
        use(hit.tokens, hit.arrays)

Every engine process of a host has a client, and all of them share what any of them stores. Chunks
are copied straight into the server's shared memory, and out of it: over the socket go hashes and
page numbers only, which `stats` counts.

- No call raises because of the server's state, and none waits longer than stated. Without a server
  there is no cache: nothing is found, nothing is stored, and it costs next to nothing to ask.
- The log says once that it is away. When it is back, or another one is, all goes on by itself.
- What `retrieve` brings was there all the time; a lease that ended too soon makes it a miss.

Any number of threads may use a client. After a fork the child has to open one of its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Self, TypeVar

import msgspec

from kvferry.base.errors import ClosedError, UnavailableError
from kvferry.base.threads import Workers
from kvferry.cache import Lookup, Retrieved, Stored
from kvferry.cache.clearing import check_clear
from kvferry.cache.cost.load_or_compute import decide
from kvferry.cache.cost.prefill import Coefficients, PrefillModel
from kvferry.cache.explain import ChunkPlace, Explanation
from kvferry.cache.request_log import RequestLog
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
from kvferry.server.client.session_thread import SessionThread
from kvferry.server.client.transfer import Transfer, in_tokens
from kvferry.server.protocol import HASHES_MAX, Count, Done, Found, Reply, Report, Request

__all__ = ["Client"]

T = TypeVar("T")
R = TypeVar("R", bound=Reply)

_log = logging.getLogger("kvferry.server.client")

_FIRST_WAIT_S = 0.5  # for the server, when a client is made
_COPY_THREADS_MAX = 4
_BACKGROUND_THREADS = 8
_OVER_MAX = 1000  # generations that this client remembers to have ended
# The part of a lookup's time that the server may spend on asking stores.
_STORES_SHARE = 0.8
_EVERYBODY_S = 15.0  # for a clear for everybody: all stores answer, one after the other


class Client:
    """A cache in the memory of a server on this host.

    Args:
        identity: What the bytes are; its layout says how long and of what shape a chunk is.
        url: Of the server: "tcp://localhost:6555" or "ipc:///run/kvferry.sock". Default:
            ``KVFERRY_SERVER_URL``, else "tcp://localhost:5555".
        salt: Separates tenants: with another salt, the same tokens are other chunks. The server is
            not told.
        timeout_s: Limit of each question that the server answers from memory.
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
        retrieve_timeout_s: float = 10.0,
        copy_threads: int | None = None,
        token_file: str | os.PathLike[str] | None = None,
        weights_version: str = "",
        prefault: bool = True,
    ) -> None:
        self.identity = identity
        self.layout = identity.layout
        self.url = read_url(url)
        self._salt = salt
        self._lines = RequestLog(_log)
        self._own = named(weights_version)
        self._over: OrderedDict[bytes, None] = OrderedDict()
        self._over_lock = threading.Lock()
        self._retrieve_timeout_s = retrieve_timeout_s
        self._pid = os.getpid()
        self._closed = False
        token = token_reader(token_file)
        self._counters = Counters()
        self._executor = Workers(_BACKGROUND_THREADS, "client")
        self._sessions = SessionThread(self.url, identity, token, self._counters, prefault=prefault)
        # At the latest at the end of the program.
        self._finalizer = weakref.finalize(self, self._sessions.close)
        self._caller = Caller(self._sessions, self._counters, timeout_s)
        threads = copy_threads or min(_COPY_THREADS_MAX, os.cpu_count() or 1)
        self._transfer = Transfer(self._caller, self.layout, threads)
        self._sessions.wait(_FIRST_WAIT_S)

    @property
    def available(self) -> bool:
        """Whether there is a server that answers."""
        session = self._sessions.session
        return session is not None and not session.doubted and not self._closed

    @property
    def refused(self) -> str:
        """Why the server does not work with us, for people; "" if it does, or is away."""
        return self._sessions.refused

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is a server, or one that refuses us; whether there is one to use."""
        self._check_open()
        return self._sessions.wait(timeout_s)

    # --- Asking ---

    def lookup(
        self, tokens: Tokens, *, timeout_s: float | None = None, limit_s: float | None = None
    ) -> Lookup:
        """How much of a prompt could be had now; what is found counts as used.

        Args:
            tokens: Of the prompt.
            timeout_s: How long the server may ask its stores; default: most of `limit_s`.
            limit_s: Of the call; default: that of the client, or a little more than `timeout_s`.
                Without `timeout_s` the server asks its stores as long as that can pay.
        """
        prompt = self._read(tokens)
        found = self._look(prompt, timeout_s, limit_s, touch=True)
        if self._outdated(tokens, prompt):
            found = self._look(self._read(tokens), timeout_s, limit_s, touch=True)
        return found

    def contains(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        """How many tokens of the prefix some tier has. Changes nothing: nothing counts as used."""
        return self._look(self._read(tokens), timeout_s, touch=False).tokens

    def explain(self, tokens: Tokens, *, timeout_s: float = 5.0) -> Explanation:
        """Where each chunk of a prompt is, or why it is not, and what would be done about it."""
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

    def retrieve(
        self,
        tokens: Tokens,
        into: Sequence[BufferLike] | None = None,
        *,
        limit_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Retrieved:
        """Bring the prefix of a prompt, as much of it as pays.

        Args:
            tokens: Of the whole prompt, those behind the last full chunk too: what they cost to
                compute enters the decision.
            into: A writable buffer for each full chunk of the prompt (or of `limit_tokens`); those
                behind the result are undefined. None: the result has pages to read from, of the
                server; its `release` tells whether they were ours until then.
            limit_tokens: Take no more than so many.
            timeout_s: How long the server may load; default: `retrieve_timeout_s`.

        Raises:
            UsageError: `into` has too few buffers; nothing was loaded.
            BadBufferError: A buffer is read-only or has another length.
        """
        prompt = self._read(tokens, limit_tokens)
        limit_s, began = self._limit(timeout_s), time.monotonic()
        found = self._transfer.retrieve(prompt, into, limit_s)
        if self._outdated(tokens, prompt):
            found.release()
            prompt = self._read(tokens, limit_tokens)
            found = self._transfer.retrieve(prompt, into, limit_s)
        took_s = time.monotonic() - began
        size_bytes = found.tokens // self.layout.chunk_size * self.layout.chunk_bytes
        self._lines.retrieved(prompt.tokens, found.tiers, size_bytes, took_s, found.reason)
        return found

    def begin_retrieve(
        self,
        tokens: Tokens,
        into: Sequence[BufferLike] | None = None,
        *,
        limit_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[Retrieved]:
        """`retrieve` in a thread of the client. `into` is in use until the future is done."""
        prompt = self._read(tokens, limit_tokens)
        return self._start(self._transfer.retrieve, prompt, into, self._limit(timeout_s))

    def prefetch(self, tokens: Tokens, *, timeout_s: float | None = None) -> Future[int]:
        """Bring the prefix of a prompt into memory, in a thread; how many tokens are there then."""
        prompt, limit_s = self._read(tokens), self._limit(timeout_s)
        ask = partial(self._count, prompt, protocol.Prefetch, True, waits_s=limit_s)
        return self._start(ask)

    # --- Storing ---

    def store(
        self, tokens: Tokens, chunks: Sequence[BufferLike], *, first_chunk: int = 0
    ) -> Stored:
        """Keep the KV of a prompt: in the server's memory now, in its stores soon.

        Args:
            tokens: Of the whole prompt, from its beginning.
            chunks: A buffer for each full chunk from `first_chunk` on, of the layout's length;
                free to be reused when the call returns.
            first_chunk: How many full chunks of the prefix are left out.

        Raises:
            UsageError: The number of buffers is another one.
            BadBufferError: A buffer is not contiguous, or has another length.
        """
        prompt = self._read(tokens)
        if isinstance(tokens, Prompt) and prompt.chunks < tokens.chunks:  # of before a clear
            return Stored(chunks=0, known=0, shed=len(chunks))
        began = time.monotonic()
        stored = self._transfer.store(prompt, chunks, first_chunk)
        given = prompt.tokens - first_chunk * self.layout.chunk_size
        self._lines.offered(given, stored, self.layout, time.monotonic() - began)
        return stored

    # --- Keeping ---

    def pin(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        """Load the prefix of a prompt and keep it in memory until `unpin`; how many tokens are."""
        return self._count(self._read(tokens), protocol.Pin, waits_s=self._limit(timeout_s))

    def unpin(self, tokens: Tokens) -> int:
        """Undo a `pin`; how many tokens lost one."""
        prompt = self._read(tokens)
        return self._tokens(prompt, self._ask(Count, protocol.Unpin, prompt.first(HASHES_MAX)))

    @property
    def generation(self) -> bytes:
        """What prompts are hashed with from now on; see `kvferry.chunks.generation`."""
        session = self._sessions.session
        return joined(self._own, session.shared if session is not None else shared_of(FIRST))

    def clear(
        self,
        *,
        stores: bool = True,
        everybody: bool = False,
        weights_version: str | None = None,
    ) -> int:
        """Forget everything; how many chunks the server's memory lost at once.

        It is done when this returns, whether the server is there or not; the arguments are those of
        `kvferry.TieredCache.clear`. Other engines of the server go on with what they have.

        Raises:
            KVFerryError: As there; or the server does not answer.
        """
        self._check_open()
        check_clear(stores=stores, everybody=everybody, weights_version=weights_version)
        if stores and not everybody:
            ended = self._own
            self._own = after_clear(weights_version)
            return self.renewed(ended, self._own)
        count = self._clear(stores=stores, everybody=everybody, ended=b"")
        if everybody and count is None:
            raise UnavailableError(f"{self.url} did not clear for everybody; do it again")
        return count or 0

    def renewed(self, ended: bytes, own: bytes) -> int:
        """Somebody who hashes prompts for this client has cleared; see `kvferry.chunks.generation`.

        Args:
            ended, own: His half before, and from now on.
        """
        self._check_open()
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

    def observe_prefill(self, tokens: int, cached_tokens: int, took_s: float) -> None:
        """Tell what the engine took to compute a prompt behind `cached_tokens` of its tokens."""
        self._check_open()
        self._ask(Done, protocol.Observe, tokens, cached_tokens, took_s)

    def expect_prefill(self, coefficients: Coefficients, step_tokens: int = 0) -> None:
        """Tell how long the engine computes, as it was learnt; see `kvferry.cache.cost.prefill`."""
        self._check_open()
        self._ask(Done, protocol.Speed, coefficients, step_tokens)

    def counted(self, sums: Mapping[str, Any], histograms: Mapping[str, Any]) -> None:
        """Have the server's metrics contain what only its engine can know; see `Counted`."""
        self._check_open()
        self._ask(Done, protocol.Counted, sums, histograms)

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

    def close(self) -> None:
        """End the session: what it holds is released, what it stored stays.

        Calls under way end at once, with a miss. Pages of results that were not released stay valid
        memory; what lies in them is no longer known, and their `release` says so.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "available" if self.available else "away"
        return f"<Client {self.identity.model!r} {self.url} {state}>"

    # --- Questions: what moves no chunk ---

    def _look(
        self,
        prompt: Prompt,
        timeout_s: float | None,
        limit_s: float | None = None,
        *,
        touch: bool,
    ) -> Lookup:
        """How much of a prompt there is; without a server, nothing."""
        nothing = Lookup(tokens=0, tiers={MEMORY: 0})
        if not prompt.chunks:
            return nothing
        patient = False
        if timeout_s is not None and limit_s is None:
            limits = {"waits_s": timeout_s}
        else:
            patient = timeout_s is None and limit_s is not None
            limit_s = self._caller.timeout_s if limit_s is None else limit_s
            waits_s = limit_s * _STORES_SHARE
            waits_s = waits_s if timeout_s is None else min(waits_s, timeout_s)
            limits = {"waits_s": waits_s, "limit_s": limit_s}
        found = self._ask(
            Found,
            protocol.LookupRequest,
            prompt.cut(HASHES_MAX),
            touch,
            patient,
            **limits,
        )
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

    def _count(self, prompt: Prompt, kind: type[Request], *fields: Any, **limits: float) -> int:
        """A request about a prompt that is answered with a number of chunks; in tokens."""
        if not prompt.chunks:
            return 0
        told = self._ask(Count, kind, prompt.cut(HASHES_MAX), *fields, **limits)
        return self._tokens(prompt, told)

    @staticmethod
    def _tokens(prompt: Prompt, told: Count | None) -> int:
        return min(max(0, told.count), prompt.chunks) * prompt.chunk_size if told else 0

    def _ask(self, answer: type[R], kind: type[Request], *fields: Any, **limits: Any) -> R | None:
        session = self._caller.session()
        return self._caller.ask(session, answer, kind, *fields, **limits) if session else None

    # --- Inside ---

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

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the client is closed")
        if os.getpid() != self._pid:
            raise ClosedError("the client belongs to the process that forked; open another one")

    def _limit(self, timeout_s: float | None) -> float:
        return self._retrieve_timeout_s if timeout_s is None else timeout_s

    def _start(self, call: Callable[..., T], *args: Any) -> Future[T]:
        try:
            return self._executor.submit(call, *args)
        except RuntimeError:  # between our check and here
            raise ClosedError("the client is closed") from None
