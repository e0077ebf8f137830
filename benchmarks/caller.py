"""Caller: a cache's user who calls again and again while its server is in trouble.

It reads all its keys, checks every byte of what is OK, stores anew what is a miss, and writes down
when each call began and ended and how each key fared. Nothing else stops it than the end of its
`with` block; a wrong byte and an exception of the client are raised there, and by every `wait_for`.

Threads: its own one calls; the others read `calls`, which only grows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from kvferry.base.errors import DeadlineExceeded
from kvferry.client.batch import BatchResult, Status
from kvferry_lab.bench.data import Chunks

__all__ = ["RepeatedCaller", "TimedCall"]

_PAUSE_S = 0.001
_LOOK_S = 0.002
_END_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class TimedCall:
    """One batch. Times are of `time.perf_counter()`, in seconds.

    Attributes:
        refused: The client knew before and after it that no server can be reached.
        indexes: Which of the keys it was for, in the order of `statuses`.
    """

    verb: str
    begun_s: float
    ended_s: float
    limit_s: float
    refused: bool
    indexes: Sequence[int]
    statuses: bytes

    @property
    def wall_s(self) -> float:
        """How long the caller was away."""
        return self.ended_s - self.begun_s

    @property
    def late_s(self) -> float:
        """How long after its deadline it returned; negative before it."""
        return self.wall_s - self.limit_s

    @property
    def read_all(self) -> bool:
        """Whether it read every key."""
        return self.verb == "get" and not self.statuses.strip(b"\0")

    def unserved(self, indexes: Sequence[int]) -> int:
        """How many of these keys it was for and did not read or write."""
        fates = [self.fate(index) for index in indexes]
        return sum(fate is not None and fate is not Status.OK for fate in fates)

    def count(self, status: Status) -> int:
        """How many of its keys fared so."""
        return self.statuses.count(int(status))

    def fate(self, index: int) -> Status | None:
        """How one key fared; None if this call was not for it."""
        return Status(self.statuses[self.indexes.index(index)]) if index in self.indexes else None


class RepeatedCaller:
    """See the module; a context manager.

    Args:
        client: A blocking client of kvferry.
        chunks: One batch of keys and buffers; the caller's alone meanwhile.
        limit_s: The `timeout_s` of each call.
    """

    def __init__(self, client: Any, chunks: Chunks, limit_s: float) -> None:
        self._client, self._chunks, self._limit_s = client, chunks, limit_s
        self._batch = chunks.batches()[0]
        chunks.next_write(self._batch)
        self.calls: list[TimedCall] = []
        self.verified_bytes = 0
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="bench-caller", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._ending.set()
        self._thread.join(_END_TIMEOUT_S)
        if kind is None:
            if self._thread.is_alive():
                raise DeadlineExceeded("a call never returned")
            self._check()

    def wait_for(
        self,
        what: str,
        condition: Callable[[TimedCall], bool],
        since_s: float,
        timeout_s: float = 30.0,
    ) -> TimedCall:
        """The first call that ended after `since_s` of which `condition` holds."""
        until = time.monotonic() + timeout_s
        at = 0
        while time.monotonic() < until:
            self._check()
            for call in self.calls[at:]:
                at += 1
                if call.ended_s >= since_s and condition(call):
                    return call
            time.sleep(_LOOK_S)
        raise DeadlineExceeded(f"waited {timeout_s:g} s in vain for {what}")

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        everything = list(self._batch)
        try:
            while not self._ending.wait(_PAUSE_S):
                self._chunks.poison()
                targets = self._chunks.targets
                got = self._call("get", self._client.batch_get, everything, targets)
                for index in everything:
                    if got.fate(index) is Status.OK:
                        value = targets[index]
                        self.verified_bytes += self._chunks.verify_one(self._batch, index, value)
                missing = [index for index in everything if got.fate(index) is Status.MISS]
                if missing:
                    values = [self._chunks.sources[index] for index in missing]
                    self._call("set", self._client.batch_set, missing, values)
        except BaseException as error:
            self._failure = error

    def _call(
        self,
        verb: str,
        method: Callable[..., BatchResult],
        indexes: Sequence[int],
        buffers: Sequence[memoryview],
    ) -> TimedCall:
        keys = [self._chunks.keys[index] for index in indexes]
        away = not self._client.available
        begun_s = time.perf_counter()
        result = method(keys, buffers, timeout_s=self._limit_s)
        ended_s = time.perf_counter()
        refused = away and not self._client.available
        call = TimedCall(
            verb, begun_s, ended_s, self._limit_s, refused, indexes, bytes(result.statuses)
        )
        self.calls.append(call)
        return call
