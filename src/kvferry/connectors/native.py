"""What the drivers in C++ share: one native connector and its life.

Threads of the native connector never take the GIL. After ``fork()`` the child opens a connector of
its own on first use; jobs that were in flight stay the parent's. At interpreter exit every open
connector is closed, so that no thread can touch memory that Python is about to free.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from kvferry import _native
from kvferry.client.batch import BatchResult, from_native
from kvferry.client.buffers import encode_keys
from kvferry.client.inherited import Inherited
from kvferry.client.native import Verb  # first of all: its clients are closed after us
from kvferry.client.times import checked_timeout, ttl_ms
from kvferry.connectors.base import BufferLike, Key, ScanBatch, Space, Usage
from kvferry.connectors.defaults import Defaults
from kvferry.connectors.others import evict_others
from kvferry.errors import ClosedError, DeadlineExceeded

__all__ = ["NativeConnector"]

_log = logging.getLogger("kvferry.connectors")
_open: weakref.WeakSet[NativeConnector] = weakref.WeakSet()
_parents: list[object] = []  # native connectors of the process that forked us: never destroyed

HANG_GRACE_S = 2.0  # how much later than its deadline a blocking call looks for its end
_TIMEOUT_S = 5.0  # as in native/connector/connector.cpp
_FLOOR_RATE_BYTES_S = 50e6
QUEUED_KEYS_MAX = 1_000_000


class _Ticket:
    """A quiet job of a native connector."""

    __slots__ = ("_id", "_native", "_result")

    def __init__(self, native: _native.Connector, job_id: int) -> None:
        self._native = native
        self._id = job_id
        self._result: BatchResult | None = None

    def wait(self, timeout_s: float) -> BatchResult | None:
        if self._result is None:
            outcome = self._native.wait(self._id, max(0.0, timeout_s))
            if outcome is not None:
                self._result = from_native(*outcome)
                _emit_log(self._native)
        return self._result

    def cancel(self) -> None:
        self._native.cancel(self._id)

    @property
    def done(self) -> bool:
        return self.wait(0.0) is not None

    @property
    def prefix_len(self) -> int:
        result = self._result
        return self._native.progress(self._id) if result is None else result.prefix_len

    def __del__(self) -> None:
        self._native.discard(self._id)


class NativeConnector(Defaults, ABC):
    """Owns a native connector; a driver says how that is opened. See `Connector`."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._closed = False
        self._lock = threading.Lock()  # held while a forked child opens its own
        self._inherited = Inherited()
        self._native: _native.Connector | None = self._open(space)
        _open.add(self)
        self.describe()

    @abstractmethod
    def _open(self, space: Space) -> _native.Connector: ...

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<{type(self).__name__} {self.space.prefix!r} {self._where()} {state}>"

    def _where(self) -> str:
        return ""

    # --- Blocking ---

    def batch_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """See `Connector`."""
        return self._run(Verb.GET, keys, buffers, prefix=prefix, timeout_s=timeout_s)

    def batch_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """See `Connector`."""
        return self._run(Verb.SET, keys, buffers, ttl_s=ttl_s, timeout_s=timeout_s)

    def batch_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """See `Connector`."""
        verb = Verb.TOUCH if touch else Verb.EXISTS
        return self._run(verb, keys, prefix=prefix, timeout_s=timeout_s)

    def batch_delete(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> BatchResult:
        """See `Connector`."""
        return self._run(Verb.DELETE, keys, timeout_s=timeout_s)

    # --- Tickets ---

    def submit_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike] | _native.Landing,
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> _Ticket:
        """See `Connector`; where it `lands`, values may take their pages when they come."""
        return self._ticket(Verb.GET, keys, buffers, prefix=prefix, timeout_s=timeout_s)

    def submit_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> _Ticket:
        """See `Connector`."""
        return self._ticket(Verb.SET, keys, buffers, ttl_s=ttl_s, timeout_s=timeout_s)

    def submit_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> _Ticket:
        """See `Connector`."""
        verb = Verb.TOUCH if touch else Verb.EXISTS
        return self._ticket(verb, keys, prefix=prefix, timeout_s=timeout_s)

    def submit_delete(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> _Ticket:
        """See `Connector`."""
        return self._ticket(Verb.DELETE, keys, timeout_s=timeout_s)

    # --- Raw ---

    def submit_batch_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> int:
        """See `Connector`."""
        return self._submit(Verb.GET, keys, buffers, prefix=prefix, timeout_s=timeout_s)[1]

    def submit_batch_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """See `Connector`."""
        return self._submit(Verb.SET, keys, buffers, ttl_s=ttl_s, timeout_s=timeout_s)[1]

    def submit_batch_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> int:
        """See `Connector`."""
        verb = Verb.TOUCH if touch else Verb.EXISTS
        return self._submit(verb, keys, prefix=prefix, timeout_s=timeout_s)[1]

    def submit_batch_delete(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> int:
        """See `Connector`."""
        return self._submit(Verb.DELETE, keys, timeout_s=timeout_s)[1]

    def event_fd(self) -> int:
        """See `Connector`."""
        return self._handle().event_fd()

    def drain_completions(self) -> list[tuple[int, BatchResult]]:
        """See `Connector`."""
        native = self._handle()
        completions = [(job_id, from_native(*outcome)) for job_id, outcome in native.drain()]
        _emit_log(native)
        return completions

    def progress(self, job_id: int) -> int:
        """See `Connector`."""
        return self._handle().progress(job_id)

    def cancel(self, job_id: int) -> None:
        """See `Connector`."""
        self._handle().cancel(job_id)

    # --- The store ---

    def usage(self, timeout_s: float = 1.0) -> Usage:
        """See `Connector`."""
        return Usage(*self._handle().usage())

    def scan(self, limit: int = 1000) -> Iterator[ScanBatch]:
        """See `Connector`."""
        cursor, batch = 0, []
        while True:
            entries, cursor = self._handle().scan(cursor)
            batch += [(as_key(key), age_s) for key, age_s in entries]
            while len(batch) >= limit or (batch and not cursor):
                yield batch[:limit]
                del batch[:limit]
            if not cursor:
                return

    def descriptions(self) -> Mapping[bytes, str]:
        """See `Connector`."""
        return dict(self._handle().descriptions())

    def describe(self) -> None:
        """See `Connector`; the stores of these drivers keep it when they are opened."""
        self._handle()

    def evict_others(self, size_bytes: int, timeout_s: float) -> int:
        """See `Connector`."""
        return evict_others(self, self._open, size_bytes, timeout_s)

    @property
    def lands(self) -> bool:
        """Whether `submit_get` takes a ``_native.Landing`` for buffers."""
        return self._handle().lands()

    @property
    def available(self) -> bool:
        """See `Connector`."""
        return self._handle().available()

    def stats(self) -> Mapping[str, int]:
        """Jobs, bytes, keys by status, and by cause the values that were refused."""
        return self._handle().stats()

    def close(self) -> None:
        """See `Connector`."""
        self._closed = True
        if self._native is not None:
            self._native.close()
            _emit_log(self._native)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Inside ---

    def _deadline_s(self, size_bytes: int) -> float:
        return _TIMEOUT_S + size_bytes / _FLOOR_RATE_BYTES_S

    def _submit(
        self,
        verb: Verb,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike] | _native.Landing | None = None,
        *,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
        prefix: bool = False,
        quiet: bool = False,
    ) -> tuple[_native.Connector, int, float]:
        if isinstance(keys, str | bytes):
            encode_keys(keys)  # raises: a single key is not a batch
        own = tuple(keys)  # of our own: an exporter is code, and may change the caller's lists
        views: Any = buffers
        if buffers is not None and not isinstance(buffers, _native.Landing):
            views = tuple(buffers)
        limit_s = checked_timeout(timeout_s)
        if limit_s is None:
            limit_s = self._deadline_s(len(own) * self.space.value_size_bytes if views else 0)
        native = self._handle()
        ttl = ttl_ms(self._ttl_s() if ttl_s is None else ttl_s) or 0
        return native, native.submit(int(verb), own, views, limit_s, ttl, prefix, quiet), limit_s

    def _ttl_s(self) -> float | None:
        return None

    def _ticket(self, verb: Verb, *args: Any, **options: Any) -> _Ticket:
        native, job_id, _ = self._submit(verb, *args, quiet=True, **options)
        return _Ticket(native, job_id)

    def _run(self, verb: Verb, *args: Any, **options: Any) -> BatchResult:
        native, job_id, limit_s = self._submit(verb, *args, quiet=True, **options)
        ticket = _Ticket(native, job_id)
        try:
            result = ticket.wait(limit_s + HANG_GRACE_S)
        except BaseException:
            ticket.cancel()  # the buffers are ours until the job has let go of them
            ticket.wait(limit_s + HANG_GRACE_S)
            raise
        if result is None:
            raise DeadlineExceeded(
                f"{self!r} hangs: {HANG_GRACE_S:g} s after the deadline it still uses the buffers"
            )
        return result

    def _handle(self) -> _native.Connector:
        native = self._native
        if native is not None:
            return native
        with self._lock:  # this process was forked
            if self._closed:
                raise ClosedError("the connector is closed")
            if self._native is None:
                opened = self._open(self.space)
                self._inherited.wake_with(opened.event_fd())
                self._native = opened
            return self._native

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # a thread that is not here may have held it
        parents, self._native = self._native, None
        _parents.append(parents)
        self._inherited.take(None if parents is None else parents.event_fd())


def as_key(key: bytes) -> Key:
    """A key as callers mostly have them: text, where it is that."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def _emit_log(native: _native.Connector) -> None:
    for level, text in native.drain_log():
        _log.log(level, "%s", text)


def _after_fork_in_child() -> None:
    for connector in list(_open):
        connector._after_fork()


def _close_all() -> None:
    _native.begin_exit()
    for connector in list(_open):
        connector.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close_all)
