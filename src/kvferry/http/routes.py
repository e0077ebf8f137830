"""The routes of an application: one line each, from which both Starlette and the description read.

    api = Api("kvferry server", "...", view, ("/healthz",), ERRORS)
    api.call("/v1/lookup", POST=lookup)
    app = api.app(token)

    def lookup(view: View, body: Prompt) -> Found:
        '''How much of a prompt each tier has.'''

A call is a function of what the application is about and, where it takes one, of a `body`. Its
annotations say what may be asked and what comes back: `body` is a `msgspec.Struct`, which a GET
finds in its query, and the answer is a `TypedDict`. The first line of its docstring is what the
description says. Calls run in threads of HTTP; those that wait return `AnswerLater`, or are named
with `waits`, and there is a limit on them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, get_args, get_origin, get_type_hints

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from kvferry.base.errors import UsageError
from kvferry.http.answers import HANDLERS, CallError, Guard, as_json, called
from kvferry.http.bodies import Bodies, asked, converted
from kvferry.http.csv_tables import as_csv
from kvferry.http.description import Description, PathMethod
from kvferry.http.waits import AnswerLater, WaitingCalls

__all__ = ["Alive", "Api"]

# What every application may answer; what else it does, each says itself.
_ERRORS = {
    "400": "The request cannot be right.",
    "401": "The token is missing, or another one.",
    "403": "A web page of another host asked, or somebody by a name that is not this host's.",
    "408": "The body did not come in time.",
    "413": "The body is larger than 4 MiB.",
    "429": "Others are being read or waited for; it may be sent again in a second.",
}
Endpoint = Callable[[Request], Response] | Callable[[Request], Awaitable[Response]]


class Alive(TypedDict):
    """Whether somebody turns."""

    alive: bool


class Api:
    """All that an application answers.

    Args:
        title: For the head of the description.
        text: What it is for.
        of: What calls are about.
        open_paths: They need no token.
        errors: Further status codes, with what they mean here.

    Attributes:
        bodies: What is being read.
    """

    def __init__(
        self,
        title: str,
        text: str,
        of: Any,
        open_paths: Sequence[str],
        errors: Mapping[str, str],
    ) -> None:
        self.bodies = Bodies()
        self._waits = WaitingCalls()
        known = dict(sorted({**_ERRORS, **errors}.items()))
        self._description = Description(title, text, open_paths, known)
        self._of = of
        self._routes: list[Route] = []
        self.plain("/openapi.json", self._document, dict[str, Any])
        self.plain("/docs", self._page, str, "text/html")

    def call(
        self,
        path: str,
        *,
        table: str = "",
        waits: Collection[str] = (),
        **calls: Callable[..., Any],
    ) -> None:
        """A path, and its call for each method.

        Args:
            path: May have parameters, which are fields of the body.
            table: The list in the answer that ``?format=csv`` gives as a table.
            waits: Methods whose calls wait in their thread, e.g. for a store.
            calls: By method.
        """
        kinds: dict[str, Any] = {}
        waiting = set(waits)
        for method, call in calls.items():
            hints = get_type_hints(call, include_extras=True)
            kinds[method], answer = hints.get("body"), hints["return"]
            if get_origin(answer) is AnswerLater:
                waiting.add(method)
                [answer] = get_args(answer)
            self._description.operations.append(
                PathMethod(
                    *(path, method.lower(), _first_line(call), kinds[method], answer),
                    tables=bool(table),
                )
            )

        async def run(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            given, query = dict(request.path_params), method == "GET"
            if query:
                given = {**request.query_params, **given}
            elif not given:
                given = await self.bodies.read(request)
            csv = table if given.get("format") == "csv" else ""
            call = _BoundCall(calls[method], self._of, kinds[method], given, query)
            if method in waiting:
                found = await self._waits.run(call)
            else:
                found = await run_in_threadpool(called, call)
            if csv:
                return _table(found, given.get("table", csv), path)
            return Response(await run_in_threadpool(as_json, found), media_type="application/json")

        self._routes.append(Route(path, run, methods=list(calls)))

    def plain(
        self, path: str, endpoint: Endpoint, answer: Any, media: str = "application/json"
    ) -> None:
        """A path of GET whose endpoint answers by itself."""
        self._description.operations.append(
            PathMethod(path, "get", _first_line(endpoint), None, answer, media)
        )
        self._routes.append(Route(path, endpoint, methods=["GET"]))

    def metrics(self, text: Callable[[], str]) -> None:
        """The path of metrics, which are this text."""

        def metrics(request: Request) -> Response:
            """Metrics, as Prometheus reads them."""
            return PlainTextResponse(text(), media_type="text/plain; version=0.0.4; charset=utf-8")

        self.plain("/metrics", metrics, str, "text/plain")

    def app(
        self,
        token: Callable[[], str | None],
        others: Sequence[Route] = (),
        others_open: Collection[str] = (),
    ) -> ASGIApp:
        """The application.

        Args:
            token: What callers must show at this moment; None: nothing.
            others: Routes that are not described.
            others_open: Those of them that need no token.
        """
        app = Starlette(routes=[*self._routes, *others], exception_handlers=HANDLERS)
        return Guard(app, token, (*self._description.open_paths, *others_open))

    def _document(self, request: Request) -> Response:
        """This description."""
        return JSONResponse(self._description.document())

    def _page(self, request: Request) -> Response:
        """This description, as a page."""
        return HTMLResponse(self._description.page())


@dataclass(frozen=True)
class _BoundCall:
    """A call with what it was given, which is checked in its thread."""

    call: Callable[..., Any]
    of: Any
    kind: type[msgspec.Struct] | None
    given: Mapping[str, Any]
    query: bool

    def __call__(self) -> Any:
        if self.kind is None:
            return self.call(self.of)
        given = asked(self.given, self.kind) if self.query else self.given
        return self.call(self.of, converted(given, self.kind, strict=not self.query))


def _table(found: Any, name: str, path: str) -> Response:
    if not isinstance(found.get(name), list):
        raise CallError(400, UsageError.code, f"{path} has no such table")
    return PlainTextResponse(as_csv(found[name]), media_type="text/csv")


def _first_line(call: Callable[..., Any]) -> str:
    return (call.__doc__ or "").strip().partition("\n")[0]
