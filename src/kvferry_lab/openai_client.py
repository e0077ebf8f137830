"""A client of OpenAI's API for load tests: streams one answer and notes when its pieces came.

    client = OpenAIClient("http://127.0.0.1:8000/v1")
    answer = client.complete(client.model(), "Once upon a time", 16)
    answer.ttft_s, answer.text, answer.usage.cached_tokens

Works with any server that speaks it. A request that fails is an answer with an error; every wait
has a limit. What the server's /metrics say of its cache is read beside it. Threads: any number,
each request on a connection of its own.
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from kvferry.base.errors import UnavailableError, UsageError
from kvferry.base.shown import reason_of
from kvferry.cli.top_watch import NoRedirection

__all__ = [
    "Answer",
    "OpenAIClient",
    "TokenUsage",
    "capacity_tokens",
    "public",
    "retrieves",
    "samples",
]

_SHORT_S = 30.0
_ERROR_CHARS_MAX = 500
_LINE_BYTES_MAX = 1 << 20
_SAMPLE = re.compile(r"^(\w[\w:]*)(?:\{.*\})? ([-+.\w]+)$", re.MULTILINE)
_LIMIT_S = 10.0
_SIZE_BYTES_MAX = 4 << 20


@dataclass(frozen=True)
class TokenUsage:
    """The tokens that the server counted; None where it does not say."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass
class Answer:
    """What came of one request.

    Attributes:
        began: When it was sent, on the clock of `time.time`.
        ttft_s: Until the first piece of text; None: there was none, as with tokens without text.
        last_s: Until the last one.
        seconds: Until the end.
        pieces: Pieces of text, which are tokens with most servers.
        error, status: Why there is no answer, or no more of it; "" and None: there is.
        events: What came with or without text; a chat begins with one that has the role.
        tokens: Ids of tokens, where the server was asked to return them.
    """

    began: float
    text: str = ""
    ttft_s: float | None = None
    last_s: float = 0.0
    seconds: float = 0.0
    pieces: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    error: str = ""
    status: int | None = None
    events: int = 0
    tokens: list[int] = field(default_factory=list)

    @property
    def output_tokens(self) -> int:
        """As the server counts them, or else the pieces."""
        counted = self.usage.output_tokens
        return self.pieces if counted is None else counted


class OpenAIClient:
    """See the head of this module.

    Args:
        base_url: With the version, e.g. "http://127.0.0.1:8000/v1".
        key: Sent as `Authorization: Bearer`, if it is not empty.
        limit_s: The longest that one answer may take.
        direct: Not through a proxy, whatever the environment says.

    Raises:
        UsageError: The URL is none of HTTP.
    """

    def __init__(
        self, base_url: str, key: str = "", limit_s: float = 600.0, *, direct: bool = False
    ) -> None:
        self.base_url = base_url.rstrip("/")
        if urlsplit(self.base_url).scheme not in ("http", "https"):
            raise UsageError(f"{public(base_url)!r} is no URL; write e.g. http://localhost:8000/v1")
        # Not to wherever a redirection leads: there may be a key in the request.
        proxies = [urllib.request.ProxyHandler({})] if direct else []
        self._open = urllib.request.build_opener(*proxies, NoRedirection).open
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._limit_s = limit_s

    def __repr__(self) -> str:
        return f"OpenAIClient({public(self.base_url)!r})"  # without the key

    def model(self) -> str:
        """The first model that the server has.

        Raises:
            UnavailableError: It does not say.
        """
        request = urllib.request.Request(f"{self.base_url}/models", headers=self._headers)
        try:
            with self._open(request, timeout=_SHORT_S) as reply:
                return str(json.load(reply)["data"][0]["id"])
        except (OSError, http.client.HTTPException) as error:
            text = f"{public(request.full_url)} does not answer: {reason_of(error)}"
            raise UnavailableError(text) from None
        except (ValueError, LookupError, TypeError):
            raise UnavailableError(f"{public(request.full_url)} names no model") from None

    def complete(
        self, model: str, prompt: str | Sequence[int], new_tokens: int, **more: Any
    ) -> Answer:
        """Ask /completions; `more` are fields of the body."""
        body = {"model": model, "prompt": prompt, "max_tokens": new_tokens, **more}
        return self.ask("/completions", body)

    def chat(
        self, model: str, messages: Sequence[Mapping[str, str]], new_tokens: int, **more: Any
    ) -> Answer:
        """Ask /chat/completions; `more` are fields of the body."""
        body = {"model": model, "messages": list(messages), "max_tokens": new_tokens, **more}
        return self.ask("/chat/completions", body)

    def ask(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Send a body, with the fields of a stream, and listen to the end."""
        streaming = {"stream": True, "stream_options": {"include_usage": True}}
        request = urllib.request.Request(
            self.base_url + path, json.dumps({**body, **streaming}).encode(), self._headers
        )
        answer, began = Answer(time.time()), time.monotonic()
        try:
            for event in _streamed(request, self._limit_s, self._open):
                _take(answer, event, time.monotonic() - began)
        except urllib.error.HTTPError as error:
            with error:
                answer.error, answer.status = _said(error), error.code
        except ValueError as error:
            answer.error = f"what came is no JSON object: {error}"
        except (OSError, http.client.HTTPException) as error:
            answer.error = reason_of(error)
        answer.seconds = time.monotonic() - began
        if not answer.error and not answer.output_tokens:
            answer.error = "the answer has no tokens"
        return answer


def public(url: str) -> str:
    """A URL without user and password."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def _streamed(
    request: urllib.request.Request, limit_s: float, send: Callable[..., Any]
) -> Iterator[Any]:
    """The server-sent events of one request, as JSON.

    Raises:
        OSError: It failed, or took longer than `limit_s`; `HTTPError` is one.
        ValueError: What came is no JSON.
    """
    until = time.monotonic() + limit_s
    with send(request, timeout=limit_s) as reply:
        for line in iter(lambda: reply.readline(_LINE_BYTES_MAX), b""):
            text = line.decode(errors="replace").strip()
            if (
                text.startswith("data:")
                and (data := text.removeprefix("data:").strip()) != "[DONE]"
            ):
                yield json.loads(data)
            if time.monotonic() > until:
                raise TimeoutError(f"the answer took longer than {limit_s:g} s")


