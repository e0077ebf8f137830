"""What an engine learns and counts beside its client, and what the server is told of it.

How quickly the engine computes: by that the client knows how long an answer is worth waiting for,
and the server how long stores are asked. And what only the engine can count: copies between shared
memory and its own, and the times to first tokens. The server is told of both now and then; nothing
waits for that.

Threads: any.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kvferry.cache.cost.prefill import Coefficients, PrefillModel
from kvferry.cache.results import Lookup, Stored
from kvferry.chunks.prompt import Prompt
from kvferry.metrics import CacheMetrics
from kvferry.metrics.cache import FROM_OTHERS
from kvferry.metrics.deltas import MetricDeltas
from kvferry.server.client.session_thread import SessionThread
from kvferry.server.protocol import Counted, Speed

__all__ = ["SHOWN", "EngineFeedback"]

# The families that an engine can show; the server has the others.
SHOWN = (
    *("kvferry_tokens_requested", "kvferry_tokens_hit", "kvferry_bytes_hit"),
    *("kvferry_missed_chunks", "kvferry_lookup_seconds", "kvferry_retrieve_seconds"),
    *("kvferry_shed_chunks", *FROM_OTHERS),
)

# How often the server is told, and by which change of the speed at least.
_TELL_EVERY_S = 1.0
_TELL_CHANGE_MIN = 0.05
# How long a server that does not answer is waited for, as a share of the time of computing.
_HUNG_SHARE = 0.5
_HUNG_S_MIN = 0.25


class EngineFeedback:
    """See the module.

    Args:
        sessions: Of the client.
        chunk_bytes: Length of a chunk.
        clock: For tests; as ``time.monotonic``.

    Attributes:
        metrics: What the engine shows.
        prefill: How quickly it computes.
    """

    def __init__(
        self,
        sessions: SessionThread,
        chunk_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = CacheMetrics()
        self.prefill = PrefillModel()
        self._sessions = sessions
        self._chunk_bytes = chunk_bytes
        self._clock = clock
        self._deltas = MetricDeltas(self.metrics, only=FROM_OTHERS, begin=False)
        self._told: tuple[int, Coefficients] | None = None  # in which session
        self._tell_at = 0.0

    # --- Speed ---

    def expect(self, coefficients: Coefficients, step_tokens: int | None) -> None:
        """What computing is thought to take until steps say otherwise."""
        if step_tokens is not None:
            self.prefill.step_tokens = step_tokens
        self.prefill.expect(coefficients)
        if (session := self._sessions.session) is not None:
            self._tell_speed(session.number)

    def observe_step(self, new_tokens: int, pairs: int, decodes: int, took_s: float) -> None:
        """Learn what a step took."""
        self.prefill.observe_step(new_tokens, pairs, decodes, took_s)
        now, session = self._clock(), self._sessions.session
        if now < self._tell_at or session is None:
            return
        self._tell_at = now + _TELL_EVERY_S
        if self._is_news(session.number):
            self._tell_speed(session.number)
        if deltas := self._deltas.take():
            told = deltas.get("counters", {}), deltas.get("histograms", {})
            self._sessions.unwaited.add(Counted, session.number, *told)

    def patience_s(self, prompt: Prompt, limit_s: float) -> float:
        """How long a server may be silent before half of what computing takes is lost by it."""
        model = self.prefill
        if not model.known:
            return _HUNG_S_MIN
        compute_s = model.predict_s(prompt.tokens, prompt.computed_tokens)
        hung_s = model.total_s(*prompt.queued) + max(_HUNG_S_MIN, _HUNG_SHARE * compute_s)
        return min(hung_s, limit_s)

    def _is_news(self, session: int) -> bool:
        """Whether the server of this session thinks that we compute otherwise than we do."""
        if self._told is None or self._told[0] != session:
            return True
        pairs = zip(self.prefill.coefficients, self._told[1], strict=True)
        return any(abs(new - old) > _TELL_CHANGE_MIN * old for new, old in pairs)

    def _tell_speed(self, session: int) -> None:
        known = self.prefill.coefficients
        self._told = session, known
        self._sessions.unwaited.add(Speed, session, known, self.prefill.step_tokens)

    # --- Counts ---

    def looked_up(self, prompt: Prompt, found: Lookup, took_s: float) -> None:
        """A lookup that leases is over: what it found is a hit."""
        size, metrics = prompt.chunk_size, self.metrics
        metrics.looked_up(took_s)
        own = prompt.behind_computed()[0] * size
        for tier, tokens in found.tiers.items():
            count = tokens - own if tier == "l1" else tokens
            if count > 0:
                metrics.requested(count)
                metrics.hit(tier, count, count // size * self._chunk_bytes)

    def stored(self, stored: Stored, took_s: float) -> None:
        """A store is over."""
        if stored.chunks:
            self.metrics.copied("in", stored.chunks * self._chunk_bytes, took_s)
        if stored.shed:
            self.metrics.shed("pool_full", stored.shed)
