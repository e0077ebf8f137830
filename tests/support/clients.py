"""The three clients behind one blocking interface, so that one test speaks for all of them.

@pytest.mark.parametrize("kind", KINDS)
def test_...(kind, valkey):
    with opened(kind, valkey) as client:
        client.batch_get(keys, buffers)     # whatever it is

A cluster or a group of Sentinels is a target, too: its ``settings`` say how to be reached.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvferry import AsyncCacheNamespace, AsyncRedisClient, RedisClient
from kvferry.client.pure import PureRedisClient

NATIVE = ("native", "asyncio")
KINDS = (*NATIVE, "pure")


class Awaited:
    """An asyncio client or namespace, each of whose coroutines is run to its end."""

    def __init__(self, subject: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._subject = subject
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._subject, name)
        if not callable(member):
            return member

        def call(*args: Any, **options: Any) -> Any:
            result = member(*args, **options)
            if inspect.iscoroutine(result):
                return self._loop.run_until_complete(result)
            if isinstance(result, AsyncCacheNamespace):
                return Awaited(result, self._loop)
            return result

        return call


@contextmanager
def opened(kind: str, target: Any, **settings: Any) -> Iterator[Any]:
    """A client of that kind, of a server, proxy, cluster...; closed at the end of the block."""
    settings = getattr(target, "settings", {}) | settings
    if kind == "native":
        with RedisClient(target.host, target.port, **settings) as blocking:
            yield blocking
    elif kind == "pure":
        with PureRedisClient(target.host, target.port, **settings) as pure:
            yield pure
    else:
        loop = asyncio.new_event_loop()
        try:
            client = AsyncRedisClient(target.host, target.port, **settings)
            try:
                yield Awaited(client, loop)
            finally:
                loop.run_until_complete(client.aclose())
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
