"""LMCache's batches on our client: one id and one completion each, whatever they become inside.

A batch of values of several lengths is one batch of the native client, or, where values are framed,
one for each length. It completes once, when the last part has: by then nothing touches its buffers.

Threads: any, for every call. One lock covers handing over and noting down, so a completion can not
be seen before the batch is known. Nothing waits but `close`.
Lifetime: buffers belong to the batch until `drain` has returned it; the native client holds them.
Failure: what cannot be right raises and nothing was begun. What a server, a network or a deadline
does is a status of the key. After ``fork()`` the child has no batches, and a connection of its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence

from kvferry.base.errors import CapacityError, ClosedError, UsageError
from kvferry.client.batch import BatchResult, Operation, Status, ValueFrame, Verb
from kvferry.client.buffers import (
    BufferLike,
    Key,
    check_targets,
    encode_keys,
    readable,
    writable,
)
from kvferry.client.sync import RedisClient
from kvferry.config.integrations import LmcacheSettings
from kvferry.integrations.lmcache.names import ChunkNames

__all__ = ["BatchClosedError", "BatchUsageError", "Batches", "LmcacheBatch"]

_all: weakref.WeakSet[Batches] = weakref.WeakSet()


class BatchUsageError(UsageError, RuntimeError):
    """The call cannot be right. LMCache's own client raises a RuntimeError for that."""


class BatchClosedError(ClosedError, RuntimeError):
    """The client is closed."""


class LmcacheBatch:
    """A batch, until it is done and drained.

    Attributes:
        batch_id: From `Batches.submit`.
        verb: What it does.
        statuses: One byte for each key, see `kvferry.Status`.
        error: The first error text met, or None.
        parts: Native batches that it still waits for.
    """

    __slots__ = ("batch_id", "error", "parts", "statuses", "verb")

    def __init__(self, batch_id: int, verb: Verb, count: int) -> None:
        self.batch_id = batch_id
        self.verb = verb
        self.statuses = bytearray(count)
        self.error: str | None = None
        self.parts = 0

    @property
    def mask(self) -> list[bool]:
        """Which keys are OK."""
        return [status == 0 for status in self.statuses]

    @property
    def reason(self) -> str:
        """Why not every key is OK, in a line; empty when all are."""
        counts = {status.name: self.statuses.count(status) for status in Status if status}
        told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        if not told:
            return ""
        return f"{told} of {len(self.statuses)} keys" + (f": {self.error}" if self.error else "")

    def take(self, where: Sequence[int] | None, statuses: bytes, error: str | None) -> None:
        """The outcome of some keys; `where` None: of all, and what stands behind them is left."""
        if where is None:
            self.statuses[:] = statuses[: len(self.statuses)]
        else:
            for index, status in zip(where, statuses, strict=True):
                self.statuses[index] = status
        self.error = self.error or error


_Part = tuple[list[int] | None, Sequence[Key], Sequence[BufferLike] | None, ValueFrame | None]


