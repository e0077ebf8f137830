"""L2: one store behind the cache, with what was learnt about it.

A tier answers two questions: how much of a prefix the store has (`send`, `answer`), and how
long loading chunks would take (`predict_s`), by how long questions and loads have taken.

A question that is not answered in time is left, see `store.store_answers`: so a store that hangs
costs one request what that may lose, and the others nothing.

Threads: any.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from kvferry.base.errors import KVFerryError
from kvferry.cache.cost.load_or_compute import UNSEEN, WINS_MAX, FirstByte, LoadModel, Odds
from kvferry.cache.steps import Polled, Steps, Wait
from kvferry.cache.store.capacity import Capacity
from kvferry.cache.store.store_answers import (
    REASONS,
    Asked,
    Known,
    LateAnswers,
    Probe,
    Refusals,
    reason_of,
)
from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import BatchResult, Status
from kvferry.connectors.base import Connector, Ticket

__all__ = ["Tier"]

_log = logging.getLogger("kvferry.cache")

# A store that is not used is measured in the background, no more often than this.
_MEASURE_EVERY_S = 5.0


def _may_read(prompt: Prompt, until: float) -> Steps[bool]:
    """Always."""
    yield from ()
    return True


class Tier:
    """A store and its history.

    Attributes:
        capacity: Keeps it below its limit; None: it has none, or evicts by itself.
        known: Chunks that it had when they were last seen there.
        refusals: Chunks that it had, and that were something else.
        measured: A load has come to its end, so that what is known can be relied upon.
        sees: It said what it has without being asked, the last time: a hit waits once.
        pages_on_demand: Reads may take their pages when values come; see `load.window`.
        contact_until: A moment up to which requests wait for the store to be reached at all.
        lets_go: A job that was cancelled ends soon, whatever the store does: so its buffers may be
            the caller's own.

    Args:
        may_read: Whether the store may be asked for a prompt; waits for that until a moment.
    """

    def __init__(
        self,
        name: str,
        connector: Connector,
        chunk_bytes: int,
        *,
        capacity: Capacity | None = None,
        lets_go: bool = False,
        may_read: Callable[[Prompt, float], Steps[bool]] = _may_read,
    ) -> None:
        self.name = name
        self._may_read = may_read
        self.connector = connector
        self.chunk_bytes = chunk_bytes
        self.capacity = capacity
        self.lets_go = lets_go
        self.contact_until = 0.0
        self.known = Known()
        self._has_view = hasattr(connector, "absent")  # then an answer in no time measures nothing
        self.pages_on_demand = bool(getattr(connector, "pages_on_demand", False))
        self._leading: Callable[..., int | None] | None = getattr(connector, "leading", None)
        self._load = LoadModel()
        self._lock = threading.Lock()
        self._loading_bytes = self._loaded_at_bytes = 0  # and what is received when they have come
        self._stray_until = 0.0
        self.refusals = Refusals()
        self._late = LateAnswers(name, connector, self._answered)
        self._odds = Odds()
        self._answers = 0
        self._drained = 0
        self.sees = False
        self._deleting: list[Ticket] = []
        self.measured = False
        self._measure_at = 0.0
        self._counts = True  # as far as is known

    def send(
        self, prompt: Prompt, start: int, until: float, *, touch: bool = True, whole: bool = False
    ) -> Steps[Asked]:
        """Ask the same without waiting, for `answer` to do so.

        Args:
            whole: Also for what is behind a missing chunk.
        """
        began = time.monotonic()
        asked = Asked(prompt, start, touch, until, began)
        if not (yield from _reached(self.connector, min(until, self.contact_until))):
            asked.probe = Probe(start, "unavailable")
        elif self.silent or until <= began:
            asked.probe = Probe(start, "deadline")
        elif not (yield from self._may_read(prompt, until)):
            asked.probe = Probe(start, "unavailable")
        if asked.probe is not None:
            return asked
        keys = prompt.keys(start, prompt.chunks)
        known = None if self._leading is None else self._leading(keys)
        self.sees, asked.sure = bool(known), known == 0
        if known:  # the reads are the question
            self._used(asked, known)
            asked.probe = Probe(start + known, "never_stored" if known < len(keys) else "")
            return asked
        try:
            asked.ticket = self.connector.submit_exists(keys, prefix=not whole, touch=touch)
        except KVFerryError:  # it has too much to do, or was closed
            asked.probe = Probe(start, "error")
        return asked

    def look(self, prompt: Prompt, start: int) -> None:
        """Have `sees` be about this prompt; the store is not asked."""
        if not self.sees and self._leading is not None:  # else the question finds out
            self.sees = bool(self._leading(prompt.keys(start, start + 1)))

    def answer(self, asked: Asked) -> Steps[Probe]:
        """Wait for the answer to a question, up to its `until`; one that is late is left."""
        ticket, start = asked.ticket, asked.start
        if ticket is None:
            assert asked.probe is not None
            return asked.probe
        asked.ticket = None
        result = ticket.wait(0.0)
        # The answer may have come while another store was waited for.
        took_s = result.elapsed_s if result is not None else 0.0
        if result is None:
            result = yield Wait(ticket, max(0.0, asked.until - time.monotonic()))
            took_s = time.monotonic() - asked.began
        if result is None:
            self._leave(ticket, asked.began, asked.until - asked.began)
            asked.probe = Probe(start, "deadline", took_s)
            return asked.probe
        found = result.prefix_len
        self._used(asked, found)
        reason = "never_stored" if found < len(result) else ""
        if not self._answered(result, took_s):
            reason = REASONS.get(result[found], "error")
        asked.probe, asked.result = Probe(start + found, reason, took_s), result
        return asked.probe

    def leave(self, asked: Asked) -> None:
        """Nobody waits for this answer; when it comes, how long it took is learnt."""
        ticket, asked.ticket = asked.ticket, None
        if ticket is not None:
            self._leave(ticket, asked.began, 0.0)

    def _used(self, asked: Asked, found: int) -> None:
        if asked.touch and found and self.capacity is not None:
            self.capacity.used(asked.prompt.first(asked.start + found), asked.prompt.generation)

    def ask(self, prompt: Prompt, start: int) -> None:
        """Ask as `send` does, for nobody; when the answer comes, how long it took is learnt."""
        if not self.connector.available or self.silent:
            return
        began = time.monotonic()
        with suppress(KVFerryError):
            keys = prompt.keys(start, prompt.chunks)
            self._leave(self.connector.submit_exists(keys, prefix=True), began, 0.0)

    @property
    def silent(self) -> bool:
        """Whether a question that was left has no answer yet, so that nobody should wait."""
        return self._late.silent

    @property
    def wins(self) -> float:
        """How many seconds to wait for each that an answer can save; see `Odds`."""
        with self._lock:
            return WINS_MAX if self.sees else self._odds.wins

    @property
    def odds(self) -> float:
        """How much of what it is asked for the store mostly has, as a part of 1."""
        return self.wins / (1 + self.wins)

    @property
    def asked(self) -> bool:
        """Whether the store has ever said what it has, or was loaded from."""
        return self._answers > 0 or self._load.samples > 0

    def _answered(self, result: BatchResult, took_s: float, is_canary: bool = False) -> bool:
        """Learn from the result of a question; False: it is no answer."""
        found = result.prefix_len
        if found < len(result) and result[found] is not Status.MISS:
            return False
        if result.elapsed_s or not self._has_view:
            self.learn(0, took_s)
        with self._lock:
            self._answers += 1
            if not is_canary and len(result):
                self._odds.answered(found / len(result))
        return True

    def _leave(self, ticket: Ticket, began: float, limit_s: float) -> None:
        self._late.leave(ticket, began, limit_s, self.question_s())

    def predict_s(self, chunks: int) -> float:
        """Seconds to load that many chunks, beside what is being loaded already."""
        queued_bytes = self.queued_bytes()
        with self._lock:
            return self._load.predict_s(chunks * self.chunk_bytes, time.monotonic(), queued_bytes)

    def queued_bytes(self) -> int:
        """How many bytes loads that go on have not received yet."""
        received_bytes = self.received_bytes()
        with self._lock:
            return min(self._loading_bytes, max(0, self._loaded_at_bytes - received_bytes))

    @property
    def bandwidth_bytes_s(self) -> float:
        """Bytes per second that the store is thought to deliver."""
        with self._lock:
            return self._load.bandwidth_bytes_s(time.monotonic())

    def question_s(self) -> float:
        """Seconds that an answer of the store takes."""
        with self._lock:
            return self._load.fixed_s(time.monotonic())

    @property
    def others_load(self) -> bool:
        """Whether bytes may come that were asked for before, of loads that go on or were cut."""
        return self._loading_bytes > 0 or time.monotonic() < self._stray_until

    def to_be_measured(self) -> bool:
        """Whether somebody should load something that nobody waits for; says so now and then."""
        now = time.monotonic()
        with self._lock:
            if now < self._measure_at:
                return False
            self._measure_at = now + _MEASURE_EVERY_S
            return True

    def learn(
        self,
        size_bytes: int,
        took_s: float,
        *,
        whole: bool = True,
        first_byte: FirstByte = UNSEEN,
    ) -> None:
        """A load, or a question (0 bytes), took so long; `whole`: it came to its end."""
        now = time.monotonic()
        with self._lock:
            self._load.observe(size_bytes, took_s, now, first_byte, whole=whole)
            self.measured |= whole and size_bytes > 0
            if not whole:  # what was asked for still comes, for a round trip or two
                self._stray_until = now + 2 * self._load.fixed_s(now)

    @contextmanager
    def loading(self, prompt: Prompt, start: int, end: int) -> Iterator[None]:
        """While chunks are being loaded: `predict_s` counts them, and the store keeps them."""
        size_bytes = (end - start) * self.chunk_bytes
        lease = 0 if self.capacity is None else self.capacity.lease(prompt.first(end))
        received_bytes = self.received_bytes()
        with self._lock:
            before_bytes = max(received_bytes, self._loaded_at_bytes if self._loading_bytes else 0)
            self._loaded_at_bytes = before_bytes + size_bytes
            self._loading_bytes += size_bytes
        try:
            yield
        finally:
            with self._lock:
                self._loading_bytes -= size_bytes
            if self.capacity is not None:
                self.capacity.release(lease)

    def drained(self, chunks: int) -> None:
        """So many values came that nobody wanted any more."""
        with self._lock:
            self._drained += chunks

    def received_bytes(self) -> int:
        """How many bytes have come from the store, for whomever; only differences mean something.

        Encoded chunks count as what they become, because a load counts in chunks.
        """
        return int(self._counter("client_content_received", "bytes_read"))

    def round_trip_s(self) -> float:
        """How far away the store is, by its client's account; infinite: that is not known."""
        return (self._counter("client_round_trip_us") or math.inf) / 1e6

    def _counter(self, *names: str) -> float:
        """The first of these counters that the connector has; 0: it has none."""
        found = self.counted()
        value = next((found[name] for name in names if name in found), 0)
        return value if isinstance(value, int | float) else 0

    def counted(self) -> Mapping[str, int]:
        """What its connector counts; nothing, said once, where that raises or is none."""
        try:
            found = self.connector.stats()
            if isinstance(found, Mapping):
                return found
            raise TypeError(f"stats() returned a {type(found).__name__}")
        except Exception:  # of a plug-in: any
            if self._counts:
                _log.exception("%s does not say what it counts; it is left out", self.name)
            self._counts = False
            return {}

    def refuse(self, prompt: Prompt, chunks: Sequence[int], result: BatchResult) -> None:
        """Chunks that should be there were not, or were something else.

        The connector has deleted chunks that were something else, and `refusals` remembers them. A
        chunk that is a miss after all may be half there: stripes of two writes, or some of one.
        Nobody would write it again as long as it looks present, so it is deleted.
        """
        missing = []
        for index, chunk in enumerate(chunks):
            status, digest = result[index], prompt.digest(chunk)
            if status not in (Status.MISS, Status.CORRUPT, Status.SIZE_MISMATCH):
                continue
            if self.capacity is not None:
                self.capacity.gone(digest)
            if status is Status.MISS:
                missing += prompt.keys(chunk, chunk + 1)
            else:
                self.refusals.add(digest, reason_of(result, index))
        with self._lock:
            self._deleting = [ticket for ticket in self._deleting if not ticket.done]
        if missing:
            with suppress(KVFerryError):  # best effort
                ticket = self.connector.submit_delete(missing)
                with self._lock:
                    self._deleting.append(ticket)  # it would be withdrawn with its ticket

    def figures(self) -> dict[str, float]:
        """What is known of its speed."""
        now = time.monotonic()
        with self._lock:
            return {
                "fixed_s": self._load.fixed_s(now),
                "bandwidth_bytes_s": self._load.bandwidth_bytes_s(now),
                "seen_bytes_s": self._load.seen_bytes_s,
                "samples": self._load.samples,
                "loading_bytes": self._loading_bytes,
                "drained_chunks": self._drained,
            }


def _reached(connector: Connector, until: float) -> Steps[bool]:
    """Whether a store is available; waits for that up to a moment of ``time.monotonic``."""
    left_s = until - time.monotonic()
    if left_s > 0 and not connector.available:
        yield Wait(Polled(lambda: connector.available), left_s)
    return connector.available
