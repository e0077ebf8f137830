"""Requests to a server for as long as it is there: a few sockets, taken in turns.

Who calls takes a free socket, or makes one, sends one request, and waits for its reply on the spot:
no message passes from thread to thread. Every wait also watches a `Wake` that `ServerLink.end`
calls, so all calls end at once when the server is found to be gone. A link that has ended
stays so; with another session comes another link.

Threads: any. A socket belongs to whoever has taken it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import msgspec

from kvferry.rpc.channel import Broken, Channel, Wake

__all__ = ["Away", "LinkTimedOut", "Numbered", "ServerLink", "encode"]


class Numbered(Protocol):
    """A message with an id; a reply has that of its request."""

    @property
    def id(self) -> int:
        """Of the request."""


R = TypeVar("R", bound=Numbered)

encode = msgspec.msgpack.Encoder().encode

# Calls under way at once; more of them wait for one of these to end.
_SOCKETS_MAX = 64


class Away(Exception):
    """The server is not there: nothing was sent, or nobody will answer."""

    def __init__(self) -> None:
        super().__init__("it is not there")


class LinkTimedOut(Exception):
    """No answer in time: whether the request was done is not known."""

    def __init__(self) -> None:
        super().__init__("no answer in time")


class ServerLink(Generic[R]):
    """The way to one server.

    Args:
        url: Of the server.
        read: Makes a reply of what came; None: it is none.
        sent: Called with the length of each request that went.
        late: Called with replies that came after their time: they may hold a lease. None: a socket
            whose reply is late is closed.
    """

    def __init__(
        self,
        url: str,
        read: Callable[[bytes], R | None],
        sent: Callable[[int], object],
        late: Callable[[R], object] | None = None,
    ) -> None:
        self._url = url
        self._read = read
        self._sent = sent
        self._late = late
        self._wake = Wake()
        self._free: deque[Channel] = deque()  # the last one first: its server still knows it
        self._changed = threading.Condition()
        self._open = 0
        self._waiting = 0
        self.ended = False

    def ask(
        self,
        request: Numbered,
        until: float,
        check: Callable[[], float] | None = None,
    ) -> R:
        """Send a request and wait for its reply, until a moment of ``time.monotonic``.

        Args:
            request: Which.
            until: The moment.
            check: Called before waiting, and whenever the moment comes that it has said last; it
                gives up by raising `LinkTimedOut`.

        Raises:
            Away: The link has ended, or the server takes no message.
            LinkTimedOut: There is no reply yet.
        """
        return self.end_exchange(self.begin_exchange(request, until), request.id, until, check)

    def begin_exchange(self, request: Numbered, until: float) -> Channel:
        """Send a request over a socket, which `end_exchange` has to give back.

        Raises:
            Away: See `ask`.
        """
        frame = encode(request)
        channel = self._take(until)
        try:
            if self.ended:
                raise Away
            channel.send(frame, until)
            self._sent(len(frame))
        except BaseException as error:  # also an interrupt: half a message may be on its way
            self._failed(channel, error)
            raise
        return channel

    def end_exchange(
        self,
        channel: Channel,
        request_id: int,
        until: float,
        check: Callable[[], float] | None = None,
    ) -> R:
        """Wait for the reply; raises as `ask`."""
        try:
            reply = self._receive(channel, request_id, until, check)
        except LinkTimedOut:
            if self._late is None:
                channel.close()
            self._give(None if self._late is None else channel)
            raise
        except BaseException as error:
            self._failed(channel, error)
            raise
        self._give(channel)
        return reply

    def _failed(self, channel: Channel, error: BaseException) -> None:
        """An exchange has not ended as it should; its socket is of no use."""
        channel.close()
        self._give(None)
        if isinstance(error, Broken):
            raise Away from None

    def end(self) -> None:
        """The server is gone: calls under way end at once, and no others begin."""
        with self._changed:
            if self.ended:
                return
            self.ended = True
            self._wake()
            self._changed.notify_all()
        self._drain()

    def close(self, timeout_s: float) -> bool:
        """`end`, and wait for the calls under way; whether no socket is left."""
        self.end()
        with self._changed:
            return self._changed.wait_for(lambda: self._open == 0, timeout_s)

    # --- One exchange ---

    def _receive(
        self,
        channel: Channel,
        request_id: int,
        until: float,
        check: Callable[[], float] | None,
    ) -> R:
        check_at = until if check is None else check()
        while True:
            frame = channel.receive(min(until, check_at))
            if self.ended:
                raise Away
            reply = self._read(frame) if frame is not None else None
            if reply is not None:
                if reply.id == request_id:
                    return reply
                if self._late is not None:
                    self._late(reply)
            if frame is None and check is not None and time.monotonic() < until:
                check_at = check()
            elif frame is None or time.monotonic() >= until:  # or a server that talks without end
                raise LinkTimedOut

    # --- Sockets ---

    def _take(self, until: float) -> Channel:
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
                        self._open += 1
                        break
                    if not self._changed.wait(max(0.0, until - time.monotonic())):
                        raise Away
            finally:
                self._waiting -= 1
        return self._connect(until)

    def _connect(self, until: float) -> Channel:
        try:
            return Channel(self._url, self._wake.fd, until)
        except BaseException as error:
            self._give(None)
            if isinstance(error, Broken):
                raise Away from None
            raise

    def _give(self, channel: Channel | None) -> None:
        """Put a channel back; None: one that is open no more."""
        if channel is not None:
            self._free.append(channel)
        if self.ended:
            self._drain(closed=channel is None)
        elif channel is None or self._waiting:
            with self._changed:
                self._open -= channel is None
                self._changed.notify()

    def _drain(self, closed: bool = False) -> None:
        """Close what nobody uses."""
        with self._changed:
            self._open -= closed
            while True:
                try:
                    channel = self._free.pop()
                except IndexError:
                    break
                channel.close()
                self._open -= 1
            self._changed.notify_all()
