"""One socket to the server, with a time limit on everything.

It blocks in the kernel with SO_RCVTIMEO rather than in poll: a receive with MSG_WAITALL then takes
a whole value, its CRLF included, in one call that leaves the interpreter to other threads. The few
calls that touch the socket stand together at the end; tls.py has others in their place.

After any exception of this module the connection holds an unfinished reply: close it, never use it
again. Deadlines are moments of `time.monotonic`.

Source: socket(7), recv(2).
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import socket
import struct
import sys
import termios
import time
from collections.abc import Sequence
from typing import NoReturn

from kvferry.base.errors import UnavailableError
from kvferry.base.shown import in_line
from kvferry.client.pure.resp import (
    NEED_MORE,
    ErrorReply,
    ProtocolError,
    Reply,
    ReplyParser,
    encode,
)

__all__ = ["Connection", "Disconnected", "ReplyTimedOut", "printable", "sentence"]

# A header takes a small receive, so that little payload has to be copied behind it.
HEADER_READ_BYTES = 4 << 10
DRAIN_READ_BYTES = 256 << 10
# Reads of an idle connection: more pushes than that come faster than they can be read.
IDLE_READS_MAX = 64
# Inside a large value the kernel wakes us once per this much, not once per segment: GETs of 4 to
# 32 MiB over loopback took 0.65 of the time.
WAKEUP_BYTES = 1 << 20
# Less than this is on its way at once: that a small command was acknowledged is no sign of life.
UNSENT_BYTES_MIN = 64 << 10
_IOV_MAX = 1024
_TCP_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_TEXT_MAX = 200
_PEER = struct.Struct("3i")  # ucred of unix(7)


class Disconnected(Exception):
    """The connection ended, or could not be made."""

    kind: type[UnavailableError] = UnavailableError  # what it is to a caller whose batch it ends


class ReplyTimedOut(Exception):
    """The deadline passed, or the peer owed us bytes and stalled."""

    kind = UnavailableError


def printable(text: str) -> str:
    """A server's text, fit for a log: short, without control characters."""
    return in_line(text, _TEXT_MAX)


