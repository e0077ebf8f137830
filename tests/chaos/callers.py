"""Three ways to make a call of a client, behind one: blocking, submitted, awaited.

A call returns when its buffers are the caller's again. `Submitted` and `Awaited` can withdraw one:
``cancel_after_s`` after it began. Any number of threads may call at a time.
"""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from kvferry import AsyncRedisClient, RedisClient
from kvferry.client.batch import BatchResult, Status
from kvferry.client.pure.client import PureRedisClient
from support.history import Verb

__all__ = ["Awaited", "Blocking", "Caller", "Request", "Submitted"]

CLOSE_TIMEOUT_S = 20.0
Space = tuple[str, bytes, int]  # of a namespace: prefix, identity, length of values


@dataclass(frozen=True)
class Request:
    """A call with its keys and buffers."""

    verb: Verb
    keys: Sequence[str]
    buffers: Sequence[bytearray]
    prefix: bool = False
    timeout_s: float | None = None
    cancel_after_s: float | None = None

    def of(self, subject: Any, before: str = "batch_") -> Any:
        """Call the method of a client or namespace that this asks for."""
        match self.verb:
            case "get":
                method, buffers, options = "get", [self.buffers], {"prefix": self.prefix}
            case "set":
                method, buffers, options = "set", [self.buffers], {}
            case "delete":
                method, buffers, options = "delete", [], {}
            case _:
                method, buffers = "exists", []
                options = {"prefix": self.prefix, "touch": self.verb == "touch"}
        ask = getattr(subject, before + method)
        return ask(self.keys, *buffers, timeout_s=self.timeout_s, **options)


class Caller(Protocol):
    """A client that a lane can use and close."""

    def call(self, request: Request) -> BatchResult: ...
    def deadline_s(self, size_bytes: int) -> float: ...
    def retried(self) -> int: ...
    def close(self) -> None: ...


class _Caller:
    """What the three share."""

    def __init__(self, client: Any, space: Space | None = None) -> None:
        self._client = client
        self._subject = client.namespace(*space) if space else client

    def deadline_s(self, size_bytes: int) -> float:
        """The time limit of a call that names none."""
        limit_s: float = self._client.config.deadline_s(size_bytes)
        return limit_s

    def retried(self) -> int:
        """A count that rises when commands are sent more than once."""
        stats = self._client.stats()
        count: int = stats.get("commands_retried", stats.get("disconnects"))  # the pure client's
        return count

    def close(self) -> None:
        self._client.close()


class Blocking(_Caller):
    """A RedisClient, or a namespace of it; or a PureRedisClient."""

    def __init__(self, client: RedisClient | PureRedisClient, space: Space | None = None) -> None:
        super().__init__(client, space)

    def call(self, request: Request) -> BatchResult:
        result: BatchResult = request.of(self._subject)
        return result


class Submitted(_Caller):
    """A RedisClient by its raw interface; one thread drains completions for all callers."""

    def __init__(self, client: RedisClient) -> None:
        super().__init__(client)
        self._waiting: dict[int, Future[BatchResult]] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._drain, name="chaos-drain", daemon=True)
        self._thread.start()

    def call(self, request: Request) -> BatchResult:
        with self._lock:  # so that no completion comes before its number is known
            number = request.of(self._client, "submit_batch_")
            outcome = self._waiting[number] = Future()
        if request.cancel_after_s is not None:
            try:
                return outcome.result(request.cancel_after_s)
            except TimeoutError:
                self._client.cancel(number)
        return outcome.result()

    def close(self) -> None:
        self._closing = True
        self._thread.join(CLOSE_TIMEOUT_S)
        super().close()

    def _drain(self) -> None:
        ready = select.poll()
        ready.register(self._client.event_fd(), select.POLLIN)
        while not self._closing:
            ready.poll(100)
            for number, result in self._client.drain_completions():
                with self._lock:
                    outcome = self._waiting.pop(number)
                outcome.set_result(result)


class Awaited(_Caller):
    """An AsyncRedisClient, or a namespace of it, in an event loop of its own."""

    def __init__(self, client: AsyncRedisClient, space: Space | None = None) -> None:
        super().__init__(client, space)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="chaos-loop", daemon=True
        )
        self._thread.start()

    def call(self, request: Request) -> BatchResult:
        return asyncio.run_coroutine_threadsafe(self._ask(request), self._loop).result()

    def close(self) -> None:
        closing = asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop)
        closing.result(CLOSE_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        self._loop.close()

    async def _ask(self, request: Request) -> BatchResult:
        task = asyncio.ensure_future(request.of(self._subject))
        await asyncio.wait([task], timeout=request.cancel_after_s)
        task.cancel()  # of a finished one: nothing
        try:
            result: BatchResult = await task
        except asyncio.CancelledError:  # nobody says which of them were done
            count = len(request.keys)
            return BatchResult(bytes([Status.CANCELLED]) * count, [0] * count, 0.0)
        return result
