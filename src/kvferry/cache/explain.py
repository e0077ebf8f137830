"""Where each chunk of a prompt is, or why it is not, and what a retrieve would do about it.

    >>> print(cache.explain(tokens))                                   # doctest: +SKIP
    640 tokens, 10 chunks of 64: 2 in l1, 6 in redis, 2 nowhere
      chunks 0-1   l1, redis
      chunks 2-7   redis
      chunks 8-9   nowhere: never stored here
    a retrieve would take 512 tokens: loading 384 takes 0.004 s, computing them 0.210 s
    redis has the same tokens under an identity that differs in: dtype (float16 instead of bfloat16)

It asks every store for every chunk and changes nothing: no chunk counts as used, none is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from kvferry.base.errors import KVFerryError
from kvferry.cache.cost.load_or_compute import Decision, Offer, decide
from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.memory import HERE, STATES, Memory
from kvferry.cache.store.store_tiers import MEMORY, StoreTier
from kvferry.chunks.identity import Identity, explain_difference
from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import Status

__all__ = ["ChunkPlace", "Explanation", "explain_prompt"]

_IDENTITIES_MAX = 32  # other identities of a store that are asked for


@dataclass(frozen=True, kw_only=True)
class ChunkPlace:
    """One chunk.

    Attributes:
        chunk: Its index.
        where: The tiers that have it.
        memory: Its state in memory: "absent", "evicted", "writing", "ready", "leased", "pinned".
        why: If nobody has it, why; otherwise "".
    """

    chunk: int
    where: tuple[str, ...]
    memory: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What is known of a prompt; as text, a report for people.

    Attributes:
        tokens: Tokens of the prompt.
        chunk_size: Tokens per chunk.
        places: Its full chunks.
        decision: What a retrieve would choose now.
        stores: For each store a sentence: that it is asked, away, or too slow to answer.
        identities: Sentences about the same tokens under other identities.
    """

    tokens: int
    chunk_size: int
    places: tuple[ChunkPlace, ...]
    decision: Decision
    stores: dict[str, str]
    identities: tuple[str, ...]

    @property
    def usable_tokens(self) -> int:
        """Tokens of the prefix that some tier has."""
        end = next((p.chunk for p in self.places if not p.where), len(self.places))
        return end * self.chunk_size

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        counts: dict[str, int] = {}
        for place in self.places:
            first = place.where[0] if place.where else "nowhere"
            counts[first] = counts.get(first, 0) + 1
        told = ", ".join(f"{n} {'' if w == 'nowhere' else 'in '}{w}" for w, n in counts.items())
        head = f"{self.tokens} tokens, {len(self.places)} chunks of {self.chunk_size}"
        yield f"{head}: {told}" if told else head
        for what, group in groupby(self.places, lambda p: (p.where, p.why)):
            chunks = [place.chunk for place in group]
            name = f"chunk {chunks[0]}" if len(chunks) == 1 else f"chunks {chunks[0]}-{chunks[-1]}"
            where, why = what
            yield f"  {name:<14} {', '.join(where) or 'nowhere'}{f': {why}' if why else ''}"
        yield from (f"{name} {text}" for name, text in self.stores.items() if text)
        yield self._choice()
        yield from self.identities

    def _choice(self) -> str:
        choice = self.decision
        if choice.recompute_s is None or choice.prefill_s is None:
            return (
                f"a retrieve would take {choice.tokens} tokens; how fast the engine computes is "
                "not known yet (TieredCache.observe_prefill)"
            )
        return (
            f"a retrieve would take {choice.tokens} tokens: loading takes {choice.load_s:.3f} s, "
            f"computing the rest {choice.prefill_s:.3f} s; without loading it would be "
            f"{choice.recompute_s:.3f} s"
        )


class Explained(Protocol):
    """What is read of the cache whose prompt is explained."""

    identity: Identity
    memory: Memory
    tiers: list[StoreTier]
    cost_prefill: PrefillModel


