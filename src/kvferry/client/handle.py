"""The base of clients and connectors over native code: one native object and its life.

Its threads never take the GIL. After ``fork()`` the child opens one of its own on first use; what
was in flight stays the parent's. At interpreter exit all that are open are closed, the latest
first, so that no thread can touch memory that Python is about to free.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import weakref
from abc import abstractmethod
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from kvferry import _native
from kvferry.base.errors import ClosedError
from kvferry.client.batch import BatchResult, Operation, Verb, checked_timeout, from_native, ttl_ms
from kvferry.client.buffers import Key, encode_keys
from kvferry.client.event_fds import InheritedEventFds
from kvferry.client.methods import RawMethods

__all__ = ["NativeHandle", "emit_log"]

Native = TypeVar("Native", _native.Client, _native.Connector)

Arguments: TypeAlias = tuple[int, tuple[Key, ...], Any, float, int, bool]

# Names that small batches would else look up for longer than they take.
_SET, _OnDemandPages = Verb.SET, _native.OnDemandPages

_open: weakref.WeakValueDictionary[int, NativeHandle[Any]] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_parents: list[object] = []  # native objects of the process that forked us: never destroyed
_reopening = threading.RLock()  # a connector that opens again may open its client again


class NativeHandle(RawMethods, Generic[Native]):
    """Owns a native object; a subclass says how that is opened, and calls `_begin`."""

    _log: ClassVar[logging.Logger]

    def _begin(self) -> None:
        self._closed = False
        self._inherited = InheritedEventFds()
        self._native: Native | None = self._open_native()
        _open[next(_numbers)] = self

    @abstractmethod
    def _open_native(self) -> Native: ...

    def event_fd(self) -> int:
        """See `RawMethods`."""
        return self._handle().event_fd()

    def drain_completions(self) -> list[tuple[int, BatchResult]]:
        """See `RawMethods`."""
        native = self._handle()
        completions = [(batch_id, from_native(*outcome)) for batch_id, outcome in native.drain()]
        emit_log(self._log, native)
        return completions

    def cancel(self, batch_id: int) -> None:
        """See `RawMethods`."""
        self._handle().cancel(batch_id)

    @property
    def available(self) -> bool:
        """False while nobody can be reached: then every batch is UNAVAILABLE at once."""
        return self._handle().available()

    def close(self) -> None:
        """Cancel what is in flight and end all threads. May be called twice."""
        self._closed = True
        if self._native is not None:
            self._native.close()
            emit_log(self._log, self._native)

    # --- Inside ---

    def _handle(self) -> Native:
        native = self._native
        if native is not None:
            return native
        with _reopening:  # this process was forked
            if self._closed:
                raise ClosedError(f"{self!r} cannot be used any more")
            if self._native is None:
                opened = self._open_native()
                self._inherited.wake_with(opened.event_fd())
                self._native = opened
            return self._native

    def _arguments(self, operation: Operation) -> Arguments:
        """Verb, keys, buffers, limit, time to live and prefix, as native code takes them."""
        keys, buffers = operation.keys, operation.buffers
        if isinstance(keys, (str, bytes)):
            encode_keys(keys)  # raises: a single key is not a batch
        if buffers is None and operation.verb <= _SET:
            raise TypeError("buffers is not a sequence")
        own = tuple(keys)  # of our own: an exporter is code, and may change the caller's lists
        if buffers is not None and type(buffers) is not _OnDemandPages:
            buffers = tuple(buffers)
        limit_s = checked_timeout(operation.timeout_s)
        if limit_s is None:
            limit_s = self._limit_s(0 if buffers is None else len(own))
        ttl = self._ttl_ms(operation) if operation.verb is _SET else 0
        return int(operation.verb), own, buffers, limit_s, ttl, operation.prefix

    def _ttl_ms(self, operation: Operation) -> int:
        return ttl_ms(self._ttl_s() if operation.ttl_s is None else operation.ttl_s) or 0

    @abstractmethod
    def _limit_s(self, values: int) -> float:
        """For operations without a limit, by how many values move."""

    @abstractmethod
    def _ttl_s(self) -> float | None:
        """The time to live by the settings."""

    def _after_fork(self) -> None:
        parents, self._native = self._native, None
        _parents.append(parents)
        self._inherited.take(None if parents is None else parents.event_fd())


def emit_log(log: logging.Logger, native: _native.Client | _native.Connector) -> None:
    """Log what a native object has to say."""
    for level, text in native.drain_log():
        log.log(level, "%s", text)


def _latest_first() -> list[NativeHandle[Any]]:
    return [each for _, each in sorted(_open.items(), reverse=True)]


def _after_fork_in_child() -> None:
    global _reopening
    _reopening = threading.RLock()  # a thread that is not here may have held it
    for each in _latest_first():
        each._after_fork()


def _close_all() -> None:
    _native.begin_exit()
    for each in _latest_first():
        each.close()
    _native.await_parked()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close_all)
