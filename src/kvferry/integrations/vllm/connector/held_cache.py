"""A cache server as an engine's worker uses it: what was promised is held until it is loaded.

The scheduler asks how much of a prompt can be loaded, and may wait before it does anything about
the answer: for blocks, or for its turn. Meanwhile another engine may fill the server's memory, and
what lay in a store takes its time to come. So here the answer is made true before it is given:
chunks are brought into the server's memory and leased (`find`), and the load that follows reads
those pages (`retrieve`). Between the two nobody can evict them.

What is held and not loaded is let go after `hold_s`.

- A server that is away is not asked: that costs nothing. One that does not answer costs half of
  what computing the prompt takes, once, until it shows that it lives.
- Only what stores have is waited for longer: as long as that pays, and up to `load_timeout_s`. The
  server decides that, by what steps took here, which it is told now and then.
- An engine may hold half of the server's memory, or what `--client-share` says. What lies there
  beyond that is promised too, unheld: should it go, its blocks are reported, and computed.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from kvferry.base.errors import KVFerryError
from kvferry.base.threads import Guarded, Workers, noticed
from kvferry.cache import Lookup, Retrieved, Stored
from kvferry.cache.cost.prefill import Coefficients, PrefillModel
from kvferry.cache.store.store_tiers import MEMORY
from kvferry.chunks.generation import shared_of
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.chunks.prompt import Prompt, Tokens
from kvferry.client.buffers import BufferLike
from kvferry.integrations.vllm.connector.finder import count_rest, reason_of_miss
from kvferry.integrations.vllm.connector.interfaces import Cache
from kvferry.metrics import CacheMetrics
from kvferry.metrics.deltas import MetricDeltas, add_deltas

__all__ = ["SHOWN", "HeldCache"]

_OF_ENGINE = ("kvferry_ttft_share", "kvferry_memory_seconds", "kvferry_memory_bytes")
_UNASKED = ("kvferry_tokens_requested", "kvferry_missed_chunks")
# The families that an engine can show; the server has the others.
SHOWN = (
    *("kvferry_tokens_requested", "kvferry_tokens_hit", "kvferry_bytes_hit"),
    *("kvferry_missed_chunks", "kvferry_lookup_seconds", "kvferry_retrieve_seconds"),
    *("kvferry_shed_chunks", *_OF_ENGINE),
)

# Chunks that no load has used are let go after this: the request was aborted, or asks again.
HOLD_S = 10.0
# For pages that are in memory already: the time of one message, and not of stores.
_HERE_S = 0.25
# How long a server that does not answer is waited for, as a share of the time of computing.
_HUNG_SHARE = 0.5
# How often the server is told how quickly we compute, and by which change at least.
_TELL_EVERY_S = 1.0
_TELL_CHANGE_MIN = 0.05


class _Server(Cache, Protocol):
    """A cache whose look-ups have a limit of their own: `kvferry.server.Client`."""

    def lookup(
        self, tokens: Tokens, *, timeout_s: float | None = None, limit_s: float | None = None
    ) -> Lookup: ...

    def close(self) -> object: ...

    def expect_prefill(self, coefficients: Coefficients, step_tokens: int = 0) -> None: ...

    def counted(self, sums: Mapping[str, Any], histograms: Mapping[str, Any]) -> None: ...


class _Hold:
    """Leased pages of the leading chunks of a prompt."""

    __slots__ = ("first", "hashes", "hit", "until")

    def __init__(self, first: int, hashes: bytes, hit: Retrieved, until: float) -> None:
        self.first = first  # chunk; the engine had the chunks before it
        self.hashes = hashes  # of the chunks that are leased
        self.hit = hit
        self.until = until


class HeldCache:
    """A `Backend` and a `Finder` over one client of a cache server.

    Args:
        client: Closed with this.
        lookup_timeout_s: What a look-up may take, all in all; None: as long as that can pay.
        load_timeout_s: What bringing chunks out of stores may take.
        hold_s: How long they are held.
        clock: For tests; as ``time.monotonic``.
        thread_start: What a thread of this does first.
        chunk_bytes: Length of a chunk, to be counted.
    """

    def __init__(
        self,
        client: _Server,
        *,
        lookup_timeout_s: float | None,
        load_timeout_s: float,
        hold_s: float = HOLD_S,
        clock: Callable[[], float] = time.monotonic,
        thread_start: Callable[[], object] | None = None,
        chunk_bytes: int = 0,
    ) -> None:
        self._client = client
        self._meter = _HeldMeter(chunk_bytes)
        self._lookup_timeout_s = lookup_timeout_s
        self._load_timeout_s = load_timeout_s
        self._hold_s = hold_s
        self._clock = clock
        self._thread_start = thread_start
        self.prefill = PrefillModel()
        self._told: tuple[float, ...] = ()
        self._tell_at = 0.0
        self._teller = Workers(1, "speed", thread_start)
        self._changed = threading.Condition()
        self._holds: dict[bytes, _Hold] = {}  # by the hashes that were asked for
        self._finding = 0
        self._closed = False
        self._sweeper: threading.Thread | None = None

    @property
    def available(self) -> bool:
        """Whether there is a server that answers."""
        return not self._closed and self._client.available

    # --- As a finder ---

    def find(self, prompt: Prompt) -> int:
        """How many leading chunks are in the server's memory now, and stay there to be loaded."""
        if not self.available:
            return 0
        held = self._renewed(prompt)
        if held is not None:
            return held
        with self._changed:
            self._finding += 1
        try:
            return self._bring(prompt)
        except KVFerryError:  # it is being closed
            return 0
        finally:
            with self._changed:
                self._finding -= 1
                self._changed.notify_all()

    def _bring(self, prompt: Prompt) -> int:
        size = prompt.chunk_size
        began = time.monotonic()
        found = self._client.lookup(prompt, limit_s=self._limit_s(prompt))
        self._meter.looked_up(prompt, found, time.monotonic() - began)
        chunks = found.tokens // size
        if chunks * size <= prompt.computed_tokens:
            return chunks  # the engine has as much itself, and loads nothing
        here = found.tiers.get(MEMORY, 0) // size
        wanted = prompt if found.arriving_tokens else prompt.cut(chunks)
        limit_s = self._load_timeout_s if chunks > here else _HERE_S
        first, wanted = wanted.behind_computed()
        if not wanted.chunks:
            return first
        began = time.monotonic()
        hit = self._client.retrieve(wanted, timeout_s=limit_s)
        self._meter.retrieved(wanted, hit, time.monotonic() - began)
        count = len(hit.pages)
        # An engine may not hold all of the pool, and many requests may wait. What is in memory
        # without being held is still likely to be there in a moment.
        promised = max(first + count, here) if hit.reason == "pool_full" else first + count
        if not count:
            return promised
        hold = _Hold(first, wanted.first(count), hit, self._clock() + self._hold_s)
        with self._changed:
            old = self._holds.pop(prompt.hashes, None)
            kept = not self._closed
            if kept:
                self._holds[prompt.hashes] = hold
                self._start_sweeper()
        for gone in (old, None if kept else hold):
            if gone is not None:
                gone.hit.release()
        return promised if kept else 0

    def _limit_s(self, prompt: Prompt) -> float:
        """How long to wait for a server that may be hung."""
        if self._lookup_timeout_s is not None:
            return self._lookup_timeout_s
        model = self.prefill
        if not model.known:
            return _HERE_S
        compute_s = model.predict_s(prompt.tokens, prompt.computed_tokens)
        limit_s = model.total_s(*prompt.queued) + max(_HERE_S, _HUNG_SHARE * compute_s)
        return min(limit_s, self._load_timeout_s)

    def now(self, prompt: Prompt) -> int | None:
        """See `Finder`: nothing, while there is no server."""
        return None if self.available else 0

    @property
    def shared(self) -> bytes:
        """See `Finder`."""
        return shared_of(self._client.generation)

    def wait(self, timeout_s: float) -> None:
        """Wait until a `find` that is under way has ended, for so long at most."""
        with self._changed:
            if self._finding:
                self._changed.wait(timeout_s)

    # --- As a backend ---

    def lookup(self, tokens: Tokens, *, timeout_s: float | None = None) -> Lookup:
        """See `kvferry.server.Client.lookup`."""
        return self._client.lookup(tokens, timeout_s=timeout_s)

    def retrieve(
        self,
        tokens: Tokens,
        into: Sequence[BufferLike] | None = None,
        *,
        limit_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Retrieved:
        """What is held of these chunks, else as `kvferry.server.Client.retrieve`.

        A hold is used once: it ends with the result's `release`, which says whether it was in force
        until then.
        """
        if isinstance(tokens, Prompt) and into is None and limit_tokens is None:
            taken = self._take(tokens.hashes)
            if taken is not None:
                hold, first = taken
                chunks = tokens.chunks
                return Retrieved(
                    tokens=chunks * tokens.chunk_size,
                    tiers={MEMORY: chunks * tokens.chunk_size},
                    decision=None,
                    reason="",
                    lookup_s=hold.hit.lookup_s,
                    load_s=hold.hit.load_s,
                    pages=hold.hit.pages[first : first + chunks],
                    release=hold.hit.release,
                )
        return self._client.retrieve(tokens, into, limit_tokens=limit_tokens, timeout_s=timeout_s)

    def store(
        self, tokens: Tokens, chunks: Sequence[BufferLike], *, first_chunk: int = 0
    ) -> Stored:
        """See `kvferry.server.Client.store`."""
        began = time.monotonic()
        stored = self._client.store(tokens, chunks, first_chunk=first_chunk)
        self._meter.stored(stored, time.monotonic() - began)
        return stored

    def expect_prefill(self, coefficients: Coefficients, step_tokens: int) -> None:
        """What computing is thought to take until steps say otherwise."""
        self.prefill.step_tokens = step_tokens
        self.prefill.expect(coefficients)

    def observe_step(self, new_tokens: int, pairs: int, decodes: int, took_s: float) -> None:
        """Learn what a step took, and tell the server now and then."""
        self.prefill.observe_step(new_tokens, pairs, decodes, took_s)
        now = self._clock()
        if now < self._tell_at or not self.available:
            return
        self._tell_at, known = now + _TELL_EVERY_S, self.prefill.coefficients
        if deltas := self._meter.deltas():
            with suppress(RuntimeError):  # it is being closed
                told = (deltas.get("counters", {}), deltas.get("histograms", {}))
                self._teller.submit(self._client.counted, *told)
        pairs_of = zip(known, self._told, strict=True) if self._told else ()
        if self._told and all(abs(new - old) <= _TELL_CHANGE_MIN * old for new, old in pairs_of):
            return
        self._told = known
        with suppress(RuntimeError):  # it is being closed
            self._teller.submit(self._client.expect_prefill, known, self.prefill.step_tokens)

    @property
    def metrics(self) -> CacheMetrics:
        """What the engine sees of the server."""
        return self._meter.metrics

    @property
    def generation(self) -> bytes:
        """See `kvferry.server.Client.generation`."""
        return self._client.generation

    def renewed(self, ended: bytes, own: bytes) -> None:
        """See `kvferry.server.Client.renewed`; what is held is let go."""
        self._drop(lambda hold: True)
        with suppress(KVFerryError):  # it is being closed
            self._client.renewed(ended, own)

    def stats(self) -> dict[str, Any]:
        """Those of the client, and how many prompts are held."""
        with self._changed:
            holds = len(self._holds)
        return {**self._client.stats(), "holds": holds}

    def close(self, timeout_s: float = 0.0) -> object:
        """Let everything go, and end the session; nothing of ours waits for stores."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._teller.shutdown(wait=False, cancel_futures=True)
        self._drop(lambda hold: True)
        return self._client.close()

    # --- Holds ---

    def _renewed(self, prompt: Prompt) -> int | None:
        """How many chunks of a prompt are held, for another while; None: it is not held."""
        with self._changed:
            hold = self._holds.get(prompt.hashes)
            now = self._clock()
            if hold is None or hold.until <= now or prompt.behind_computed()[0] < hold.first:
                return None
            hold.until = now + self._hold_s
            return hold.first + len(hold.hashes) // DIGEST_BYTES

    def _take(self, hashes: bytes) -> tuple[_Hold, int] | None:
        """A hold that has all of these chunks, one after the other, and where they begin."""
        with self._changed:
            now = self._clock()
            for key, hold in self._holds.items():
                first = _place(hashes, hold.hashes)
                if first is not None and hold.until > now:
                    del self._holds[key]
                    return hold, first
        return None

    def _drop(self, which: Callable[[_Hold], bool]) -> None:
        with self._changed:
            gone = [key for key, hold in self._holds.items() if which(hold)]
            holds = [self._holds.pop(key) for key in gone]
        for hold in holds:
            try:
                hold.hit.release()
            except Exception as error:  # the others are let go all the same
                noticed("holds", error)

    def _start_sweeper(self) -> None:
        """With the lock."""
        if self._sweeper is None:
            self._sweeper = Guarded(self._sweep, "holds")
            self._sweeper.start()

    def _sweep(self) -> None:
        """Let go what nobody has loaded. The thread ends when nothing is held."""
        if self._thread_start is not None:
            self._thread_start()
        while True:
            with self._changed:
                if not self._holds or self._closed:
                    self._sweeper = None
                    return
                left_s = min(hold.until for hold in self._holds.values()) - self._clock()
                if left_s > 0:
                    self._changed.wait(left_s)
                    continue
            now = self._clock()
            self._drop(lambda hold, now=now: hold.until <= now)  # type: ignore[misc]


class _HeldMeter:
    """What an engine sees of a cache server, for its own ``/metrics`` and for the server's.

    The server counts what is loaded and stored there. It is told now and then what it cannot know:
    what a request wanted and was not even asked for, because a look-up said that it is not there;
    copies between the shared memory and the engine; the times to first tokens. Threads: any.

    Args:
        chunk_bytes: Length of a chunk.

    Attributes:
        metrics: What the engine shows.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self.metrics = CacheMetrics()
        self._chunk_bytes = chunk_bytes
        self._unasked = CacheMetrics()
        self._lock = threading.Lock()
        self._deltas = (
            MetricDeltas(self.metrics, only=_OF_ENGINE),
            MetricDeltas(self._unasked, only=_UNASKED),
        )

    def looked_up(self, prompt: Prompt, found: Lookup, took_s: float) -> None:
        """A look-up is over."""
        self.metrics.looked_up(took_s)
        chunks = found.tokens // prompt.chunk_size
        if not found.arriving_tokens:  # else all of it is retrieved
            for metrics in (self.metrics, self._unasked):
                count_rest(metrics, prompt, chunks, found.reason)

    def retrieved(self, prompt: Prompt, hit: Retrieved, took_s: float) -> None:
        """A retrieve is over."""
        size, metrics = prompt.chunk_size, self.metrics
        metrics.retrieved(took_s)
        metrics.requested(prompt.chunks * size)
        for tier, tokens in hit.tiers.items():
            if tokens:
                metrics.hit(tier, tokens, tokens // size * self._chunk_bytes)
        missed = prompt.chunks - hit.tokens // size
        if missed > 0:
            metrics.missed(reason_of_miss(hit.reason), missed)

    def stored(self, stored: Stored, took_s: float) -> None:
        """A store is over."""
        if stored.chunks:
            self.metrics.copied("in", stored.chunks * self._chunk_bytes, took_s)
        if stored.shed:
            self.metrics.shed("pool_full", stored.shed)

    def deltas(self) -> dict[str, Any]:
        """What the server does not know yet; empty where there is nothing."""
        told: dict[str, Any] = {}
        with self._lock:
            for deltas in self._deltas:
                add_deltas(told, deltas.take())
        return {
            kind: families
            for kind, said in told.items()
            if (families := {name: grown for name, of in said.items() if (grown := _grown(of))})
        }


def _grown(labels: dict[str, Any]) -> dict[str, Any]:
    """Without the series that have not grown, and are there because they exist."""
    return {label: value for label, value in labels.items() if _any(value)}


def _any(value: Any) -> bool:
    return sum(value[1]) > 0 if isinstance(value, list) else value > 0


def _place(some: bytes, hashes: bytes) -> int | None:
    """The chunk of `hashes` from which on it has `some`."""
    at = hashes.find(some)
    while at > 0 and at % DIGEST_BYTES:  # across two hashes
        at = hashes.find(some, at + 1)
    return at // DIGEST_BYTES if at >= 0 else None
