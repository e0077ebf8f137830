"""The routes of the demo's server, and how answers get from the batcher to who asked.

The batcher's thread hands each event to the loop of HTTP. A request whose client has gone is
cancelled, streamed or not. Errors have OpenAI's body.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from kvferry.http.answers import CallError
from kvferry.http.bodies import Bodies
from kvferry_lab.serve.asked import AskedCompletion, BadRequest, asked_of, text_of
from kvferry_lab.serve.batcher import Batcher
from kvferry_lab.serve.openai_replies import DONE, Reply, error_body, event
from kvferry_lab.serve.sequence import Failed, FinishedSequence, Running, Token

__all__ = ["make_app"]

_LONG_BODIES_MAX = 64
_METRICS = "text/plain; version=0.0.4; charset=utf-8"

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
