"""LMCache's in-process remote connector over our asyncio client, and the plug-in that makes it.

    remote_storage_plugins: ["kvferry"]
    extra_config:
      remote_storage_plugin.kvferry.module_path: kvferry.integrations.lmcache
      remote_storage_plugin.kvferry.class_name: KvferryAdapter
      remote_storage_plugin.kvferry.url: redis://cache-1:6379

Any name will do that is not one of LMCache's own (its "redis" takes all names that begin so). In
place of the prefix of one plug-in there may be ``kvferry.``, which is for all of ours; or host and
port stand in the URL of ``external://host:port/kvferry.integrations.lmcache/?...``. The settings
are those of `LmcacheSettings`.

LMCache makes a connector for each worker and calls it from two sides: coroutines on its event loop,
and the methods that end in ``_sync`` and ``batched_contains`` from the engine's threads. The latter
go to the native client straight away, so neither side waits for the other.

A value is the bytes of a `MemoryObj`, under LMCache's own key; its RESP connector writes the same.
A shorter last chunk (``save_unfull_chunk``) is read at the length that the server tells.

Whose memory: objects for reading are allocated here and are LMCache's when a coroutine returns
them. When one ends otherwise, by an error, a miss or because LMCache gave up waiting, they are
released here, after the native client has let go of them. Objects for writing are held likewise:
LMCache counts them down when the coroutine ends, which it does not before that.

Failure: reads and questions never raise for what a store does; they miss. A put raises, because
LMCache counts and logs what it was told. Nothing waits longer than its deadline.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from lmcache.v1.storage_backend.connector import ConnectorAdapter
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from kvferry.base.errors import ConfigError, KVFerryError, UsageError
from kvferry.client.aio import AsyncRedisClient
from kvferry.client.batch import BatchResult, Operation, Status, Verb
from kvferry.client.buffers import Key
from kvferry.client.commands import key_pages, primaries
from kvferry.config.integrations import LmcacheSettings
from kvferry.integrations.lmcache.names import ChunkNames

__all__ = ["KvferryAdapter", "KvferryConnector", "engine_settings"]

Objects = list[Any]  # LMCache's, or None; `list` is the name of a method here
Texts = list[str]

_log = logging.getLogger("kvferry.integrations.lmcache")
_PING_FAILED = 1  # LMCache: 0 means success
_SCHEME = "plugin://"
_OURS = "kvferry."
_LOADING = ("module_path", "class_name")  # LMCache's own keys of a plug-in
_KEYS_MAX = 1_000_000  # of a listing
_SCAN_TIMEOUT_S = 1.0  # of one page of SCAN
_GLOB = re.compile(r"([*?\[\]\\^-])")


class KvferryAdapter(ConnectorAdapter):  # type: ignore[misc]  # LMCache is not there for mypy
    """Makes a `KvferryConnector` for the plug-in that names this class."""

    def __init__(self) -> None:
        super().__init__(_SCHEME)

    def can_parse(self, url: str) -> bool:
        """LMCache asks its own adapters first, so every plug-in that is left may be ours."""
        return url.startswith(_SCHEME)

    def create_connector(self, context: Any) -> KvferryConnector:
        """The connector for LMCache's ``ConnectorContext``.

        Raises:
            ConfigError, UsageError: See `engine_settings`.
        """
        name = context.plugin_name or context.url.removeprefix(_SCHEME)
        backend = context.local_cpu_backend
        return KvferryConnector(
            context.loop,
            backend,
            context.config,
            metadata=context.metadata or getattr(backend, "metadata", None),
            settings=engine_settings(context.config, name),
        )


class KvferryConnector(RemoteConnector):  # type: ignore[misc]  # LMCache is not there for mypy
    """See the head of this module.

    Args:
        loop: LMCache's event loop; the coroutines run there.
        local_cpu_backend: Allocates the objects that are read.
        config: LMCache's; where the store is and how, see `engine_settings`.
        metadata: LMCache's; default: that of the backend. Without any, as in a scheduler, the
            length of a chunk is not known: the connector can tell what is there, and not read it.
        settings: In place of those in `config`.

    Raises:
        ConfigError, UsageError: See `engine_settings`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        local_cpu_backend: Any,
        config: Any = None,
        *,
        metadata: Any = None,
        settings: LmcacheSettings | None = None,
    ) -> None:
        config = config if config is not None else getattr(local_cpu_backend, "config", None)
        self._settings = settings or engine_settings(config)
        metadata = metadata or getattr(local_cpu_backend, "metadata", None)
        self.full_chunk_size_bytes = 0
        if metadata is not None:
            super().__init__(config, metadata)
        self.loop = loop
        self.local_cpu_backend = local_cpu_backend
        self._names = ChunkNames(self._settings)
        self._client = AsyncRedisClient.from_config(self._settings.client)
        self._client._watch(self._settings.client, self._names.prefix)
        _log.info("LMCache's chunks of %d bytes go to %s", self.full_chunk_size_bytes, self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._settings.client.address}>"

    # --- What is there: engine threads, and the loop ---

    def exists_sync(self, key: Any) -> bool:
        """Whether the key is there; False too if nobody says so in time."""
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        """Yes, and so with everything that LMCache asks for."""
        return True

    support_batched_async_contains = support_batched_contains
    support_batched_get = support_batched_get_non_blocking = support_batched_contains
    support_batched_put = support_ping = support_batched_contains

    def batched_contains(self, keys: Sequence[Any]) -> int:
        """How many leading keys are there."""
        if not keys:
            return 0
        names = self._names.of([key.to_string() for key in keys])
        try:
            if not (names := names[: self._client._leading(names)]):
                return 0
            asked = Operation(Verb.EXISTS, names, prefix=True, timeout_s=self._settings.lookup_s)
            return self._client._run(asked).prefix_len
        except KVFerryError as error:  # it is closed
            _log.debug("a lookup was not made: %s", error)
            return 0

    async def exists(self, key: Any) -> bool:
        """See `exists_sync`."""
        return await self.batched_async_contains("", [key]) == 1

    async def batched_async_contains(
        self, lookup_id: str, keys: Sequence[Any], pin: bool = False
    ) -> int:
        """See `batched_contains`. Nothing can be pinned in a store."""
        if not keys:
            return 0
        names = self._names.of([key.to_string() for key in keys])
        if not (names := names[: self._client._leading(names)]):
            return 0
        result = await self._client.batch_exists(
            names, prefix=True, timeout_s=self._settings.lookup_s
        )
        return result.prefix_len

    def remove_sync(self, key: Any) -> bool:
        """Delete the value; whether it was there."""
        names = self._names.of([key.to_string()])
        if self._names.verify:
            names = self._names.to_delete(names)
        asked = Operation(Verb.DELETE, names, timeout_s=self._settings.lookup_s)
        return self._client._run(asked)[0] is Status.OK

    async def list(self) -> Texts:
        """The keys of the store, without our namespace.

        Raises:
            UnavailableError, DeadlineExceeded: The store does not say.
        """
        return await asyncio.to_thread(_keys_of, self._client, self._names)

    # --- Reading ---

    async def get(self, key: Any) -> Any:
        """The object of this key, or None."""
        return (await self._read([key]))[0]

    async def batched_get(self, keys: Sequence[Any]) -> Objects:
        """An object for each key, or None."""
        return await self._read(keys)

    async def batched_get_non_blocking(self, lookup_id: str, keys: Sequence[Any]) -> Objects:
        """The objects of the leading keys, up to the first that cannot be had."""
        objects = await self._read(keys, prefix=True)
        usable = next((i for i, each in enumerate(objects) if each is None), len(objects))
        _release(objects[usable:])
        return objects[:usable]

    async def _read(self, keys: Sequence[Any], prefix: bool = False) -> Objects:
        found: Objects = [None] * len(keys)
        objects = self._allocate(len(keys))
        if not objects:
            return found
        names = self._names.of([key.to_string() for key in keys[: len(objects)]])
        try:
            views = [_bytes_of(each) for each in objects]
            result = await self._transfer(Verb.GET, names, views, prefix=prefix)
            shorter = [i for i in range(len(objects)) if self._is_shorter(result, i)]
            for index in shorter:
                size = result.sizes[index]
                again = await self._transfer(Verb.GET, [names[index]], [views[index][:size]])
                if again.ok:
                    found[index] = self.reshape_partial_chunk(objects[index], size)
            for index, status in enumerate(result):
                if status is Status.OK:
                    found[index] = objects[index]
            return found
        except KVFerryError as error:  # it is closed
            _log.debug("%d chunks were not read: %s", len(keys), error)
            found = [None] * len(keys)
            return found
        except BaseException:
            found = [None] * len(keys)
            raise
        finally:
            _release([each for each, out in zip(objects, found, strict=False) if out is None])

    def _is_shorter(self, result: BatchResult, index: int) -> bool:
        size = result.sizes[index]
        short = 0 < size < self.full_chunk_size_bytes and size % self.single_token_size == 0
        return short and result[index] is Status.SIZE_MISMATCH

    def _allocate(self, count: int) -> Objects:
        """As many objects as there is memory for, at once: on this loop nobody could free any."""
        objects: Objects = []
        for _ in range(count if self.full_chunk_size_bytes else 0):
            each = self.local_cpu_backend.allocate(
                self.meta_shapes, self.meta_dtypes, self.meta_fmt, busy_loop=False
            )
            if each is None:
                _log.debug("LMCache has memory for %d of %d chunks", len(objects), count)
                break
            objects.append(each)
        return objects

    # --- Writing ---

    async def put(self, key: Any, memory_obj: Any) -> None:
        """Store the object.

        Raises:
            ServerError, UnavailableError, DeadlineExceeded: It is not stored.
        """
        await self.batched_put([key], [memory_obj])

    async def batched_put(self, keys: Sequence[Any], memory_objs: Sequence[Any]) -> None:
        """Store the objects. Raises as `put`, if one of them is not stored."""
        if not keys:
            return
        names = self._names.of([key.to_string() for key in keys])
        views = [_bytes_of(each) for each in memory_objs]
        (await self._transfer(Verb.SET, names, views)).raise_for_errors()

    async def _transfer(
        self, verb: Verb, names: Sequence[Key], views: Sequence[Any], prefix: bool = False
    ) -> BatchResult:
        """One batch, or one after the other for each length where values are framed."""
        if not self._names.verify:
            return await self._client.perform(Operation(verb, names, views, prefix))
        statuses, sizes = bytearray(len(names)), [0] * len(names)
        elapsed_s, error = 0.0, None
        for length in dict.fromkeys(view.nbytes for view in views):
            where = [i for i, view in enumerate(views) if view.nbytes == length]
            asked = Operation(
                verb,
                [names[i] for i in where],
                [views[i] for i in where],
                prefix,
                frame=self._names.frame(length),
            )
            part = await self._client.perform(asked)
            for place, index in enumerate(where):
                statuses[index], sizes[index] = part.statuses[place], part.sizes[place]
            elapsed_s, error = elapsed_s + part.elapsed_s, error or part.error
        return BatchResult(bytes(statuses), sizes, elapsed_s, error)

    # --- Life ---

    async def ping(self) -> int:
        """0 if the store answers."""
        try:
            await self._client.ping()
        except KVFerryError as error:
            _log.debug("the store does not answer: %s", error)
            return _PING_FAILED
        return 0

    def stats(self) -> dict[str, int | str]:
        """Counters of the client; see `kvferry.RedisClient.stats`."""
        return self._client.stats()

    async def close(self) -> None:
        """Withdraw what is in flight and end all threads; may be called twice."""
        await self._client.aclose()


