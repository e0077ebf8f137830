"""What a connector is: the interface that a cache sees of every store.

All values of a connector have one length. It is opened with a `Space`: the prefix of its keys, the
identity that its bytes must have, and that length. A value that was stored under another key or
identity, that is damaged or of another length, is never given out: it is CORRUPT or SIZE_MISMATCH,
counted by its cause, and deleted.

An `Operation` is carried out in one of three ways: blocking (`perform`), with a ticket to wait on
(`submit`), and raw (`announce`: an id, then `event_fd` and `drain_completions`). Each has a method
for each verb, which stores get from here (``batch_get``, ``submit_get``, ``submit_batch_get``).
What a store does wrong is a status of the key with a text in the result. Exceptions are for calls
that cannot be right (`UsageError`), for a connector that is closed (`ClosedError`), for one that
has too much to do already (`CapacityError`; nothing was begun), and see `DeadlineExceeded` below.

Buffers belong to the store until the blocking call returns, until `Ticket.wait` has returned a
result, or until `drain_completions` has returned the id; cancelled and late jobs included. No store
may break that, however it hangs. So where a disk holds on to a buffer beyond the deadline,
`Ticket.wait` goes on returning None in time, and a blocking call raises `DeadlineExceeded`: that is
the one case in which its buffers are still in use, until the connector has let go of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeAlias

from kvferry.base.errors import UsageError
from kvferry.base.shown import shown
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.client.batch import BatchResult, Operation, Verb
from kvferry.client.buffers import BufferLike, Key, encode_key
from kvferry.client.methods import BatchMethods, RawMethods
from kvferry.config.client import ClientConfig

__all__ = [
    "BufferLike",
    "Connector",
    "Key",
    "NodeUsage",
    "ScanBatch",
    "Space",
    "Ticket",
    "Usage",
    "job_limit_s",
]

ScanBatch: TypeAlias = list[tuple[Key, float]]  # keys without the prefix, seconds since their use
_DEFAULTS = ClientConfig()


def job_limit_s(size_bytes: int) -> float:
    """The limit of a job that names none: that of a client without settings."""
    return _DEFAULTS.deadline_s(size_bytes)


@dataclass(frozen=True, slots=True)
class Space:
    """What a connector is opened with.

    Attributes:
        prefix: Goes before every key, e.g. ``"kvf:<identity>:"``; may be empty.
        identity: 16 bytes; see `kvferry.chunks.keys.identity_digest`.
        value_size_bytes: Length of every value.
        description: The identity in words (`kvferry.chunks.keys.describe_identity`). The store
            keeps it, so that others can be told in what their identity differs.

    Raises:
        UsageError: A field cannot be right.
    """

    prefix: str
    identity: bytes
    value_size_bytes: int
    description: str = ""

    def __post_init__(self) -> None:
        if self.prefix:
            encode_key(self.prefix)
        if not isinstance(self.identity, bytes) or len(self.identity) != DIGEST_BYTES:
            raise UsageError(f"an identity has {DIGEST_BYTES} bytes; see kvferry.chunks.keys")
        size = self.value_size_bytes
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= 1 << 37:
            raise UsageError(f"value_size_bytes={shown(size)} is no length from 1 to 128 GiB")


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """What one node of a store holds, which may be full while others are not.

    Attributes:
        name: Of the node.
        used_bytes: As the store counts them.
        room_bytes: What it says that it takes beyond that; below 0: it holds more than it may;
            None: it does not say.
    """

    name: str
    used_bytes: int
    room_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a whole store holds, other spaces and other processes included.

    Attributes:
        used_bytes: As the store counts them.
        capacity_bytes: What it may hold; None: nobody set a limit.
        keys: How many values (of striped ones: stripes); None: not known.
        nodes: The same of each node, where the store has several, or says what room it has.
    """

    used_bytes: int
    capacity_bytes: int | None
    keys: int | None
    nodes: tuple[NodeUsage, ...] = ()

    @property
    def parts(self) -> tuple[NodeUsage, ...]:
        """`nodes`, or the whole store as the only one."""
        return self.nodes or (NodeUsage("", self.used_bytes),)


class Ticket(Protocol):
    """A job that was submitted. Dropping it cancels the job."""

    def wait(self, timeout_s: float) -> BatchResult | None:
        """The result, or None if the job still runs after `timeout_s` seconds."""

    def cancel(self) -> None:
        """Withdraw what has not begun. The job still ends, and `wait` says how."""

    @property
    def done(self) -> bool:
        """Whether `wait` would return a result at once."""

    @property
    def prefix_len(self) -> int:
        """How many leading keys are OK by now; their buffers are final."""


