"""Stores behind a client of somebody else: classes of the contract that LMCache calls native.

    {"type": "native_plugin", "module_path": "my_package.store", "class_name": "Client",
     "params": {"host": "cache-1"}}

The class is called with the parameters. What it makes has ``event_fd()``, ``submit_batch_get(keys,
views)``, ``submit_batch_set(keys, views)``, ``submit_batch_exists(keys)``, ``drain_completions()``
with tuples of id, whether it went well, an error, and a flag for each key or None, and ``close()``;
``submit_batch_delete(keys)`` if it can. Keys are text.

Such a client promises little, so nothing is taken on trust. Values carry our frame, and what does
not match it is CORRUPT and is deleted. The client never gets memory of the cache: it reads and
writes buffers of this connector, which stay its own until it has completed a batch, however late.
A batch that is not completed in time is TIMEOUT, and until it is completed the store counts as
away, but for a try every few seconds. What a client has no word for is left out: nothing is
touched, there is no time to live, and `usage` counts what this connector has stored itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kvferry import _native
from kvferry.base.errors import ConfigError, KVFerryError, UsageError
from kvferry.client.batch import BatchResult, Status, Verb
from kvferry.connectors.base import Space, Usage
from kvferry.connectors.calls import status_of
from kvferry.connectors.native_calls import Calls
from kvferry.connectors.threaded import Checked, ThreadedConnector

__all__ = ["NEEDED", "NativePluginConnector"]

# Methods that a client must have.
NEEDED = (
    "event_fd",
    "submit_batch_get",
    "submit_batch_set",
    "submit_batch_exists",
    "drain_completions",
    "close",
)
# Bytes of buffers that one call lends to the client at a time.
_LENT_BYTES = 64 << 20
# Bytes of buffers that are kept for the next call.
_SPARE_BYTES = 128 << 20
# Names of what was stored; older ones are forgotten by `usage`.
_NAMES_MAX = 1 << 20


class NativePluginConnector(ThreadedConnector):
    """See the module, and `Connector`.

    Args:
        space: What it is opened with.
        make: Makes a client of the contract, here and after a fork in the child; it is closed with
            the connector.

    Raises:
        ConfigError: The client lacks a method, or its descriptor is none.
        Exception: Whatever `make` raises.
    """

    def __init__(self, space: Space, make: Callable[[], Any]) -> None:
        super().__init__(space)
        self._make = make
        self._client, self._calls = _opened(make)
        self._of_parent: list[object] = []  # nobody may end them here
        self._stored_bytes = space.value_size_bytes + _native.FRAME_BYTES
        self._guard = threading.Lock()
        self._spare: list[bytearray] = []
        self._held: dict[bytes, None] = {}
        self._refused: dict[str, int] = {}

    def answer(self, operation: Checked) -> BatchResult:
        """See `Connector`. The client knows no use of a key, so `touch` changes nothing.

        Raises:
            UsageError: A time to live was asked for.
        """
        match operation.verb:
            case Verb.GET:
                return self._get(operation)
            case Verb.SET:
                return self._set(operation)
            case Verb.DELETE:
                return self._delete(operation.names, operation.left_s)
            case _:
                return self._asked(operation.names, "submit_batch_exists", operation.left_s)

    def usage(self, timeout_s: float = 1.0) -> Usage:
        """What this connector has stored, and not deleted; not what others have."""
        count = len(self._held)
        return Usage(count * self._stored_bytes, None, count)

    # --- State ---

    @property
    def available(self) -> bool:
        """False while the client owes us a batch that is late."""
        return self._calls.available

    def stats(self) -> Mapping[str, int]:
        """Values that were refused, and batches that the client has not completed."""
        refused = {f"refused_{cause}": count for cause, count in self._refused.items()}
        return {**refused, "missing_batches": self._calls.missing}

    def close(self) -> None:
        """End the threads, then the client."""
        super().close()
        self._calls.close()

    # --- Inside ---

    def _get(self, operation: Checked) -> BatchResult:
        names = operation.names
        identity, size_bytes = self.space.identity, self.space.value_size_bytes
        cause = None

        def read(index: int, view: memoryview) -> Status:
            nonlocal cause
            checksum = _native.checksum(view[_native.FRAME_BYTES :], operation.memory[index])
            header = bytes(view[: _native.FRAME_BYTES])
            why = _native.value_fault(header, names[index], identity, size_bytes, [checksum])
            if not why:
                return Status.OK
            cause = cause or why
            with self._guard:
                self._refused[why] = self._refused.get(why, 0) + 1
            return Status.CORRUPT

        result = self._values(operation, "submit_batch_get", None, read)
        corrupt = [name for name, each in zip(names, result, strict=True) if each is Status.CORRUPT]
        if corrupt:
            self._delete(corrupt, operation.left_s)
            result.error = cause
        return result

    def _set(self, operation: Checked) -> BatchResult:
        names, values = operation.names, operation.memory
        if operation.ttl_s is not None:
            raise UsageError("a native client knows no time to live; leave ttl_s out")

        def write(index: int, view: memoryview) -> None:
            checksum = _native.checksum(values[index], view[_native.FRAME_BYTES :])
            view[: _native.FRAME_BYTES] = _native.frame_header(
                names[index], self.space.identity, self.space.value_size_bytes, checksum
            )

        result = self._values(operation, "submit_batch_set", write, None)
        with self._guard:
            for name, each in zip(names, result, strict=True):
                if each is Status.OK:
                    self._held.pop(name, None)
                    self._held[name] = None
            while len(self._held) > _NAMES_MAX:
                del self._held[next(iter(self._held))]
        return result

    def _delete(self, names: list[bytes], left_s: float) -> BatchResult:
        if not callable(getattr(self._client, "submit_batch_delete", None)):
            error = "the client cannot delete"
            return _all(Status.SERVER_ERROR, len(names), time.monotonic(), error)
        result = self._asked(names, "submit_batch_delete", left_s)
        with self._guard:
            for name, each in zip(names, result, strict=True):
                if each in (Status.OK, Status.MISS):
                    self._held.pop(name, None)
        return result

    def _asked(self, names: list[bytes], method: str, left_s: float) -> BatchResult:
        """One batch without values."""
        began, submit = time.monotonic(), getattr(self._client, method)
        until = began + left_s
        texts = _texts(names)
        try:
            ok, error, flags = self._calls.run(lambda: submit(texts), texts, until)
        except KVFerryError as problem:
            return _all(status_of(problem), len(names), began, str(problem))
        if not ok or flags is None or len(flags) != len(names):
            error = error or "the client did not say which keys are there"
            return _all(Status.SERVER_ERROR, len(names), began, error)
        statuses = bytes(Status.OK if flag else Status.MISS for flag in flags)
        return BatchResult(statuses, [0] * len(names), time.monotonic() - began, error or None)

    def _values(
        self,
        operation: Checked,
        method: str,
        write: Callable[[int, memoryview], None] | None,
        read: Callable[[int, memoryview], Status] | None,
    ) -> BatchResult:
        """Batches with values, as many at a time as there may be memory lent."""
        began, submit = time.monotonic(), getattr(self._client, method)
        names, size = operation.names, self.space.value_size_bytes
        count, until = len(names), began + operation.left_s
        statuses, error = bytearray([Status.CANCELLED]) * count, None
        step = max(1, _LENT_BYTES // self._stored_bytes)
        for at in range(0, count, step):
            texts = _texts(names[at : at + step])
            lent = self._borrow(len(texts))
            views = [memoryview(each) for each in lent]
            if write is not None:
                for index, view in enumerate(views, at):
                    write(index, view)
            try:
                ok, said, flags = self._calls.run(partial(submit, texts, views), lent, until)
            except KVFerryError as problem:
                # `lent` may be written to from now on: nobody uses it again.
                statuses[at:] = bytes([status_of(problem)]) * (count - at)
                error = error or str(problem)
                break
            error = error or said or None
            bad = Status.SERVER_ERROR if flags is None or read is None else Status.MISS
            good = [ok] * len(texts) if flags is None else [*flags, *[False] * len(texts)]
            for index, view in enumerate(views):
                status = Status.OK if good[index] else bad
                if read is not None and status is Status.OK:
                    status = read(at + index, view)
                statuses[at + index] = status
            self._give_back(lent)
            if operation.prefix and any(statuses[at : at + step]):
                break
        sizes = [0 if each else size for each in statuses]
        return BatchResult(bytes(statuses), sizes, time.monotonic() - began, error)

    def _after_fork(self) -> None:
        super()._after_fork()
        self._guard = threading.Lock()
        self._of_parent += [self._client, self._calls, self._spare]
        self._spare = []
        with suppress(Exception):
            self._client, self._calls = _opened(self._make)

    def _borrow(self, count: int) -> list[bytearray]:
        with self._guard:
            lent = [self._spare.pop() for _ in range(min(count, len(self._spare)))]
        return lent + [bytearray(self._stored_bytes) for _ in range(count - len(lent))]

    def _give_back(self, lent: list[bytearray]) -> None:
        with self._guard:
            room = _SPARE_BYTES // self._stored_bytes - len(self._spare)
            self._spare += lent[: max(0, room)]


def _opened(make: Callable[[], Any]) -> tuple[Any, Calls]:
    client = make()
    lacks = [name for name in NEEDED if not callable(getattr(client, name, None))]
    try:
        if lacks:
            raise ConfigError(f"the client lacks {', '.join(lacks)}")
        return client, Calls(client)
    except ConfigError:
        if "close" not in lacks:
            client.close()
        raise


def _texts(names: Sequence[bytes]) -> list[str]:
    """Names as clients want them.

    Raises:
        UsageError: One is no text.
    """
    try:
        return [name.decode() for name in names]
    except UnicodeDecodeError:
        raise UsageError("a native client takes keys that are text in UTF-8") from None


def _all(status: Status, count: int, began: float, error: str | None) -> BatchResult:
    return BatchResult(bytes([status]) * count, [0] * count, time.monotonic() - began, error)
