"""The HTTP side of the demo's server: what OpenAI's requests ask for, its answers, and the routes.

A request for what cannot be had is a `BadRequest`, whose body is OpenAI's. The batcher's thread
hands each event to the loop of HTTP. A request whose client has gone is cancelled, streamed or not.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from kvferry.http.answers import CallError
from kvferry.http.bodies import Bodies
from kvferry_lab.serve.batcher import Batcher
from kvferry_lab.serve.sequence import Failed, FinishedSequence, Running, Token
from kvferry_lab.transformer import BOS, VOCABULARY, encode

__all__ = ["make_app", "text_of"]

# As OpenAI's completions; a model that knows no end needs some number in a chat as well.
_COMPLETION_TOKENS, _CHAT_TOKENS = 16, 64
_PROMPTS_MAX = 128
# Fields that would change the answer, and the values with which they do not.
_PLAIN: Mapping[str, Sequence[Any]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "logprobs": (None, False, 0),
    "prompt_logprobs": (None, 0),
    "suffix": (None, ""),
    "stop": (None, "", []),
    "stop_token_ids": (None, []),
    "tools": (None, []),
    "response_format": (None, {"type": "text"}),
}
DONE = b"data: [DONE]\n\n"
_LONG_BODIES_MAX = 64
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class BadRequest(Exception):
    """A request that cannot be served, with the fields of OpenAI's error body."""

    def __init__(
        self, text: str, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(text)
        self.param = param
        self.code = code
        self.status = status


@dataclass(frozen=True, kw_only=True)
class AskedCompletion:
    """One request; each prompt gets an answer of its own."""

    model: str
    chat: bool
    prompts: list[array[int]]
    new_tokens: int
    stream: bool
    include_usage: bool

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(map(len, self.prompts))


def asked_of(
    body: Mapping[str, Any], *, chat: bool, models: str, length_max: int
) -> AskedCompletion:
    """Read a body of /v1/completions or /v1/chat/completions.

    Sampling parameters are taken and have no effect: decoding is greedy.

    Args:
        body: As JSON.
        chat: Which of both.
        models: The name of the one model that is here.
        length_max: Of prompt and answer, in tokens.

    Raises:
        BadRequest: It cannot be answered.
    """
    model = body.get("model", models)
    if model != models:
        text = f"The model `{model}` does not exist; this server has `{models}`."
        raise BadRequest(text, "model", "model_not_found", 404)
    for name, plain in _PLAIN.items():
        if body.get(name) not in plain:
            raise BadRequest(f"This server does not support `{name}` other than its default.", name)
    prompts = [_chat(body.get("messages"))] if chat else _prompts(body.get("prompt"))
    default = _CHAT_TOKENS if chat else _COMPLETION_TOKENS
    name = "max_completion_tokens" if body.get("max_completion_tokens") else "max_tokens"
    new_tokens = body.get(name)
    new_tokens = default if new_tokens is None else new_tokens
    if not _is_whole(new_tokens) or new_tokens < 1:
        raise BadRequest(f"`{name}` must be a whole number from 1.", name)
    longest = max(map(len, prompts))
    if longest + new_tokens > length_max:
        text = (
            f"This model's maximum context length is {length_max} tokens. However, you requested "
            f"{longest + new_tokens} tokens ({longest} in the prompt, {new_tokens} in the answer)."
        )
        raise BadRequest(text, "messages" if chat else "prompt", "context_length_exceeded")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest("`stream_options` must be an object.", "stream_options")
    stream = bool(body.get("stream"))
    if options and not stream:
        raise BadRequest("`stream_options` needs `stream`.", "stream_options")
    return AskedCompletion(
        model=models,
        chat=chat,
        prompts=prompts,
        new_tokens=new_tokens,
        stream=stream,
        include_usage=bool(options.get("include_usage")),
    )


def text_of(token: int) -> str:
    """One printable character for a token: a byte of Latin-1, or a picture of what has none."""
    if 0x20 <= token < 0x7F or (0xA1 <= token < 0x100 and token != 0xAD):
        return chr(token)
    return chr(0x2400 + token) if token < 0x20 else chr(0x2800 + token % 0x100)


def _prompts(given: Any) -> list[array[int]]:
    """A text, tokens, or a list of either."""
    if isinstance(given, str):
        return [array("I", encode(given))]
    if isinstance(given, list) and given and len(given) <= _PROMPTS_MAX:
        if all(isinstance(one, str) for one in given):
            return [array("I", encode(one)) for one in given]
        if all(isinstance(one, list) for one in given):
            return [_tokens(one) for one in given]
    if isinstance(given, list) and given and not isinstance(given[0], str | list):
        return [_tokens(given)]
    text = f"`prompt` must be a text, a list of tokens, or a list of up to {_PROMPTS_MAX} of them."
    raise BadRequest(text, "prompt")


def _tokens(given: list[Any]) -> array[int]:
    if not given or not all(_is_whole(token) and 0 <= token < VOCABULARY for token in given):
        text = f"Tokens are whole numbers from 0 to {VOCABULARY - 1} here: bytes, and {BOS} before."
        raise BadRequest(text, "prompt")
    return array("I", given)


def _chat(messages: Any) -> array[int]:
    """The messages of a chat as one prompt."""
    parts = []
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest("A message is an object with `role` and `content`.", "messages")
        parts.append(f"<|{message['role']}|>\n{_content(message.get('content'))}\n")
    if not parts:
        raise BadRequest("`messages` must be a list of at least one message.", "messages")
    return array("I", encode("".join([*parts, "<|assistant|>\n"])))


def _content(content: Any) -> str:
    """A text, or parts that are texts."""
    parts = content if isinstance(content, list) else [{"text": "" if content is None else content}]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest("The content of a message is text, or a list of texts.", "messages")
    return "".join(map(str, texts))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def error_body(text: str, status: int, param: str | None, code: str | None) -> dict[str, Any]:
    """The body of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}


@dataclass
class Reply:
    """The answer to one request, as far as it has come.

    Attributes:
        texts: Of each prompt.
        output_tokens: Of all of them.
        cached_tokens: Of their prompts.
    """

    asked: AskedCompletion
    texts: list[str] = field(init=False)
    output_tokens: int = 0
    cached_tokens: int = 0
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.texts = [""] * len(self.asked.prompts)

    def whole(self) -> dict[str, Any]:
        """All of it, in one object."""
        choices: list[dict[str, Any]] = []
        for index, text in enumerate(self.texts):
            if self.asked.chat:
                said: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
            else:
                said = {"text": text}
            choices.append({"index": index, **said, "logprobs": None, "finish_reason": "length"})
        return {**self._head(choices, ""), "usage": self._usage()}

    def first(self) -> list[dict[str, Any]]:
        """The first event of a stream: in a chat, the role."""
        if not self.asked.chat:
            return []
        indexes = range(len(self.texts))
        return [self._chunk(i, {"role": "assistant", "content": ""}, None) for i in indexes]

    def piece(self, index: int, text: str, *, last: bool) -> dict[str, Any]:
        """A piece of the answer to one prompt."""
        reason = "length" if last else None
        return self._chunk(index, {"content": text} if self.asked.chat else text, reason)

    def usage(self) -> dict[str, Any]:
        """The last event of a stream where the usage was asked for."""
        return {**self._head([], ".chunk"), "usage": self._usage()}

    def _chunk(self, index: int, said: Any, reason: str | None) -> dict[str, Any]:
        name = "delta" if self.asked.chat else "text"
        choice = {"index": index, name: said, "logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if self.asked.include_usage else {}
        return {**self._head([choice], ".chunk"), **usage}

    def _head(self, choices: Sequence[Any], kind: str) -> dict[str, Any]:
        chat = self.asked.chat
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self._id}",
            "object": f"chat.completion{kind}" if chat else "text_completion",
            "created": self._created,
            "model": self.asked.model,
            "choices": list(choices),
        }

    def _usage(self) -> dict[str, Any]:
        prompt = self.asked.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.output_tokens,
            "total_tokens": prompt + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


Event = tuple[int, Token | FinishedSequence | Failed]


def make_app(batcher: Batcher, model: str, length_max: int, metrics: Callable[[], str]) -> ASGIApp:
    """The application; the batcher stays the caller's."""
    bodies = Bodies(_LONG_BODIES_MAX)

    async def health(request: Request) -> Response:
        return JSONResponse({}, 200 if batcher.alive else 503)

    async def models(request: Request) -> Response:
        one = {"id": model, "object": "model", "created": 0, "owned_by": "kvferry"}
        return JSONResponse({"object": "list", "data": [{**one, "max_model_len": length_max}]})

    def metrics_text(request: Request) -> Response:
        return PlainTextResponse(metrics(), media_type=_METRICS)

    async def completions(request: Request) -> Response:
        return await answer(request, chat=False)

    async def chat(request: Request) -> Response:
        return await answer(request, chat=True)

    async def answer(request: Request, *, chat: bool) -> Response:
        body = await bodies.read(request)
        asked = asked_of(body, chat=chat, models=model, length_max=length_max)
        answering = _Answering(batcher, asked)
        if asked.stream:
            return StreamingResponse(_stream(answering), media_type="text/event-stream")
        whole = asyncio.ensure_future(answering.whole())
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({whole, gone}, return_when=asyncio.FIRST_COMPLETED)
            return await whole if whole.done() else Response(status_code=499)
        finally:
            answering.cancel()
            whole.cancel()
            gone.cancel()

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", metrics_text),
            Route("/v1/models", models),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ],
        exception_handlers={
            BadRequest: _of_request,
            CallError: _of_body,
            HTTPException: _of_starlette,
            Exception: _of_bug,
        },
    )


