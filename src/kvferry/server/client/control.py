"""The socket over which a client stays in touch with its server, and sees it go.

It tells three things apart: the server is not there, it is there, and it refuses our keys. A server
that dies closes its sockets, which the kernel does for it: `Gone` is raised within milliseconds.

Threads: one, its keeper. A `Wake` may be called by any.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from typing import TypeVar

import zmq
from zmq.utils.monitor import parse_monitor_message

from kvferry.server.client.counters import Counters
from kvferry.server.client.sockets import CurveKeys, open_socket, poll_ms, read_reply
from kvferry.server.protocol import Failure, Reply, Request, encode

__all__ = ["Control", "Gone", "Refused", "Silent", "Stopped", "Wake"]

T = TypeVar("T", bound=Reply)

_HERE = zmq.EVENT_HANDSHAKE_SUCCEEDED
_GONE = zmq.EVENT_DISCONNECTED
_KEYS = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_PROTOCOL = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
# Messages handled in one go; the rest is there the next time.
_BURST = 256
# Failures that only people can mend.
_FINAL = ("version", "identity", "usage", "message")


class Gone(Exception):
    """The connection ended: the server has, or the way to it."""


class Silent(Exception):
    """The server is there and does not do what it should; the text says what."""


class Refused(Exception):
    """Client and server cannot work together; the text is for people."""


class Stopped(Exception):
    """The client is being closed."""


class Wake:
    """Ends somebody's wait from any thread, and also from a destructor: it takes no lock.

    Attributes:
        fd: Readable when somebody has called.
        stopped: Every wait ends from now on.
    """

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
        """Nobody has called since."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def __del__(self) -> None:  # no sooner: a number that is closed is soon somebody else's file
        os.close(self.fd)


class Control:
    """A connection, or the attempt to make one.

    Args:
        context, url, keys, counters: As those of a `Link`.
        wake: Ends a `poll` before its time.

    Raises:
        zmq.ZMQError: There are no descriptors left.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        url: str,
        keys: CurveKeys | None,
        counters: Counters,
        wake: Wake,
    ) -> None:
        self._counters = counters
        self._wake = wake
        self.connected = False
        self._socket = open_socket(context, url, keys)
        try:
            self._monitor = self._socket.get_monitor_socket(_HERE | _GONE | _KEYS | _PROTOCOL)
        except BaseException:
            self._socket.close(linger=0)
            raise
        self._poller = zmq.Poller()
        for watched in (self._socket, self._monitor, wake.fd):
            self._poller.register(watched, zmq.POLLIN)
        self._socket.connect(url)

    def poll(self, until: float) -> list[Reply]:
        """Wait for replies, for `wake`, or until a moment of ``time.monotonic``.

        Raises:
            Gone: The server was there, and is not any more.
            Refused: It is there and does not accept us.
            Stopped: The client is being closed.
        """
        if self._wake.stopped:
            raise Stopped
        replies = self._poll(until)
        if self._wake.stopped:
            raise Stopped
        return replies

    def ask(self, request: Request, kind: type[T], limit_s: float, *, last: bool = False) -> T:
        """One exchange, when there is no session to wait for another way.

        Args:
            request, kind: What is sent, and what the answer must be.
            limit_s: Limit of the call.
            last: Also while the client is being closed.

        Raises:
            Gone, Refused, Stopped: As `poll`; and what only people can mend is `Refused`.
            Silent: There is no answer, or it is that this cannot be now.
        """
        self.send(request)
        poll = self._poll if last else self.poll
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            for reply in poll(until):
                if reply.id != request.id:
                    continue
                if isinstance(reply, kind):
                    return reply
                if not isinstance(reply, Failure):
                    raise Refused("what the server answers cannot be")
                if reply.code in _FINAL:
                    raise Refused(reply.text)
                raise Silent(reply.text)
        raise Silent("it does not answer")

    def send(self, request: Request) -> None:
        """Send a request; a server that takes none shows that by its silence."""
        frame = encode(request)
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return
        self._counters.exchanged(len(frame), 0)

    def close(self) -> None:
        """Close the sockets."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def _poll(self, until: float) -> list[Reply]:
        ready = dict(self._poller.poll(poll_ms(until)))
        if self._wake.fd in ready:
            self._wake.clear()
        replies = self._receive() if self._socket in ready else []
        if self._monitor in ready:
            self._watch()
        return replies

    def _receive(self) -> list[Reply]:
        replies: list[Reply] = []
        for _ in range(_BURST):
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            reply = read_reply(frame, self._counters)
            if reply is not None:
                replies.append(reply)
        return replies

    def _watch(self) -> None:
        while True:
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"]
            except zmq.Again:
                return
            if event == _HERE:
                self.connected = True
            elif event == _GONE and self.connected:
                raise Gone
            elif event == _KEYS:
                raise Refused("the server does not know our CURVE key")
            elif event == _PROTOCOL:
                raise Refused(
                    "what listens there is no cache server, or one side uses CURVE and the other "
                    "does not"
                )
