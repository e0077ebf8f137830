"""The page over HTTP: the document, its files, live views, and what its forms send.

The document and its files have no data, so they need no token; a view has, and does. A stream
renders its view once a second, in a thread, and sends it if it has changed. Nothing is loaded from
elsewhere, and no script or style stands in the document: the policy in the head forbids it.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from kvferry.base.errors import KVFerryError, UsageError
from kvferry.http.answers import CallError
from kvferry.http.bodies import Bodies
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http.actions import Actions
from kvferry.sharing.controller.page import overview, tables
from kvferry.sharing.controller.page.actions import ActionViews
from kvferry.sharing.controller.page.elements import Html, PageView, el
from kvferry.sharing.controller.page.shell import document, live

__all__ = ["OPEN", "PageRoutes"]

_STREAMS_MAX = 64
_EVERY_S = 1.0
_TURNS = 2
_OURS = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_LIBRARIES = {"htmx.min.js": "text/javascript", "hx-sse.min.js": "text/javascript"}
OPEN = ("/", *(f"/page/{name}" for name in (*_OURS, *_LIBRARIES)))
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_LEFT_OUT = (
    "The page is not part of this installation, because Node was not there when it was built; "
    "everything that it would show is at /docs.\n"
)

Form = Callable[[Controller, Mapping[str, str]], Html]


class PageRoutes:
    """See the module.

    Args:
        controller: Whose page.
        actions: Does what its forms ask for.
        bodies: Reads them.

    Attributes:
        files: What browsers load, compressed; empty: the page is left out.
    """

    def __init__(self, controller: Controller, actions: Actions, bodies: Bodies) -> None:
        self._controller = controller
        self._bodies = bodies
        self._acts = ActionViews(actions)
        self._views = {one.name: one for one in _views(self._acts)}
        self._streams = 0
        self.files = _files()

    def routes(self) -> list[Route]:
        """All of them."""
        if not self.files:
            return [Route("/", self._left_out)]
        return [
            Route("/", self._document),
            Route("/page/live", self._live),
            Route("/page/view", self._view),
            Route("/page/explain", self._form(self._acts.explained), methods=["POST"]),
            Route("/page/jobs", self._form(self._acts.start), methods=["POST"]),
            Route("/page/pins/{id}", self._form(self._acts.unpin), methods=["DELETE"]),
            *(Route(f"/page/{name}", self._file) for name in self.files),
        ]

    async def _left_out(self, request: Request) -> Response:
        return PlainTextResponse(_LEFT_OUT)

    async def _document(self, request: Request) -> Response:
        view, query = self._asked(request)
        return HTMLResponse(document(view, list(self._views.values()), query), headers=_HEADERS)

    async def _view(self, request: Request) -> Response:
        return HTMLResponse(live(*self._asked(request)), headers=_HEADERS)

    async def _file(self, request: Request) -> Response:
        raw, kind = self.files[request.url.path.rpartition("/")[2]]
        headers = {**_HEADERS, "content-encoding": "gzip", "cache-control": "max-age=300"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            raw = gzip.decompress(raw)
            del headers["content-encoding"]
        return Response(raw, media_type=kind, headers=headers)

    def _asked(self, request: Request) -> tuple[PageView, dict[str, str]]:
        query = dict(request.query_params)
        return self._views.get(query.get("view", ""), self._views["overview"]), query

    # --- Views ---

    async def _live(self, request: Request) -> Response:
        if self._streams >= _STREAMS_MAX:
            raise CallError(503, "busy", f"{_STREAMS_MAX} pages are open")
        headers = {**_HEADERS, "cache-control": "no-store"}
        return StreamingResponse(
            self._fresh(*self._asked(request)), media_type="text/event-stream", headers=headers
        )

    async def _fresh(self, view: PageView, query: dict[str, str]) -> AsyncIterator[str]:
        self._streams += 1
        try:
            sent = None
            while not self._controller.ending.is_set():
                shown = await run_in_threadpool(view.render, self._controller, query)
                if shown != sent:
                    sent = shown
                    yield "".join(f"data: {line}\n" for line in shown.splitlines()) + "\n"
                for _ in range(_TURNS):  # so that a controller that is gone is found out
                    yield "event: turn\ndata: 1\n\n"
                    await asyncio.sleep(_EVERY_S / _TURNS)
        finally:
            self._streams -= 1

    # --- Forms ---

    def _form(self, call: Form) -> Callable[[Request], Any]:
        async def run(request: Request) -> Response:
            form = {}
            if request.method == "POST":
                form = await self._bodies.read(request, _form_of)
            form |= request.path_params
            status, said = await run_in_threadpool(_said, call, self._controller, form)
            return HTMLResponse(said, status, headers=_HEADERS)

        return run


def _views(acts: ActionViews) -> list[PageView]:
    return [
        PageView(
            *("overview", "Overview", "/v1/cluster"),
            "What caches give, and what is wrong. Refreshed every second.",
            *(overview.overview, None),
            windowed=True,
        ),
        PageView(
            *("nodes", "Nodes", "/v1/nodes"),
            "Every process beside the others, as of its last heartbeat.",
            *(tables.nodes, None),
            filtered=True,
            table=True,
        ),
        PageView(
            *("memory", "Memory", "/v1/keys"),
            "What fills the memory of instances: bytes by model, age and prefix.",
            *(tables.memory, None),
            filtered=True,
        ),
        PageView(
            *("prefixes", "Prefixes", "/v1/prefixes"),
            "What was looked up most, since the controller began.",
            *(tables.prefixes, None),
            filtered=True,
            table=True,
        ),
        PageView(
            *("transfers", "Transfers", "/v1/transfers"),
            "Who reads from whose memory.",
            *(tables.transfers, None),
            filtered=True,
            table=True,
        ),
        PageView(
            *("explain", "Explain", "/v1/cluster"),
            "For each chunk of a prompt where it is, or why nobody can give it.",
            *(acts.explain, acts.explain_form),
        ),
        PageView(
            *("jobs", "Jobs and pins", "/v1/jobs"),
            "What instances were asked to do.",
            *(acts.jobs, acts.jobs_form),
            filtered=True,
        ),
        PageView(
            *("events", "Events", "/v1/events?last=0"),
            "What happened, the youngest first; the last 1000.",
            *(tables.events, None),
            filtered=True,
        ),
    ]


def _files() -> dict[str, tuple[bytes, str]]:
    here = files("kvferry.sharing.controller.page")
    places = {**{f"assets/{name}": kind for name, kind in _OURS.items()}}
    places |= {f"lib/{name}": kind for name, kind in _LIBRARIES.items()}
    found = {}
    for place, kind in places.items():
        file = here.joinpath(place)
        if not file.is_file():
            return {}
        found[place.rpartition("/")[2]] = (gzip.compress(file.read_bytes(), mtime=0), kind)
    return found


def _form_of(raw: bytes) -> dict[str, Any]:
    try:
        return dict(parse_qsl(raw.decode(), strict_parsing=bool(raw)))
    except ValueError:
        raise CallError(400, UsageError.code, "the body is no form") from None


def _said(call: Form, controller: Controller, form: Mapping[str, str]) -> tuple[int, Html]:
    try:
        return 200, call(controller, form)
    except CallError as error:
        status, text = error.status, error.text
    except KVFerryError as error:
        status, text = 400, str(error)
    return status, el("p", text, class_="wrong", role="alert")
