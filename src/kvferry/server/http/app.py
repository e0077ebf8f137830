"""The routes of the HTTP side.

Health is answered by the loop of HTTP itself. Everything else runs in its threads; calls which wait
for a store leave some of them to others. How routes are described and bodies read says
`kvferry.http.routes`; who may ask, and how errors look, `kvferry.http.answers`.
"""

from __future__ import annotations

from typing import Any, TypedDict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from kvferry.config.shown import shown_server
from kvferry.http.routes import Alive, Api
from kvferry.server.http import calls
from kvferry.server.http.calls import Pins
from kvferry.server.http.prefetch import Prefetches
from kvferry.server.http.view import ServerView

__all__ = ["make_app"]

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


def make_app(view: ServerView, pins: Pins, prefetches: Prefetches) -> ASGIApp:
    """The application; `prefetches` are closed by whoever made them."""

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


def _status(view: ServerView) -> dict[str, Any]:
    """Pool, identities, sessions, requests, stores."""
    return view.status()


def _config(view: ServerView) -> dict[str, Any]:
    """The settings as they take effect, without secrets."""
    return shown_server(view.config)
