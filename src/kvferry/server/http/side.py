"""The HTTP side of a server: health, metrics, and control of the cache, in a thread of its own.

    side = HttpSide(view)
    side.start()            # or UnavailableError: the port is taken
    side.url                # "http://127.0.0.1:8080"
    side.stop()

It touches neither signals nor the loop of the server; `app.py` has the routes. Calls that wait for
the engine do so within its limits, in threads of which some are left to others.
"""

from __future__ import annotations

from kvferry.base.errors import UsageError
from kvferry.http.listener import HttpListener
from kvferry.server.http.app import make_app
from kvferry.server.http.calls import Pins
from kvferry.server.http.prefetch import Prefetches
from kvferry.server.http.view import ServerView

__all__ = ["HttpSide"]


class HttpSide(HttpListener):
    """HTTP for one server.

    Args:
        view: What is asked; its config says where to listen.

    Raises:
        UsageError: The settings have no HTTP.
    """

    def __init__(self, view: ServerView) -> None:
        if view.config.http is None:
            raise UsageError("the settings have no http; set http_host and http_port")
        self._prefetches = Prefetches()
        app = make_app(view, Pins(), self._prefetches)
        super().__init__(app, *view.config.http, "choose another --http-port, or --no-http")

    def stop(self, timeout_s: float = 5.0) -> None:
        """Answer what is under way, for `timeout_s` at most, and end."""
        self._prefetches.close()
        super().stop(timeout_s)
