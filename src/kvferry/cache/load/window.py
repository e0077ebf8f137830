"""The first chunks of a prefix, asked for at the same moment as whether they are there.

A hit far away then costs one round trip, and not one for the question and another for the bytes. A
chunk gets its page when its value comes, or when the store has said that it has it: so a miss costs
no page and evicts nothing, and null replies are a few bytes. A read that was sent cannot be
withdrawn: what comes and is of no use is read away, and counted (`Tier.drained`).

The window is what a round trip carries, as the store is known: more would not come sooner for being
asked for now. Jobs that were cut keep their pages until they have ended (`PendingLoads`).

Threads: one; the sweep of `PendingLoads` may be another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, cast

from kvferry import _native
from kvferry.base.errors import KVFerryError
from kvferry.cache.memory import Memory
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import BatchResult, Status
from kvferry.connectors.base import Ticket

__all__ = ["ASSUMED_BYTES_S", "Kept", "PendingLoads", "Window", "open_window"]

Ended: TypeAlias = Callable[[BatchResult], object]


class _Job(NamedTuple):
    ticket: Ticket
    ended: Ended


class PendingLoads:
    """What stores have not let go of. Swept by whoever uses the cache next. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[_Job] = []

    def add(self, ticket: Ticket, ended: Ended) -> None:
        """Pages belong to this job until it ends; `ended` is called then, and frees them."""
        with self._lock:
            self._jobs.append(_Job(ticket, ended))

    def sweep(self, limit_s: float = 0.0) -> int:
        """Free the pages of the jobs that have ended; how many have not.

        Args:
            limit_s: How long to wait for them, at most.
        """
        until = time.monotonic() + limit_s
        with self._lock:
            jobs, self._jobs = self._jobs, []
        kept = []
        for job in jobs:
            result = job.ticket.wait(max(0.0, until - time.monotonic()))
            if result is None:
                kept.append(job)
            else:
                job.ended(result)
        with self._lock:
            self._jobs += kept
            return len(self._jobs)


# Bytes per second of a store that has delivered nothing yet, where too many would do harm: they
# would be asked for before it is known that they are there, or that they pay.
ASSUMED_BYTES_S = 80e6
# How much a window reads at most, and how many times what a round trip carries: neither the
# bandwidth nor the round trip is known well.
_WINDOW_BYTES_MAX = 128 << 20
_ROUND_TRIPS = 2
# States of a chunk in a `_native.OnDemandPages`.
_PLACED, _NO_ROOM = 1, 3


class _ReadsOnDemand(Protocol):
    """A connector whose reads may have pages that are taken when values come."""

    def submit_get(
        self, keys: Sequence[str], buffers: _native.OnDemandPages, *, timeout_s: float
    ) -> Ticket: ...


class Kept(NamedTuple):
    """The chunks of a window that are wanted.

    Attributes:
        chunks: How many the window brings, up to the first one that has no page for want of room;
            those that others bring count, too.
        items: Which of them have a page, counted from the window's first.
        pages: Their pages.
    """

    chunks: int
    items: list[int]
    pages: list[int]


class Window:
    """Reads that were sent. `keep` and then `end`, or `drop`.

    Attributes:
        tier: The store.
        start: The first chunk.
        began: When they were sent.
        received: What had come from the store until then.
        size: How many chunks there are.
        ticket: Of the job.
    """

    def __init__(
        self, memory: Memory, tier: Tier, prompt: Prompt, start: int, count: int, until: float
    ) -> None:
        self.tier, self.start, self.size = tier, start, count
        self._memory = memory
        self._pages = memory.on_demand(prompt.first(start + count), start)
        self.received = tier.received_bytes()
        self.began = time.monotonic()
        self.ticket = cast("_ReadsOnDemand", tier.connector).submit_get(
            prompt.keys(start, start + count),
            self._pages,
            timeout_s=max(0.001, until - self.began),
        )

    def keep(self, count: int) -> Kept:
        """The store says that it has the first `count` chunks, and they are wanted."""
        self._pages.keep(count)
        states, pages = self._pages.states()
        full = states.find(_NO_ROOM, 0, count)
        count = count if full < 0 else full
        items = [item for item in range(count) if states[item] == _PLACED]
        return Kept(count, items, [pages[item] for item in items])

    def end(self, result: BatchResult, items: Sequence[int] = ()) -> None:
        """The job has ended: put into memory what came of these items."""
        wanted = bytearray(len(result))
        for item in items:
            wanted[item] = result[item] is Status.OK
        self._pages.commit(bytes(wanted))
        self._memory.announce()
        sizes = zip(result.sizes, wanted, strict=True)
        self.tier.drained(sum(1 for size, used in sizes if size and not used))

    def drop(self, pending: PendingLoads) -> None:
        """Nobody wants the chunks. Cancelling could cost the connection, so the job goes on."""
        self._pages.keep(0)
        pending.add(self.ticket, self.end)


def open_window(
    memory: Memory, tier: Tier, prompt: Prompt, start: int, until: float
) -> Window | None:
    """Send reads of the chunks from `start` on; None: this store takes none, or none now."""
    if not tier.pages_on_demand:
        return None
    rate = tier.bandwidth_bytes_s if tier.measured else ASSUMED_BYTES_S
    count = int(min(_ROUND_TRIPS * rate * tier.question_s(), _WINDOW_BYTES_MAX)) // tier.chunk_bytes
    count = min(max(1, count), memory.pages, prompt.chunks - start)
    try:
        return Window(memory, tier, prompt, start, count, until)
    except KVFerryError:  # it has too much to do, or was closed
        return None
