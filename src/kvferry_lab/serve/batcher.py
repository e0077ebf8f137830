"""The engine of the demo's server: continuous batching over the NumPy transformer.

One thread computes in steps. In each step every sequence whose prompt is read goes on by a token,
and up to `step_tokens` of the prompts that are not are read, first come first served. Prefixes are
loaded in other threads meanwhile. A step lasts as long as its pace says; where this machine is
slower than that, it is counted (`late_s`).

The cache is asked once for each prompt and given each full chunk of it when it is computed, before
the step ends. There is no other prefix cache: what is not loaded is computed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import numpy as np

from kvferry.cache import TieredCache
from kvferry.cache.cost.prefill import Coefficients
from kvferry.chunks.prompt import read_prompt
from kvferry_lab.serve.chunks import SequenceChunks
from kvferry_lab.serve.sequence import Failed, FinishedSequence, Heard, Running, Token
from kvferry_lab.transformer import Transformer

__all__ = ["Batcher", "Pace"]

_log = logging.getLogger("kvferry.lab.serve")

_CLOSE_S, _IDLE_S = 30.0, 10.0
_STAGED = 256 << 20  # bytes that are given to the cache at a time


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Of each step the time that it takes at least.

    A step that reads ``n`` tokens of prompts takes ``a + c n + d pairs``, pairs as in
    `kvferry.cache.cost.prefill`. One in which sequences go on by a token each reads all weights
    once, and takes `decode_s` at least: what computing takes and what memory takes overlap.

    Attributes:
        a_s, c_s_per_token, d_s_per_token2: Of reading prompts.
        decode_s: Of one token more for each sequence of the step.
    """

    a_s: float = 0.0
    c_s_per_token: float
    d_s_per_token2: float = 0.0
    decode_s: float = 0.0

    @property
    def coefficients(self) -> Coefficients:
        """The coefficients of this pace, for a cost model."""
        return self.a_s, self.c_s_per_token, self.d_s_per_token2, self.decode_s

    def step_s(self, new_tokens: int, pairs: int, decodes: int) -> float:
        """Seconds of a step."""
        prefill_s = 0.0
        if new_tokens:
            prefill_s = self.a_s + self.c_s_per_token * new_tokens + self.d_s_per_token2 * pairs
        return max(prefill_s, self.decode_s if decodes else 0.0)


@dataclass
class BatcherCounts:
    """Counters of a batcher."""

    requests: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    wrong_chunks: int = 0
    steps: int = 0
    late_s: float = 0.0