def engine_settings(config: Any, plugin_name: str | None = None) -> LmcacheSettings:
    """Our settings in an ``LMCacheEngineConfig``.

    Args:
        config: Its ``extra_config`` and ``remote_url`` are read; None: there is nothing.
        plugin_name: As in ``remote_storage_plugins``; None: the form with the URL.

    Raises:
        ConfigError: A key is unknown or its value cannot be right.
        UsageError: LMCache is to do something else with the values than store them.
    """
    serde = getattr(config, "remote_serde", None)
    if serde not in (None, "naive"):
        raise UsageError(f"LMCache's remote_serde is {serde!r}, we take naive values; set it so")
    if getattr(config, "use_layerwise", False):
        raise UsageError(
            "use_layerwise stores layers, and our values are whole chunks; turn it off"
        )
    extra: Mapping[str, Any] = getattr(config, "extra_config", None) or {}
    params = _under(extra, _OURS)
    if plugin_name is not None:
        own = _under(extra, f"remote_storage_plugin.{plugin_name}.")
        params.update((name, value) for name, value in own.items() if name not in _LOADING)
    elif not {"url", "host", "unix_path"} & params.keys():
        params.update(_of_url(getattr(config, "remote_url", None) or ""))
    return LmcacheSettings.read(params, "extra_config")


