"""The routes of the controller; how they are described and read says `kvferry.http.routes`.

Health is answered by the loop of HTTP; everything else runs in its threads. A stream of events
holds a connection and no thread, and there is a limit on them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial, wraps
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp

from kvferry.http.answers import CallError
from kvferry.http.routes import Alive, Api
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http import lmcache, usage, views
from kvferry.sharing.controller.http.actions import Actions, put_quota, quotas, remove_quota
from kvferry.sharing.controller.http.views import metrics_text
from kvferry.sharing.controller.page.routes import OPEN, PageRoutes

__all__ = ["make_app"]

Call = Callable[[Controller, Any], Any]

_TEXT = "Which instances there are, what each of them holds, and what they should do."
_ERRORS = {
    "404": "No such path, instance, identity, pin, quota or job.",
    "501": "It is not done here, or the instance does not do it.",
    "502": "The instance failed.",
    "503": "Too much waits.",
}
_STREAMS_MAX = 64
_LOOK_S = 0.2
_ALIVE_S = 10.0


def make_app(controller: Controller) -> ASGIApp:
    """The application of one controller."""
    actions, streams = Actions(controller), _Streams(controller)

    def as_lmcache(call: lmcache.Call) -> Call:
        @wraps(call)
        def run(controller: Controller, body: Any) -> Any:
            return call(controller, actions, body)

        return run

    api = Api("kvferry controller", _TEXT, controller, ("/health",), _ERRORS)
    api.plain("/health", _health, Alive)
    api.metrics(partial(metrics_text, controller))
    api.call("/v1/cluster", GET=views.cluster)
    api.call("/v1/nodes", table="nodes", GET=views.nodes)
    api.call("/v1/nodes/{id}", GET=views.node)
    api.call("/v1/lookup", GET=views.lookup, POST=views.lookup)
    api.call("/v1/explain", POST=views.explain)
    api.call("/v1/prefixes", table="prefixes", GET=views.prefixes)
    api.call("/v1/keys", table="keys", GET=usage.keys)
    api.call("/v1/transfers", table="transfers", GET=usage.transfers)
    api.call("/v1/jobs", GET=actions.jobs, POST=actions.start)
    api.call("/v1/jobs/{id}", GET=actions.one)
    api.call("/v1/pins", GET=actions.pins, POST=actions.pin)
    api.call("/v1/pins/{id}", DELETE=actions.unpin)
    api.call("/v1/quotas", table="quotas", GET=quotas, PUT=put_quota)
    api.call("/v1/quotas/{id}", DELETE=remove_quota)
    api.plain("/v1/events", streams.open, str, "text/event-stream")
    for path, call in lmcache.ROUTES.items():
        api.call(path, POST=as_lmcache(call))
    api.call("/controller/workers", GET=lmcache.workers)
    api.call("/controller/key-stats", GET=lmcache.key_stats)
    page = PageRoutes(controller, actions, api.bodies)
    return api.app(partial(getattr, controller.config, "http_token"), page.routes(), OPEN)


async def _health(request: Request) -> Response:
    """Whether the controller turns. Needs no token."""
    return JSONResponse({"alive": True})


class _Streams:
    """Events as they happen; https://html.spec.whatwg.org/multipage/server-sent-events.html."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._journal = controller.journal
        self._open = 0

    async def open(self, request: Request) -> Response:
        """What happens, as it happens; behind the event `last`, or that of Last-Event-ID."""
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
