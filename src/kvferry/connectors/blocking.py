"""BlockingConnector: a store of your own, by what it does with one value.

    class MyStore(BlockingConnector):
        def get_one(self, name, target, left_s): ...
        def set_one(self, name, value, ttl_s, left_s): ...
        def exists_one(self, name, touch, left_s): ...
        def delete_one(self, name, left_s): ...
        def usage(self, timeout_s=1.0): ...

A few threads call these. They end within the seconds that are left; keys that had no time are
TIMEOUT. What they raise is the status of that key: DeadlineExceeded is TIMEOUT, UnavailableError
UNAVAILABLE, all else SERVER_ERROR, and a UsageError refuses the call. A store that can do many keys
at a time overrides `answer` (`kvferry.connectors.threaded`).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from kvferry.base.errors import UsageError
from kvferry.client.batch import BatchResult, Status, Verb
from kvferry.connectors.calls import error_text, status_of
from kvferry.connectors.threaded import Checked, ThreadedConnector

__all__ = ["BlockingConnector", "Outcome"]

# The status of a key; with SIZE_MISMATCH, the length of the stored value as well.
Outcome: TypeAlias = Status | tuple[Status, int]


class BlockingConnector(ThreadedConnector):
    """See the head of this module. Names are keys with the prefix of the space."""

    @abstractmethod
    def get_one(self, name: bytes, target: memoryview, left_s: float) -> Outcome:
        """Fill `target`, if what is there is exactly what was stored."""

    @abstractmethod
    def set_one(
        self, name: bytes, value: memoryview, ttl_s: float | None, left_s: float
    ) -> Outcome:
        """Store a value, all of it or nothing; `value` is the caller's again afterwards."""

    @abstractmethod
    def exists_one(self, name: bytes, touch: bool, left_s: float) -> Outcome:
        """OK or MISS; `touch`: it was used."""

    @abstractmethod
    def delete_one(self, name: bytes, left_s: float) -> Outcome:
        """OK: it was there. MISS: it was not."""

    def answer(self, operation: Checked) -> BatchResult:
        """Carry out one key after another, until the deadline or the end of the prefix."""
        began, do = time.monotonic(), self._doing(operation)
        count = len(operation.names)
        statuses, sizes, error = bytearray([Status.CANCELLED]) * count, [0] * count, None
        for index in range(count):
            left_s = began + operation.left_s - time.monotonic()
            if left_s <= 0:
                statuses[index:] = bytes([Status.TIMEOUT]) * (count - index)
                break
            try:
                outcome = do(index, left_s)
            except UsageError:
                raise
            except Exception as problem:
                outcome = status_of(problem)
                error = error or error_text(problem)
            if isinstance(outcome, tuple):
                statuses[index], sizes[index] = outcome
            else:
                statuses[index] = outcome
                if outcome is Status.OK and operation.memory:
                    sizes[index] = len(operation.memory[index])
            if operation.prefix and statuses[index]:
                break
        return BatchResult(bytes(statuses), sizes, time.monotonic() - began, error)

    def _doing(self, operation: Checked) -> Callable[[int, float], Outcome]:
        """What is done with a key, by its index."""
        names, memory, ttl_s = operation.names, operation.memory, operation.ttl_s
        match operation.verb:
            case Verb.GET:
                return lambda index, left_s: self.get_one(names[index], memory[index], left_s)
            case Verb.SET:
                return lambda index, left_s: self.set_one(
                    names[index], memory[index], ttl_s, left_s
                )
            case Verb.DELETE:
                return lambda index, left_s: self.delete_one(names[index], left_s)
            case _:
                touch = operation.verb is Verb.TOUCH
                return lambda index, left_s: self.exists_one(names[index], touch, left_s)
