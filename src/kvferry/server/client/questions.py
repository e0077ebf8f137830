"""What a client asks its server that moves no chunk.

Without a server the answers are: nothing is there, and nothing was done.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from kvferry.cache import Lookup
from kvferry.cache.cost.load_or_compute import decide
from kvferry.cache.cost.prefill import Coefficients, PrefillModel
from kvferry.cache.explain import ChunkPlace, Explanation
from kvferry.cache.store.store_tiers import MEMORY
from kvferry.chunks.prompt import Prompt
from kvferry.config.remote_sources import show_node
from kvferry.server import protocol
from kvferry.server.client.caller import Caller
from kvferry.server.client.transfer import about_of, in_tokens
from kvferry.server.protocol import HASHES_MAX, Count, Done, Found, Reply, Report, Request

__all__ = ["LookupQuestions"]

T = TypeVar("T", bound=Reply)

# Of the time for a lookup, what the server may spend on asking stores.
_STORES_SHARE = 0.8
_EVERYBODY_S = 15.0  # for stores that have to answer, one after the other


class LookupQuestions:
    """See the calls of `Client`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def look(
        self,
        prompt: Prompt,
        timeout_s: float | None,
        limit_s: float | None = None,
        *,
        touch: bool,
    ) -> Lookup:
        """How much of a prompt is there."""
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
            prompt.first(HASHES_MAX),
            True,
            touch,
            prompt.generation,
            about_of(prompt) if patient else [],
            show_node(prompt.source),
            **limits,
        )
        if found is None:
            return nothing
        size = prompt.chunk_size
        tiers = in_tokens(found.tiers, size)
        # What is coming into memory a store may have as well.
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

    def prefetch(self, prompt: Prompt, timeout_s: float) -> int:
        """Bring a prompt into memory; how many tokens are there then."""
        fields = (prompt.tokens, True, prompt.generation)
        return self._count(prompt, protocol.Prefetch, *fields, waits_s=timeout_s)

    def pin(self, prompt: Prompt, timeout_s: float) -> int:
        """Bring a prompt into memory to stay; how many tokens do."""
        fields = (prompt.tokens, prompt.generation)
        return self._count(prompt, protocol.Pin, *fields, waits_s=timeout_s)

    def unpin(self, prompt: Prompt) -> int:
        """Undo that; of how many tokens."""
        return self._count(prompt, protocol.Unpin)

    def clear(self, timeout_s: float, *, stores: bool, everybody: bool, ended: bytes) -> int | None:
        """Forget chunks, see `protocol.Clear`; how many in memory, None if nobody answers.

        Raises:
            UsageError, UnavailableError: `everybody`, and the server refuses.
        """
        fields = (stores, everybody, ended)
        limits = {"waits_s": max(timeout_s, _EVERYBODY_S), "raises": True} if everybody else {}
        count = self._ask(Count, protocol.Clear, *fields, **limits)
        return max(0, count.count) if count is not None else None

    def observe(self, tokens: int, cached_tokens: int, took_s: float) -> None:
        """How long computing took."""
        self._ask(Done, protocol.Observe, tokens, cached_tokens, took_s)

    def speed(self, coefficients: Coefficients, step_tokens: int) -> None:
        """How long the engine computes."""
        self._ask(Done, protocol.Speed, coefficients, step_tokens)

    def counted(self, sums: Mapping[str, Any], histograms: Mapping[str, Any]) -> None:
        """What was counted here."""
        self._ask(Done, protocol.Counted, sums, histograms)

    def stats(self) -> dict[str, Any]:
        """What the server counts."""
        report = self._ask(Report, protocol.Stats)
        return report.report if report is not None else {}

    def explain(self, prompt: Prompt, timeout_s: float) -> Explanation:
        """Where each chunk is, or why it is not."""
        hashes = prompt.first(HASHES_MAX)
        fields = (hashes, prompt.tokens, prompt.generation)
        report = self._ask(Report, protocol.Explain, *fields, waits_s=timeout_s)
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

    def _count(self, prompt: Prompt, kind: type[Request], *fields: Any, **limits: float) -> int:
        """A request about a prompt that is answered with a number of chunks; in tokens."""
        if not prompt.chunks:
            return 0
        told = self._ask(Count, kind, prompt.first(HASHES_MAX), *fields, **limits)
        return min(max(0, told.count), prompt.chunks) * prompt.chunk_size if told else 0

    def _ask(self, answer: type[T], kind: type[Request], *fields: Any, **limits: Any) -> T | None:
        session = self._caller.session()
        return self._caller.ask(session, answer, kind, *fields, **limits) if session else None
