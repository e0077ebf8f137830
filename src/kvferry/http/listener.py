"""HTTP in a thread of its own: one event loop, with limits on connections and silence.

    listener = Listener(app, "127.0.0.1", 0)
    listener.start()            # or UnavailableError: the port is taken
    listener.url                # "http://127.0.0.1:8080"
    listener.stop()

It touches no signals. Calls that wait belong into the threads of the application's pool.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvferry.errors import UnavailableError

__all__ = ["Listener"]

_log = logging.getLogger("kvferry.http")

_CONNECTIONS_MAX = 256
_IDLE_S = 5
_GRACE_S = 2
# For the head of a request; then the connection ends, at the latest after twice this time.
HEAD_S = 15.0


class Listener:
    """See the module.

    Args:
        app: Who answers.
        host: A literal address.
        port: 0: any free one.
        advice: What to do where the port is taken.
    """

    def __init__(self, app: ASGIApp, host: str, port: int, advice: str) -> None:
        self._app = app
        self._host, self._port = host, port
        self._advice = advice
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where it listens, with the port that it got."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def start(self) -> None:
        """Listen, and begin to answer.

        Raises:
            UnavailableError: It cannot listen there; the text says why.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listening = socket.create_server((self._host, self._port), family=family, backlog=128)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
        else:
            self._serve(listening)
            return
        raise UnavailableError(
            f"HTTP cannot listen at {self._host} port {self._port}: {reason}; {self._advice}"
        )

    def _serve(self, listening: socket.socket) -> None:
        self._port = listening.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            loop="asyncio",
            http=_Protocol,
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
        self._socket, self._server = listening, uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="kvferry-http", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        assert self._server is not None
        assert self._socket is not None
        try:
            self._server.run(sockets=[self._socket])
        except Exception:
            _log.exception("HTTP has ended")

    def stop(self, timeout_s: float = 5.0) -> None:
        """Answer what is under way, for `timeout_s` at most, and end."""
        if self._server is None or self._thread is None or self._socket is None:
            return
        self._server.should_exit = True
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(1.0)
        self._socket.close()


class _Protocol(H11Protocol):
    """A connection, which ends if it sends no whole head of a request in time.

    Else somebody who sends nothing could hold all the connections that there may be.
    """

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        # asyncio does so only for sockets that were made with the number of the protocol, and else
        # the body of an answer waits 40 ms for the other side to acknowledge its head.
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop.call_later(HEAD_S, self._look, None)

    def _look(self, before: object) -> None:
        """`before` is what the connection was about at the last look."""
        now = self.cycle
        if self.transport.is_closing():
            return
        if now is before and (now is None or now.response_complete):
            self.transport.close()
        else:
            self.loop.call_later(HEAD_S, self._look, now)
