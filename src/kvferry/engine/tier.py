"""L2: one store behind the engine, with what was learnt about it.

A tier answers two questions, both within a limit: how much of a prefix is there (`probe`), and how
long would loading it take (`predict_s`). What it was asked, and how long that took, it remembers.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from kvferry.client.batch import BatchResult, Status
from kvferry.connectors.base import Connector, Ticket
from kvferry.engine.capacity import Capacity
from kvferry.engine.cost import LoadModel
from kvferry.engine.prompt import Prompt
from kvferry.errors import KVFerryError

__all__ = ["REASONS", "Probe", "Tier", "reason_of"]

# Why a key is not to be had, by the status that says so.
REASONS = {
    Status.MISS: "evicted",
    Status.SIZE_MISMATCH: "size",
    Status.CORRUPT: "checksum",
    Status.TIMEOUT: "deadline",
    Status.UNAVAILABLE: "unavailable",
    Status.SERVER_ERROR: "error",
    Status.CANCELLED: "cancelled",
}
# The same of a corrupt value, by the cause that the driver names; any other is "checksum".
_CAUSES = {
    "identity": "identity",
    "key": "key",
    "stripe": "key",
    "size": "size",
    "shape": "size",
    "version": "version",
    "codec": "version",
    "flags": "version",
}
_REMEMBERED = 4096
# A store that is not used is measured in the background, no more often than this.
_MEASURE_EVERY_S = 5.0


def reason_of(result: BatchResult, index: int) -> str:
    """Why this key of a result is not to be had."""
    status = result[index]
    if status is Status.CORRUPT and result.error is not None:
        return _CAUSES.get(result.error, "checksum")
    return REASONS.get(status, "error")


class Probe:
    """What a tier said about a prefix.

    Attributes:
        end: The index of the first chunk that it does not have.
        reason: Why it ends there: "" (it does not), "never_stored", "unavailable", "deadline"...
        took_s: How long it took to say so.
    """

    __slots__ = ("end", "reason", "took_s")

    def __init__(self, end: int, reason: str, took_s: float = 0.0) -> None:
        self.end = end
        self.reason = reason
        self.took_s = took_s


class Tier:
    """A store and its history.

    Attributes:
        capacity: Keeps it below its limit; None: it has none, or evicts by itself.
        lets_go: A job that was cancelled ends soon, whatever the store does: so its buffers may be
            the caller's own.
    """

    def __init__(
        self,
        name: str,
        connector: Connector,
        chunk_bytes: int,
        *,
        capacity: Capacity | None = None,
        lets_go: bool = False,
    ) -> None:
        self.name = name
        self.connector = connector
        self.chunk_bytes = chunk_bytes
        self.capacity = capacity
        self.lets_go = lets_go
        self._load = LoadModel()
        self._lock = threading.Lock()
        self._loading_bytes = 0
        self._refused: OrderedDict[bytes, str] = OrderedDict()
        self._late: list[tuple[Ticket, float]] = []
        self._deleting: list[Ticket] = []
        self._measured = False
        self._measure_at = 0.0

    def probe(self, prompt: Prompt, start: int, until: float, *, touch: bool = True) -> Probe:
        """Ask how much of the prefix from chunk `start` on is there.

        With `touch`, what is there counts as used. `until` is a moment of ``time.monotonic``; a
        question that is not answered by then is left, and what it took is learnt all the same.
        """
        if not self.connector.available:
            return Probe(start, "unavailable")
        began = time.monotonic()
        self._settle_late(began)
        limit_s = until - began
        if limit_s <= 0:
            return Probe(start, "deadline")
        keys = prompt.keys(start, prompt.chunks)
        try:
            ticket = self.connector.submit_exists(keys, prefix=True, touch=touch)
        except KVFerryError:  # it has too much to do, or was closed
            return Probe(start, "error")
        result = ticket.wait(limit_s)
        took_s = time.monotonic() - began
        if result is None:
            with self._lock:
                self._late.append((ticket, began))
            return Probe(start, "deadline", took_s)
        found = result.prefix_len
        if touch and found and self.capacity is not None:
            self.capacity.used(prompt.first(start + found))
        if found < len(result) and result[found] is not Status.MISS:
            return Probe(start + found, REASONS.get(result[found], "error"), took_s)
        self.learn(0, took_s)
        reason = "never_stored" if start + found < prompt.chunks else ""
        return Probe(start + found, reason, took_s)

    def predict_s(self, chunks: int) -> float:
        """Seconds to load that many chunks, beside what is being loaded already."""
        with self._lock:
            size_bytes, queued_bytes = chunks * self.chunk_bytes, self._loading_bytes
            return self._load.predict_s(size_bytes, time.monotonic(), queued_bytes)

    @property
    def bandwidth_bytes_s(self) -> float:
        """Bytes per second that it is thought to deliver."""
        with self._lock:
            return self._load.bandwidth_bytes_s(time.monotonic())

    def question_s(self) -> float:
        """Seconds that asking it takes."""
        with self._lock:
            return self._load.fixed_s(time.monotonic())

    @property
    def measured(self) -> bool:
        """Whether a load has come to its end, so that what is known can be relied upon."""
        return self._measured

    def to_be_measured(self) -> bool:
        """Whether somebody should load something that nobody waits for; says so now and then."""
        now = time.monotonic()
        with self._lock:
            if now < self._measure_at:
                return False
            self._measure_at = now + _MEASURE_EVERY_S
            return True

    def learn(self, size_bytes: int, took_s: float, *, whole: bool = True) -> None:
        """A load, or a question (0 bytes), took so long; `whole`: it came to its end."""
        with self._lock:
            self._load.observe(size_bytes, took_s, time.monotonic())
            self._measured |= whole and size_bytes > 0

    @contextmanager
    def loading(self, prompt: Prompt, start: int, end: int) -> Iterator[None]:
        """While chunks are being loaded: others reckon with that, and they are not evicted here."""
        size_bytes = (end - start) * self.chunk_bytes
        lease = 0 if self.capacity is None else self.capacity.lease(prompt.first(end))
        with self._lock:
            self._loading_bytes += size_bytes
        try:
            yield
        finally:
            with self._lock:
                self._loading_bytes -= size_bytes
            if self.capacity is not None:
                self.capacity.release(lease)

    def received_bytes(self) -> int:
        """What has come from the store so far, for whomever; only differences mean something."""
        stats = self.connector.stats()
        return stats.get("client_bytes_received", stats.get("bytes_read", 0))

    def refuse(self, prompt: Prompt, chunks: Sequence[int], result: BatchResult) -> None:
        """Chunks that should be there were not, or were something else.

        What was something else the connector has deleted, and it is remembered. What is a miss
        after all may be half there: stripes of two writes, or some of one. Nobody would write it
        again as long as it looks present, so it is deleted.
        """
        missing = []
        for index, chunk in enumerate(chunks):
            status, digest = result[index], prompt.digest(chunk)
            if status not in (Status.MISS, Status.CORRUPT, Status.SIZE_MISMATCH):
                continue
            if self.capacity is not None:
                self.capacity.gone(digest)
            if status is Status.MISS:
                missing.append(digest.hex())
            else:
                with self._lock:
                    self._refused[digest] = reason_of(result, index)
        with self._lock:
            while len(self._refused) > _REMEMBERED:
                self._refused.popitem(last=False)
            self._deleting = [ticket for ticket in self._deleting if not ticket.done]
        if missing:
            with suppress(KVFerryError):  # best effort
                ticket = self.connector.submit_delete(missing)
                with self._lock:
                    self._deleting.append(ticket)  # it would be withdrawn with its ticket

    def refusal(self, digest: bytes) -> str | None:
        """Why the chunk with this hash was refused lately."""
        with self._lock:
            return self._refused.get(digest)

    def stored_anew(self, digests: Sequence[bytes]) -> None:
        """These chunks were written: what was wrong with them is history."""
        with self._lock:
            if self._refused:
                for digest in digests:
                    self._refused.pop(digest, None)

    def figures(self) -> dict[str, float]:
        """What is known of its speed."""
        with self._lock:
            now = time.monotonic()
            return {
                "fixed_s": self._load.fixed_s(now),
                "bandwidth_bytes_s": self._load.bandwidth_bytes_s(now),
                "samples": self._load.samples,
                "loading_bytes": self._loading_bytes,
            }

    def _settle_late(self, now: float) -> None:
        """Learn from questions that were left, now that they are answered or hopeless."""
        with self._lock:
            late, self._late = self._late, []
        kept = []
        for ticket, began in late:
            result = ticket.wait(0)
            if result is not None:
                self.learn(0, result.elapsed_s)
            elif now - began > 10:
                ticket.cancel()
                self.learn(0, now - began)
            else:
                kept.append((ticket, began))
        with self._lock:
            self._late += kept
