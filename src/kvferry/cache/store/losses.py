"""Chunks that a store has lost: found out when somebody asks for them, and written again.

A store that was flushed, or came back empty, lacks chunks that memory still has. Nobody would write
these chunks again, because they are not new. So every chunk that a store is known to have had is
remembered (`Tier.known`). When a prompt is looked up that memory has, the store is asked too, about
once a second. Chunks that the store lacks are written again from memory; and if their time to live
was not over, the store may have lost more, so all others that are remembered follow.

The store's writer does this when nothing else waits: a batch at a time, root first, with pauses
that leave most of the time to others. Only chunks that were looked up may make the store evict
something; the rest is written as long as there is room.

Threads: `observe` and `idle` any; the rest is the writer's.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from kvferry.base.errors import KVFerryError
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import Status

__all__ = ["Losses"]

_LOOK_EVERY_S = 1.0  # that a store is asked for chunks that memory has
_ASKED_MAX = 4096  # chunks of one question
_PAUSE_TIMES = 3.0  # that a batch took: a quarter of the time is the writer's at most
_UNASKED_SHARE = 0.8  # of a store's limit, up to which chunks are written that nobody asked for


class Losses:
    """What one store has lost.

    Args:
        tier: The store; `Tier.known` is what it had.
        ttl_s: How long the store keeps what is written; None: as long as it can.
    """

    def __init__(self, tier: Tier, ttl_s: float | None) -> None:
        self._tier = tier
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._look_at = 0.0  # not before
        self._asked: tuple[Prompt, int, list[int]] | None = None
        self._wanted: deque[tuple[Prompt, list[int]]] = deque()  # lost, and asked for
        self._others: deque[tuple[Prompt, list[int]]] = deque()  # perhaps lost
        self._rest_until = 0.0

    @property
    def idle(self) -> bool:
        """Whether `observe` has an effect: no prompt waits to be asked for."""
        return self._asked is None

    def observe(self, prompt: Prompt, held: int, missed: list[int]) -> bool:
        """Somebody asks for a prompt whose first `held` chunks memory has; whether to look.

        `missed` are those of them that should have been written and were not.
        """
        with self._lock:
            if self._asked is not None or not held or not (missed or len(self._tier.known)):
                return False
            self._asked = (prompt, min(held, _ASKED_MAX), missed)
            return True

    def due_s(self) -> float | None:
        """In how many seconds there is something to do; None: there is nothing."""
        now = time.monotonic()
        moments = [self._look_at] if self._asked is not None else []
        if self._wanted or self._others:
            moments.append(self._rest_until)
        return max(0.0, min(moments) - now) if moments else None

    def look(self) -> bool:
        """Ask the store for the observed prompt; whether chunks were lost before their time."""
        now = time.monotonic()
        with self._lock:
            if now < self._look_at:
                return False
            asked, self._asked = self._asked, None
            self._look_at = now + (_LOOK_EVERY_S if asked is not None else 0)
        if asked is None or not self._tier.connector.available:
            return False
        prompt, held, missed = asked
        had = self._tier.known.of(prompt, held)
        chunks = sorted({*had, *(chunk for chunk in missed if chunk < held)})
        if not chunks:
            return False
        names = prompt.keys(0, held)
        there = self._tier.connector.batch_exists([names[i] for i in chunks], touch=True)
        gone = [chunk for chunk, status in zip(chunks, there, strict=True) if status is Status.MISS]
        if not gone:
            return False
        lost = [chunk for chunk in gone if chunk in had]
        # The store begins to count the time to live a moment before the writer knows.
        late = time.monotonic() - (max(0.0, self._ttl_s - 1) if self._ttl_s else float("inf"))
        if self._tier.capacity is not None:
            self._tier.capacity.gone(b"".join(prompt.digest(chunk) for chunk in lost))
        if lost:
            self._wanted.append((prompt, lost))
        if others := [chunk for chunk in gone if chunk not in had]:
            self._others.appendleft((prompt, others))
        surprising = any(had[chunk] > late for chunk in lost)
        if surprising and len(self._others) <= 1:
            self._others.extend(self._tier.known.prompts())
        return surprising

    def next(self, chunks_max: int) -> tuple[Prompt, list[int]] | None:
        """What to write now, where it is absent: chunks of a prompt."""
        if time.monotonic() < self._rest_until:
            return None
        if self._wanted:
            return _some(self._wanted, chunks_max)
        if self._others and not self._has_room(chunks_max):
            self._others.clear()
        return _some(self._others, chunks_max) if self._others else None

    def rest(self, took_s: float) -> None:
        """A batch took so long: leave the store to other work for a while."""
        self._rest_until = time.monotonic() + _PAUSE_TIMES * took_s

    def give_up(self) -> None:
        """The store does not take what it lacks; the next question finds the losses anew."""
        self._wanted.clear()
        self._others.clear()

    def _has_room(self, chunks: int) -> bool:
        capacity = self._tier.capacity
        try:
            usage = self._tier.connector.usage()
        except KVFerryError:
            return False
        limits = [usage.capacity_bytes, None if capacity is None else capacity.limit_bytes]
        limit = min((limit for limit in limits if limit is not None), default=None)
        used = usage.used_bytes + chunks * self._tier.chunk_bytes
        return limit is None or used <= _UNASKED_SHARE * limit


def _some(waiting: deque[tuple[Prompt, list[int]]], chunks_max: int) -> tuple[Prompt, list[int]]:
    prompt, chunks = waiting.popleft()
    if len(chunks) > chunks_max:
        waiting.appendleft((prompt, chunks[chunks_max:]))
    return prompt, chunks[:chunks_max]
