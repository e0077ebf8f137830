"""Requests to a server for as long as it is there: a few sockets, taken in turns.

Who calls takes a free socket, or makes one, sends one request, and waits for its reply on the spot:
no message passes from thread to thread. Every wait also watches a descriptor that `Link.end` makes
readable, so all calls end at once when the server is found to be gone. A link that has ended stays
so; with another session comes another link.

Threads: any. A socket belongs to whoever has taken it.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec
import zmq

from kvferry.server.counters import Counters
from kvferry.server.protocol import MESSAGE_BYTES_MAX, Reply, Request, decode_reply, encode

__all__ = [
    "Away",
    "CurveKeys",
    "Link",
    "TimedOut",
    "new_id",
    "open_socket",
    "poll_ms",
    "read_reply",
]

# Calls under way at once; more of them wait for one of these to end.
_SOCKETS_MAX = 64
_RECONNECT_MS = 50
_RECONNECT_MAX_MS = 1000
_HANDSHAKE_MS = 2000

_ids = itertools.count(int.from_bytes(os.urandom(4), "little"))


class Away(Exception):
    """The server is not there: nothing was sent, or nobody will answer."""


class TimedOut(Exception):
    """No answer in time: whether the request was done is not known."""


class CurveKeys(NamedTuple):
    """Keys of CURVE, as ZeroMQ takes them. The last one is a secret."""

    server_public: bytes
    client_public: bytes
    client_secret: bytes

    def __repr__(self) -> str:
        return "CurveKeys(...)"


def new_id() -> int:
    """An id for a request; no other request of this process has it."""
    return next(_ids)


def poll_ms(until: float) -> int:
    """Milliseconds to a moment of ``time.monotonic``, rounded up, and not negative."""
    return max(0, int((until - time.monotonic()) * 1000 + 0.999))


def open_socket(
    context: zmq.Context[zmq.Socket[bytes]], url: str, keys: CurveKeys | None
) -> zmq.Socket[bytes]:
    """A DEALER socket for a server, with every limit set; it is not connected yet.

    Raises:
        zmq.ZMQError: There are no descriptors left.
    """
    socket = context.socket(zmq.DEALER)
    try:
        socket.linger = 0
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing waits in us for a server that is away
        socket.setsockopt(zmq.SNDTIMEO, 0)
        socket.setsockopt(zmq.RCVTIMEO, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        socket.setsockopt(zmq.IPV6, 1 if "[" in url else 0)
        if keys is not None:
            socket.curve_serverkey = keys.server_public
            socket.curve_publickey = keys.client_public
            socket.curve_secretkey = keys.client_secret
        return socket
    except BaseException:
        socket.close(linger=0)
        raise


def read_reply(frame: bytes, counters: Counters) -> Reply | None:
    """A reply as it came, counted; None: it is none."""
    counters.exchanged(0, len(frame))
    try:
        reply: Reply = decode_reply(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        counters.add("nonsense")
        return None
    return reply


class _Channel(NamedTuple):
    """A socket with what waits for it."""

    socket: zmq.Socket[bytes]
    poller: zmq.Poller


class Link:
    """The way to one server.

    Args:
        context: Of the client; it outlives the link.
        url: Of the server.
        keys: For CURVE; None: none.
        counters: Of the client.
        late: Called with replies that came after their time: they may hold a lease.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        url: str,
        keys: CurveKeys | None,
        counters: Counters,
        late: Callable[[Reply], None],
    ) -> None:
        self._context = context
        self._url = url
        self._keys = keys
        self._counters = counters
        self._late = late
        self._ended_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._free: deque[_Channel] = deque()  # the last one first: its server still knows it
        self._changed = threading.Condition()
        self._open = 0
        self._waiting = 0
        self.ended = False

    def ask(self, request: Request, until: float) -> Reply:
        """Send a request and wait for its reply, until a moment of ``time.monotonic``.

        Raises:
            Away: The link has ended, or the server takes no message.
            TimedOut: There is no reply yet.
        """
        frame = encode(request)
        channel = self._take(until)
        try:
            self._send(channel, frame, until)
            self._counters.asked(len(frame))
            return self._receive(channel, request.id, until)
        finally:
            self._give(channel)

    def end(self) -> None:
        """The server is gone: calls under way end at once, and no others begin."""
        with self._changed:
            if self.ended:
                return
            self.ended = True
            os.eventfd_write(self._ended_fd, 1)
            self._changed.notify_all()
        self._drain()

    def close(self, timeout_s: float) -> bool:
        """`end`, and wait for the calls under way; whether no socket is left."""
        self.end()
        with self._changed:
            return self._changed.wait_for(lambda: self._open == 0, timeout_s)

    # --- One exchange ---

    def _send(self, channel: _Channel, frame: bytes, until: float) -> None:
        if self.ended:
            raise Away
        try:
            channel.socket.send(frame, zmq.NOBLOCK)
            return
        except zmq.Again:  # a new socket that is still connecting
            channel.poller.modify(channel.socket, zmq.POLLOUT)
        try:
            channel.poller.poll(poll_ms(until))
        finally:
            channel.poller.modify(channel.socket, zmq.POLLIN)
        if self.ended:
            raise Away
        try:
            channel.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            raise Away from None

    def _receive(self, channel: _Channel, request_id: int, until: float) -> Reply:
        while True:
            ready = channel.poller.poll(poll_ms(until))
            if self.ended:
                raise Away
            if not ready:
                raise TimedOut
            with suppress(zmq.Again):
                reply = read_reply(channel.socket.recv(zmq.NOBLOCK), self._counters)
                if reply is not None:
                    if reply.id == request_id:
                        return reply
                    self._late(reply)
            if time.monotonic() >= until:  # a server that talks without end
                raise TimedOut

    # --- Sockets ---

    def _take(self, until: float) -> _Channel:
        with suppress(IndexError):
            return self._free.pop()
        with self._changed:
            self._waiting += 1
            try:
                while True:
                    if self.ended:
                        raise Away
                    with suppress(IndexError):
                        return self._free.pop()
                    if self._open < _SOCKETS_MAX:
                        return self._connect()
                    if not self._changed.wait(max(0.0, until - time.monotonic())):
                        raise Away
            finally:
                self._waiting -= 1

    def _connect(self) -> _Channel:
        try:
            socket = open_socket(self._context, self._url, self._keys)
            socket.connect(self._url)  # it fails for no address that the client accepted
        except zmq.ZMQError:  # no descriptors left
            raise Away from None
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._ended_fd, zmq.POLLIN)
        self._open += 1
        return _Channel(socket, poller)

    def _give(self, channel: _Channel) -> None:
        self._free.append(channel)
        if self.ended:
            self._drain()
        elif self._waiting:
            with self._changed:
                self._changed.notify()

    def _drain(self) -> None:
        """Close what nobody uses; the last one closes the descriptor."""
        with self._changed:
            while True:
                try:
                    channel = self._free.pop()
                except IndexError:
                    break
                channel.socket.close(linger=0)
                self._open -= 1
            if self._open == 0 and self._ended_fd >= 0:
                os.close(self._ended_fd)
                self._ended_fd = -1
            self._changed.notify_all()
