"""A store in Python whose values are in a dictionary, and which waits when it is told to."""

from __future__ import annotations

import threading

from kvferry.client.batch import Status
from kvferry.connectors.base import Usage
from kvferry.connectors.blocking import BlockingConnector
from support.engines import space

__all__ = ["DictStore"]

LIMIT_S = 60.0


class DictStore(BlockingConnector):
    """See the module.

    Attributes:
        held: Values by their names.
        gate: Reads and writes wait for it, unless it is set, which it is at first.
        capacity: What `usage` says of it.
    """

    def __init__(self, threads: int = 8) -> None:
        super().__init__(space(), threads=threads)
        self.held: dict[bytes, bytes] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.capacity: int | None = None

    def get_one(self, name: bytes, target: memoryview, left_s: float) -> Status:
        self.gate.wait(LIMIT_S)
        value = self.held.get(name)
        if value is None:
            return Status.MISS
        target[:] = value
        return Status.OK

    def set_one(self, name: bytes, value: memoryview, ttl_s: float | None, left_s: float) -> Status:
        self.gate.wait(LIMIT_S)
        self.held[name] = bytes(value)
        return Status.OK

    def exists_one(self, name: bytes, touch: bool, left_s: float) -> Status:
        return Status.OK if name in self.held else Status.MISS

    def delete_one(self, name: bytes, left_s: float) -> Status:
        return Status.MISS if self.held.pop(name, None) is None else Status.OK

    def usage(self, timeout_s: float = 1.0) -> Usage:
        return Usage(sum(map(len, self.held.values())), self.capacity, len(self.held))
