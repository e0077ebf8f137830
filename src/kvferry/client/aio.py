"""The asyncio client: one descriptor in the loop, one wake-up for everything that is ready.

    async with kvferry.AsyncRedisClient(host="localhost") as client:
        result = await client.batch_get(keys, buffers)

Cancelling an await withdraws its batch; the await ends when nothing can touch the buffers any more,
so they may be used again at once.
"""

from __future__ import annotations

import asyncio
import time
from typing import Self

from kvferry.base.errors import ClosedError, UsageError
from kvferry.client.batch import BatchResult, Operation, Verb, only
from kvferry.client.commands import information
from kvferry.client.methods import AwaitedKeyMethods
from kvferry.client.namespace import AsyncCacheNamespace
from kvferry.client.native import PING_KEY, NativeClient
from kvferry.config import ClientConfig

__all__ = ["AsyncRedisClient"]


class AsyncRedisClient(NativeClient, AwaitedKeyMethods):
    """`RedisClient` for asyncio: the same arguments, results and errors, awaited.

    It belongs to the event loop that first uses it, and moves to another one when that has ended.
    """

    def _start(self, config: ClientConfig) -> None:
        super()._start(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched_fd = -1
        self._waiting: dict[int, asyncio.Future[BatchResult]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def perform(self, operation: Operation) -> BatchResult:
        """See `BatchMethods`."""
        self._attach()
        return await self._finished(self.announce(operation))

    async def ping(self) -> float:
        """See `RedisClient.ping`."""
        start = time.perf_counter()
        only(await self.perform(Operation(Verb.PING, [PING_KEY])))
        return time.perf_counter() - start

    async def server_info(self) -> dict[str, str]:
        """See `RedisClient.server_info`."""
        return await asyncio.to_thread(information, self)

    def namespace(self, prefix: str, identity: bytes, value_size_bytes: int) -> AsyncCacheNamespace:
        """See `RedisClient.namespace`."""
        return AsyncCacheNamespace(
            self, prefix=prefix, identity=identity, value_size_bytes=value_size_bytes
        )

    async def aclose(self) -> None:
        """Cancel what is in flight, resolve its awaits, end the I/O threads."""
        self.close()
        await asyncio.sleep(0)

    def close(self) -> None:
        """As `aclose`, for code that cannot await."""
        native = self._native
        super().close()
        if native is not None:
            self._resolve()
        self._detach()

    async def _finished(self, batch_id: int) -> BatchResult:
        assert self._loop is not None
        future: asyncio.Future[BatchResult] = self._loop.create_future()
        self._waiting[batch_id] = future
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self.cancel(batch_id)
            # The buffers are the batch's until it is finished, however often we are cancelled.
            while not future.done():
                try:
                    await asyncio.shield(future)
                except asyncio.CancelledError:
                    continue
            raise

    def _resolve(self) -> None:
        for batch_id, result in self.drain_completions():
            future = self._waiting.pop(batch_id, None)
            if future is not None and not future.done():
                future.set_result(result)

    def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise ClosedError("the client is closed")
        fd = self.event_fd()
        if loop is self._loop and fd == self._watched_fd:
            return
        if self._loop is not None and self._loop is not loop and not self._loop.is_closed():
            raise UsageError("the client belongs to another running event loop; make one per loop")
        self._detach()
        self._waiting.clear()
        loop.add_reader(fd, self._resolve)
        self._loop, self._watched_fd = loop, fd

    def _after_fork(self) -> None:
        # The loop is the parent's: to touch its poller here would change what the parent waits for.
        super()._after_fork()
        self._loop = None
        self._watched_fd = -1
        self._waiting = {}

    def _detach(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._watched_fd)
        self._loop = None
