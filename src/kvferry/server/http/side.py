"""The HTTP side of a server: health, metrics, and control of the cache, in a thread of its own.

    side = HttpSide(view)
    side.start()            # or UnavailableError: the port is taken
    side.url                # "http://127.0.0.1:8080"
    side.stop()

It touches neither signals nor the loop of the server; `http_app.py` has the routes. Its thread is
one event loop; calls that wait run in threads of a pool, each within the limits of the engine.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvferry.errors import UnavailableError, UsageError
from kvferry.server.http.app import make_app
from kvferry.server.http.calls import Pins
from kvferry.server.http.prefetch import Prefetches
from kvferry.server.view import ServerView

__all__ = ["HttpSide"]

_log = logging.getLogger("kvferry.server.http")

_CONNECTIONS_MAX = 256
_IDLE_S = 5
_GRACE_S = 2
# For the head of a request; then the connection ends, at the latest after twice this time.
HEAD_S = 15.0


class HttpSide:
    """HTTP for one server.

    Args:
        view: What is asked; its config says where to listen.

    Raises:
        UsageError: The settings have no HTTP.
    """

    def __init__(self, view: ServerView) -> None:
        if view.config.http is None:
            raise UsageError("the settings have no http; set http_host and http_port")
        self._host, self._port = view.config.http
        self._prefetches = Prefetches()
        self._app = make_app(view, Pins(), self._prefetches)
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
            f"HTTP cannot listen at {self._host} port {self._port}: {reason}; choose another "
            "--http-port, or --no-http"
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
        self._prefetches.close()
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
