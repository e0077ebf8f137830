"""The client of the cache server for asyncio: the calls of `Client`, awaited.

    async with AsyncClient(identity, "ipc:///run/kvferry.sock") as client:
        hit = await client.retrieve(tokens, buffers)

Each call runs in a thread of the client, so that copying does not hold up the loop. Who cancels an
await waits until its call is over, which is soon: only then are the buffers free again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from kvferry.base.errors import ClosedError
from kvferry.base.threads import Workers
from kvferry.cache import Retrieved
from kvferry.chunks.identity import Identity
from kvferry.chunks.prompt import Tokens
from kvferry.server.client.sync import Client

__all__ = ["AsyncClient"]

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 16


def _awaited(
    call: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """A method of `Client`, in a thread of the client."""

    @wraps(call)
    async def run(self: AsyncClient, /, *args: P.args, **settings: P.kwargs) -> T:
        return await self._run(partial(call, self._client, *args, **settings))

    return run


class AsyncClient:
    """`Client` for asyncio: the same arguments, results and errors.

    It may be used by any loop. Making one waits for the server for half a second at most; to keep
    the loop free meanwhile, use `open`.
    """

    def __init__(self, identity: Identity, url: str | None = None, **settings: Any) -> None:
        self._client = Client(identity, url, **settings)
        self._executor = Workers(_THREADS, "aclient")

    @classmethod
    async def open(cls, identity: Identity, url: str | None = None, **settings: Any) -> Self:
        """A client, made in a thread."""
        return await asyncio.to_thread(cls, identity, url, **settings)

    @property
    def identity(self) -> Identity:
        """See `Client`."""
        return self._client.identity

    @property
    def available(self) -> bool:
        """See `Client.available`."""
        return self._client.available

    @property
    def refused(self) -> str:
        """See `Client.refused`."""
        return self._client.refused

    wait = _awaited(Client.wait)
    lookup = _awaited(Client.lookup)
    contains = _awaited(Client.contains)
    explain = _awaited(Client.explain)
    retrieve = _awaited(Client.retrieve)  # `release` of its result asks the server: see `arelease`
    store = _awaited(Client.store)
    pin = _awaited(Client.pin)
    unpin = _awaited(Client.unpin)
    clear = _awaited(Client.clear)
    observe_prefill = _awaited(Client.observe_prefill)
    stats = _awaited(Client.stats)

    async def arelease(self, result: Retrieved) -> bool:
        """`Retrieved.release` in a thread."""
        return await self._run(result.release)

    async def prefetch(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        """See `Client.prefetch`; awaited to its end."""
        return await asyncio.wrap_future(self._client.prefetch(tokens, timeout_s=timeout_s))

    async def aclose(self) -> None:
        """See `Client.close`."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._client.close)

    def close(self) -> None:
        """See `Client.close`; for where no loop runs any more."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return repr(self._client).replace("<Client", "<AsyncClient", 1)

    async def _run(self, call: Callable[[], T]) -> T:
        self._client._check_open()
        try:
            future: Future[T] = self._executor.submit(call)
        except RuntimeError:
            raise ClosedError("the cache is closed") from None
        ours = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(ours)
        except asyncio.CancelledError:
            # Its buffers are in use until it is over; what it brought nobody takes.
            future.cancel()
            while not ours.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([ours])
            if not ours.cancelled():
                ours.exception()
            raise