class Batches:
    """Batches over one client; owns it."""

    def __init__(self, settings: LmcacheSettings) -> None:
        self.settings = settings
        self.names = ChunkNames(settings)
        self.client = RedisClient.from_config(settings.client)
        self.client._watch(settings.client, self.names.prefix)
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[int, tuple[LmcacheBatch, list[int] | None]] = {}  # by native batch
        self._refused: deque[LmcacheBatch] = deque()  # those that no native batch completes
        self._next_id = 1
        self._closed = False

    def submit(
        self, verb: Verb, keys: Sequence[Key], buffers: Sequence[BufferLike] | None = None
    ) -> int:
        """Start a batch; its id. `buffers`: one for each key, or None where there are none.

        Raises:
            BatchUsageError: No keys, or not one buffer for each.
            UsageError: A key or a buffer cannot be used; see `kvferry.BadBufferError`.
            BatchClosedError: It is closed.
        """
        keys = tuple(keys)
        if not keys:
            raise BatchUsageError("keys list is empty")
        if buffers is not None and len(buffers) != len(keys):
            raise BatchUsageError(f"{len(keys)} keys but {len(buffers)} buffers")
        parts = self._split(verb, names := self.names.of(keys), buffers)
        absent = self._absent(names) if verb is Verb.EXISTS else []
        if absent:  # the presence view knows: they are not asked for
            gone = set(absent)
            rest = [index for index in range(len(names)) if index not in gone]
            parts = [(rest, [names[index] for index in rest], None, None)] if rest else []
        with self._lock:
            if self._closed:
                raise BatchClosedError("the client is closed")
            batch = LmcacheBatch(self._next_id, verb, len(keys))
            batch.take(absent, bytes([Status.MISS]) * len(absent), None)
            for where, names, views, frame in parts:
                self._hand_over(batch, where, names, views, frame)
            self._next_id += 1
            if not batch.parts:
                self._refused.append(batch)
                os.eventfd_write(self.client.event_fd(), 1)
            return batch.batch_id

    def _absent(self, names: Sequence[Key]) -> list[int]:
        return [index for index, known in enumerate(self.client.presence(names)) if known is False]

    def _split(
        self, verb: Verb, names: Sequence[Key], buffers: Sequence[BufferLike] | None
    ) -> list[_Part]:
        """What the native client is given, checked so that it takes all parts or none."""
        if not self.names.verify:
            return [(None, names, buffers, None)]
        if buffers is None:
            asked = self.names.to_delete(names) if verb is Verb.DELETE else names
            return [(None, asked, None, None)]
        encode_keys(names)  # raises where the client would, before any part is on its way
        views = [(writable if verb is Verb.GET else readable)(buffer) for buffer in buffers]
        if verb is Verb.GET:
            check_targets(views)
        by_length: dict[int, list[int]] = {}
        for index, view in enumerate(views):
            by_length.setdefault(len(view), []).append(index)
        frames = [(self.names.frame(length), where) for length, where in by_length.items()]
        return [
            (where, [names[i] for i in where], [views[i] for i in where], frame)
            for frame, where in frames
        ]

    def _hand_over(
        self,
        batch: LmcacheBatch,
        where: list[int] | None,
        names: Sequence[Key],
        buffers: Sequence[BufferLike] | None,
        frame: ValueFrame | None,
    ) -> None:
        try:
            limit_s = self.settings.lookup_s if buffers is None else None
            native_id = self.client.announce(
                Operation(batch.verb, names, buffers, timeout_s=limit_s, frame=frame)
            )
        except CapacityError as error:
            refused = bytes([Status.UNAVAILABLE]) * len(names)
            batch.take(where, refused, str(error))
        else:
            self._parts[native_id] = batch, where
            batch.parts += 1

    def drain(self) -> list[LmcacheBatch]:
        """Every batch that is done, oldest first. Never blocks; may be empty."""
        with self._lock:
            done: list[LmcacheBatch] = []
            for native_id, result in self.client.drain_completions():
                self._complete(native_id, result, done)
            while self._refused:
                done.append(self._refused.popleft())
            return done

    def _complete(self, native_id: int, result: BatchResult, done: list[LmcacheBatch]) -> None:
        batch, where = self._parts.pop(native_id)
        batch.take(where, result.statuses, result.error)
        batch.parts -= 1
        if not batch.parts:
            done.append(batch)

    def event_fd(self) -> int:
        """Readable while `drain` has something to return."""
        return self.client.event_fd()

    def close(self) -> None:
        """Withdraw what is in flight and end the I/O threads; what was withdrawn can be drained.

        May be called twice.
        """
        with self._lock:
            self._closed = True
        self.client.close()

    def _after_fork(self) -> None:
        closed = self._closed
        self._begin()
        self._closed = closed


def _after_fork_in_child() -> None:
    for batches in list(_all):
        batches._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