class Connection:
    """A connected stream socket, which it owns, with its parser.

    Args:
        sock: TCP or Unix; closed by `close`.
        stall_timeout_s: How long the peer may send nothing while it owes us bytes.
        value_size_bytes_max: The longest value that is believed.

    Attributes:
        worn_out: The server said that a new connection is needed (READONLY, NOAUTH).
        good_until: When it has to be replaced, e.g. because the credentials expire.
    """

    _tuned = True  # the kernel may be told to wake us rarely inside a value

    def __init__(
        self, sock: socket.socket, stall_timeout_s: float, value_size_bytes_max: int
    ) -> None:
        self.worn_out = False
        self.good_until = math.inf
        self._sock = sock
        self._stall_timeout_s = stall_timeout_s
        self._armed_s = 0.0
        self._unsent_bytes = 0  # what the kernel held for the peer when we last looked
        self._parser = ReplyParser(value_size_bytes_max)
        self._crlf = bytearray(2)
        sock.settimeout(None)
        self._may_batch_wakeups = self._tuned and sock.family != socket.AF_UNIX
        if sock.family != socket.AF_UNIX:
            for level, option, value in _TCP_OPTIONS:
                sock.setsockopt(level, option, value)

    def send(self, parts: Sequence[bytes | memoryview], deadline: float) -> None:
        """Send all parts, gathered, without joining them."""
        left = list(parts)
        while left:
            self._arm(deadline)
            try:
                sent = self._send_some(left)
            except BlockingIOError:
                self._raise_timed_out(deadline, "accepted")
            except OSError as error:
                raise (self._last_words() or self._ended(error)) from error
            _drop_sent(left, sent)
        self._unsent_bytes = self._read_unsent_bytes()

    def reply(self, deadline: float, *, direct: bool = False) -> Reply:
        """Receive the next reply; of a direct bulk string, its head (see ReplyParser)."""
        while (reply := self._parser.next(direct=direct)) is NEED_MORE:
            self._receive_some(deadline)
        return reply

    def payload_into(self, target: memoryview, deadline: float) -> None:
        """Receive the payload of the bulk string that began, straight into `target`."""
        filled = self._parser.take(target)
        if self._may_batch_wakeups and len(target) - filled >= 2 * WAKEUP_BYTES:
            # All but a tail that must not be waited for this way: it may be the last that comes.
            self._wake_up_at(WAKEUP_BYTES)
            bulky = len(target) - WAKEUP_BYTES
            while filled < bulky:
                filled += self._receive((target[filled:bulky],), deadline)
            self._wake_up_at(1)
        while filled < len(target):
            # The value and its CRLF, in one call that returns when both are complete.
            got = self._receive((target[filled:], self._crlf), deadline)
            beyond = got - (len(target) - filled)
            if beyond > 0:
                self._parser.feed(bytes(self._crlf[:beyond]))
            filled = min(filled + got, len(target))
        self._end_payload(deadline)

    def drain(self, size: int, deadline: float) -> None:
        """Receive a payload that nobody wants, so that the connection can go on."""
        scratch = memoryview(bytearray(min(size, DRAIN_READ_BYTES)))
        while size:
            piece = scratch[: min(size, len(scratch))]
            count = self._parser.take(piece) or self._receive((piece,), deadline)
            size -= count
        self._end_payload(deadline)

    def call(self, *args: bytes, deadline: float) -> Reply:
        """Send one small command and receive its reply."""
        self.send([encode(*args)], deadline)
        return self.reply(deadline)

    def is_clean(self) -> bool:
        """Whether it may carry another request: alive, and nothing unasked but whole pushes."""
        if time.monotonic() >= self.good_until:
            return False
        try:
            for _ in range(IDLE_READS_MAX):
                if self._parser.next() is not NEED_MORE:
                    break
                data = self._receive_at_once()
                if not data:
                    break
                self._parser.feed(data)
        except BlockingIOError:
            return self._parser.idle
        except (OSError, ProtocolError):
            return False
        return False

    @property
    def process(self) -> int:
        """The process at the other end of a Unix socket, if it is of our user; else 0."""
        if self._sock.family != socket.AF_UNIX:
            return 0
        peer = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        process, user, _ = _PEER.unpack(peer)
        return int(process) if user == os.geteuid() else 0

    def abort(self) -> None:
        """End it from another thread; whoever waits on it wakes up with Disconnected."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this process's end; idempotent. After a fork the other process keeps its own."""
        self._sock.close()

    def reset(self) -> None:
        """Close it so that what was sent and has not arrived never does.

        For requests that have no answer: they may be repeated, and must not be carried out behind
        the repetition. TCP sends RST; over a Unix socket all that was sent has arrived.
        """
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def _wake_up_at(self, size_bytes: int) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)

    def _end_payload(self, deadline: float) -> None:
        while not self._parser.end_bulk():
            self._receive_some(deadline)

    def _receive_some(self, deadline: float) -> None:
        self._arm(deadline)
        try:
            data = self._receive_small()
        except BlockingIOError:
            if self._still_sends():
                return
            self._raise_timed_out(deadline, "sent")
        except OSError as error:
            raise self._ended(error) from error
        if not data:
            raise Disconnected("the server closed the connection")
        self._parser.feed(data)

    def _still_sends(self) -> bool:
        """Whether what we sent has moved: on a slow way megabytes leave after `send` returned."""
        before, self._unsent_bytes = self._unsent_bytes, self._read_unsent_bytes()
        return self._unsent_bytes < before >= UNSENT_BYTES_MIN

    def _read_unsent_bytes(self) -> int:
        with contextlib.suppress(OSError):
            answer = fcntl.ioctl(self._sock, termios.TIOCOUTQ, bytes(4))
            return int.from_bytes(answer, sys.byteorder)
        return 0

    def _receive(self, targets: Sequence[memoryview | bytearray], deadline: float) -> int:
        self._arm(deadline)
        try:
            got = self._receive_into(targets)
        except BlockingIOError:
            self._raise_timed_out(deadline, "sent")
        except OSError as error:
            raise self._ended(error) from error
        if not got:
            raise Disconnected("the server closed the connection in the middle of a value")
        return got

    def _arm(self, deadline: float) -> None:
        """Limit the next call of the kernel."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise ReplyTimedOut("the deadline passed")
        wait_s = min(left_s, self._stall_timeout_s)
        if wait_s != self._armed_s:
            try:
                self._set_wait(wait_s)
            except OSError as error:
                raise self._ended(error) from error
            self._armed_s = wait_s

    def _raise_timed_out(self, deadline: float, verb: str) -> NoReturn:
        if time.monotonic() >= deadline:
            raise ReplyTimedOut("the deadline passed") from None
        raise ReplyTimedOut(f"the server {verb} nothing for {self._stall_timeout_s:g} s") from None

    def _last_words(self) -> Disconnected | None:
        """The error that a server sent before it closed, e.g. about too many clients."""
        try:
            self._parser.feed(self._receive_at_once())
            reply = self._parser.next()
        except (BlockingIOError, ProtocolError):
            return None
        except OSError as error:  # of TLS: an alert
            return self._ended(error)
        return Disconnected(printable(reply.text)) if isinstance(reply, ErrorReply) else None

    # The calls of the kernel. One that would have waited for longer than it may is BlockingIOError.

    def _set_wait(self, wait_s: float) -> None:
        whole_s = int(wait_s)
        # Zero would mean: wait for ever.
        timeval = struct.pack("ll", whole_s, int((wait_s - whole_s) * 1e6) or 1)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def _send_some(self, parts: list[bytes | memoryview]) -> int:
        """How many bytes of the parts were taken."""
        return self._sock.sendmsg(parts[:_IOV_MAX], (), socket.MSG_NOSIGNAL)

    def _receive_small(self) -> bytes:
        return self._sock.recv(HEADER_READ_BYTES)

    def _receive_at_once(self) -> bytes:
        return self._sock.recv(HEADER_READ_BYTES, socket.MSG_DONTWAIT)

    def _receive_into(self, targets: Sequence[memoryview | bytearray]) -> int:
        """How many bytes were received, into one target after the other."""
        return self._sock.recvmsg_into(targets, 0, socket.MSG_WAITALL)[0]

    def _ended(self, error: OSError) -> Disconnected:
        return Disconnected(sentence(error))


def _drop_sent(parts: list[bytes | memoryview], sent: int) -> None:
    done = 0
    while done < len(parts) and sent >= len(parts[done]):
        sent -= len(parts[done])
        done += 1
    del parts[:done]
    if sent:
        parts[0] = memoryview(parts[0])[sent:]


def sentence(error: OSError) -> str:
    """A text of the system, as a part of a sentence of ours."""
    return (error.strerror or str(error)).lower()