def _under(extra: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key[len(prefix) :]: extra[key] for key in extra if key.startswith(prefix)}


def _of_url(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        named = {"host": parts.hostname, "port": parts.port}
    except ValueError:
        raise ConfigError("remote_url is malformed; it is external://host:port/...") from None
    if parts.scheme != "external":
        return {}
    named.update({"username": parts.username, "password": parts.password})
    return {k: unquote(v) if isinstance(v, str) else v for k, v in named.items() if v}


def _keys_of(client: AsyncRedisClient, names: ChunkNames) -> list[str]:
    """The keys of LMCache that a store holds, asked of its servers one page at a time.

    At most `_KEYS_MAX` of them, as LMCache named them. Without a namespace: all keys there are.

    Raises:
        UnavailableError, DeadlineExceeded: A server does not say.
    """
    pattern = (_GLOB.sub(r"\\\1", names.prefix) + "*").encode()
    found: list[str] = []
    for node in primaries(client, _SCAN_TIMEOUT_S):
        for page in key_pages(client, node, pattern, _SCAN_TIMEOUT_S):
            known = (names.key_of(key) for key in page)
            found += [key for key in known if key is not None]
            if len(found) >= _KEYS_MAX:
                return found[:_KEYS_MAX]
    return found


def _bytes_of(memory_obj: Any) -> memoryview:
    view = memory_obj.byte_array
    return view if isinstance(view, memoryview) else memoryview(view)


def _release(objects: Sequence[Any]) -> None:
    for each in objects:
        if each is not None:
            each.ref_count_down()
