"""Clients under test, behind one small interface: kvferry's own, redis-py, GLIDE and LMCache's.

A client that can fill the caller's buffers does; one that cannot keeps what it made (no copy is
charged to it), and get_batch() returns where the values are. Every call raises when a key was
not served; whether the bytes are right is checked by the caller.

Three are as the first notes on this subject had them; how many commands they have in flight is the
batch's affair: one, or all of them.

    single-pool   redis-py's asyncio client over one pool of connections
    multi-pool    several of them, each with a pool of its own; keys go to them in turn
    custom        the pure-Python client, which fills the caller's buffers: a thread a connection

Threads: one caller. A client with several connections runs its own threads.
"""

from __future__ import annotations

import asyncio
import importlib
import queue
import resource
import select
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from kvferry.base.errors import CorruptError, UnavailableError, UsageError
from kvferry.client.batch import BatchResult
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig

if TYPE_CHECKING:
    from kvferry_lab.bench.data import Value

__all__ = [
    "POOL_CONNECTIONS",
    "AsyncRedisPy",
    "BenchClient",
    "FerryClient",
    "GlideClient",
    "InProcess",
    "LMCacheClient",
    "NotInstalled",
    "NotMeasured",
    "PooledRedisPy",
    "ThreadedClient",
    "ZeroCopyClient",
    "load",
    "open_redis_py",
    "redis_arguments",
]
POOL_CONNECTIONS = 100  # of the pools together, as in the notes
_POOLS = 10
_TIMEOUT_MS = 60_000


class NotMeasured(UsageError):
    """A client that cannot be measured on a kind of server; the text says why."""

    code = "not_measured"


class NotInstalled(NotMeasured):
    """The client to be measured is not installed; the text says how to install it."""

    code = "not_installed"


class BenchClient(Protocol):
    """The interface of a client under test."""

    name: str
    connections: int
    counts_itself: bool  # on keys and bytes of its own, out of our sight
    wall_s: float | None  # its own account of the last batch; only where it counts itself

    def set_batch(self, keys: Sequence[str], values: Sequence[Value]) -> None: ...
    def get_batch(self, keys: Sequence[str], targets: Sequence[Value]) -> Sequence[Value | None]:
        """Read all keys; returns the values: `targets`, or objects of the client's own."""
        ...

    def exists_batch(self, keys: Sequence[str]) -> int:
        """The number of the keys that exist."""
        ...

    def cpu_s(self) -> float:
        """CPU time spent by the client so far, all threads."""
        ...

    def close(self) -> None: ...


class InProcess:
    """A client whose threads are ours."""

    counts_itself = False
    wall_s: float | None = None

    def cpu_s(self) -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime


