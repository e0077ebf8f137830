"""A connection to a listener, and the ids of requests.

The connection is a plain socket that speaks ZMTP, so the reply itself wakes the thread that waits
for it. A library with a thread of its own would be woken first, and pass the reply on: several
times the cost of all the rest; see docs/decisions/0015-the-servers-socket.md.

Threads: one at a time for a `Channel` and for what waits on a `Wake`; any for the rest.
"""

from __future__ import annotations

import errno
import itertools
import os
import select
import socket
import struct
import time
from collections import deque
from contextlib import suppress

from kvferry.base.local_secret import is_own_process
from kvferry.rpc.zmtp import (
    GREETING,
    MESSAGE_BYTES_MAX,
    READY_CLIENT,
    ZmtpError,
    ZmtpParser,
    framed,
)

__all__ = ["Broken", "Channel", "NoServer", "Wake", "new_id"]

# An answer from memory takes no longer as a rule: for so long the socket alone is waited for, which
# costs one system call and not two.
_SOON_MS = 2
_READ_BYTES = 1 << 15

_ids = itertools.count(int.from_bytes(os.urandom(4), "little"))


def new_id() -> int:
    """An id for a request; no other request of this process has it."""
    return next(_ids)


class Broken(ConnectionError):
    """The connection has ended, or cannot go on."""

    def __init__(self, text: str = "the connection has ended") -> None:
        super().__init__(text)


class NoServer(Broken):
    """The peer does not speak ZMTP."""


class Wake:
    """Ends somebody's wait from any thread, and also from a destructor: it takes no lock.

    Attributes:
        fd: Readable when somebody has called.
        stopped: Every wait ends from now on.
    """

    fd = -1

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.stopped = False

    def __call__(self) -> None:
        os.eventfd_write(self.fd, 1)

    def stop(self) -> None:
        """End every wait, now and from now on."""
        self.stopped = True
        self()

    def sleep(self, limit_s: float) -> None:
        """Wait for that long, or until `stop`."""
        until = time.monotonic() + limit_s
        while not self.stopped and (left_s := until - time.monotonic()) > 0:
            if select.select([self.fd], [], [], left_s)[0]:
                self.clear()

    def clear(self) -> None:
        """Forget the calls up to now."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def __del__(self) -> None:  # no sooner: a number that is closed is soon somebody else's file
        if self.fd >= 0:
            os.close(self.fd)


class Channel:
    """A connection, from its beginning to its end.

    Args:
        url: Of the server.
        ended_fd: Every wait ends when it is readable; None: none does.
        until: When it has to be there, by ``time.monotonic``.
        greet_until: When the server has to have greeted; None: then, too.

    Raises:
        Broken: There is none; `NoServer`, too, if the peer is no server.
    """

    def __init__(
        self, url: str, ended_fd: int | None, until: float, greet_until: float | None = None
    ) -> None:
        self._wire = ZmtpParser(MESSAGE_BYTES_MAX)
        self._came: deque[bytes] = deque()
        self._socket = _connected(url, ended_fd, until)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        if ended_fd is not None:
            self._poll.register(ended_fd, select.POLLIN)
        until = until if greet_until is None else greet_until
        try:
            self._send(GREETING + READY_CLIENT, until)
            while not self._wire.ready:
                if not self._read(until):
                    raise Broken("nobody greets")
        except BaseException:
            self._socket.close()
            raise

    def send(self, frame: bytes, until: float) -> None:
        """Send a request, until a moment of ``time.monotonic``.

        Raises:
            Broken: It did not go, or not as a whole.
        """
        self._send(framed(frame), until)

    def receive(self, until: float) -> bytes | None:
        """The next frame; None: none came in time, or the wait was ended.

        Raises:
            Broken: Nothing will come any more.
        """
        while not self._came:
            if not self._read(until):
                return None
        return self._came.popleft()

    @property
    def peer(self) -> tuple[str, int]:
        """Host and port of the other end of TCP, as the system has them."""
        host, port = self._socket.getpeername()[:2]
        return host, port

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _send(self, data: bytes, until: float) -> None:
        while True:
            try:
                sent = self._socket.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError:
                raise Broken from None
            if sent == len(data):
                return
            data = data[sent:]
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            if not poll.poll(_poll_ms(until)):
                raise Broken

    def _read(self, until: float) -> bool:
        """Read from the socket; False: nothing came in time, or the wait was ended."""
        try:
            data = self._socket.recv(_READ_BYTES)  # no longer than _SOON_MS
        except BlockingIOError:
            ready = self._poll.poll(_poll_ms(until))
            if not any(descriptor == self._socket.fileno() for descriptor, _ in ready):
                return False
            try:
                data = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                raise Broken from None
        except OSError:
            raise Broken from None
        if not data:
            raise Broken
        try:
            self._came += self._wire.feed(data)
        except ZmtpError as error:
            raise (Broken if self._wire.ready else NoServer)(str(error)) from None
        return True


def _connected(url: str, ended_fd: int | None, until: float) -> socket.socket:
    """A socket of any of the server's addresses; each has its share of the time."""
    why = "it has no address"
    try:
        addresses = _addresses(url)
    except OSError as error:
        raise Broken(error.strerror or why) from None
    for left, (family, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        now = time.monotonic()
        try:
            return _dialled(family, address, ended_fd, now + max(0.0, until - now) / left)
        except OSError as error:
            why = error.strerror or str(error)
    raise Broken(why)


def _addresses(url: str) -> list[tuple[int, str | tuple[object, ...]]]:
    if url.startswith("ipc://"):
        return [(socket.AF_UNIX, url.removeprefix("ipc://"))]
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    return [(family, address) for family, *_, address in found]


def _dialled(
    family: int, address: str | tuple[object, ...], ended_fd: int | None, until: float
) -> socket.socket:
    made = socket.socket(family)
    try:
        made.setblocking(False)
        error = made.connect_ex(address)
        if error == errno.EINPROGRESS:
            poll = select.poll()
            poll.register(made, select.POLLOUT)
            if ended_fd is not None:
                poll.register(ended_fd, select.POLLIN)
            ready = poll.poll(_poll_ms(until))
            there = any(descriptor == made.fileno() for descriptor, _ in ready)
            error = (
                made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if there else errno.ETIMEDOUT
            )
        if error:
            raise OSError(error, os.strerror(error))
        made.setblocking(True)
        if family == socket.AF_UNIX and not is_own_process(made):
            raise PermissionError(errno.EPERM, "another user listens there")
        if family != socket.AF_UNIX:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        soon = struct.pack("ll", 0, _SOON_MS * 1000)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, soon)
    except BaseException:
        made.close()
        raise
    return made


def _poll_ms(until: float) -> int:
    """Milliseconds to a moment of ``time.monotonic``, rounded up, and not negative."""
    return max(0, int((until - time.monotonic()) * 1000 + 0.999))
