"""The routes of the HTTP side, and what holds for all of them.

Health is answered by the loop of HTTP itself. Everything else runs in its threads, so that a call
which waits for a store keeps nobody else waiting. Bodies have limits (`kvferry.http.bodies`); who
may ask, and how errors look, says `kvferry.http.answers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from kvferry.config.shown import shown_server
from kvferry.http.answers import HANDLERS, Guard, called
from kvferry.http.bodies import Bodies
from kvferry.server.http import calls
from kvferry.server.http.calls import Pins
from kvferry.server.http.openapi import API
from kvferry.server.http.prefetch import Prefetches
from kvferry.server.view import ServerView

__all__ = ["make_app"]

_OPEN = ("/healthz", "/readyz")
_BUSY = ("starting", "draining")

Call = Callable[[ServerView, Mapping[str, Any]], Any]


def make_app(view: ServerView, pins: Pins, prefetches: Prefetches) -> ASGIApp:
    """The application; `prefetches` are closed by whoever made them."""

    bodies = Bodies()

    async def healthz(request: Request) -> Response:
        # Whoever takes over the chunks of the server before has no loop yet, and no fault.
        alive = view.alive or view.state in _BUSY
        return JSONResponse({"alive": alive}, 200 if alive else 503)

    async def readyz(request: Request) -> Response:
        if view.ready and view.alive:
            degraded = view.degraded
            return JSONResponse({"ready": True, **({"degraded": degraded} if degraded else {})})
        return JSONResponse({"ready": False, "reason": f"it is {view.state}"}, 503)

    def metrics(request: Request) -> Response:
        return PlainTextResponse(
            view.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    def document(request: Request) -> Response:
        return JSONResponse(API.document())

    def docs(request: Request) -> Response:
        return HTMLResponse(API.page())

    def status(view: ServerView, body: Mapping[str, Any]) -> Any:
        return view.status()

    def config(view: ServerView, body: Mapping[str, Any]) -> Any:
        return shown_server(view.config)

    def route(path: str, **answers: Call) -> Route:
        """A path whose methods are answers that get a body of JSON."""

        async def run(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            with_body = method in ("POST", "DELETE") and not request.path_params
            body = await bodies.read(request) if with_body else {}
            body |= request.path_params
            found = await run_in_threadpool(called, answers[method], view, body)
            return Response(found, media_type="application/json")

        return Route(path, run, methods=list(answers))

    app = Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route("/openapi.json", document),
            Route("/docs", docs),
            route("/v1/status", GET=status),
            route("/v1/config", GET=config),
            route("/v1/lookup", POST=calls.lookup),
            route("/v1/explain", POST=calls.explain),
            route("/v1/pins", GET=pins.list, POST=pins.add, DELETE=pins.remove),
            route("/v1/pins/{id}", DELETE=pins.remove),
            route("/v1/clear", POST=pins.clear),
            route("/v1/prefetch", GET=prefetches.list, POST=prefetches.add),
            route("/v1/prefetch/{id}", GET=prefetches.get),
        ],
        exception_handlers=HANDLERS,
    )
    return Guard(app, lambda: view.config.http_token, _OPEN)