class FerryClient(InProcess):
    """kvferry's own clients, native and pure, over their blocking batches."""

    def __init__(self, name: str, client: Any, connections: int) -> None:
        self.name = name
        self.client = client
        self.connections = connections

    def set_batch(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        _check(self.client.batch_set(keys, values))

    def get_batch(self, keys: Sequence[str], targets: Sequence[Value]) -> Sequence[Value]:
        _check(self.client.batch_get(keys, targets))
        return targets

    def exists_batch(self, keys: Sequence[str]) -> int:
        result: BatchResult = self.client.batch_exists(keys)
        result.raise_for_errors()
        return result.statuses.count(0)

    def close(self) -> None:
        self.client.close()


class _KeyByKey(InProcess):
    """A client over connections of others, which are asked for one key at a time."""

    def set_batch(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        self._each(lambda link, i: link.set(keys[i], values[i]), len(keys))

    def get_batch(self, keys: Sequence[str], targets: Sequence[Value]) -> Sequence[Value | None]:
        return self._each(lambda link, i: self._get(link, keys[i], targets[i]), len(keys))

    def exists_batch(self, keys: Sequence[str]) -> int:
        return sum(map(int, self._each(lambda link, i: self._exists(link, keys[i]), len(keys))))

    def _each(self, call: Callable[[Any, int], Any], count: int) -> list[Any]:
        """What a call returns for each index, with a connection that is free."""
        raise NotImplementedError

    def _get(self, link: Any, key: str, target: Value) -> Any:
        return link.get(key)

    def _exists(self, link: Any, key: str) -> Any:
        return link.exists(key)


class ThreadedClient(_KeyByKey):
    """N blocking connections, one thread each; a thread takes the next key when it is free."""

    def __init__(self, name: str, connect: Callable[[], Any], connections: int) -> None:
        self.name = name
        self.connections = connections
        self._links = [connect() for _ in range(connections)]
        self._pool = ThreadPoolExecutor(connections, thread_name_prefix="bench")

    def close(self) -> None:
        self._pool.shutdown()
        for link in self._links:
            link.close()

    def _each(self, call: Callable[[Any, int], Any], count: int) -> list[Any]:
        results: list[Any] = [None] * count
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(count):
            waiting.put(index)

        def work(link: Any) -> None:
            while True:
                try:
                    index = waiting.get_nowait()
                except queue.Empty:
                    return
                results[index] = call(link, index)

        if self.connections == 1:
            work(self._links[0])
        else:
            for _ in self._pool.map(work, self._links):
                pass
        return results


class AsyncRedisPy(_KeyByKey):
    """redis-py's asyncio client: N connections, one task each, on one event loop."""

    def __init__(self, config: ClientConfig, connections: int) -> None:
        redis = load("redis.asyncio", "redis")
        self.name = "redis-py-async"
        self.connections = connections
        self._runner = event_loop()
        self._links = [redis.Redis(**redis_arguments(config)) for _ in range(connections)]

    def close(self) -> None:
        async def end() -> None:
            for link in self._links:
                await link.aclose()

        self._runner.run(end())
        self._runner.close()

    def _each(self, call: Callable[[Any, int], Any], count: int) -> list[Any]:
        async def work(link: Any, indexes: Any, results: list[Any]) -> None:
            for index in indexes:
                results[index] = await call(link, index)

        async def everything() -> list[Any]:
            indexes = iter(range(count))  # shared: a task takes the next key when it is free
            results: list[Any] = [None] * count
            await asyncio.gather(*(work(link, indexes, results) for link in self._links))
            return results

        return self._runner.run(everything())


def _check(result: BatchResult) -> None:
    result.raise_for_errors()
    if not result.ok:
        raise CorruptError(f"not every key was served: {result!r}")


def event_loop() -> asyncio.Runner:
    """A loop of uvloop, where that is installed: it is the faster one for large values."""
    try:
        return asyncio.Runner(loop_factory=importlib.import_module("uvloop").new_event_loop)
    except ImportError:
        return asyncio.Runner()


def load(name: str, package: str) -> Any:
    """Import a module; where it is missing, say what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotInstalled(f"{name} cannot be loaded: pip install {package} ({error})") from error


def redis_arguments(config: ClientConfig) -> dict[str, Any]:
    """The keywords of redis.Redis() for one connection to one server.

    Raises:
        NotMeasured: redis-py cannot be told all of it.
    """
    where = {"unix_socket_path": config.unix_path} if config.unix_path else {}
    return {
        "host": config.host,
        "port": config.port,
        "db": config.db,
        "username": config.username,
        "password": config.password,
        "single_connection_client": True,
        **where,
        **(_redis_tls(config) if config.tls else {}),
    }


def open_redis_py(config: ClientConfig) -> Any:
    """A redis.Redis, or a redis.RedisCluster, which has a connection to each node."""
    redis = load("redis", "redis")
    arguments = redis_arguments(config)
    if config.topology != "cluster":
        return redis.Redis(**arguments)
    for standalone in ("db", "single_connection_client"):
        del arguments[standalone]
    return redis.RedisCluster(**arguments)


def _redis_tls(config: ClientConfig) -> dict[str, Any]:
    if config.tls_server_name is not None:
        raise NotMeasured("redis-py asks for the name of the host; drop tls_server_name")
    return {
        "ssl": True,
        "ssl_ca_certs": config.tls_ca_file,
        "ssl_certfile": config.tls_cert_file,
        "ssl_keyfile": config.tls_key_file,
        "ssl_cert_reqs": "none" if config.tls_verify == "none" else "required",
        "ssl_check_hostname": config.tls_verify == "full",
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
    }


class PooledRedisPy(AsyncRedisPy):
    """redis-py's asyncio client, all commands of a batch at once, over one pool or several."""

    def __init__(self, name: str, config: ClientConfig, connections: int) -> None:
        redis = load("redis.asyncio", "redis")
        pools = 1 if name == "single-pool" else min(_POOLS, connections)
        sizes = [len(range(pool, connections, pools)) for pool in range(pools)]
        arguments = redis_arguments(config)
        del arguments["single_connection_client"]
        self.name = name
        self.connections = connections
        self._runner = event_loop()
        self._links = [redis.Redis(**arguments, max_connections=size) for size in sizes]
        # A pool that has lent all of its connections raises; here commands wait for one.
        self._free = [asyncio.Semaphore(size) for size in sizes]

    def _each(self, call: Callable[[Any, int], Any], count: int) -> list[Any]:
        async def one(index: int) -> Any:
            pool = index % len(self._links)
            async with self._free[pool]:
                return await call(self._links[pool], index)

        async def everything() -> list[Any]:
            return await asyncio.gather(*map(one, range(count)))

        return self._runner.run(everything())


class ZeroCopyClient(ThreadedClient):
    """N pure-Python clients, a thread for each; GET fills the caller's buffer."""

    def __init__(self, config: ClientConfig, connections: int) -> None:
        super().__init__("custom", lambda: PureRedisClient.from_config(config), connections)

    def _get(self, link: Any, key: str, target: Value) -> Value | None:
        return target if link.get(key, target) else None


class GlideClient(ThreadedClient):
    """valkey-glide-sync: N clients, one thread each; GET fills the caller's buffer."""

    def __init__(self, config: ClientConfig, connections: int) -> None:
        glide = load("glide_sync", "valkey-glide-sync")
        if config.unix_path is not None:
            raise UsageError("glide speaks TCP only; give --host and --port")
        credentials = None
        if config.password is not None:
            credentials = glide.ServerCredentials(config.password, config.username)
        settings = glide.GlideClientConfiguration(
            [glide.NodeAddress(config.host, config.port)],
            credentials=credentials,
            database_id=config.db,
            request_timeout=_TIMEOUT_MS,
        )
        super().__init__("glide", lambda: glide.GlideClient.create(settings), connections)

    def _exists(self, link: Any, key: str) -> Any:
        return link.exists([key])

    def _get(self, link: Any, key: str, target: Value) -> Value | None:
        size = link.get(key, memoryview(target))
        return None if size is None else memoryview(target)[: int(size)]


class LMCacheClient(InProcess):
    """LMCache's native RESP client, as its own connector drives it: submit, wait, drain."""

    name = "lmcache"

    def __init__(self, config: ClientConfig, connections: int) -> None:
        module = load("lmcache.lmcache_redis", "lmcache")
        if config.unix_path is not None:
            raise UsageError("lmcache speaks TCP only; give --host and --port")
        self.connections = connections
        self._client = module.LMCacheRedisClient(
            config.host, config.port, connections, config.username or "", config.password or ""
        )
        self._event_fd = self._client.event_fd()

    def set_batch(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        self._wait(self._client.submit_batch_set(list(keys), list(values)))

    def get_batch(self, keys: Sequence[str], targets: Sequence[Value]) -> Sequence[Value | None]:
        found = self._wait(self._client.submit_batch_get(list(keys), list(targets)))
        return [target if hit else None for target, hit in zip(targets, found, strict=True)]

    def exists_batch(self, keys: Sequence[str]) -> int:
        return sum(self._wait(self._client.submit_batch_exists(list(keys))))

    def close(self) -> None:
        self._client.close()

    def _wait(self, wanted: int) -> list[bool]:
        while True:
            if not select.select([self._event_fd], [], [], _TIMEOUT_MS / 1e3)[0]:
                raise UnavailableError("lmcache's client did not complete a batch")
            for future_id, ok, error, found in self._client.drain_completions():
                if future_id == wanted:
                    if not ok:
                        raise UnavailableError(f"lmcache's client failed: {error}")
                    return found or []
