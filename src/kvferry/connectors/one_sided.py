"""The memory of another instance, read by one-sided reads where both sides have NIXL.

It is a `PeerConnector`, and what that does over TCP is what this does in all other cases: for
everything but reads into buffers that are there already, before NIXL has met the other side, and
from a failure on for the rest of the contact, which is logged once and counted. So nobody waits for
NIXL to get ready, and what it cannot do costs no read.

    LEASE ms key...   over a connection of its own, like all that follows: where the chunks are
    one-sided reads   into memory of the agent
    copy, checksum    into the buffers: a chunk counts when its frames, which came with the answer,
                      are those of the bytes in the buffer, and the lease was in force by our clock
    RELEASE

Threads: any; a few of its own carry out reads, and one meets the other side.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from msgspec.structs import replace

from kvferry import _native
from kvferry.client.batch import BatchResult, Status
from kvferry.client.buffers import BufferLike, Key, encode_key, writable
from kvferry.client.operation import Operation, Verb
from kvferry.config import ClientConfig
from kvferry.connectors.base import Space, Ticket
from kvferry.connectors.calls import CallJob, CallQueue
from kvferry.connectors.frame import Frame
from kvferry.connectors.leases import FAILURES, Busy, Contact, Lease, meet
from kvferry.connectors.nixl_agent import SLOT_BYTES, NixlAgent
from kvferry.connectors.peer import PeerConnector, lent
from kvferry.errors import KVFerryError

__all__ = ["OneSidedConnector"]

_log = logging.getLogger("kvferry.cache")

_THREADS = 2
_JOBS_MAX = 1000
_CLOSE_S = 2.0
_MEET_S = 10.0
# A contact that failed is tried again after this; it doubles.
_AGAIN_S, _AGAIN_S_MAX = 30.0, 600.0
_LEASE_BYTES = 64 << 20  # of one lease
# What one read of at most SLOT_BYTES may take: one that hangs costs no more of a long deadline.
_READ_S = 2.5
_LOOK_S = 0.02  # whether a read was cancelled
# As in native/codec/stripe.hpp.
_STRIPE_BYTES, _STRIPE_UNIT = 4 << 20, 4 << 10


class _Stripe(NamedTuple):
    """A piece of a value: where it lies there, its frame's header, and where it goes."""

    value: int
    header: bytes
    address: int
    target: memoryview


class _Progress:
    """How far a job is: so many leading keys have final buffers; and whether to go on."""

    arrived = 0
    cancelled = False


class _Read(CallJob):
    """A job; see `Ticket`."""

    def __init__(
        self,
        progress: _Progress,
        call: Callable[[float], BatchResult],
        count: int,
        limit_s: float,
    ) -> None:
        super().__init__(call, count, limit_s)
        self._progress = progress

    def cancel(self) -> None:
        super().cancel()
        self._progress.cancelled = True

    @property
    def prefix_len(self) -> int:
        return super().prefix_len if self.done else self._progress.arrived


