"""One request for many keys, as every client and every connector takes it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct

from kvferry.base.errors import UsageError
from kvferry.base.shown import shown
from kvferry.client.buffers import BufferLike, Key

__all__ = ["Operation", "ValueFrame", "Verb"]

FRAMED_SIZE_BYTES_MAX = 65_535 * (4 << 20)  # stripes times what one holds: native/codec/stripe.hpp


class Verb(IntEnum):
    """What an operation does. The numbers are those of native/base/request_state.hpp."""

    GET = 0
    SET = 1
    EXISTS = 2
    TOUCH = 3
    DELETE = 4
    PING = 5  # of the node that has the key


class ValueFrame:
    """How the values of a cache namespace are framed; see docs/formats/frame.md.

    Args:
        identity: What the bytes must be comparable with; its first 8 bytes enter every frame.
        value_size_bytes: Length of every value of the namespace.
        codec: How values are sent, where that pays: a number of native/codec/frame.hpp.

    Raises:
        UsageError: The identity is no digest, or no value can have that length.
    """

    __slots__ = ("codec", "identity", "value_size_bytes")

    def __init__(self, identity: bytes, value_size_bytes: int, codec: int = 0) -> None:
        if not isinstance(identity, bytes) or len(identity) < 8:
            raise UsageError("an identity digest has at least 8 bytes; see kvferry.chunks.keys")
        whole = isinstance(value_size_bytes, int) and not isinstance(value_size_bytes, bool)
        if not whole or not 1 <= value_size_bytes <= FRAMED_SIZE_BYTES_MAX:
            raise UsageError(
                f"value_size_bytes={shown(value_size_bytes)} is the length of every value; "
                f"use a whole number from 1 to {FRAMED_SIZE_BYTES_MAX}"
            )
        self.identity = int.from_bytes(identity[:8], "little")
        self.value_size_bytes = value_size_bytes
        self.codec = codec


class Operation(Struct, frozen=True):
    """What is asked for. Nothing is checked here: that does who carries it out.

    Attributes:
        verb: What to do with each key.
        keys: As the caller knows them.
        buffers: Of GET and SET, one for each key; else None. Where a connector says that it
            `pages_on_demand`, a GET may have a ``_native.OnDemandPages`` instead.
        prefix: Stop asking after the first key that is not OK.
        ttl_s: Of SET: how long the values live; None: as the settings say.
        timeout_s: Limit for all of it; None: it grows with the bytes.
        frame: How values are framed; None: not by a client.
    """

    verb: Verb
    keys: Sequence[Key]
    buffers: Sequence[BufferLike] | None = None
    prefix: bool = False
    ttl_s: float | None = None
    timeout_s: float | None = None
    frame: ValueFrame | None = None

    def __repr__(self) -> str:  # without the values
        return f"<Operation {self.verb.name} of {len(self.keys)} keys>"
