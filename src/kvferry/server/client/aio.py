"""The client of the cache server for asyncio: the calls of `Client`, awaited.

    async with AsyncClient(identity, "ipc:///run/kvferry.sock") as client:
        hit = await client.retrieve(tokens, buffers)

Each call runs in a thread of the client, so that copying does not hold up the loop. Who cancels an
await waits until its call is over, which is soon: only then are the buffers free again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self, TypeVar

from kvferry.cache import Lookup, Retrieved, Stored
from kvferry.cache.explain import Explanation
from kvferry.cache.prompt import Tokens
from kvferry.chunks.identity import Identity
from kvferry.client.buffers import BufferLike
from kvferry.errors import ClosedError
from kvferry.server.client.sync import Client

__all__ = ["AsyncClient"]

T = TypeVar("T")

_THREADS = 16


class AsyncClient:
    """`Client` for asyncio: the same arguments, results and errors.

    It may be used by any loop. Making one waits for the server for half a second at most; to keep
    the loop free meanwhile, use `open`.
    """

    def __init__(self, identity: Identity, url: str | None = None, **settings: Any) -> None:
        self._client = Client(identity, url, **settings)
        self._executor = ThreadPoolExecutor(_THREADS, "kvferry-aclient")

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

    async def wait(self, timeout_s: float) -> bool:
        """See `Client.wait`."""
        return await self._run(self._client.wait, timeout_s)

    async def lookup(self, tokens: Tokens, *, timeout_s: float | None = None) -> Lookup:
        """See `Client.lookup`."""
        return await self._run(self._client.lookup, tokens, timeout_s=timeout_s)

    async def contains(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        """See `Client.contains`."""
        return await self._run(self._client.contains, tokens, timeout_s=timeout_s)

    async def explain(self, tokens: Tokens, *, timeout_s: float = 5.0) -> Explanation:
        """See `Client.explain`."""
        return await self._run(self._client.explain, tokens, timeout_s=timeout_s)

    async def retrieve(
        self,
        tokens: Tokens,
        into: Sequence[BufferLike] | None = None,
        *,
        limit_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Retrieved:
        """See `Client.retrieve`. The `release` of its result asks the server: `arelease` awaits."""
        return await self._run(
            self._client.retrieve,
            tokens,
            into,
            limit_tokens=limit_tokens,
            timeout_s=timeout_s,
        )

    async def arelease(self, result: Retrieved) -> bool:
        """`Retrieved.release` in a thread."""
        return await self._run(result.release)

    async def prefetch(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        """See `Client.prefetch`; awaited to its end."""
        return await asyncio.wrap_future(self._client.prefetch(tokens, timeout_s=timeout_s))

    async def store(
        self, tokens: Tokens, chunks: Sequence[BufferLike], *, first_chunk: int = 0
    ) -> Stored:
        """See `Client.store`."""
        return await self._run(self._client.store, tokens, chunks, first_chunk=first_chunk)

    async def pin(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        """See `Client.pin`."""
        return await self._run(self._client.pin, tokens, timeout_s=timeout_s)

    async def unpin(self, tokens: Tokens) -> int:
        """See `Client.unpin`."""
        return await self._run(self._client.unpin, tokens)

    async def clear(
        self,
        *,
        stores: bool = True,
        everybody: bool = False,
        weights_version: str | None = None,
    ) -> int:
        """See `Client.clear`."""
        said = {"stores": stores, "everybody": everybody, "weights_version": weights_version}
        return await self._run(self._client.clear, **said)

    async def observe_prefill(self, tokens: int, cached_tokens: int, took_s: float) -> None:
        """See `Client.observe_prefill`."""
        await self._run(self._client.observe_prefill, tokens, cached_tokens, took_s)

    async def stats(self) -> dict[str, Any]:
        """See `Client.stats`."""
        return await self._run(self._client.stats)

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

    async def _run(self, call: Callable[..., T], *args: Any, **settings: Any) -> T:
        self._client._check_open()
        try:
            future: Future[T] = self._executor.submit(lambda: call(*args, **settings))
        except RuntimeError:
            raise ClosedError("the client is closed") from None
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
