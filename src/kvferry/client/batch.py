"""The outcome of a batch: one status per key.

A missing key, a value of another length, a server that is away: each is a status, never an
exception, because to an inference engine they all mean "compute it".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

from kvferry.base import errors

__all__ = ["BatchResult", "Status", "from_native", "only"]


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
