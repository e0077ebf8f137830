"""HTTP in a thread of its own: one event loop, with limits on connections and silence.

    listener = HttpListener(app, "127.0.0.1", 8080, advice="choose another port")
    listener.start()            # or UnavailableError: the port is taken
    listener.url                # "http://127.0.0.1:8080"
    listener.stop()

It touches no signals. Calls that wait do so as `kvferry.http.waits` says.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from kvferry.base.errors import UnavailableError
from kvferry.base.shown import reason_of
from kvferry.base.threads import Guarded, noticed
from kvferry.config.url import show_endpoint

__all__ = ["HttpListener"]

_log = logging.getLogger("kvferry.http")

_CONNECTIONS_MAX = 256
_IDLE_S = 5  # then a connection without a request ends
_GRACE_S = 2  # for calls under way, at the end
# For the head of a request to come; then the connection ends.
HEAD_S = 15.0


class HttpListener:
    """See the module.

    Args:
        app: Who answers.
        host: A literal address.
        port: 0: any free one.
        advice: What to do where the port is taken.
    """

    def __init__(self, app: ASGIApp, host: str, port: int, advice: str) -> None:
        self._heads = _Heads(app)
        self._host, self._port = host, port
        self._advice = advice
        self._socket: _Listening | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False

    @property
    def url(self) -> str:
        """Where it listens, with the port that it got."""
        return f"http://{show_endpoint(self._host, self._port)}"

    def start(self) -> None:
        """Listen, and begin to answer.

        Raises:
            UnavailableError: It cannot listen there; the text says why.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listening = socket.create_server((self._host, self._port), family=family, backlog=128)
        except OSError as error:
            reason = reason_of(error)
        else:
            self._serve(_Listening(fileno=listening.detach()))
            return
        raise UnavailableError(
            f"HTTP cannot listen at {self._host} port {self._port}: {reason}; {self._advice}"
        )

    def _serve(self, listening: _Listening) -> None:
        listening.tell = self._heads.accepted
        self._port = listening.getsockname()[1]
        self._config = uvicorn.Config(
            self._heads,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        # Of a library: what it says at level "info" is about itself.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._socket, self._server = listening, uvicorn.Server(self._config)
        self._thread = Guarded(self._run, "http")
        self._thread.start()

    def _run(self) -> None:
        if not self._stopping:
            asyncio.run(self._answer())

    async def _answer(self) -> None:
        assert self._socket is not None
        # One of its own each time that it begins: it closes its socket at the end, and begins anew
        # where this thread does.
        listening = _Listening(fileno=os.dup(self._socket.fileno()))
        listening.tell = self._heads.accepted
        self._server = uvicorn.Server(self._config)
        self._server.should_exit = self._stopping
        watch = asyncio.create_task(self._heads.watch())
        try:
            await self._server.serve(sockets=[listening])
        finally:
            watch.cancel()
            listening.close()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Answer what is under way, for `timeout_s` at most, and end."""
        self._stopping = True
        if self._server is None or self._thread is None or self._socket is None:
            return
        self._server.should_exit = True
        self._socket.close()  # the one that is answered at ends with the server
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(1.0)


class _Listening(socket.socket):
    """A listening socket that tells whom it accepts."""

    tell: Callable[[socket.socket, Any], None]

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.socket`."""
        peer, address = super().accept()
        # asyncio does so only for sockets that were made with the number of the protocol, and else
        # the body of an answer waits 40 ms for the other side to acknowledge its head.
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.tell(peer, address)
        return peer, address


@dataclass
class _Peer:
    socket: socket.socket
    idle_since: float
    answering: int = 0


class _Heads:
    """The application, and an eye on connections that send no whole head of a request in time.

    Else somebody who sends nothing could hold all the connections that there may be. Threads: the
    loop's.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._peers: dict[Any, _Peer] = {}

    def accepted(self, peer: socket.socket, address: Any) -> None:
        """There is one more."""
        self._peers[address[:2]] = _Peer(peer, time.monotonic())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        peer = self._peers.get(tuple(scope.get("client") or ()))
        if peer is not None:
            peer.answering += 1
        try:
            await self._app(scope, receive, send)
        finally:
            if peer is not None:
                peer.answering -= 1
                peer.idle_since = time.monotonic()

    async def watch(self) -> None:
        """Send them away, for ever."""
        while True:
            await asyncio.sleep(HEAD_S / 4)
            try:
                self._end_late()
            except Exception as error:
                noticed("http", error)

    def _end_late(self) -> None:
        late = time.monotonic() - HEAD_S
        for address, peer in list(self._peers.items()):
            if peer.socket.fileno() < 0:
                del self._peers[address]
            elif not peer.answering and peer.idle_since < late:
                with suppress(OSError):  # it has gone
                    peer.socket.shutdown(socket.SHUT_RDWR)
