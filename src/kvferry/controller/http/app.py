"""The routes of the controller. Who may ask, and how errors look, says `kvferry.http.answers`.

Health is answered by the loop of HTTP; everything else runs in its threads. A stream of events
holds a connection and no thread, and there is a limit on them.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from kvferry.controller.controller import Controller
from kvferry.controller.http import familiar, usage, views
from kvferry.controller.http.actions import Actions
from kvferry.controller.http.metrics import metrics_text
from kvferry.controller.http.openapi import API, HEALTH
from kvferry.controller.page.routes import OPEN, PageRoutes
from kvferry.errors import UsageError
from kvferry.http.answers import HANDLERS, CallError, Guard, called
from kvferry.http.bodies import Bodies

__all__ = ["make_app"]

Call = Callable[[Controller, Mapping[str, Any]], Any]

_STREAMS_MAX = 64
_LOOK_S = 0.2
_ALIVE_S = 10.0


def make_app(controller: Controller) -> ASGIApp:
    """The application of one controller."""
    bodies, actions, streams = Bodies(), Actions(controller), _Streams(controller)
    page = PageRoutes(controller, actions, bodies)

    async def health(request: Request) -> Response:
        return JSONResponse({"alive": True})

    def metrics(request: Request) -> Response:
        return PlainTextResponse(
            metrics_text(controller), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    def document(request: Request) -> Response:
        return JSONResponse(API.document())

    def docs(request: Request) -> Response:
        return HTMLResponse(API.page())

    def route(path: str, **answers: Call) -> Route:
        """A path whose methods are answers that get a body of JSON, or the query."""

        async def run(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            body = await bodies.read(request) if method == "POST" else _query(request)
            body |= request.path_params
            table = usage.TABLES.get(path) if body.pop("format", "") == "csv" else None
            if table is not None:
                table = body.pop("table", table)
                tables = await run_in_threadpool(answers[method], controller, body)
                if not isinstance(tables.get(table), list):
                    raise CallError(400, UsageError.code, f"{path} has no such table")
                return PlainTextResponse(usage.as_csv(tables[table]), media_type="text/csv")
            found = await run_in_threadpool(called, answers[method], controller, body)
            return Response(found, media_type="application/json")

        return Route(path, run, methods=list(answers))

    def as_lmcache(call: familiar.Call) -> Call:
        return lambda controller, body: call(controller, actions, body)

    app = Starlette(
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/metrics", metrics),
            Route("/openapi.json", document),
            Route("/docs", docs),
            route("/v1/cluster", GET=views.cluster),
            route("/v1/nodes", GET=views.nodes),
            route("/v1/nodes/{id}", GET=views.node),
            route("/v1/lookup", GET=views.lookup, POST=views.lookup),
            route("/v1/explain", POST=views.explain),
            route("/v1/prefixes", GET=views.prefixes),
            route("/v1/keys", GET=usage.keys),
            route("/v1/transfers", GET=usage.transfers),
            route("/v1/jobs", GET=actions.jobs, POST=actions.start),
            route("/v1/jobs/{id}", GET=actions.one),
            route("/v1/pins", GET=actions.pins, POST=actions.pin),
            route("/v1/pins/{id}", DELETE=actions.unpin),
            Route("/v1/events", streams.open),
            *(route(path, POST=as_lmcache(call)) for path, call in familiar.ROUTES.items()),
            route("/controller/workers", GET=familiar.workers),
            route("/controller/key-stats", GET=familiar.key_stats),
            *page.routes(),
        ],
        exception_handlers=HANDLERS,
    )
    return Guard(app, partial(getattr, controller.config, "http_token"), (*HEALTH, *OPEN))


def _query(request: Request) -> dict[str, Any]:
    """The query as a body: lists have commas between, numbers are numbers."""
    found: dict[str, Any] = dict(request.query_params)
    try:
        if "tokens" in found:
            found["tokens"] = array("q", map(int, found["tokens"].split(",")))
        if "limit" in found:
            found["limit"] = int(found["limit"])
        if "window_s" in found:
            found["window_s"] = float(found["window_s"])
    except (ValueError, OverflowError):
        text = "tokens and limit are whole numbers, and window_s is a number"
        raise CallError(400, UsageError.code, text) from None
    if "hashes" in found:
        found["hashes"] = found["hashes"].split(",")
    return found


class _Streams:
    """Events as they happen; https://html.spec.whatwg.org/multipage/server-sent-events.html."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._journal = controller.journal
        self._open = 0

    async def open(self, request: Request) -> Response:
        """A stream, from the event behind the last one that the caller has."""
        text = request.headers.get("last-event-id") or request.query_params.get("last", "")
        last = int(text) if text.isdecimal() and len(text) < 18 else self._journal.last
        if self._open >= _STREAMS_MAX:
            raise CallError(503, "busy", f"{_STREAMS_MAX} streams of events are open")
        return StreamingResponse(
            self._events(last),
            media_type="text/event-stream",
            headers={"cache-control": "no-store"},
        )

    async def _events(self, last: int) -> AsyncIterator[str]:
        self._open += 1
        try:
            quiet_s = 0.0
            yield ": events of kvferry\n\n"
            while not self._controller.ending.is_set():
                events = self._journal.since(last)
                for event in events:
                    last = event["id"]
                    yield f"id: {last}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n"
                quiet_s = 0.0 if events else quiet_s + _LOOK_S
                if quiet_s >= _ALIVE_S:  # so that a dead controller is found out
                    quiet_s = 0.0
                    yield ": alive\n\n"
                await asyncio.sleep(_LOOK_S)
        finally:
            self._open -= 1
