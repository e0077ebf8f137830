"""The memory of another instance, read by one-sided reads where both sides can.

It is a `PeerConnector`, and what that does over a socket is what this does in all other cases:
before the agent has met the other side, for what an agent cannot do or is not worth its while, and
from a failure on for the rest of the contact, which is logged once and counted. So nobody waits for
an agent to get ready, and what it cannot do costs no read.

    LEASE ms key...   over a connection of its own, like all that follows: where the chunks are
    one-sided reads   into the buffers, or into pages that are taken for what is there
    checksum          a chunk counts when its frames, which came with the answer, are those of the
                      bytes in the buffer, and the lease was in force by our clock
    RELEASE

Threads: any; a few of its own carry out reads, and one meets the other side.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from kvferry import _native
from kvferry.base.errors import KVFerryError, UnavailableError
from kvferry.base.threads import Guarded
from kvferry.client.batch import BatchResult, Operation, Status, Verb
from kvferry.client.buffers import BufferLike, Key, encode_key, writable
from kvferry.client.dlpack import view_memory
from kvferry.config import ClientConfig
from kvferry.config.url import show_endpoint
from kvferry.connectors.base import Space, Ticket
from kvferry.connectors.calls import CallJob, CallQueue
from kvferry.connectors.one_sided.agent import READ_BYTES_MAX, Agent
from kvferry.connectors.one_sided.leases import FAILURES, Busy, Contact, Lease, Piece, meet
from kvferry.connectors.peer import PeerConnector, lent

__all__ = ["OneSidedConnector"]

_log = logging.getLogger("kvferry.cache")

_THREADS = 2  # that carry out reads
_JOBS_MAX = 1000  # that wait for one
_FIRST_ID = 1 << 48  # of its jobs: the client's are less
_CLOSE_S = 2.0  # for each thread to end
_MEET_S = 10.0  # for the agent to meet its peer
# A contact that failed is tried again after this; it doubles.
_AGAIN_S, _AGAIN_S_MAX = 30.0, 600.0
_LEASE_BYTES = 64 << 20  # of one lease
# The deadline of one read: one that hangs costs no more of a longer deadline.
_READ_S = 2.5
_LOOK_S = 0.02  # whether a read was cancelled
# From process to process: smaller values, and less at a time, come sooner over the socket.
_VALUE_BYTES_MIN, _NEAR_BYTES_MIN = 1 << 20, 4 << 20
_NOT_ASKED = "not asked yet"  # as in native/redis/same_host.cpp


class _Elsewhere(UnavailableError):
    """An agent that reads processes of this host is not what it is read by."""


class _Stripe(NamedTuple):
    """A piece of a value: where it lies there, and where it goes."""

    value: int
    address: int
    target: memoryview


class OneSidedConnector(PeerConnector):
    """See the module, and `Connector`.

    Args:
        space, config: As of `PeerConnector`.
        agent: Of this process.
    """

    def __init__(self, space: Space, config: ClientConfig, agent: Agent) -> None:
        self._agent = agent
        self._name = show_endpoint(config.host, config.port)  # as others say it
        self._extents = _native.stripe_extents(space.value_size_bytes)
        self._lock = threading.Lock()
        self._contact: Contact | None = None
        self._meeting = False
        self._again_at = 0.0
        self._again_s = _AGAIN_S
        self._counts = dict.fromkeys(("reads", "bytes", "expired", "fallbacks"), 0)
        self._threads: list[threading.Thread] = []
        super().__init__(space, config)
        self._queue = CallQueue(_JOBS_MAX, os.dup(self.event_fd()), _FIRST_ID)
        if agent.near and space.value_size_bytes < _VALUE_BYTES_MIN:
            self._again_at = math.inf
        elif agent.near:  # it costs next to nothing, and the first load is as large as the others
            self._begin_to_meet()

    def submit(self, operation: Operation) -> Ticket:
        """See `Connector`."""
        job = self._put(operation, announced=False)
        return super().submit(operation) if job is None else job

    def announce(self, operation: Operation) -> int:
        """See `Connector`."""
        job = self._put(operation, announced=True)
        return super().announce(operation) if job is None else job.id

    def drain_completions(self) -> list[tuple[int, BatchResult]]:
        """See `Connector`."""
        return super().drain_completions() + self._queue.take()  # whose descriptor is the same

    def progress(self, job_id: int) -> int:
        """See `Connector`."""
        job = self._queue.get(job_id)
        return super().progress(job_id) if job is None else job.prefix_len

    def cancel(self, job_id: int) -> None:
        """See `Connector`."""
        job = self._queue.get(job_id)
        if job is None:
            super().cancel(job_id)
        else:
            job.cancel()

    def _put(self, operation: Operation, *, announced: bool) -> CallJob | None:
        """A job for the threads; None: it goes over a socket."""
        if self._reached(operation) is None:
            return None
        count = len(operation.keys)
        job = CallJob(
            lambda job, left_s: self._carry_out(job, operation, left_s),
            count,
            operation.timeout_s or self._limit_s(count),
        )
        self._queue.put(job, announced)
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
        """The contact is the parent's, and the agent as well; a child reads over a socket."""
        super()._after_fork()
        self._lock, self._queue, self._threads = threading.Lock(), CallQueue(_JOBS_MAX), []
        self._contact, self._meeting, self._again_at = None, False, math.inf

    # --- Meeting ---

    def _reached(self, operation: Operation) -> Contact | None:
        """The contact to read an operation over; None: it goes over a socket."""
        count, size, buffers = len(operation.keys), self.space.value_size_bytes, operation.buffers
        if operation.verb is not Verb.GET:
            return None
        if self._agent.near and count * size < _NEAR_BYTES_MIN:
            return None
        if isinstance(buffers, _native.OnDemandPages):
            if not self._agent.near or buffers.size != count:
                return None
        elif not isinstance(buffers, Sequence) or len(buffers) != count:
            return None  # that is for the socket to refuse
        elif any(writable(buffer).nbytes != size for buffer in buffers):
            return None
        if self._contact is None and not self._meeting and time.monotonic() >= self._again_at:
            self._begin_to_meet()
        return self._contact

    def _begin_to_meet(self) -> None:
        with self._lock:
            if self._meeting or self._closed:
                return
            self._meeting = True
        Guarded(
            self._meet, "meet", errand=True, failed=lambda error: self._fail(None, error)
        ).start()

    def _meet(self) -> None:
        until = time.monotonic() + _MEET_S
        try:
            contact = meet(self._node(until), self._agent, until)
        except (KVFerryError, *FAILURES) as error:
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
                    Guarded(self._queue.work, "read", detail=n) for n in range(_THREADS)
                ]
                for thread in self._threads:
                    thread.start()
        _log.info("%s is read %s", self._name, self._agent.way)

    def _node(self, until: float) -> ClientConfig:
        """How its node is reached by the agent: as the client does, after that has found out."""
        if not self._agent.near or self.config.unix_path:
            return self.config
        while (said := str(self._client.stats()["same_host"])).endswith(_NOT_ASKED):
            if time.monotonic() >= until or self._again_at == math.inf:
                break
            time.sleep(_LOOK_S)
        if not said.startswith("unix:"):
            raise _Elsewhere(said)
        return self.config.replace(unix_path=said.removeprefix("unix:"), same_host="auto")

    def _fail(self, contact: Contact | None, error: BaseException) -> None:
        """The contact failed: values are read over a socket for a while."""
        with self._lock:
            if contact is not None and self._contact is not contact:
                return  # it is over already
            self._contact, self._meeting = None, False
            if self._again_at == math.inf:
                return  # it is being closed
            self._again_at = time.monotonic() + self._again_s
            self._again_s = min(2 * self._again_s, _AGAIN_S_MAX)
            self._counts["fallbacks"] += not isinstance(error, _Elsewhere)
        if contact is not None:
            contact.connection.close()
            self._agent.forget(contact.peer)
        level = logging.WARNING  # an agent that was asked for
        if self._agent.near:
            level = logging.DEBUG if isinstance(error, _Elsewhere) else logging.INFO
        way = self._agent.way
        _log.log(level, "%s is read over a socket, not %s: %s", self._name, way, error)

    # --- Reading ---

    def _carry_out(self, job: CallJob, operation: Operation, left_s: float) -> BatchResult:
        """In a thread: read one-sided, and over a socket what that does not bring."""
        began = time.monotonic()
        keys, statuses = list(operation.keys), bytearray()
        contact = self._contact
        if contact is not None:
            try:
                # The other half of the time is for the socket.
                found = self._read(contact, job, keys, operation.buffers, began + left_s / 2)
                for status in found:
                    statuses.append(status)
                    job.arrived = len(statuses) - len(statuses.lstrip(b"\0"))
                    if status is not Status.OK and operation.prefix:
                        found.close()
            except Busy:
                pass
            except (KVFerryError, *FAILURES) as error:
                self._fail(contact, error)
        if operation.prefix and any(statuses):
            statuses = statuses.ljust(len(keys), bytes([Status.CANCELLED]))
        other = BatchResult(b"", [], 0.0)
        if len(statuses) < len(keys):
            rest = replace(operation, timeout_s=left_s + began - time.monotonic())
            if isinstance(operation.buffers, _native.OnDemandPages):
                statuses.clear()  # they cannot be parted
            else:
                buffers = cast("Sequence[BufferLike]", operation.buffers)[len(statuses) :]
                rest = replace(rest, keys=keys[len(statuses) :], buffers=buffers)
            other = self._over_socket(job, rest)
        size = self.space.value_size_bytes
        sizes = [0 if status else size for status in statuses] + list(other.sizes)
        took_s = time.monotonic() - began
        return BatchResult(bytes(statuses) + other.statuses, sizes, took_s, other.error, other.kind)

    def _over_socket(self, job: CallJob, operation: Operation) -> BatchResult:
        count = len(operation.keys)
        if job.cancelled:
            return BatchResult(bytes([Status.CANCELLED]) * count, [0] * count, 0.0)
        if operation.timeout_s is not None and operation.timeout_s <= 0:
            return BatchResult(bytes([Status.TIMEOUT]) * count, [0] * count, 0.0)
        ticket = super().submit(operation)
        while (result := ticket.wait(_LOOK_S)) is None:
            if job.cancelled:
                ticket.cancel()
        return result

    def _read(
        self, contact: Contact, job: CallJob, keys: Sequence[Key], into: Any, until: float
    ) -> Generator[Status]:
        """The statuses of leading keys, up to where they are to be read over a socket."""
        count = len(self._extents)
        step = max(1, _LEASE_BYTES // self.space.value_size_bytes)
        for first in range(0, len(keys), step):
            names = [
                self.space.prefix.encode() + encode_key(lent(key))
                for key in keys[first : first + step]
            ]
            parts = [
                name + (b"#%d" % stripe if stripe else b"")
                for name in names
                for stripe in range(count)
            ]
            sizes = [size for _, size in self._extents] * len(names)
            lease = contact.lease(parts, sizes, until)
            if lease is None:  # it lends other memory now: it is met again
                with self._lock:
                    if self._contact is contact:
                        self._contact = None
                return
            values = [lease.pieces[at : at + count] for at in range(0, len(parts), count)]
            try:
                targets = [
                    None if None in value else self._target(into, first + index)
                    for index, value in enumerate(values)
                ]
                yield from self._values(contact, lease, job, names, values, targets, until)
            finally:
                contact.release(lease)
            if job.cancelled:
                return

    def _target(self, into: Any, index: int) -> memoryview | None:
        """Where a value goes that is there; None: nobody wants it any more, or there is no room."""
        if not isinstance(into, _native.OnDemandPages):
            return writable(into[index])
        address = into.place(index)
        size = self.space.value_size_bytes
        return view_memory(address, size, owner=into, read_only=False) if address else None

    def _values(
        self,
        contact: Contact,
        lease: Lease,
        job: CallJob,
        names: Sequence[bytes],
        values: Sequence[Sequence[Piece | None]],
        targets: Sequence[memoryview | None],
        until: float,
    ) -> Generator[Status]:
        """Read what is leased to its targets, in reads of many stripes."""
        count = len(self._extents)
        stripes = [
            _Stripe(index, piece.address, target[offset : offset + size])
            for index, (value, target) in enumerate(zip(values, targets, strict=True))
            if target is not None
            for piece, (offset, size) in zip(value, self._extents, strict=True)
            if piece is not None
        ]
        sums: list[list[int]] = [[] for _ in names]
        done = 0
        for group in [[], *_grouped(stripes)]:
            if job.cancelled:
                return
            pieces = [(one.address, one.target) for one in group]
            soon = min(until, time.monotonic() + _READ_S)
            read = self._agent.read(contact.peer, pieces, soon) if group else []
            for one, checksum in zip(group, read, strict=True):
                sums[one.value].append(checksum)
            while done < len(names) and (targets[done] is None or len(sums[done]) == count):
                if None in values[done]:
                    yield Status.MISS
                elif targets[done] is None:
                    yield Status.CANCELLED
                else:
                    yield self._verdict(lease, names[done], values[done], sums[done])
                done += 1

    def _verdict(
        self, lease: Lease, name: bytes, value: Sequence[Piece | None], sums: Sequence[int]
    ) -> Status:
        """The status of a value whose bytes are in the buffer, with these checksums."""
        if time.monotonic() >= lease.until:  # they may be of something else by now
            self._counts["expired"] += 1
            return Status.MISS
        headers = b"".join(piece.header for piece in value if piece is not None)
        size_bytes = self.space.value_size_bytes
        if _native.value_fault(headers, name, self.space.identity, size_bytes, sums):
            return Status.CORRUPT
        self._counts["reads"] += 1
        self._counts["bytes"] += size_bytes
        return Status.OK


def _grouped(stripes: Sequence[_Stripe]) -> Iterator[list[_Stripe]]:
    """Stripes in groups, each for one read."""
    group: list[_Stripe] = []
    size = 0
    for stripe in stripes:
        size += len(stripe.target)
        if group and size > READ_BYTES_MAX:
            yield group
            group, size = [], len(stripe.target)
        group.append(stripe)
    if group:
        yield group
