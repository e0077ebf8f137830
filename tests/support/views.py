"""A server as its HTTP side sees it, with real engines and without sockets or segments."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any, cast

from kvferry import TieredCache
from kvferry.base.errors import UsageError
from kvferry.config.server import ServerConfig
from kvferry.metrics.collector import exposition
from kvferry.server.http.side import HttpSide
from kvferry.server.server import Server


class FakeView:
    """A server over engines that a test made; `stopped` and `reloads` count what was asked.

    Of `Server` it has what its HTTP side uses.
    """

    def __init__(self, config: ServerConfig, *engines: TieredCache) -> None:
        self.config = config
        self.engines = list(engines)
        self.alive = True
        self.degraded: list[str] = []
        self.endpoints: list[str] = []
        self.state = "ready"
        self.stopped = self.reloads = 0
        self.told: dict[str, Any] = {"pool": {"bytes": 1}}

    @property
    def ready(self) -> bool:
        """See `Server`."""
        return self.state == "ready"

    def status(self) -> dict[str, Any]:
        """See `Server`."""
        return {"state": self.state, **self.told, "odd": float("inf")}

    def cache(self, identity: str | None) -> TieredCache:
        """See `Server`."""
        found = [
            engine
            for engine in self.engines
            if identity is None
            or engine.identity.model == identity
            or (identity and engine.identity.digest.hex().startswith(identity))
        ]
        if len(found) == 1:
            return found[0]
        known = ", ".join(engine.identity.model for engine in self.engines)
        raise UsageError(f"{len(found)} identities; there are: {known}")

    def metrics_text(self) -> str:
        """See `Server`."""
        return exposition([engine.metrics for engine in self.engines])

    def reload(self) -> list[str]:
        """See `Server`."""
        self.reloads += 1
        return ["lease_s is 5 now"]

    def stop(self) -> None:
        """See `Server`."""
        self.stopped += 1


def http_of(view: FakeView) -> HttpSide:
    """The HTTP side of such a server."""
    return HttpSide(cast(Server, view))


def ask(
    url: str,
    method: str = "GET",
    body: object = None,
    *,
    raw: bytes | None = None,
    limit_s: float = 20,
    **headers: str,
) -> tuple[int, Any]:
    """Status and body of an answer, parsed where it is JSON."""
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=limit_s) as answer:
            status, text, kind = answer.status, answer.read(), answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        with error:
            status, text, kind = error.code, error.read(), error.headers.get_content_type()
    return status, json.loads(text) if kind == "application/json" else text.decode()


def assert_whole(document: Any) -> None:
    """Whatever a description refers to is in it, and every operation says what it does."""
    text = json.dumps(document)
    for place in re.findall(r'"\$ref": "#/([^"]+)"', text):
        found = document
        for name in place.split("/"):
            found = found[name]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["summary"], path
            named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
