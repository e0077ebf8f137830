"""The three clients behind one blocking interface, so that one test speaks for all of them.

@pytest.mark.parametrize("kind", KINDS)
def test_...(kind, valkey):
    with opened(kind, valkey) as client:
        client.batch_get(keys, buffers)     # whatever it is

A cluster or a group of Sentinels is a target, too: its ``settings`` say how to be reached.
`tls_port_of(server)` is one for a server with TLS.
"""

from __future__ import annotations

import asyncio
import inspect
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from kvferry import AsyncCacheNamespace, AsyncRedisClient, ClientConfig, RedisClient
from kvferry.client.batch import BatchResult, Status
from kvferry.client.pure.client import PureRedisClient
from support import clock
from support.servers import TestServer
from support.stamps import until
from support.tuned import tuned

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


def tls_port_of(server: TestServer, way: Any = None, **settings: Any) -> SimpleNamespace:
    """A target: the TLS port of a server, or `way`, a proxy before it. It lets the client in,
    unless the settings prevent that."""
    assert server.tls is not None
    host, port = (way.host, way.port) if way else (server.host, server.tls_port)
    return SimpleNamespace(host=host, port=port, settings=server.tls.client_settings | settings)


@contextmanager
def opened(kind: str, target: Any, **settings: Any) -> Iterator[Any]:
    """A client of that kind, of a server, proxy, cluster...; closed at the end of the block."""
    settings = tuned(ClientConfig, **(getattr(target, "settings", {}) | settings))
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


def completions(client: Any, count: int, limit_s: float = 10.0) -> dict[int, BatchResult]:
    """The next so many batches of the raw interface; fails if they do not come in time."""
    completed: dict[int, BatchResult] = {}

    def all_there() -> bool:
        completed.update(client.drain_completions())
        return len(completed) >= count

    until(all_there, limit_s)
    return completed


def no_takes_s(client: Any, keys: list[str], size_bytes: int = 1 << 20) -> float:
    """How long a caller waits for UNAVAILABLE while the breaker is open: the median of many calls,
    for the machine may be busy with other things."""
    targets = [bytearray(size_bytes) for _ in keys]
    taken_s = []
    for _ in range(31):
        started = clock.now_s()
        result = client.batch_get(keys, targets)
        taken_s.append(clock.now_s() - started)
        assert result.count(Status.UNAVAILABLE) == len(keys), result.error
    return statistics.median(taken_s)