def _take(answer: Answer, event: Any, now_s: float) -> None:
    if not isinstance(event, dict):
        raise ValueError("an event is no object")
    if event.get("error"):
        error = event["error"]
        answer.error = str(error.get("message") if isinstance(error, dict) else error)
        code = error.get("code") if isinstance(error, dict) else None
        answer.status = code if isinstance(code, int) else None
    answer.events += bool(event.get("choices"))
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or delta.get("reasoning_content")
        ids = choice.get("token_ids") or ()
        answer.tokens += ids
        if text or ids:
            answer.ttft_s = now_s if answer.ttft_s is None else answer.ttft_s
            answer.last_s = now_s
            answer.text += text or ""
            answer.pieces += 1
    usage = event.get("usage")
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details") or {}
        answer.usage = TokenUsage(
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
            details.get("cached_tokens"),
        )


def _said(error: urllib.error.HTTPError) -> str:
    """The message in the body of an error, or the beginning of the body."""
    try:
        raw = error.read(1 << 16).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return str(error)
    try:
        found = json.loads(raw)
        return str(found.get("error", found).get("message"))[:_ERROR_CHARS_MAX]
    except (ValueError, AttributeError):
        return raw[:_ERROR_CHARS_MAX] or str(error)


def samples(base_url: str) -> list[tuple[str, float]]:
    """Names and values of the server's metrics, whatever their labels; none: it has none.

    Args:
        base_url: With the version; metrics are beside it.
    """
    url = base_url.rstrip("/").removesuffix("/v1") + "/metrics"
    try:
        with urllib.request.urlopen(url, timeout=_LIMIT_S) as reply:
            text = reply.read(_SIZE_BYTES_MAX).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return []
    return [(name, float(value)) for name, value in _SAMPLE.findall(text)]


def capacity_tokens(base_url: str) -> int | None:
    """Tokens that the largest tier can hold; None: the server does not say."""
    found = [v for name, v in samples(base_url) if name == "kvferry_demo_capacity_tokens"]
    return int(max(found)) if found else None


def retrieves(base_url: str) -> tuple[float, float]:
    """How long requests have waited for the cache so far, in seconds, and how many; 0, 0: the
    server does not say."""
    found = samples(base_url)
    seconds, count = (
        sum(value for name, value in found if name == f"kvferry_retrieve_seconds_{part}")
        for part in ("sum", "count")
    )
    return seconds, count
