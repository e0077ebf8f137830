"""Requests to a server for as long as it is there: a few sockets, taken in turns.

Who calls takes a free socket, or makes one, sends one request, and waits for its reply on the spot:
no message passes from thread to thread. Every wait also watches a descriptor that `Link.end` makes
readable, so all calls end at once when the server is found to be gone. A link that has ended stays
so; with another session comes another link.

Threads: any. A socket belongs to whoever has taken it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import zmq

from kvferry.server.client.counters import Counters
from kvferry.server.client.sockets import CurveKeys, open_socket, poll_ms, read_reply
from kvferry.server.protocol import Reply, Request, encode

__all__ = ["Away", "Link", "TimedOut"]

# Calls under way at once; more of them wait for one of these to end.
_SOCKETS_MAX = 64
# An answer from memory takes no longer, if all is well.
_SOON_MS = 2


class Away(Exception):
    """The server is not there: nothing was sent, or nobody will answer."""


class TimedOut(Exception):
    """No answer in time: whether the request was done is not known."""


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
        # Most answers come soon: waiting for nothing else is cheaper.
        frame = self._read(channel, 0)
        while True:
            reply = read_reply(frame, self._counters) if frame is not None else None
            if reply is not None:
                if reply.id == request_id:
                    return reply
                self._late(reply)
            ready = channel.poller.poll(poll_ms(until))
            if self.ended:
                raise Away
            if not ready or time.monotonic() >= until:  # also: a server that talks without end
                raise TimedOut
            frame = self._read(channel, zmq.NOBLOCK)

    @staticmethod
    def _read(channel: _Channel, flags: int) -> bytes | None:
        try:
            return channel.socket.recv(flags)
        except zmq.Again:
            return None

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
            socket.setsockopt(zmq.RCVTIMEO, _SOON_MS)
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
