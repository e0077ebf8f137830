"""The connection over which a client stays in touch with its server, and sees it go.

It tells three things apart: the server is not there, it is there, and what is there is none. A
server that dies closes its sockets, which the kernel does for it: `Gone` is raised within
milliseconds. `greet` uses such a connection once, before there is an identity to register with.

Threads: one, that of the session.
"""

from __future__ import annotations

import os
import time
from typing import TypeVar

from kvferry.base.shown import in_line
from kvferry.rpc.channel import Broken, Channel, NoServer, Wake, new_id
from kvferry.server.client.address import read_url, token_reader
from kvferry.server.client.counters import Counters, read_reply
from kvferry.server.protocol import Failure, Hello, Reply, Request, Welcome, encode

__all__ = ["Gone", "ServerControl", "ServerRefused", "Silent", "Stopped", "greet"]

T = TypeVar("T", bound=Reply)

_CONNECT_S = 2.0  # for one attempt to connect
_RETRY_S = (0.05, 1.0)  # between two attempts: at first, and at most after doubling
# Codes of failures that only people can mend.
_FINAL = ("version", "token", "identity", "usage", "message")


class Gone(Exception):
    """The connection ended: the server has, or the way to it."""


class Silent(Exception):
    """The server is there and does not do what it should; the text says what."""


class ServerRefused(Exception):
    """Client and server cannot work together; the text is for people."""


class Stopped(Exception):
    """The client is being closed."""


class ServerControl:
    """A connection, or the attempts to make one.

    Args:
        url, counters: As those of a `Link`.
        wake: Ends a `poll` before its time.
    """

    def __init__(self, url: str, counters: Counters, wake: Wake) -> None:
        self._url = url
        self._counters = counters
        self._wake = wake
        self._channel: Channel | None = None
        self._retry_s = _RETRY_S[0]

    @property
    def connected(self) -> bool:
        """Whether a server is there."""
        return self._channel is not None

    def poll(self, until: float) -> Reply | None:
        """Wait for a reply, for `wake`, or until a moment of ``time.monotonic``.

        Raises:
            Gone: The server was there, and is not any more.
            ServerRefused: What is there is no cache server.
            Stopped: The client is being closed.
        """
        if self._wake.stopped:
            raise Stopped
        reply = self._poll(until)
        if self._wake.stopped:
            raise Stopped
        return reply

    def ask(self, request: Request, kind: type[T], limit_s: float, *, last: bool = False) -> T:
        """One exchange, when there is no session to wait for another way.

        Args:
            request, kind: What is sent, and what the answer must be.
            limit_s: Limit of the call.
            last: Also while the client is being closed.

        Raises:
            Gone, ServerRefused, Stopped: As `poll`; `ServerRefused`, too, is what only people can
                mend.
            Silent: There is no answer, or it is that this cannot be now.
        """
        self.send(request)
        poll = self._poll if last else self.poll
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            reply = poll(until)
            if reply is None or reply.id != request.id:
                continue
            if isinstance(reply, kind):
                return reply
            if not isinstance(reply, Failure):
                raise ServerRefused("what the server answers cannot be")
            if reply.code in _FINAL:
                raise ServerRefused(in_line(reply.text))
            raise Silent(in_line(reply.text))
        raise Silent("it does not answer")

    def send(self, request: Request) -> None:
        """Send a request.

        Raises:
            Gone: There is nobody who takes it.
        """
        frame = encode(request)
        try:
            if self._channel is None:
                raise Gone
            self._channel.send(frame, time.monotonic())
        except Broken:
            raise Gone from None
        self._counters.exchanged(len(frame), 0)

    def close(self) -> None:
        """End the connection."""
        if self._channel is not None:
            self._channel.close()

    def _poll(self, until: float) -> Reply | None:
        if self._channel is None:
            self._connect(until)
            return None
        try:
            frame = self._channel.receive(until)
        except Broken:
            raise Gone from None
        self._wake.clear()
        return None if frame is None else read_reply(self._counters, frame)

    def _connect(self, until: float) -> None:
        """Try it once, and wait a moment if nobody is there."""
        self._wake.clear()  # it is readable for whoever is to be stopped, who looks
        if self._wake.stopped:
            return
        try:
            until = min(until, time.monotonic() + _CONNECT_S)
            self._channel = Channel(self._url, self._wake.fd, until)
        except NoServer as error:
            raise ServerRefused(f"what listens there is no cache server: {error}") from None
        except Broken:
            self._wake.sleep(min(self._retry_s, until - time.monotonic()))
            self._retry_s = min(2 * self._retry_s, _RETRY_S[1])


def greet(
    url: str | None = None,
    *,
    token_file: str | os.PathLike[str] | None = None,
    timeout_s: float,
) -> Welcome | None:
    """Ask a server what it was started with; None: it is away, or does not say.

    Args:
        url, token_file: As for `Client`.
        timeout_s: What connecting and asking may take together.

    Raises:
        ConfigError: `url` or the file of the token cannot be.
    """
    token = token_reader(token_file)()
    until = time.monotonic() + timeout_s
    control = ServerControl(read_url(url), Counters(), Wake())
    try:
        while not control.connected and time.monotonic() < until:
            control.poll(until)
        left_s = until - time.monotonic()
        if not control.connected or left_s <= 0:
            return None
        return control.ask(Hello(new_id(), 0, int(left_s * 1000), token), Welcome, left_s)
    except (Gone, ServerRefused, Silent):
        return None
    finally:
        control.close()
