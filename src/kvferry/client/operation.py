"""One request for many keys, as every client and every connector takes it, and the checks of its
times."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct

from kvferry.base.errors import UsageError
from kvferry.base.shown import shown
from kvferry.client.buffers import BufferLike, Key
from kvferry.config.client import TTL_S_MAX

__all__ = ["LIMIT_S_MAX", "Operation", "ValueFrame", "Verb", "checked_timeout", "ttl_ms"]

LIMIT_S_MAX = 1e9  # 30 years: endless to a caller, and still a number to a system call
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
    """A request. Nothing is checked here: the client or connector that carries it out does that.

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


def ttl_ms(ttl_s: float | None) -> int | None:
    """A time to live in whole milliseconds.

    Raises:
        UsageError: It is below a millisecond, or endless: that is ``None``.
    """
    if ttl_s is None:
        return None
    if not 0.001 <= ttl_s <= TTL_S_MAX:
        raise UsageError(
            f"ttl_s={shown(ttl_s)} is no time to live; use 0.001 to {TTL_S_MAX:g} s, or None"
        )
    return round(ttl_s * 1000)


def checked_timeout(timeout_s: float | None) -> float | None:
    """A caller's limit for a batch, at most `LIMIT_S_MAX`; ``None``: by the settings.

    Raises:
        UsageError: It is zero, negative, or not a number.
    """
    if timeout_s is None:
        return None
    if not timeout_s > 0:
        raise UsageError(
            f"timeout_s={shown(timeout_s)} leaves no time; use a number above 0 or None"
        )
    return min(timeout_s, LIMIT_S_MAX)
