"""The routes of the HTTP side, and what holds for all of them.

Health is answered by the loop of HTTP itself. Everything else runs in its threads, so that a call
which waits for a store keeps nobody else waiting. Bodies have limits (`bodies.py`). Every error is
``{"error": {"code": ..., "text": ...}}``.

With a token, everything but health wants it as ``Authorization: Bearer``. Without one only this
host can connect; a page in a browser of this host could still send requests, but not without saying
where it comes from, so what changes something is refused if it comes from elsewhere.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kvferry.config.shown import shown_server
from kvferry.config.url import is_loopback
from kvferry.errors import (
    CapacityError,
    ClosedError,
    DeadlineExceeded,
    KVFerryError,
    UnavailableError,
    UsageError,
)
from kvferry.server.http import calls, openapi
from kvferry.server.http.bodies import Bodies
from kvferry.server.http.calls import CallError, Pins
from kvferry.server.http.prefetch import Prefetches
from kvferry.server.view import ServerView

__all__ = ["make_app"]

_log = logging.getLogger("kvferry.server.http")

_OPEN = ("/healthz", "/readyz")
_BUSY = ("starting", "draining")
_CODES = {404: "not_found", 405: "method"}

Call = Callable[[ServerView, Mapping[str, Any]], Any]
_STATUS: tuple[tuple[type[KVFerryError], int], ...] = (
    (UsageError, 400),
    (CapacityError, 503),
    (ClosedError, 503),
    (UnavailableError, 503),
    (DeadlineExceeded, 504),
)


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
        return JSONResponse(openapi.document())

    def docs(request: Request) -> Response:
        return HTMLResponse(openapi.page())

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
            found = await run_in_threadpool(_called, answers[method], view, body)
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
        exception_handlers={HTTPException: _of_starlette, CallError: _of_call, Exception: _of_bug},
    )
    return _Guard(app, view)


def _called(call: Call, view: ServerView, body: dict[str, Any]) -> bytes:
    """Call, and make JSON of what comes back; in a thread."""
    try:
        found = call(view, body)
    except KVFerryError as error:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        raise CallError(status, error.code, str(error)) from None
    return json.dumps(_finite(found), allow_nan=False).encode()


def _finite(value: Any) -> Any:
    """What JSON has no number for, as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_finite(one) for one in value]
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _error(status: int, code: str, text: str, **headers: str) -> Response:
    return JSONResponse({"error": {"code": code, "text": text}}, status, headers=headers)


def _of_call(request: Request, error: Exception) -> Response:
    assert isinstance(error, CallError)
    # The rest of a body that is not taken is not read: the connection ends.
    headers = {"connection": "close"} if error.status in (408, 413, 429) else {}
    if error.status == 429:
        headers["retry-after"] = "1"
    return _error(error.status, error.code, error.text, **headers)


def _of_starlette(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "http")
    text = f"{request.method} {request.url.path}: {error.detail}; see /docs"
    return _error(error.status_code, code, text, **dict(error.headers or {}))


def _of_bug(request: Request, error: Exception) -> Response:
    return _error(500, "internal", "a bug of the server; its log says more")


class _Guard:
    """Lets through who may ask; see the head of this module."""

    def __init__(self, app: ASGIApp, view: ServerView) -> None:
        self._app = app
        self._view = view

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["path"] in _OPEN:
            return None
        headers, token = Headers(scope=scope), self._view.config.http_token
        if token is not None:
            kind, _, shown = headers.get("authorization", "").partition(" ")
            given = shown.strip().encode("latin-1", "replace")
            if kind.lower() == "bearer" and hmac.compare_digest(given, token.encode()):
                return None
            text = "show the token of this server: Authorization: Bearer ..."
            return _error(401, "token", text, **{"www-authenticate": "Bearer"})
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in ("GET", "HEAD"):
            try:
                host = urlsplit(origin).hostname
            except ValueError:
                host = None
            if host is None or not is_loopback(host):
                return _error(403, "origin", "a page of another host may not ask for this")
        return None
