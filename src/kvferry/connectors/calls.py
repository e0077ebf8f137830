"""Calls that a few threads make for whoever submitted them: what `ThreadedConnector` stands on."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from kvferry.base.errors import (
    CapacityError,
    ClosedError,
    DeadlineExceeded,
    KVFerryError,
    UnavailableError,
)
from kvferry.client.batch import BatchResult, Status

__all__ = ["CallJob", "CallQueue", "error_text", "lacks_room", "status_of"]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM_WORDS = tuple(map(os.strerror, _NO_ROOM))


class CallJob:
    """A call that a thread will make; also its ticket.

    Args:
        call: Given the job and the seconds that are left. It has to hold no job itself: a job that
            is part of a circle keeps the caller's buffers until the collector comes.
        count: Of the keys.
        limit_s: Of the call, from now.

    Attributes:
        arrived: Set by the call while it runs: how many leading keys have final buffers.
        cancelled: Nobody waits for the result any more.
    """

    def __init__(
        self, call: Callable[[CallJob, float], BatchResult], count: int, limit_s: float
    ) -> None:
        self.id = 0
        self.announced = False
        self._call = call
        self._count = count
        self._limit_s = limit_s
        self._started = time.monotonic()
        self._done = threading.Event()
        self._result: BatchResult | None = None
        self.arrived = 0
        self.cancelled = False

    def run(self) -> None:
        left_s = self._started + self._limit_s - time.monotonic()
        if self.cancelled:
            self.end(Status.CANCELLED)
        elif left_s <= 0:
            self.end(Status.TIMEOUT, f"it waited for a thread for {self._limit_s:g} s")
        else:
            try:
                self._result = self._call(self, left_s)
            except BaseException as error:  # not even a SystemExit of a driver leaves it open
                self.end(status_of(error), error_text(error))
        self._done.set()

    def end(self, status: Status, error: str | None = None) -> None:
        elapsed_s = time.monotonic() - self._started
        statuses = bytes([status]) * self._count
        self._result = BatchResult(statuses, [0] * self._count, elapsed_s, error)
        self._done.set()

    def wait(self, timeout_s: float) -> BatchResult | None:
        return self._result if self._done.wait(max(0.0, timeout_s)) else None

    def cancel(self) -> None:
        self.cancelled = True

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def prefix_len(self) -> int:
        return self._result.prefix_len if self._result is not None else self.arrived


class CallQueue:
    """Jobs on their way to the threads and back. All methods from any thread.

    Args:
        jobs_max: That wait at a time.
        event_fd: Told of jobs that have ended, and closed with this; None: one of its own.
        first_id: Of the jobs.
    """

    def __init__(self, jobs_max: int, event_fd: int | None = None, first_id: int = 1) -> None:
        own = os.EFD_NONBLOCK | os.EFD_CLOEXEC
        self.event_fd = os.eventfd(0, own) if event_fd is None else event_fd
        self._jobs_max = jobs_max
        self._changed = threading.Condition()
        self._waiting: deque[CallJob] = deque()
        self._raw: dict[int, CallJob] = {}
        self._finished: list[CallJob] = []
        self._next_id = first_id
        self._closed = False
        weakref.finalize(self, os.close, self.event_fd)

    def put(self, job: CallJob, announced: bool) -> None:
        with self._changed:
            if self._closed:
                raise ClosedError("the connector is closed")
            if len(self._waiting) >= self._jobs_max:
                raise CapacityError(f"{len(self._waiting)} jobs are waiting, the limit")
            job.id, self._next_id = self._next_id, self._next_id + 1
            job.announced = announced
            if announced:
                self._raw[job.id] = job
            self._waiting.append(job)
            self._changed.notify()

    def work(self) -> None:
        """The body of a thread."""
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                job = self._waiting.popleft()
            job.run()
            self._announce(job)
            del job  # its buffers are not ours while we sleep

    def get(self, job_id: int) -> CallJob | None:
        with self._changed:
            return self._raw.get(job_id)

    def drain(self) -> list[tuple[int, BatchResult]]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.event_fd)
        return self.take()

    def take(self) -> list[tuple[int, BatchResult]]:
        """As `drain`, by whoever has read the descriptor."""
        with self._changed:
            finished, self._finished = self._finished, []
            for job in finished:
                del self._raw[job.id]
        return [(job.id, result) for job in finished if (result := job.wait(0)) is not None]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
            self._changed.notify_all()
        for job in waiting:
            job.end(Status.CANCELLED, "the connector was closed")
            self._announce(job)

    def _announce(self, job: CallJob) -> None:
        if not job.announced:
            return
        with self._changed:
            self._finished.append(job)
            first = len(self._finished) == 1
        if first:
            os.eventfd_write(self.event_fd, 1)


def status_of(error: BaseException) -> Status:
    """The status of a key for an exception of a driver."""
    for kind, status in (
        (ClosedError, Status.CANCELLED),
        (DeadlineExceeded, Status.TIMEOUT),
        (UnavailableError, Status.UNAVAILABLE),
    ):
        if isinstance(error, kind):
            return status
    return Status.SERVER_ERROR


def error_text(error: BaseException) -> str:
    """The text of an exception for `BatchResult.error`; a lack of room begins with "OOM"."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _NO_ROOM):
        return f"OOM {error}"
    return str(error) if isinstance(error, KVFerryError) else f"{type(error).__name__}: {error}"


def lacks_room(text: str | None) -> bool:
    """Whether an error of a store says that it is full."""
    return text is not None and (
        text.startswith("OOM") or any(word in text for word in _NO_ROOM_WORDS)
    )
