"""A connection for one request at a time: without keys a plain socket that speaks ZMTP, with keys
one of libzmq.

Who waits for a reply on a plain socket is woken by the reply itself. Through libzmq a thread of its
own would be woken first, and pass it on: several times the cost of all the rest; see
docs/decisions/0015-the-servers-socket.md.

Threads: one at a time.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from typing import Protocol

import zmq

from kvferry.server.client.sockets import CurveKeys, open_socket, poll_ms
from kvferry.server.protocol import MESSAGE_BYTES_MAX
from kvferry.server.zmtp import GREETING, Wire, WireError, framed

__all__ = ["Broken", "Channel", "open_channel"]

# An answer from memory takes no longer, if all is well; until then nothing else is waited for.
_SOON_MS = 2
_READ_BYTES = 1 << 15
_TYPE = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
_HELLO = GREETING + bytes((4, len(_TYPE))) + _TYPE


class Broken(Exception):
    """The connection is of no more use."""


class Channel(Protocol):
    """What a caller needs of a connection."""

    def send(self, frame: bytes, until: float) -> None:
        """Send a request, until a moment of ``time.monotonic``.

        Raises:
            Broken: It did not go, or not as a whole.
        """

    def receive(self, until: float) -> bytes | None:
        """What came; None: nothing by then, or somebody ended the wait.

        Raises:
            Broken: Nothing will come any more.
        """

    def close(self) -> None:
        """End the connection."""


def open_channel(
    context: zmq.Context[zmq.Socket[bytes]],
    url: str,
    keys: CurveKeys | None,
    ended_fd: int,
    until: float,
) -> Channel:
    """A connection to a server.

    Args:
        ended_fd: Every wait ends when it is readable.

    Raises:
        Broken: There is none.
    """
    if keys is None:
        return _Plain(url, ended_fd, until)
    return _Keyed(context, url, keys, ended_fd)


class _Plain:
    def __init__(self, url: str, ended_fd: int, until: float) -> None:
        self._wire = Wire(MESSAGE_BYTES_MAX)
        self._came: deque[bytes] = deque()
        self._socket = _connected(url, until)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(ended_fd, select.POLLIN)
        try:
            self._send(_HELLO, until)
            while not self._wire.ready:
                if not self._read(until):
                    raise Broken
        except BaseException:
            self._socket.close()
            raise

    def send(self, frame: bytes, until: float) -> None:
        self._send(framed(frame), until)

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
            if not poll.poll(poll_ms(until)):
                raise Broken

    def receive(self, until: float) -> bytes | None:
        while not self._came:
            if not self._read(until):
                return None
        return self._came.popleft()

    def _read(self, until: float) -> bool:
        """Take what comes; False: nothing did, or the wait was ended."""
        try:
            data = self._socket.recv(_READ_BYTES)  # no longer than _SOON_MS
        except BlockingIOError:
            ready = self._poll.poll(poll_ms(until))
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
            self._came += [frames[-1] for frames in self._wire.feed(data)]
        except WireError:
            raise Broken from None
        return True

    def close(self) -> None:
        self._socket.close()


def _connected(url: str, until: float) -> socket.socket:
    limit_s = max(0.001, until - time.monotonic())
    try:
        if url.startswith("ipc://"):
            made = socket.socket(socket.AF_UNIX)
            try:
                made.settimeout(limit_s)
                made.connect(url.removeprefix("ipc://"))
            except BaseException:
                made.close()
                raise
        else:
            host, _, port = url.removeprefix("tcp://").rpartition(":")
            made = socket.create_connection((host.strip("[]"), int(port)), limit_s)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        raise Broken from None
    made.settimeout(None)
    soon = struct.pack("ll", 0, _SOON_MS * 1000)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, soon)
    return made


class _Keyed:
    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], url: str, keys: CurveKeys, ended_fd: int
    ) -> None:
        try:
            self._socket = open_socket(context, url, keys)
            self._socket.setsockopt(zmq.RCVTIMEO, _SOON_MS)
            self._socket.connect(url)  # it fails for no address that the client accepted
        except zmq.ZMQError:  # no descriptors left
            raise Broken from None
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(ended_fd, zmq.POLLIN)

    def send(self, frame: bytes, until: float) -> None:
        try:
            self._socket.send(frame, zmq.NOBLOCK)
            return
        except zmq.Again:  # a new socket that is still connecting
            self._poller.modify(self._socket, zmq.POLLOUT)
        try:
            self._poller.poll(poll_ms(until))
        finally:
            self._poller.modify(self._socket, zmq.POLLIN)
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            raise Broken from None

    def receive(self, until: float) -> bytes | None:
        frame = self._read(0)
        if frame is None and self._poller.poll(poll_ms(until)):
            frame = self._read(zmq.NOBLOCK)
        return frame

    def _read(self, flags: int) -> bytes | None:
        try:
            return self._socket.recv(flags)
        except zmq.Again:
            return None

    def close(self) -> None:
        self._socket.close(linger=0)
