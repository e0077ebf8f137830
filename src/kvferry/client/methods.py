"""The methods that clients, namespaces and connectors have, each of them once.

They put their arguments into an `Operation`; what carries that out is the class that has them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, Generic, TypeVar

from kvferry.client.batch import BatchResult, Operation, Verb, only
from kvferry.client.buffers import BufferLike, Key

__all__ = ["AwaitedKeyMethods", "BatchMethods", "KeyMethods", "RawMethods"]

# A name less to look up, for small batches.
_GET, _SET, _EXISTS, _TOUCH, _DELETE = Verb.GET, Verb.SET, Verb.EXISTS, Verb.TOUCH, Verb.DELETE

Outcome_co = TypeVar("Outcome_co", covariant=True)


class BatchMethods(ABC, Generic[Outcome_co]):
    """Many keys: a status for each, no exceptions for what a server or network does."""

    @abstractmethod
    def perform(self, operation: Operation) -> Outcome_co:
        """Carry out an operation, and wait for its end. Raises as `batch_get`."""

    def batch_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome_co:
        """Read many values, each straight into its own buffer.

        Args:
            keys: One per buffer.
            buffers: Writable, contiguous, apart from each other, each as long as its value. The
                content of those whose key is not OK is undefined.
            prefix: Stop asking after the first key that is not OK; keys behind it that were not
                asked for are CANCELLED.
            timeout_s: Limit for the batch, in seconds; default: it grows with the bytes.

        Raises:
            UsageError, BadBufferError: Nothing was sent.
            ClosedError, CapacityError: Nothing was sent.
        """
        return self.perform(Operation(_GET, keys, buffers, prefix, None, timeout_s))

    def batch_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> Outcome_co:
        """Store many values; `ttl_s` in seconds. A store that is full answers SERVER_ERROR.

        Raises as `batch_get`.
        """
        return self.perform(Operation(_SET, keys, buffers, False, ttl_s, timeout_s))

    def batch_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome_co:
        """Which keys exist: OK or MISS. `touch` also makes them recently used, for the LRU."""
        verb = _TOUCH if touch else _EXISTS
        return self.perform(Operation(verb, keys, None, prefix, None, timeout_s))

    def batch_delete(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> Outcome_co:
        """Delete keys: OK = was there, MISS = was not."""
        return self.perform(Operation(_DELETE, keys, None, False, None, timeout_s))


class KeyMethods(BatchMethods[BatchResult]):
    """One key: exceptions for failures."""

    def get(self, key: Key, buffer: BufferLike) -> bool:
        """Read a value into `buffer`, which must have exactly its length.

        Returns:
            True: the buffer is filled. False: no such key.

        Raises:
            SizeMismatchError, ServerError, DeadlineExceeded, UnavailableError: The buffer's content
                is undefined.
            BadBufferError, UsageError: Nothing was sent.
        """
        return only(self.batch_get([key], [buffer]))

    def set(self, key: Key, buffer: BufferLike, *, ttl_s: float | None = None) -> None:
        """Store the bytes of `buffer`, up to the server's limit; `ttl_s` in seconds.

        When it returns, the server has stored them since the call began. A try without an answer
        is repeated on another connection; the first one is reset, so that what is left of it on the
        way is dropped. Behind a proxy that keeps bytes for the server nobody can rule out that they
        arrive later, even behind a newer value of the key; see docs/guides/client.md.

        Raises:
            ServerError, DeadlineExceeded, UnavailableError: It may or may not be stored, or be
                stored yet: its connection is answered or reset within `stall_timeout_s`.
            BadBufferError, UsageError: Nothing was sent.
        """
        only(self.batch_set([key], [buffer], ttl_s=ttl_s))

    def exists(self, key: Key) -> bool:
        """Whether the key exists. Raises as `get`."""
        return only(self.batch_exists([key]))

    def delete(self, key: Key) -> bool:
        """Delete the key; whether it was there. Raises as `get`."""
        return only(self.batch_delete([key]))


class AwaitedKeyMethods(BatchMethods[Coroutine[Any, Any, BatchResult]]):
    """`KeyMethods`, awaited."""

    async def get(self, key: Key, buffer: BufferLike) -> bool:
        """See `KeyMethods.get`."""
        return only(await self.batch_get([key], [buffer]))

    async def set(self, key: Key, buffer: BufferLike, *, ttl_s: float | None = None) -> None:
        """See `KeyMethods.set`."""
        only(await self.batch_set([key], [buffer], ttl_s=ttl_s))

    async def exists(self, key: Key) -> bool:
        """See `KeyMethods.exists`."""
        return only(await self.batch_exists([key]))

    async def delete(self, key: Key) -> bool:
        """See `KeyMethods.delete`."""
        return only(await self.batch_delete([key]))


class RawMethods(ABC):
    """Submit, wait for the descriptor, drain."""

    @abstractmethod
    def announce(self, operation: Operation) -> int:
        """Start an operation; returns its id at once. `drain_completions` announces its end.

        The buffers belong to the operation until `drain_completions` has returned its id.

        Raises:
            UsageError, BadBufferError: The call cannot be right; nothing was sent.
            CapacityError: Too much is waiting; nothing was sent.
            ClosedError: It is closed.
        """

    @abstractmethod
    def event_fd(self) -> int:
        """A descriptor that is readable while completions wait. It belongs to the callee.

        In a forked child the number that the parent had works too, for the child's own alone.
        """

    @abstractmethod
    def drain_completions(self) -> list[tuple[int, BatchResult]]:
        """Take all that have ended, oldest first: id and result. Never blocks."""

    @abstractmethod
    def cancel(self, batch_id: int) -> None:
        """Withdraw one. It still completes, soon: once nothing can touch its buffers."""

    def submit_batch_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> int:
        """Start to read values into `buffers`; see `announce`."""
        return self.announce(Operation(_GET, keys, buffers, prefix, None, timeout_s))

    def submit_batch_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Start to store `buffers`; see `announce`."""
        return self.announce(Operation(_SET, keys, buffers, False, ttl_s, timeout_s))

    def submit_batch_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> int:
        """Start to ask which keys exist; see `announce`."""
        verb = _TOUCH if touch else _EXISTS
        return self.announce(Operation(verb, keys, None, prefix, None, timeout_s))

    def submit_batch_delete(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> int:
        """Start to delete keys; see `announce`."""
        return self.announce(Operation(_DELETE, keys, None, False, None, timeout_s))