class OneSidedConnector(PeerConnector):
    """See the module, and `Connector`.

    Args:
        space, config: As of `PeerConnector`.
        agent: Of this process.
    """

    def __init__(self, space: Space, config: ClientConfig, agent: NixlAgent) -> None:
        self._agent = agent
        self._frame = Frame(space)
        self._extents = _extents(space.value_size_bytes)
        self._lock = threading.Lock()
        self._contact: Contact | None = None
        self._meeting = False
        self._again_at = 0.0
        self._again_s = _AGAIN_S
        self._counts = dict.fromkeys(("reads", "bytes", "expired", "fallbacks"), 0)
        self._queue = CallQueue(_JOBS_MAX)
        self._threads: list[threading.Thread] = []
        super().__init__(space, config)

    def submit(self, operation: Operation) -> Ticket:
        """See `Connector`."""
        contact = self._reached(operation)
        if contact is None:
            return super().submit(operation)
        progress, count = _Progress(), len(operation.keys)
        job = _Read(
            progress,
            lambda left_s: self._carry_out(progress, operation, left_s),
            count,
            operation.timeout_s or self._limit_s(count),
        )
        self._queue.put(job, announced=False)
        return job

    def stats(self) -> Mapping[str, int]:
        """Those of `PeerConnector`, with what came by one-sided reads: ``one_sided_<name>``."""
        found = dict(super().stats())
        name = "client_content_received"  # by which loads see that something comes
        found[name] = found.get(name, 0) + self._counts["bytes"]
        return found | {f"one_sided_{name}": count for name, count in self._counts.items()}

    def close(self) -> None:
        """See `Connector`."""
        self._queue.close()
        with self._lock:
            contact, self._again_at = self._contact, math.inf
            self._contact = None
        if contact is not None:
            contact.connection.abort()
        for thread in self._threads:
            thread.join(_CLOSE_S)
        if contact is not None:
            contact.connection.close()
        super().close()

    def _after_fork(self) -> None:
        """The contact is the parent's, and NIXL as well; a child reads over TCP."""
        super()._after_fork()
        self._lock, self._queue, self._threads = threading.Lock(), CallQueue(_JOBS_MAX), []
        self._contact, self._meeting, self._again_at = None, False, math.inf

    # --- Meeting ---

    def _reached(self, operation: Operation) -> Contact | None:
        """The contact over which this is read; None: it goes over TCP."""
        if operation.verb is not Verb.GET or not isinstance(operation.buffers, Sequence):
            return None
        size = self.space.value_size_bytes
        if len(operation.buffers) != len(operation.keys):
            return None  # that is for TCP to refuse
        if any(writable(buffer).nbytes != size for buffer in operation.buffers):
            return None
        if self._contact is None and not self._meeting and time.monotonic() >= self._again_at:
            with self._lock:
                if self._meeting or self._closed:
                    return None
                self._meeting = True
            threading.Thread(target=self._meet, name="kvferry-nixl-meet", daemon=True).start()
        return self._contact

    def _meet(self) -> None:
        try:
            contact = meet(self.config, self._agent, time.monotonic() + _MEET_S)
        except FAILURES as error:
            self._fail(None, error)
            return
        with self._lock:
            self._meeting = False
            if self._again_at == math.inf:
                contact.connection.close()
                return
            self._contact = contact
            if not self._threads:
                self._threads = [
                    threading.Thread(target=self._queue.work, name=f"kvferry-nixl-{n}", daemon=True)
                    for n in range(_THREADS)
                ]
                for thread in self._threads:
                    thread.start()
        _log.info("%s is read over NIXL", self.config.address)

    def _fail(self, contact: Contact | None, error: Exception) -> None:
        """From now on it is TCP, for a while."""
        with self._lock:
            if contact is not None and self._contact is not contact:
                return  # it is over already
            self._contact, self._meeting = None, False
            if self._again_at == math.inf:
                return  # it is being closed
            self._again_at = time.monotonic() + self._again_s
            self._again_s = min(2 * self._again_s, _AGAIN_S_MAX)
            self._counts["fallbacks"] += 1
        if contact is not None:
            contact.connection.close()
            self._agent.forget(contact.peer)
        _log.warning("%s is read over TCP, not over NIXL: %s", self.config.address, error)

    # --- Reading ---

    def _carry_out(self, progress: _Progress, operation: Operation, left_s: float) -> BatchResult:
        """In a thread: read one-sided, and over TCP what that does not bring."""
        began = time.monotonic()
        keys, buffers = list(operation.keys), list(cast("Sequence[BufferLike]", operation.buffers))
        statuses = bytearray()
        contact = self._contact
        if contact is not None:
            try:
                # The other half of the time is for TCP.
                found = self._read(contact, progress, keys, buffers, began + left_s / 2)
                for status in found:
                    statuses.append(status)
                    progress.arrived = len(statuses) - len(statuses.lstrip(b"\0"))
                    if status is not Status.OK and operation.prefix:
                        found.close()
            except Busy:
                pass
            except (KVFerryError, *FAILURES) as error:
                self._fail(contact, error)
        size = self.space.value_size_bytes
        sizes = [0 if status else size for status in statuses]
        rest = slice(len(statuses), None)
        if operation.prefix and any(statuses):
            statuses += bytes([Status.CANCELLED]) * len(keys[rest])
        if len(statuses) < len(keys):
            left_s += began - time.monotonic()
            more = replace(operation, keys=keys[rest], buffers=buffers[rest], timeout_s=left_s)
            other = self._over_tcp(progress, more)
        else:
            other = BatchResult(b"", [], 0.0)
        sizes += [*other.sizes, *[0] * (len(keys) - len(sizes) - len(other))]
        took_s = time.monotonic() - began
        return BatchResult(bytes(statuses) + other.statuses, sizes, took_s, other.error, other.kind)

    def _over_tcp(self, progress: _Progress, operation: Operation) -> BatchResult:
        count = len(operation.keys)
        if progress.cancelled:
            return BatchResult(bytes([Status.CANCELLED]) * count, [0] * count, 0.0)
        if operation.timeout_s is not None and operation.timeout_s <= 0:
            return BatchResult(bytes([Status.TIMEOUT]) * count, [0] * count, 0.0)
        ticket = super().submit(operation)
        while (result := ticket.wait(_LOOK_S)) is None:
            if progress.cancelled:
                ticket.cancel()
        return result

    def _read(
        self,
        contact: Contact,
        progress: _Progress,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        until: float,
    ) -> Generator[Status]:
        """The statuses of leading keys, up to where they are to be read over TCP."""
        step = max(1, _LEASE_BYTES // self.space.value_size_bytes)
        for first in range(0, len(keys), step):
            names = [
                self.space.prefix.encode() + encode_key(lent(key))
                for key in keys[first : first + step]
            ]
            targets = [writable(buffer) for buffer in buffers[first : first + step]]
            parts = [
                name + (b"#%d" % stripe if stripe else b"")
                for name in names
                for stripe in range(len(self._extents))
            ]
            sizes = [size for _, size in self._extents] * len(names)
            lease = contact.lease(parts, sizes, until)
            if lease is None:  # it lends other memory now: it is met again
                with self._lock:
                    if self._contact is contact:
                        self._contact = None
                return
            try:
                yield from self._values(contact, lease, progress, names, targets, until)
            finally:
                contact.release(lease)
            if progress.cancelled:
                return

    def _values(
        self,
        contact: Contact,
        lease: Lease,
        progress: _Progress,
        names: Sequence[bytes],
        targets: Sequence[memoryview],
        until: float,
    ) -> Generator[Status]:
        """Read what is leased into the buffers, in reads of many stripes."""
        count = len(self._extents)
        values = [lease.pieces[at : at + count] for at in range(0, count * len(names), count)]
        stripes = [
            _Stripe(index, piece.header, piece.address, target[offset : offset + size])
            for index, (value, target) in enumerate(zip(values, targets, strict=True))
            for piece, (offset, size) in zip(value, self._extents, strict=True)
            if piece is not None and None not in value
        ]
        sums: list[list[int]] = [[] for _ in names]
        done = 0
        for group in _grouped(stripes):

            def take(read: memoryview, group: Sequence[_Stripe] = group) -> None:
                at = 0
                for one in group:
                    sums[one.value].append(
                        _native.checksum(read[at : at + len(one.target)], one.target)
                    )
                    at += len(one.target)

            if progress.cancelled:
                return
            pieces = [(one.address, len(one.target)) for one in group]
            soon = time.monotonic() + _READ_S
            self._agent.read(contact.peer, pieces, take, min(until, soon))
            while done < len(names) and (None in values[done] or len(sums[done]) == count):
                headers = [one.header for one in stripes if one.value == done]
                yield self._verdict(lease, names[done], headers, sums[done])
                done += 1
        for value in values[done:]:
            assert None in value
            yield Status.MISS

    def _verdict(
        self, lease: Lease, name: bytes, headers: Sequence[bytes], sums: Sequence[int]
    ) -> Status:
        """Of a value whose bytes are in the buffer, with these checksums."""
        if not headers:
            return Status.MISS
        if time.monotonic() >= lease.until:  # they may be of something else by now
            self._counts["expired"] += 1
            return Status.MISS
        if headers != self._frame.headers(name, sums, [size for _, size in self._extents]):
            return Status.CORRUPT
        self._counts["reads"] += 1
        self._counts["bytes"] += self.space.value_size_bytes
        return Status.OK

    def _name(self, key: object) -> bytes:
        return self.space.prefix.encode() + encode_key(lent(cast("bytes | str", key)))


def _grouped(stripes: Sequence[_Stripe]) -> Iterator[list[_Stripe]]:
    """In groups that one read brings."""
    group: list[_Stripe] = []
    size = 0
    for stripe in stripes:
        size += len(stripe.target)
        if group and size > SLOT_BYTES:
            yield group
            group, size = [], len(stripe.target)
        group.append(stripe)
    if group:
        yield group


def _extents(size_bytes: int) -> list[tuple[int, int]]:
    """Offsets and lengths of the stripes of a value, as native/codec/stripe.hpp has them."""
    count = _divide_up(size_bytes, _STRIPE_BYTES)
    stripe = size_bytes
    if count > 1:
        stripe = _divide_up(_divide_up(size_bytes, count), _STRIPE_UNIT) * _STRIPE_UNIT
    return [(at, min(stripe, size_bytes - at)) for at in range(0, size_bytes, stripe)]


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)