class Batcher:
    """See the head of this module. Threads: any may submit and cancel.

    Args:
        model: The transformer.
        chunks: Makes chunks of its pages.
        cache: Where they are kept; None: nowhere. It stays the caller's.
        pace: Of its steps; None: as fast as this machine is.
        sequences_max: How many are computed at a time; others wait.
        step_tokens: Tokens of prompts that a step reads at most.
    """

    def __init__(
        self,
        model: Transformer,
        chunks: SequenceChunks,
        cache: TieredCache | None,
        pace: Pace | None,
        *,
        sequences_max: int,
        step_tokens: int,
    ) -> None:
        self.counts = BatcherCounts()
        self._model = model
        self._chunks = chunks
        self._cache = cache
        self._pace = pace
        self._sequences_max = sequences_max
        self._step_tokens = step_tokens
        rows = max(1, min(step_tokens // model.config.page_tokens, _STAGED / chunks.chunk_bytes))
        self._staged = np.empty((int(rows), chunks.chunk_bytes), np.uint8)
        self._changed = threading.Condition()
        self._waiting: list[Running] = []
        self._loading: set[Running] = set()
        self._running: list[Running] = []
        self._closing = False
        if cache is not None:
            cache.prefill.step_tokens = step_tokens
            if pace is not None:  # as integrations do: a few tokens say little of many
                cache.learning.expect(pace.coefficients)
        self._loads = ThreadPoolExecutor(sequences_max, "kvferry-demo-load")
        self._thread = threading.Thread(target=self._run, name="kvferry-demo-steps", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Sequences that are loaded or computed now."""
        return len(self._running) + len(self._loading)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a place."""
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        """Whether it computes."""
        return self._thread.is_alive() and not self._closing

    def submit(self, prompt: Sequence[int], new_tokens: int, heard: Heard) -> Running:
        """Answer a prompt by so many tokens; `heard` is told."""
        page = self._model.config.page_tokens
        hashes = read_prompt(prompt, page, b"").hashes
        digests = [hashes[at : at + 16] for at in range(0, len(hashes), 16)]
        running = Running(prompt, new_tokens, heard, digests)
        with self._changed:
            closing = self._closing
            if not closing:
                self._waiting.append(running)
                self._changed.notify_all()
        if closing:
            heard(Failed("the server is ending"))
        return running

    def cancel(self, running: Running) -> None:
        """Nobody waits for the rest; it ends with the step that is under way."""
        running.cancelled = True
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End, telling all whose answers are not complete."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)
        self._loads.shutdown(wait=True)  # each load ends within the limit of the cache

    # --- The thread ---

    def _run(self) -> None:
        why = "the server is ending"
        try:
            while self._admit():
                self._step()
        except Exception:
            _log.exception("the demo's engine has ended")
            why = "the engine has ended; the server's log says why"
        with self._changed:
            self._closing = True
            left = [*self._waiting, *self._loading, *self._running]
            self._waiting, self._running = [], []
        for running in left:
            running.heard(Failed(why))

    def _admit(self) -> bool:
        """Wait until there is something to compute; False: it is over."""
        with self._changed:
            while not self._closing:
                for some in (self._waiting, self._running):
                    gone = [one for one in some if one.cancelled]
                    self.counts.cancelled += len(gone)
                    some[:] = [one for one in some if not one.cancelled]
                while self._waiting and self.running < self._sequences_max:
                    new = self._waiting.pop(0)
                    new.queued, new.queued_at = self._ahead(), time.monotonic()
                    self._loading.add(new)
                    self._loads.submit(self._load, new)
                if self._running:
                    return True
                self._changed.wait(_IDLE_S)
        return False

    def _ahead(self) -> tuple[int, int]:
        """Tokens and pairs that are computed before a new sequence: until then it may wait."""
        tokens = pairs = 0
        for one in (*self._running, *self._loading):
            done = 0 if one.kv is None else one.kv.length
            if done < len(one.prompt):
                tokens += len(one.prompt) - done
                pairs += len(one.prompt) ** 2 - done**2
        return tokens, pairs

    def _load(self, new: Running) -> None:
        """Bring what the cache has; in a thread of its own."""
        began = time.monotonic()
        wrong = 0
        try:
            new.kv = self._model.new_cache(len(new.prompt) + new.new_tokens)
            wrong = self._retrieve(new)
        except Exception:
            _log.exception("a prefix was not loaded, and is computed")
        new.waited_s = time.monotonic() - began
        with self._changed:
            self._loading.discard(new)
            counts = self.counts
            counts.requests += 1
            counts.prompt_tokens += len(new.prompt)
            counts.cached_tokens += new.cached_tokens
            counts.wrong_chunks += wrong
            closing = self._closing
            if new.kv is not None and not closing:
                self._running.append(new)
            self._changed.notify_all()
        if new.kv is None or closing:
            new.heard(Failed("the server is ending" if closing else "a sequence has no memory"))

    def _retrieve(self, new: Running) -> int:
        """Load and check; how many chunks were wrong."""
        assert new.kv is not None
        if self._cache is None or new.cancelled:
            return 0
        page, wrong = self._model.config.page_tokens, 0
        prompt = read_prompt(new.prompt, page, b"", generation=self._cache.generation)
        prompt = msgspec.structs.replace(prompt, queued=new.queued, queued_at=new.queued_at)
        hit = self._cache.retrieve(prompt, limit_tokens=len(new.prompt) - 1)
        try:
            loaded = hit.tokens // page
            right = self._chunks.take(new.digests, hit.pages[:loaded], new.kv) if loaded else 0
            if right < loaded:
                wrong = 1
                _log.error("chunk %d of a prefix was not what it must be, and is computed", right)
        finally:
            valid = hit.release()
        if valid:
            new.cached_tokens = new.kv.length = right * page
            new.stored_chunks = right
        return wrong

    def _step(self) -> None:
        began = time.monotonic()
        running = list(self._running)
        tokens = pairs = decodes = 0
        told: list[tuple[Running, int]] = []
        for one in running:
            if one.logits is None and tokens < self._step_tokens:
                read = one.read(self._model, self._step_tokens - tokens)
                tokens, pairs = tokens + read[0], pairs + read[1]
                self._store(one)
            elif one.logits is not None:
                decodes += 1
                one.go_on(self._model)
            if one.logits is not None:
                told.append((one, one.say()))
        self._keep_pace(began, tokens, pairs, decodes)
        took_s = time.monotonic() - began
        if self._cache is not None:
            self._cache.observe_step(tokens, pairs, decodes, took_s)
        self.counts.steps += 1
        self.counts.computed_tokens += tokens
        self.counts.output_tokens += len(told)
        for one, token in told:
            self._tell(one, token)

    def _store(self, one: Running) -> None:
        """Give the cache the full chunks that were computed now."""
        assert one.kv is not None
        if self._cache is None:
            return
        page = self._model.config.page_tokens
        full = min(one.kv.length, len(one.prompt)) // page
        for first in range(one.stored_chunks, full, len(self._staged)):
            rows = self._staged[: full - first]
            for chunk, row in enumerate(rows, first):
                self._chunks.make(one.digests[chunk], one.kv.pages[chunk], row)
            end = (first + len(rows)) * page
            self._cache.store(one.prompt[:end], list(rows), first_chunk=first)
        one.stored_chunks = full

    def _keep_pace(self, began: float, tokens: int, pairs: int, decodes: int) -> None:
        if self._pace is None:
            return
        until = began + self._pace.step_s(tokens, pairs, decodes)
        left_s = until - time.monotonic()
        self.counts.late_s += max(0.0, -left_s)
        with self._changed:
            self._changed.wait_for(lambda: self._closing, max(0.0, left_s))

    def _tell(self, one: Running, token: int) -> None:
        if len(one.said) == 1 and self._cache is not None:
            self._cache.metrics.first_token(one.waited_s, time.monotonic() - one.began)
        one.heard(Token(token))
        if one.done:
            with self._changed:
                self._running.remove(one)
            one.heard(FinishedSequence(one.cached_tokens))
