"""ThreadedConnector: tickets, an eventfd and draining for drivers that only know how to block.

A few threads carry out what was submitted. A job that waits longer than its limit is TIMEOUT, and
one that was cancelled while it waited CANCELLED. A job that runs is not interrupted: the driver
sees to its limit.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from kvferry.base.errors import BadBufferError, ClosedError
from kvferry.base.threads import Guarded
from kvferry.client.batch import BatchResult, Operation, Verb, checked_timeout
from kvferry.client.buffers import (
    BufferLike,
    check_batch,
    check_targets,
    encode_keys,
    readable,
    writable,
)
from kvferry.client.event_fds import InheritedEventFds
from kvferry.connectors.base import Connector, Space, job_limit_s
from kvferry.connectors.calls import CallJob, CallQueue

__all__ = ["Checked", "ThreadedConnector"]

_CLOSE_WAIT_S = 2.0
_open: weakref.WeakSet[ThreadedConnector] = weakref.WeakSet()
_parents: list[object] = []  # queues of the process that forked us: their descriptors stay


class Checked(Struct, frozen=True):
    """An `Operation` that can be right.

    Attributes:
        verb: As there.
        names: The keys as they are in the store, with the prefix.
        memory: Of GET and SET, one for each name, as long as the values; else empty.
        prefix: As there.
        ttl_s: As there.
        left_s: How much time there is.
    """

    verb: Verb
    names: list[bytes]
    memory: list[memoryview]
    prefix: bool
    ttl_s: float | None
    left_s: float


class ThreadedConnector(Connector):
    """See the head of this module, and `Connector` for what each method promises.

    Args:
        space: What it is opened with.
        threads: How many jobs run at a time.
        jobs_max: How many may wait; beyond it submissions raise CapacityError.
    """

    def __init__(self, space: Space, *, threads: int = 4, jobs_max: int = 10_000) -> None:
        self.space = space
        self._thread_count = threads
        self._jobs_max = jobs_max
        self._closed = False
        self._lock = threading.Lock()
        self._queue: CallQueue | None = None
        self._inherited = InheritedEventFds()
        self._threads: list[threading.Thread] = []
        _open.add(self)

    @abstractmethod
    def answer(self, operation: Checked) -> BatchResult:
        """Carry out an operation, in the time that there is. In any thread.

        An exception becomes SERVER_ERROR of all keys of a job; who called `perform` gets it.
        """

    def perform(self, operation: Operation) -> BatchResult:
        """See `Connector`."""
        checked = self._checked(operation)
        if self._closed:
            raise ClosedError("the connector is closed")
        return self.answer(checked)

    def submit(self, operation: Operation) -> CallJob:
        """See `Connector`."""
        return self._put(operation, announced=False)

    def announce(self, operation: Operation) -> int:
        """See `Connector`."""
        return self._put(operation, announced=True).id

    def event_fd(self) -> int:
        """See `Connector`."""
        return self._started().event_fd

    def drain_completions(self) -> list[tuple[int, BatchResult]]:
        """See `Connector`."""
        return self._started().drain()

    def progress(self, job_id: int) -> int:
        """See `Connector`."""
        job = self._started().get(job_id)
        return job.prefix_len if job is not None else 0

    def cancel(self, job_id: int) -> None:
        """See `Connector`."""
        if (job := self._started().get(job_id)) is not None:
            job.cancel()

    def close(self) -> None:
        """See `Connector`. Drivers extend it."""
        self._closed = True
        if self._queue is not None:
            self._queue.close()
        deadline = time.monotonic() + _CLOSE_WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # --- Inside ---

    def _put(self, operation: Operation, *, announced: bool) -> CallJob:
        # Refused here, not in a thread where nobody would see it.
        checked = self._checked(operation)
        job = CallJob(
            lambda _, left_s: self.answer(replace(checked, left_s=left_s)),
            len(checked.names),
            checked.left_s,
        )
        self._started().put(job, announced)
        return job

    def _checked(self, operation: Operation) -> Checked:
        """An operation whose keys, buffers and limit can be right.

        Raises:
            UsageError: There is no key, one cannot be a key, there is not one buffer for each, or
                `timeout_s` leaves no time.
            BadBufferError: One is read-only, no plain memory, not as long as the values, or shares
                memory with another.
        """
        prefix = self.space.prefix.encode()
        names = encode_keys([prefix + key for key in encode_keys(operation.keys)])
        memory = self._memory(operation) if operation.verb <= Verb.SET else []
        limit_s = checked_timeout(operation.timeout_s)
        if limit_s is None:
            limit_s = job_limit_s(sum(map(len, memory)))
        return Checked(operation.verb, names, memory, operation.prefix, operation.ttl_s, limit_s)

    def _memory(self, operation: Operation) -> list[memoryview]:
        buffers = list(cast("Sequence[BufferLike]", operation.buffers))
        check_batch(operation.keys, buffers)
        view = writable if operation.verb is Verb.GET else readable
        views = [view(buffer) for buffer in buffers]
        for index, memory in enumerate(views):
            if len(memory) != self.space.value_size_bytes:
                raise BadBufferError(
                    f"buffer {index} has {len(memory)} bytes; "
                    f"every value here has {self.space.value_size_bytes}"
                )
        if operation.verb is Verb.GET:
            check_targets(views)
        return views

    def _started(self) -> CallQueue:
        """The queue; at first use, and in a forked child, with its threads."""
        queue = self._queue
        if queue is not None:
            return queue
        with self._lock:
            if self._closed:
                raise ClosedError("the connector is closed")
            if self._queue is None:
                queue = CallQueue(self._jobs_max)
                self._inherited.wake_with(queue.event_fd)
                self._threads = [
                    Guarded(queue.work, "store", detail=n) for n in range(self._thread_count)
                ]
                for thread in self._threads:
                    thread.start()
                self._queue = queue
            return self._queue

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # a thread that is not here may have held it
        parents, self._queue, self._threads = self._queue, None, []
        _parents.append(parents)
        self._inherited.take(None if parents is None else parents.event_fd)


def _after_fork_in_child() -> None:
    for connector in list(_open):
        connector._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