class _Answering:
    """The prompts of one request, in the batcher. Threads: the loop of HTTP."""

    def __init__(self, batcher: Batcher, asked: AskedCompletion) -> None:
        self.reply = Reply(asked)
        self.new_tokens = asked.new_tokens
        self._batcher = batcher
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._running = [self._submit(index) for index in range(len(asked.prompts))]

    def cancel(self) -> None:
        """Nobody listens any more; what is complete stays so."""
        for running in self._running:
            self._batcher.cancel(running)

    async def pieces(self) -> AsyncIterator[tuple[int, str]]:
        """The answers, a token at a time.

        Raises:
            BadRequest: There will be no more.
        """
        left, said = len(self._running), [0] * len(self._running)
        while left:
            index, what = await self._events.get()
            if isinstance(what, Failed):
                raise BadRequest(what.why, status=503)
            if isinstance(what, FinishedSequence):
                left -= 1
                self.reply.cached_tokens += what.cached_tokens
                continue
            said[index] += 1
            self.reply.output_tokens += 1
            text = text_of(what.token)
            self.reply.texts[index] += text
            yield index, text

    async def whole(self) -> Response:
        """The answer in one piece."""
        async for _ in self.pieces():
            pass
        return JSONResponse(self.reply.whole())

    def _submit(self, index: int) -> Running:
        def heard(what: Token | FinishedSequence | Failed) -> None:
            try:
                self._loop.call_soon_threadsafe(self._events.put_nowait, (index, what))
            except RuntimeError:  # the loop has ended, and with it who asked
                return

        asked = self.reply.asked
        return self._batcher.submit(asked.prompts[index], asked.new_tokens, heard)


async def _stream(answering: _Answering) -> AsyncIterator[bytes]:
    reply = answering.reply
    try:
        for chunk in reply.first():
            yield event(chunk)
        async for index, text in answering.pieces():
            last = len(reply.texts[index]) == answering.new_tokens
            yield event(reply.piece(index, text, last=last))
        if reply.asked.include_usage:
            yield event(reply.usage())
        yield DONE
    except BadRequest as error:  # the status has been sent
        yield event(error_body(str(error), error.status, error.param, error.code))
    finally:
        answering.cancel()


async def _gone(request: Request) -> None:
    """Until the client has ended its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _of_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequest)
    body = error_body(str(error), error.status, error.param, error.code)
    return JSONResponse(body, error.status)


def _of_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, CallError)
    headers = {"connection": "close"} if error.status in (408, 413, 429) else {}
    body = error_body(error.text, error.status, None, error.code)
    return JSONResponse(body, error.status, headers=headers)


def _of_starlette(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(error_body(text, error.status_code, None, None), error.status_code)


def _of_bug(request: Request, error: Exception) -> Response:
    return JSONResponse(error_body("a bug of the server; see its log", 500, None, None), 500)