class Connector(BatchMethods[BatchResult], RawMethods):
    """A store. All methods may be called from any thread, `drain_completions` from one at a time.

    A store must carry out operations, say how far a raw one is and what there is, and end. The rest
    it may have: without it, it keeps nothing beside the values and knows no other spaces. With
    ``prefix=True``, keys behind the first one that is not OK need not be asked for, and are
    CANCELLED then.

    Attributes:
        space: What it was opened with.
    """

    space: Space

    # --- What a store must do, beside `perform` and `RawMethods` ---

    @abstractmethod
    def submit(self, operation: Operation) -> Ticket:
        """Start an operation. Raises as `RawMethods.announce`."""

    @abstractmethod
    def progress(self, job_id: int) -> int:
        """How many leading keys of a raw job are OK by now; 0 when it was drained."""

    @abstractmethod
    def usage(self, timeout_s: float = 1.0) -> Usage:
        """What the store holds, as the store itself counts it.

        Raises:
            UnavailableError, DeadlineExceeded: It does not say.
        """

    @abstractmethod
    def close(self) -> None:
        """Cancel what is in flight and end all threads. May be called twice."""

    # --- With a ticket: `BatchMethods`, returning at once ---

    def submit_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> Ticket:
        """As `batch_get`, returning at once."""
        return self.submit(Operation(Verb.GET, keys, buffers, prefix, None, timeout_s))

    def submit_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> Ticket:
        """As `batch_set`, returning at once."""
        return self.submit(Operation(Verb.SET, keys, buffers, False, ttl_s, timeout_s))

    def submit_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> Ticket:
        """As `batch_exists`, returning at once."""
        verb = Verb.TOUCH if touch else Verb.EXISTS
        return self.submit(Operation(verb, keys, None, prefix, None, timeout_s))

    def submit_delete(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> Ticket:
        """As `batch_delete`, returning at once."""
        return self.submit(Operation(Verb.DELETE, keys, None, False, None, timeout_s))

    # --- What a store may have ---

    def scan(self, limit: int = 1000) -> Iterator[ScanBatch]:
        """What this space has in the store, in batches of at most `limit` keys.

        Not a snapshot: what is stored or deleted meanwhile may be there or not. Without it the
        cache forgets at a restart what the store holds.

        Raises:
            UnavailableError, DeadlineExceeded: The store does not say.
        """
        return iter(())

    def descriptions(self) -> Mapping[bytes, str]:
        """Identities that have used the store, and what they are in words.

        Raises:
            UnavailableError, DeadlineExceeded: The store does not say.
        """
        return {}

    def describe(self) -> None:  # a default
        """Keep the description of this space in the store. Best effort; done at opening as well."""

    def undescribe(self) -> None:
        """Forget the description of this space, which has nothing there any more. Best effort."""

    def note(self, name: str, text: str) -> None:
        """Keep a short text about this space beside its description, under a name. Best effort."""

    def notes(self) -> Mapping[str, str]:
        """The texts about this space, by name; they go when the space is undescribed.

        Raises:
            UnavailableError, DeadlineExceeded: The store does not say.
        """
        return {}

    def has_under(self, identity: bytes, key: Key) -> bool:
        """Whether the store has this key under another identity of ours. Best effort, for people.

        It must not keep anybody waiting: False when the store does not say within a second.
        """
        return False

    def lock_eviction(self, ttl_s: float) -> bool:
        """Become the one process that evicts, for `ttl_s` seconds at most; False: another is.

        A store that only one process uses, or that cannot tell them apart, says True.

        Raises:
            ServerError: The store is so full that it has no room for a lock.
        """
        return True

    def unlock_eviction(self) -> None:
        """End `lock_eviction`."""

    def evict_others(self, size_bytes: int, timeout_s: float) -> int:
        """Delete what other spaces of ours have not used for longest, until so much is free.

        Best effort: 0 where a store does not know other spaces. For whoever holds `lock_eviction`.

        Returns:
            How many values went.
        """
        return 0

    @property
    def available(self) -> bool:
        """False while the store is down: then every job is UNAVAILABLE at once."""
        return True

    def stats(self) -> Mapping[str, int]:
        """Counters since the connector was opened."""
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
