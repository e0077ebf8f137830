"""What a cache server says of a prompt, over its HTTP side."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from kvferry.base.errors import UnavailableError, UsageError
from kvferry.base.shown import reason_of
from kvferry.config.file import read_token

__all__ = ["ask_server"]

_TIMEOUT_S = 10.0
_TOKEN = "KVFERRY_SERVER_HTTP_TOKEN"


def ask_server(
    url: str, tokens: Sequence[int], identity: str | None = None, token_file: Path | None = None
) -> str:
    """For people: where each chunk is, or why it is not.

    Args:
        url: Of the server's HTTP side, e.g. "http://127.0.0.1:8080".
        tokens: Of the prompt.
        identity: Which model, if the server has several.
        token_file: Holds the token of the server.

    Raises:
        UnavailableError: It does not answer.
        UsageError: It refuses the question; the text says why.
    """
    headers = {"Content-Type": "application/json"}
    secret = read_token(token_file) if token_file is not None else os.environ.get(_TOKEN)
    if secret:
        headers["Authorization"] = f"Bearer {secret}"
    asked = {"tokens": list(tokens), **({"identity": identity} if identity else {})}
    place = f"{url if '://' in url else f'http://{url}'}".rstrip("/") + "/v1/explain"
    request = urllib.request.Request(place, json.dumps(asked).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return str(json.load(answer)["text"])
    except urllib.error.HTTPError as error:
        with error:
            raise UsageError(f"{place}: {_reason(error.read())}") from None
    except OSError as error:
        raise UnavailableError(f"{place} does not answer: {reason_of(error)}") from None
    except (ValueError, LookupError, TypeError, http.client.HTTPException):
        raise UnavailableError(f"{place} is no cache server of kvferry") from None


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["text"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
