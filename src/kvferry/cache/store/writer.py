"""Writing behind: chunks that are in memory go to a store when there is time, or not at all.

One thread for each store takes chunks from a queue and writes them in batches, root first, so that
what is there at any moment is a usable prefix. What waits is written together, as much as a batch
holds: far away each batch takes a round trip or two, however little is in it. The chunks keep their
pages until they are written; that is why the queue is bounded in bytes. Chunks that do not fit are
dropped and counted: they stay in memory, and the engine is never kept waiting. What the store has
already is not sent again. When nothing waits, what the store has lost is written again (see
`kvferry.cache.store.losses`).

Threads: `offer`, `observe`, `flush` and `close` from any; the rest is the writer's own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from kvferry.base.errors import KVFerryError
from kvferry.base.threads import Guarded, noticed
from kvferry.cache.results import FULL_QUEUE
from kvferry.cache.store.batch_writer import BatchWriter
from kvferry.cache.store.capacity import Capacity
from kvferry.cache.store.losses import Losses
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import Prompt
from kvferry.connectors.calls import error_text

__all__ = ["Hold", "WriteJob", "Writer"]

_log = logging.getLogger("kvferry.cache")

_BATCH_BYTES = 64 << 20  # enough to fill the link, little enough that capacity is asked for often
_REASON_TEXTS = {"queue_full": FULL_QUEUE, "cancelled": "there was no time for it"}
_MISSED_MAX = 100_000  # chunks that the store did not get, to be offered again when stored again


def _nobody(_count: int, _why: str) -> None: ...


@dataclass
class WriteJob:
    """Chunks of one prompt that are to be written.

    Attributes:
        prompt: What the chunks belong to.
        chunks: Their indexes, ascending.
        pages: Their bytes.
        release: To be called once, when the pages are no longer needed.
        settled: To be called once, with how many the store has acknowledged and why not all.
        there: How many the store has acknowledged so far.
    """

    prompt: Prompt
    chunks: list[int]
    pages: list[memoryview]
    release: Callable[[], object]
    settled: Callable[[int, str], object] = _nobody
    there: int = 0


class Hold:
    """Pages that several writers share: given back when the last of them is done with them."""

    def __init__(self, release: Callable[[], object]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._shares = 1

    def share(self) -> Callable[[], None]:
        """Another share, to be ended once by what is returned."""
        with self._lock:
            self._shares += 1
        return self.end

    def end(self) -> None:
        """End one share."""
        with self._lock:
            self._shares -= 1
            last = self._shares == 0
        if last:
            self._release()


class Writer:
    """The queue of one store, and the thread that empties it.

    Args:
        tier: The store.
        queue_bytes_max: Limit of the bytes that wait and are being written.
        capacity: Keeps the store below its limit.
        ttl_s: Time to live of what is written; None: the store's default.
        report: Called with the number of chunks, seconds and a reason ("" for written chunks).

    Attributes:
        batches: Writes the chunks, a batch at a time.
        lease: Makes a job of chunks of a prompt that memory still has; None: nothing is written
            again.
        written_again: Chunks that the store had lost and has again.
    """

    def __init__(
        self,
        tier: Tier,
        queue_bytes_max: int,
        capacity: Capacity,
        ttl_s: float | None,
        report: Callable[[int, float, str], None],
    ) -> None:
        self._tier = tier
        self._bytes_max = queue_bytes_max
        self._capacity = capacity
        self._report = report
        self.batches = BatchWriter(tier, capacity, ttl_s, lambda count, s: report(count, s, ""))
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._jobs: deque[WriteJob] = deque()
        self._bytes = 0  # in the queue and in the thread's hands
        self._current: list[WriteJob] = []  # in the thread's hands
        self._closing = False
        self._missed: OrderedDict[bytes, None] = OrderedDict()
        self._losses = Losses(tier, ttl_s)
        self.lease: Callable[[Prompt, list[int]], WriteJob | None] | None = None
        self.written_again = 0
        self._thread: threading.Thread | None = None  # from the first moment that there is work

    @property
    def queue_bytes(self) -> int:
        """Bytes that wait or are being written."""
        return self._bytes

    @property
    def queue_chunks(self) -> int:
        """Chunks that wait or are being written."""
        return self._bytes // self._tier.chunk_bytes

    def has_missed(self, digest: bytes) -> bool:
        """Whether this chunk should have been written and was not."""
        return digest in self._missed

    def offer(self, job: WriteJob) -> bool:
        """Queue a job; False: there is no room for the job, and it has been settled."""
        size = len(job.chunks) * self._tier.chunk_bytes
        with self._lock:
            reason = "cancelled" if self._closing else "queue_full"
            if not self._closing and self._bytes + size <= self._bytes_max:
                self._bytes += size
                self._jobs.append(job)
                self._begin()
                return True
            self._miss(job)
        self._report(len(job.chunks), 0.0, reason)
        job.release()
        job.settled(0, _REASON_TEXTS[reason])
        return False

    def missed(self, prompt: Prompt) -> list[int]:
        """The chunks of a prompt that should have been written and were not."""
        if not self._missed:
            return []
        with self._lock:
            return [i for i in range(prompt.chunks) if prompt.digest(i) in self._missed]

    def drop(self, which: Callable[[bytes], bool]) -> None:
        """Write nothing of these generations that is not being written yet."""
        with self._lock:
            dropped = [job for job in self._jobs if which(job.prompt.generation)]
            self._jobs = deque(job for job in self._jobs if not which(job.prompt.generation))
        for job in dropped:
            self._report(len(job.chunks), 0.0, "cancelled")
            self._end(job, "", "it was cleared")

    def writes(self, which: Callable[[bytes], bool]) -> bool:
        """Whether something of these generations waits or is being written."""
        with self._lock:
            return any(which(job.prompt.generation) for job in (*self._jobs, *self._current))

    @property
    def looks(self) -> bool:
        """Whether `observe` has an effect now."""
        return self.lease is not None and self._losses.idle

    def observe(self, prompt: Prompt, held: int) -> None:
        """Somebody asks for a prompt whose first `held` chunks memory has: has the store, too?"""
        if self.looks and self._losses.observe(prompt, held, self.missed(prompt)):
            with self._lock:
                self._begin()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything that was offered is written or given up; False: it took longer."""
        with self._lock:
            return self._idle.wait_for(lambda: self._bytes == 0, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what waits, for `timeout_s` at most; drop the rest. Whether all was written."""
        done = self.flush(timeout_s)
        with self._lock:
            self._closing = True
            dropped = list(self._jobs)
            self._jobs.clear()
            self._wake.notify()
            thread = self._thread
        self._capacity.stop()
        for job in dropped:
            self._report(len(job.chunks), 0.0, "cancelled")
            self._end(job, "cancelled")
        if thread is not None:
            thread.join(max(0.2, timeout_s))
        return done and not dropped

    # --- The thread ---

    def _begin(self) -> None:
        """With the lock: there is something to do."""
        if self._thread is None and not self._closing:
            self._thread = Guarded(self._run, "write", detail=self._tier.name)
            self._thread.start()
        self._wake.notify()

    def _run(self) -> None:
        self._current = []
        while True:
            with self._lock:
                while not self._jobs:
                    if self._closing:
                        return
                    due_s = self._losses.due_s()
                    if due_s == 0.0:
                        break
                    self._wake.wait(due_s)
                jobs = self._current = self._next()
            if not jobs:
                self._look_after_losses()
                continue
            self._try(jobs)
            jobs.clear()  # their pages with them

    def _next(self) -> list[WriteJob]:
        """With the lock: the jobs of a batch, or one that is longer."""
        jobs: list[WriteJob] = []
        chunks, chunks_max = 0, self._step
        while self._jobs:
            chunks += len(self._jobs[0].chunks)
            if jobs and chunks > chunks_max:
                break
            jobs.append(self._jobs.popleft())
        return jobs

    @property
    def _step(self) -> int:
        """How many chunks a batch has."""
        size_bytes = min(_BATCH_BYTES, self._capacity.step_bytes)
        return max(1, size_bytes // self._tier.chunk_bytes)

    def _try(self, jobs: list[WriteJob]) -> bool:
        """Write jobs and end them; whether all of them were written."""
        reasons = ["error"] * len(jobs)
        try:
            reasons = self._write(jobs)
        except Exception as error:
            if not isinstance(error, KVFerryError):
                noticed("write", error)
            _log.warning("writing to %s failed: %s", self._tier.name, error_text(error))
            for job in jobs:
                self._report(len(job.chunks), 0.0, "error")
        finally:  # whatever was raised: they are over
            for job, reason in zip(jobs, reasons, strict=True):
                self._end(job, reason)
        return not any(reasons)

    def _look_after_losses(self) -> None:
        """Ask, or write one batch, of what the store has lost."""
        assert self.lease is not None
        chunks_max = max(1, min(_BATCH_BYTES, self._bytes_max) // self._tier.chunk_bytes)
        try:
            if self._losses.look():
                _log.info("%s lost chunks that it had; they are written again", self._tier.name)
                self.batches.described = False
            wanted = self._losses.next(chunks_max)
            job = None if wanted is None else self.lease(*wanted)
        except Exception as error:
            if not isinstance(error, KVFerryError):
                noticed("write", error)
            self._losses.give_up()
            return
        if job is None:
            return
        with self._lock:
            self._bytes += len(job.chunks) * self._tier.chunk_bytes
            self._current = [job]
        began, before = time.monotonic(), self.batches.written
        if not self._try(self._current):
            self._losses.give_up()
        self._current = []
        self.written_again += self.batches.written - before
        self._losses.rest(time.monotonic() - began)

    def _write(self, jobs: list[WriteJob]) -> list[str]:
        """Write the jobs of a batch, or one in batches; why each was not written, or ""."""
        if len(jobs) > 1:
            return self._write_batch([(job, 0, len(job.chunks)) for job in jobs])
        (job,), step = jobs, self._step
        for start in range(0, len(job.chunks), step):
            end = min(start + step, len(job.chunks))
            (reason,) = self._write_batch([(job, start, end)])
            if reason:
                self._report(len(job.chunks) - end, 0.0, reason)
                return [reason]
        return [""]

    def _write_batch(self, parts: list[tuple[WriteJob, int, int]]) -> list[str]:
        """Write these chunks of jobs; why each of the parts was not written, or ""."""
        keys, pages, digests = list[str](), list[memoryview](), list[bytes]()
        for job, start, end in parts:
            chunks = job.chunks[start:end]
            names = job.prompt.keys(chunks[0], chunks[-1] + 1)
            keys += [names[chunk - chunks[0]] for chunk in chunks]
            pages += job.pages[start:end]
            digests += [job.prompt.digest(chunk) for chunk in chunks]
        there, failed = self.batches.write(keys, pages, digests)
        reasons, at = list[str](), 0
        for job, start, end in parts:
            here = there[at : at + end - start]
            at += end - start
            job.there += here.count(True)
            reasons.append("" if all(here) else failed)
            if not all(here):
                self._report(here.count(False), 0.0, failed)
            whole = here.index(False) if False in here else len(here)
            if not whole:
                continue
            prompt, chunks = job.prompt, job.chunks[start : start + whole]
            if self.lease is not None:
                self._tier.known.add(prompt, chunks)
            self._capacity.stored(prompt.first(chunks[-1] + 1), chunks[0], prompt.generation)
        return reasons

    def _end(self, job: WriteJob, reason: str, why: str = "") -> None:
        try:
            job.release()
        except Exception as error:
            noticed("write", error)
        if reason:
            why = _REASON_TEXTS.get(reason) or self.batches.problem or reason.replace("_", " ")
        job.settled(job.there, why)
        with self._lock:
            if reason:
                self._miss(job)
            elif self._missed:
                for chunk in job.chunks:
                    self._missed.pop(job.prompt.digest(chunk), None)
            self._bytes -= len(job.chunks) * self._tier.chunk_bytes
            if self._bytes == 0:
                self._idle.notify_all()

    def _miss(self, job: WriteJob) -> None:
        for chunk in job.chunks:
            self._missed[job.prompt.digest(chunk)] = None
        while len(self._missed) > _MISSED_MAX:
            self._missed.popitem(last=False)
