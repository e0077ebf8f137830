"""The memory of another instance, read over its node (`kvferry.node`). Nobody writes there.

A node lends chunks under the hash alone: that contains the generation already, so the part of a
name in front of it, by which stores delete what a clear left behind, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace

from kvferry import _native
from kvferry.base.errors import UsageError
from kvferry.chunks.generation import MARK_BYTES
from kvferry.client.batch import Operation, Status, Verb, from_native
from kvferry.connectors.base import Key, Usage
from kvferry.connectors.native import ClientConnector

__all__ = ["PeerConnector", "lent"]


class PeerConnector(ClientConnector):
    """Chunks that another instance holds; see `Connector`."""

    owns: ClassVar[bool] = False  # that is for their owner

    def absent(self, key: Key) -> bool:
        """See `ClientConnector`."""
        return super().absent(lent(key))

    def leading(self, keys: Sequence[Key]) -> int | None:
        """See `ClientConnector`."""
        return super().leading([lent(key) for key in keys])

    def ask_mark(self, timeout_s: float) -> None:
        """Ask the owner for its mark of clears for everybody, without waiting.

        Raises:
            CapacityError, ClosedError: It cannot be asked now.
        """
        self._mark = bytearray(MARK_BYTES)
        key = f"{self.space.prefix}generation"
        self._client.announce(Operation(Verb.GET, [key], [self._mark], False, None, timeout_s))

    def said_mark(self) -> tuple[Status, bytes] | None:
        """The answer to `ask_mark`; None: none yet. MISS: the owner has no mark."""
        for _, outcome in self._client._handle().drain():
            return from_native(*outcome)[0], bytes(self._mark)
        return None

    def describe(self) -> None:
        """Nothing: the owner says what it holds."""

    def descriptions(self) -> Mapping[bytes, str]:
        """None: see `describe`."""
        return {}

    def usage(self, timeout_s: float = 1.0) -> Usage:
        """Nothing is known of it, and nothing is limited by it."""
        return Usage(0, None, 0)

    def _submit(self, operation: Operation, *, quiet: bool) -> tuple[_native.Connector, int, float]:
        if operation.verb in (Verb.SET, Verb.DELETE):
            raise UsageError("the memory of another instance is read, and never written")
        if not isinstance(operation.keys, str | bytes):
            operation = replace(operation, keys=[lent(key) for key in operation.keys])
        return super()._submit(operation, quiet=quiet)


def lent(key: Key) -> Key:
    """The name under which a node lends a chunk."""
    if isinstance(key, bytes):
        return key.rpartition(b":")[2]
    return key.rpartition(":")[2] if isinstance(key, str) else key
