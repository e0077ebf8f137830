"""Leases of another instance's pages, asked for over a connection of their own; see LEASE in the
guide of the node.

    contact = meet(config, agent, until)
    lease = contact.lease(names, sizes, until)    # None: meet it again
    contact.release(lease)

Threads: any; one asks at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvferry.base.errors import UnavailableError
from kvferry.client.pure.connection import Connection, Disconnected, ReplyTimedOut
from kvferry.client.pure.dial import DialRefused, dial
from kvferry.client.pure.resp import ErrorReply, ProtocolError, Reply, encode
from kvferry.config import ClientConfig
from kvferry.connectors.one_sided.agent import Agent

__all__ = ["FAILURES", "Busy", "Contact", "Lease", "Piece", "meet"]

# Errors of a lease whose peer does not answer as it should.
FAILURES = (Disconnected, ReplyTimedOut, ProtocolError, DialRefused, UnavailableError, OSError)

_TIME_MS_MAX = 10_000  # as in native/node/leases.hpp
_RELEASE_S = 1.0


class Busy(Exception):
    """The peer leases nothing at the moment."""


class Piece(NamedTuple):
    """Where a value lies there, and the header of its frame."""

    header: bytes
    address: int


@dataclass(frozen=True)
class Lease:
    """Pages that the peer holds for us.

    Attributes:
        id: Of the lease; 0: nothing is there.
        until: A moment of ``time.monotonic``, no later than the end of the lease.
        pieces: One for each name; None: it is not there.
    """

    id: int
    until: float
    pieces: list[Piece | None]


@dataclass
class Contact:
    """The other side, met.

    Attributes:
        connection: For leases; they end with it.
        peer: Its agent, as ours knows it.
        incarnation: Of its agent.
    """

    connection: Connection
    peer: Any
    incarnation: int
    _unread: int = 0  # answers to what was released
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lease(self, names: Sequence[bytes], sizes: Sequence[int], until: float) -> Lease | None:
        """Have the peer hold values of these lengths until a moment, or for less time.

        Returns:
            None: its agent is another one by now.

        Raises:
            Busy: It has lent too much already.
            FAILURES: It does not answer as it should.
        """
        asked = time.monotonic()
        time_ms = min(max(1, int((until - asked) * 1e3)), _TIME_MS_MAX)
        match self._call(b"LEASE", b"%d" % time_ms, *names, until=until):
            case ErrorReply(code="BUSY"):
                raise Busy
            case [int(), int(), int() as incarnation, list()] if incarnation != self.incarnation:
                return None
            case [int() as lease_id, int() as time_ms, int(), list() as values] if len(
                values
            ) == len(names):
                lease = Lease(lease_id, asked + time_ms / 1e3, [])
                for value, size in zip(values, sizes, strict=True):
                    lease.pieces.append(_piece(value, size))
                return lease
            case answer:
                raise UnavailableError(f"it leases nothing: {answer!r:.100}")

    def release(self, lease: Lease) -> None:
        """End a lease; else it expires. The answer is read in front of the next one."""
        if lease.id:
            with suppress(*FAILURES), self._lock:
                self._unread += 1
                words = encode(b"RELEASE", b"%d" % lease.id)
                self.connection.send([words], time.monotonic() + _RELEASE_S)

    def _call(self, *words: bytes, until: float) -> Reply:
        with self._lock:
            self.connection.send([encode(*words)], until)
            while self._unread:
                self.connection.reply(until)
                self._unread -= 1
            return self.connection.reply(until)


def meet(config: ClientConfig, agent: Agent, until: float) -> Contact:
    """Connect to a node, and make its agent known to ours.

    Raises:
        FAILURES: It is away, or cannot be read so.
    """
    connection = dial(config, until)
    try:
        match connection.call(b"LEASE", b"AGENT", deadline=until):
            case [int() as incarnation, bytes() as metadata]:
                return Contact(connection, agent.meet(connection, metadata), incarnation)
        raise UnavailableError("its node has no agent")
    except BaseException:
        connection.close()
        raise


def _piece(told: Reply, size: int) -> Piece | None:
    match told:
        case None:
            return None
        case [bytes() as header, [int() as address, int() as length]] if length == size:
            return Piece(header, address)
    raise UnavailableError("it leases something else")
