"""A request for many keys, as every client and connector takes it, and its outcome: one status per
key.

A missing key, a value of another length, a server that is away: each is a status, never an
exception, because to an inference engine they all mean "compute it".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

from msgspec import Struct

from kvferry.base import errors
from kvferry.base.errors import UsageError
from kvferry.base.shown import shown
from kvferry.client.buffers import BufferLike, Key
from kvferry.config.client import TTL_S_MAX

__all__ = [
    "LIMIT_S_MAX",
    "BatchResult",
    "Operation",
    "Status",
    "ValueFrame",
    "Verb",
    "checked_timeout",
    "from_native",
    "only",
    "ttl_ms",
]

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


class Status(IntEnum):
    """The outcome of one key. The numbers are those of native/base/errors.hpp."""

    OK = 0
    MISS = 1
    SIZE_MISMATCH = 2
    CORRUPT = 3
    TIMEOUT = 4
    UNAVAILABLE = 5
    SERVER_ERROR = 6
    CANCELLED = 7


_STATUS = tuple(Status)
_RAISES: dict[Status, type[errors.KVFerryError]] = {
    Status.SIZE_MISMATCH: errors.SizeMismatchError,
    Status.CORRUPT: errors.CorruptError,
    Status.TIMEOUT: errors.DeadlineExceeded,
    Status.UNAVAILABLE: errors.UnavailableError,
    Status.SERVER_ERROR: errors.ServerError,
    Status.CANCELLED: errors.BatchCancelledError,
}


_WORDS = {
    Status.CORRUPT: "the value is not what was stored",
    Status.TIMEOUT: "the time limit passed",
    Status.UNAVAILABLE: "the server is not available",
    Status.SERVER_ERROR: "the server answered with an error",
    Status.CANCELLED: "the batch was cancelled",
}


class BatchResult(Sequence[Status]):
    """One status per key, in the order of the keys.

    Attributes:
        statuses: One byte per key; byte ``i`` is the number of ``Status``.
        sizes: Bytes of the value of each key as the server told it: read for GET, written for SET,
            0 where nothing is known.
        elapsed_s: From submission to the last reply, in seconds; 0: nobody was asked.
        error: The first error text met (server or transport), or ``None``.
        kind: The exception that `error` would be, where that is known.
    """

    __slots__ = ("elapsed_s", "error", "kind", "sizes", "statuses")

    def __init__(
        self,
        statuses: bytes,
        sizes: Sequence[int],
        elapsed_s: float,
        error: str | None = None,
        kind: type[Exception] | None = None,
    ) -> None:
        self.statuses = statuses
        self.sizes = sizes
        self.elapsed_s = elapsed_s
        self.error = error
        self.kind = kind

    def __len__(self) -> int:
        return len(self.statuses)

    def __getitem__(self, index: int) -> Status:  # type: ignore[override]  # no slices
        return _STATUS[self.statuses[index]]

    def __iter__(self) -> Iterator[Status]:
        return (_STATUS[byte] for byte in self.statuses)

    def __repr__(self) -> str:
        counts = {s.name: n for s in Status if (n := self.statuses.count(s))}
        inner = " ".join(f"{name}={n}" for name, n in counts.items())
        return f"<BatchResult {inner or 'empty'} in {self.elapsed_s * 1e3:.2f} ms>"

    @property
    def ok(self) -> bool:
        """Whether every key is OK."""
        return not self.statuses.strip(b"\0")

    @property
    def prefix_len(self) -> int:
        """How many leading keys are OK: KV is usable only up to the first hole."""
        return len(self.statuses) - len(self.statuses.lstrip(b"\0"))

    def count(self, value: object) -> int:
        """How many keys have this status."""
        return self.statuses.count(int(value)) if isinstance(value, int) else 0

    def raise_for_errors(self) -> None:
        """Raise for the first key that is neither OK nor MISS; the text says which of several."""
        for index, status in enumerate(self):
            if (kind := _RAISES.get(status)) is not None:
                text = self.error or _WORDS.get(status, "")
                if status is Status.SIZE_MISMATCH:
                    text = f"the stored value has {self.sizes[index]} bytes, unlike the buffer"
                if self.kind is not None and issubclass(self.kind, kind):
                    kind = self.kind  # AuthError, say: the status has less to say
                which = f" (key {index} of {len(self)})" if len(self) > 1 else ""
                raise kind(text + which)


def from_native(
    statuses: bytes, sizes: bytes, elapsed_s: float, error: str | None, kind: type[Exception] | None
) -> BatchResult:
    """A result as the native clients and connectors tell it."""
    return BatchResult(statuses, memoryview(sizes).cast("Q"), elapsed_s, error, kind)


def only(result: BatchResult) -> bool:
    """The outcome of a batch of one key: True, or False for a miss; raises for the rest."""
    result.raise_for_errors()
    return result.ok
