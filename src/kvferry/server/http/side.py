"""The HTTP side of a server: its routes, and the listener that answers them, in a thread.

    side = HttpSide(view)
    side.start()            # or UnavailableError: the port is taken
    side.url                # "http://127.0.0.1:8080"
    side.stop()

It touches neither signals nor the loop of the server. Health is answered by the event loop of HTTP
itself. Every other call runs in a thread of HTTP; a call that waits for a store does so within the
engine's limits, and leaves some of these threads to others. How routes are described and bodies
read says `kvferry.http.routes`; who may ask, and how errors look, `kvferry.http.answers`.
"""

from __future__ import annotations

from typing import Any, TypedDict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from kvferry.base.errors import UsageError
from kvferry.config.shown import shown_server
from kvferry.http.listener import HttpListener
from kvferry.http.routes import Alive, Api
from kvferry.server.http import http_calls as calls
from kvferry.server.http.http_calls import Pins
from kvferry.server.http.prefetch import Prefetches
from kvferry.server.server import Server

__all__ = ["HttpSide"]

_BUSY = ("starting", "draining")
_POST = ("POST",)
_ERRORS = {
    "404": "No such path, identity, pin or prefetch.",
    "503": "The server starts, ends, or is busy; or a store is away.",
    "504": "A store did not answer in time.",
}


class Ready(TypedDict, total=False):
    """Of /readyz; `degraded` names stores that cannot be asked, and `reason` says why not."""

    ready: bool
    degraded: list[str]
    reason: str


class HttpSide(HttpListener):
    """HTTP for one server.

    Args:
        view: What is asked; its config says where to listen.

    Raises:
        UsageError: The settings have no HTTP.
    """

    def __init__(self, view: Server) -> None:
        if view.config.http is None:
            raise UsageError("the settings have no http; set http_host and http_port")
        self._prefetches = Prefetches()
        app = _app(view, Pins(), self._prefetches)
        super().__init__(app, *view.config.http, "choose another --http-port, or --no-http")

    def stop(self, timeout_s: float = 5.0) -> None:
        """Answer what is under way, for `timeout_s` at most, and end."""
        self._prefetches.close()
        super().stop(timeout_s)


def _app(view: Server, pins: Pins, prefetches: Prefetches) -> ASGIApp:
    async def healthz(request: Request) -> Response:
        """Whether the server turns; 503 if not. Needs no token."""
        # Whoever takes over the chunks of the server before has no loop yet, and no fault.
        alive = view.alive or view.state in _BUSY
        return JSONResponse({"alive": alive}, 200 if alive else 503)

    async def readyz(request: Request) -> Response:
        """Whether it may be asked; 503 and why if not. Needs no token."""
        if view.ready and view.alive:
            degraded = view.degraded
            return JSONResponse({"ready": True, **({"degraded": degraded} if degraded else {})})
        return JSONResponse({"ready": False, "reason": f"it is {view.state}"}, 503)

    title, text = "kvferry server", "Health, metrics and control of a cache server."
    api = Api(title, text, view, ("/healthz", "/readyz"), _ERRORS)
    api.plain("/healthz", healthz, Alive)
    api.plain("/readyz", readyz, Ready)
    api.metrics(view.metrics_text)
    api.call("/v1/status", GET=_status)
    api.call("/v1/config", GET=_config)
    api.call("/v1/lookup", waits=_POST, POST=calls.lookup)
    api.call("/v1/explain", waits=_POST, POST=calls.explain)
    api.call(
        "/v1/pins",
        waits=("POST", "DELETE"),
        GET=pins.list,
        POST=pins.add,
        DELETE=pins.remove,
    )
    api.call("/v1/pins/{id}", waits=("DELETE",), DELETE=pins.remove)
    api.call("/v1/clear", waits=_POST, POST=pins.clear)
    api.call("/v1/prefetch", GET=prefetches.list, POST=prefetches.add)
    api.call("/v1/prefetch/{id}", GET=prefetches.get)
    return api.app(lambda: view.config.http_token)


def _status(view: Server) -> dict[str, Any]:
    """Pool, identities, sessions, requests, stores."""
    return view.status()


def _config(view: Server) -> dict[str, Any]:
    """The settings as they take effect, without secrets."""
    return shown_server(view.config)