def explain_prompt(cache: Explained, prompt: Prompt, timeout_s: float) -> Explanation:
    """See `TieredCache.explain`. A store that does not answer in time is reported as such."""
    until = time.monotonic() + timeout_s
    memory = [STATES[state] for state in cache.memory.cache.states(prompt.hashes)]
    having: dict[str, list[bool]] = {}
    told: dict[str, str] = {}
    for store in cache.tiers:
        having[store.tier.name], told[store.tier.name] = _ask(store, prompt, until)
    places = []
    for chunk, state in enumerate(memory):
        where = [MEMORY] if state in HERE else []
        where += [name for name, has in having.items() if has[chunk]]
        why = "" if where else _why(cache, prompt, chunk, state, told)
        places.append(ChunkPlace(chunk=chunk, where=tuple(where), memory=state, why=why))
    missing = next((place.chunk for place in places if not place.where), None)
    return Explanation(
        tokens=prompt.tokens,
        chunk_size=prompt.chunk_size,
        places=tuple(places),
        decision=_decision(cache, prompt, memory, having),
        stores=told,
        identities=tuple(_identities(cache, prompt, missing)) if missing is not None else (),
    )


def _ask(store: StoreTier, prompt: Prompt, until: float) -> tuple[list[bool], str]:
    """For each chunk whether the store has it, and a sentence if the store does not say."""
    nothing = [False] * prompt.chunks
    if not store.tier.connector.available:
        return nothing, "is away: it cannot be asked"
    if not prompt.chunks:
        return nothing, ""
    try:
        ticket = store.tier.connector.submit_exists(prompt.keys(0, prompt.chunks))
    except KVFerryError as error:
        return nothing, f"cannot be asked: {error}"
    result = ticket.wait(max(0.0, until - time.monotonic()))
    if result is None:
        return nothing, "did not answer in time"
    failed = next((s for s in result if s not in (Status.OK, Status.MISS)), None)
    problem = (
        "" if failed is None else f"did not say it of all chunks: {result.error or failed.name}"
    )
    return [status is Status.OK for status in result], problem


def _why(cache: Explained, prompt: Prompt, chunk: int, state: str, told: dict[str, str]) -> str:
    """Why nobody has a chunk."""
    if state == "writing":
        return "it is being stored or loaded at this moment"
    digest, reasons = prompt.digest(chunk), []
    for store in cache.tiers:
        name = store.tier.name
        if told[name]:
            reasons.append(f"{name} {told[name]}")
        elif refusal := store.tier.refusals.why(digest):
            reasons.append(f"{name} had something else there (wrong {refusal}), which was deleted")
        elif store.writer.has_missed(digest):
            reasons.append(f"it was not written to {name} in time")
        elif store.capacity.known(digest) == b"\x01":
            reasons.append(f"evicted from {name} to make room")
    if state == "evicted":
        reasons.append(f"evicted from {MEMORY}")
    return "; ".join(reasons) or "never stored here, or evicted by its store"


def _decision(
    cache: Explained, prompt: Prompt, memory: list[str], having: dict[str, list[bool]]
) -> Decision:
    """What a retrieve would choose, from what was found."""
    size = prompt.chunk_size
    start = held = next((i for i, s in enumerate(memory) if s not in HERE), len(memory))
    offers: list[Offer] = []
    while start < prompt.chunks:
        for store in cache.tiers:
            has = having[store.tier.name]
            end = next((i for i in range(start, len(has)) if not has[i]), len(has))
            if end > start:
                load_s = store.tier.predict_s(end - start)
                offers.append(Offer(store.tier.name, start * size, end * size, load_s))
                start = end
                break
        else:
            break
    return decide(prompt.tokens, held * size, offers, cache.cost_prefill)


def _identities(cache: Explained, prompt: Prompt, chunk: int) -> Iterator[str]:
    """Whether stores have the first missing chunk as that of another identity."""
    for store in cache.tiers:
        connector = store.tier.connector
        try:
            others = dict(connector.descriptions())
        except KVFerryError:
            continue
        others.pop(cache.identity.digest, None)
        for digest, description in list(others.items())[:_IDENTITIES_MAX]:
            if connector.has_under(digest, prompt.keys(chunk, chunk + 1)[0]):
                difference = explain_difference(description, cache.identity.description)
                yield (
                    f"{store.tier.name} has the same tokens (chunk {chunk}) under an identity that "
                    f"{difference}"
                )
