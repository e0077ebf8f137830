"""What holds for every answer: JSON, errors, and who may ask.

Every error is ``{"error": {"code": ..., "text": ...}}``.

With a token, everything but health wants it as ``Authorization: Bearer``. Without one only this
host can connect; a page in a browser of this host could still send requests, but not without saying
where it comes from, so what changes something is refused if it comes from elsewhere. A page whose
own name was made to lead here (DNS rebinding) could read the answers too, but not without saying
that name as ``Host``, so all is refused that asks for another name than one of this host.
"""

from __future__ import annotations

import hmac
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kvferry.base.errors import (
    CapacityError,
    ClosedError,
    DeadlineExceeded,
    KVFerryError,
    UnavailableError,
    UsageError,
)
from kvferry.base.shown import shown
from kvferry.config.endpoints import written_names
from kvferry.config.url import is_loopback

__all__ = ["HANDLERS", "CallError", "Guard", "as_json", "called"]

# What is left of a body that was refused is read and dropped, within the time that a head may take:
# most callers read no answer before they have sent all, and closing with bytes unread is a reset.
_DROPPED_BYTES_MAX = 64 << 20
_HOST = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::\d*)?")
_CODES = {404: "not_found", 405: "method"}
_STATUS: tuple[tuple[type[KVFerryError], int], ...] = (
    (UsageError, 400),
    (CapacityError, 503),
    (ClosedError, 503),
    (UnavailableError, 503),
    (DeadlineExceeded, 504),
)


class CallError(Exception):
    """What a caller is told instead of a result.

    Attributes:
        status: Of HTTP.
        code: For programs, a word.
        text: For people.
    """

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text


def called(call: Callable[[], Any]) -> Any:
    """What a call returns; in a thread.

    Raises:
        CallError: Instead of every error of ours.
    """
    try:
        return call()
    except KVFerryError as error:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        raise CallError(status, error.code, str(error)) from None


def as_json(found: Any) -> bytes:
    """An answer."""
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
    said = request.headers.get("content-length", "")
    is_long = said.isdecimal() and int(said) > _DROPPED_BYTES_MAX
    ends = error.status == 408 or (error.status in (413, 429) and is_long)
    headers = {"connection": "close"} if ends else {}
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


HANDLERS: dict[Any, Any] = {
    HTTPException: _of_starlette,
    CallError: _of_call,
    Exception: _of_bug,
}


class Guard:
    """Lets through who may ask; see the head of this module.

    Args:
        app: Who is asked.
        token: What callers must show at this moment; None: nothing.
        open_paths: Needs no token.
    """

    def __init__(
        self, app: ASGIApp, token: Callable[[], str | None], open_paths: Collection[str]
    ) -> None:
        self._app = app
        self._token = token
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, token = Headers(scope=scope), self._token()
        host = headers.get("host")
        if token is None and host is not None and not _is_here(host):
            text = f"{shown(host)} is no name of this host; ask localhost, or set a token file"
            return _error(403, "host", text)
        if scope["path"] in self._open:
            return None
        if token is not None:
            kind, _, word = headers.get("authorization", "").partition(" ")
            given = word.strip().encode("latin-1", "replace")
            if kind.lower() == "bearer" and hmac.compare_digest(given, token.encode()):
                return None
            text = "show the token of this server: Authorization: Bearer ..."
            return _error(401, "token", text, **{"www-authenticate": "Bearer"})
        origin = headers.get("origin")
        changes = scope["method"] not in ("GET", "HEAD")
        if changes and origin is not None and not _is_here(origin.partition("://")[2]):
            return _error(403, "origin", "a page of another host may not ask for this")
        return None


def _is_here(place: str) -> bool:
    """Whether a host, with or without a port, is this one by its name."""
    found = _HOST.fullmatch(place)
    name = found[1].strip("[]").lower() if found else ""
    return is_loopback(name) or name in written_names()
