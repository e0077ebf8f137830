"""BlockingConnector: tickets, an eventfd and draining for drivers that only know how to block.

    class MyStore(BlockingConnector):
        def batch_get(self, keys, buffers, *, prefix=False, timeout_s=None): ...
        def batch_set(self, keys, buffers, *, ttl_s=None, timeout_s=None): ...
        def batch_exists(self, keys, *, prefix=False, touch=False, timeout_s=None): ...
        def batch_delete(self, keys, *, timeout_s=None): ...
        def usage(self, timeout_s=1.0): ...

A few threads call these five. Their exceptions become SERVER_ERROR of all keys of the job; a job
that waits longer than its limit is TIMEOUT, and one that was cancelled while it waited CANCELLED.
A job that runs is not interrupted: the driver sees to its `timeout_s`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from kvferry.client.batch import BatchResult
from kvferry.client.buffers import check_batch, check_targets, encode_keys, readable, writable
from kvferry.client.inherited import Inherited
from kvferry.client.times import checked_timeout
from kvferry.connectors.base import BufferLike, Key, ScanBatch, Space, Usage
from kvferry.connectors.calls import CallJob, CallQueue
from kvferry.connectors.defaults import Defaults
from kvferry.errors import BadBufferError, ClosedError

__all__ = ["BlockingConnector"]

_TIMEOUT_S = 5.0
_FLOOR_RATE_BYTES_S = 50e6
_CLOSE_WAIT_S = 2.0
_open: weakref.WeakSet[BlockingConnector] = weakref.WeakSet()
_parents: list[object] = []  # queues of the process that forked us: their descriptors stay


class BlockingConnector(Defaults, ABC):
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
        self._inherited = Inherited()
        self._threads: list[threading.Thread] = []
        _open.add(self)

    # --- What a driver must have ---

    @abstractmethod
    def batch_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> BatchResult: ...

    @abstractmethod
    def batch_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> BatchResult: ...

    @abstractmethod
    def batch_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> BatchResult: ...

    @abstractmethod
    def batch_delete(
        self, keys: Sequence[Key], *, timeout_s: float | None = None
    ) -> BatchResult: ...

    @abstractmethod
    def usage(self, timeout_s: float = 1.0) -> Usage: ...

    # --- What it may have ---

    def evict_others(self, size_bytes: int, timeout_s: float) -> int:
        """Nothing, by default: spaces share the store by accident."""
        return 0

    def scan(self, limit: int = 1000) -> Iterator[ScanBatch]:
        """Nothing, by default: the cache then forgets at a restart what the store holds."""
        return iter(())

    def descriptions(self) -> Mapping[bytes, str]:
        """None, by default."""
        return {}

    def describe(self) -> None:  # a default, not a duty
        """Keep the description of the space; by default nothing is kept."""

    @property
    def available(self) -> bool:
        """True, by default."""
        return True

    def stats(self) -> Mapping[str, int]:
        """None, by default."""
        return {}

    # --- What it gets: checks of arguments ---

    def names(self, keys: Sequence[Key]) -> list[bytes]:
        """The keys as they are in the store, with the prefix.

        Raises:
            UsageError: There is none, or one of them cannot be a key.
        """
        prefix = self.space.prefix.encode()
        return encode_keys([prefix + key for key in encode_keys(keys)])

    def targets(self, keys: Sequence[Key], buffers: Sequence[BufferLike]) -> list[memoryview]:
        """The memory of a get, one for each key.

        Raises:
            UsageError: There is not one buffer for each key.
            BadBufferError: One is read-only, no plain memory, not as long as the values, or shares
                memory with another.
        """
        views = self._views(keys, buffers, writable)
        check_targets(views)
        return views

    def values(self, keys: Sequence[Key], buffers: Sequence[BufferLike]) -> list[memoryview]:
        """The memory of a set; see `targets`."""
        return self._views(keys, buffers, readable)

    def deadline(self, size_bytes: int, timeout_s: float | None) -> float:
        """When a call of so many bytes should end, on the clock of time.monotonic().

        Raises:
            UsageError: `timeout_s` leaves no time.
        """
        return time.monotonic() + self._limit_s(size_bytes, timeout_s)

    # --- What it gets: the other ways to call ---

    def submit_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> CallJob:
        """See `Connector`."""
        return self._put(self.batch_get, keys, buffers, timeout_s, prefix=prefix)

    def submit_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> CallJob:
        """See `Connector`."""
        return self._put(self.batch_set, keys, buffers, timeout_s, ttl_s=ttl_s)

    def submit_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> CallJob:
        """See `Connector`."""
        return self._put(self.batch_exists, keys, None, timeout_s, prefix=prefix, touch=touch)

    def submit_delete(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> CallJob:
        """See `Connector`."""
        return self._put(self.batch_delete, keys, None, timeout_s)

    def submit_batch_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> int:
        """See `Connector`."""
        return self._put(self.batch_get, keys, buffers, timeout_s, True, prefix=prefix).id

    def submit_batch_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """See `Connector`."""
        return self._put(self.batch_set, keys, buffers, timeout_s, True, ttl_s=ttl_s).id

    def submit_batch_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> int:
        """See `Connector`."""
        call = self.batch_exists
        return self._put(call, keys, None, timeout_s, True, prefix=prefix, touch=touch).id

    def submit_batch_delete(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> int:
        """See `Connector`."""
        return self._put(self.batch_delete, keys, None, timeout_s, True).id

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Inside ---

    def _put(
        self,
        call: Callable[..., BatchResult],
        keys: Sequence[Key],
        buffers: Sequence[BufferLike] | None,
        timeout_s: float | None,
        announced: bool = False,
        **options: Any,
    ) -> CallJob:
        # Refused here, not in a thread where nobody would see it.
        self.names(keys)
        own = list(keys)
        views: list[memoryview] | None = None
        if buffers is not None:
            views = (self.targets if call == self.batch_get else self.values)(keys, buffers)
        limit_s = self._limit_s(sum(map(len, views or ())), timeout_s)
        arguments = (own,) if views is None else (own, views)
        job = CallJob(
            lambda left_s: call(*arguments, timeout_s=left_s, **options), len(own), limit_s
        )
        self._started().put(job, announced)
        return job

    def _views(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        view: Callable[[BufferLike], memoryview],
    ) -> list[memoryview]:
        buffers = list(buffers)
        check_batch(keys, buffers)
        views = [view(buffer) for buffer in buffers]
        for index, memory in enumerate(views):
            if len(memory) != self.space.value_size_bytes:
                raise BadBufferError(
                    f"buffer {index} has {len(memory)} bytes; "
                    f"every value here has {self.space.value_size_bytes}"
                )
        return views

    def _limit_s(self, size_bytes: int, timeout_s: float | None) -> float:
        limit_s = checked_timeout(timeout_s)
        return _TIMEOUT_S + size_bytes / _FLOOR_RATE_BYTES_S if limit_s is None else limit_s

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
                    threading.Thread(target=queue.work, name=f"kvferry-store-{n}", daemon=True)
                    for n in range(self._thread_count)
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
