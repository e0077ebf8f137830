"""The full L2 adapter for LMCache's MP server (``"type": "plugin"``), over our client.

Against LMCache's own bridge for native clients, which `KvferryClient` is made for, it adds:

- Each key's fate in a store: what was stored is counted although another key of the task did not.
- A lookup refreshes what it finds (TOUCH), so that a server with ``allkeys-lru`` does not evict it
  before it is loaded. `delete` leaves alone what is locked between lookup and load.
- What a lookup or delete finds gone is taken out of the accounts.
- Health is the server's, not that of a thread. With ``server_usage`` so is the usage: what all who
  share the server hold, and its ``maxmemory`` where ``max_capacity_gb`` is not given.
- `close` completes what is in flight, as failed, and may be called twice.

Threads: LMCache calls from several; one thread of ours routes completions. Submits never block.
`delete` waits for its answer, within the limit of a question, and `get_usage` within a second.
Lifetime: objects are LMCache's, which has to leave them alone until their task is complete.
Failure: an unreachable server makes stores fail and everything else a miss, within the deadline.
A forked child is refused: it makes an adapter of its own.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from kvferry.base.errors import ConfigError, KVFerryError
from kvferry.base.threads import Guarded, noticed
from kvferry.client.batch import Status, Verb
from kvferry.client.commands import information, primaries, sparing
from kvferry.client.sync import RedisClient
from kvferry.config import ClientConfig
from kvferry.config.integrations import LmcacheSettings
from kvferry.integrations.lmcache.batches import BatchClosedError, Batches, LmcacheBatch

__all__ = ["KvferryL2Adapter", "key_text"]

_log = logging.getLogger("kvferry.integrations.lmcache")

SIZES_MAX = 4_000_000  # keys in the accounts
_GIB = 1 << 30
_USAGE_TIMEOUT_S = 1.0  # of INFO, for each server
_USAGE_AGE_S = 1.0  # how long an answer counts before INFO is asked again
_GRACE_S = 1.0  # how much later than its limit a delete looks for its end


def key_text(key: Any) -> str:
    """An ``ObjectKey`` as LMCache's MP server writes it: model, rank, group, hash, and salt."""
    group = getattr(key, "object_group_id", 0)
    text = f"{key.model_name}@{key.kv_rank:08x}@{group:x}@{key.chunk_hash.hex()}"
    return f"{text}@{key.cache_salt}" if getattr(key, "cache_salt", "") else text


class KvferryL2Adapter(L2AdapterInterface):  # type: ignore[misc]  # LMCache is not there for mypy
    """See the head of this module.

    Args:
        params: ``adapter_params``: those of `LmcacheSettings`, and ``max_capacity_gb`` (default: no
            eviction by LMCache) and ``server_usage`` (default false).
        **_: What else LMCache hands over.

    Raises:
        ConfigError: A key is unknown or its value cannot be right.
    """

    def __init__(self, params: Mapping[str, Any], **_: Any) -> None:
        own = dict(params)
        capacity_bytes = _capacity_bytes(own.pop("max_capacity_gb", 0))
        server_usage = own.pop("server_usage", False)
        if not isinstance(server_usage, bool):
            raise ConfigError(f"adapter_params: server_usage={server_usage!r} is no true or false")
        self._batches = Batches(LmcacheSettings.read(own))
        config = self._batches.settings.client
        self._server = _ServerUsage(config) if server_usage else None
        if self._server and not capacity_bytes:
            capacity_bytes = self._server.capacity_bytes()
        super().__init__(max_capacity_bytes=capacity_bytes)
        self._lock = threading.Lock()  # also held while a task is handed over
        self._tasks: dict[int, tuple[list[Any], list[int]]] = {}  # by batch: keys, sizes
        self._stored: dict[int, Any] = {}
        self._found: dict[int, Any] = {}
        self._loaded: dict[int, Any] = {}
        self._deleted: dict[int, threading.Event] = {}
        self._locks: dict[Any, int] = {}
        self._sizes: OrderedDict[Any, int] = OrderedDict()  # the oldest first
        self._events = {verb: create_event_notifier() for verb in (Verb.SET, Verb.TOUCH, Verb.GET)}
        self._pid = os.getpid()
        self._ended = False
        self._stop = create_event_notifier()
        self._router = Guarded(self._route, "l2")
        self._router.start()
        _log.info("LMCache's objects go to %s", config.address)

    def get_store_event_fd(self) -> int:
        """Readable when a store is complete.

        Raises:
            BatchClosedError: In a forked child, where nobody would signal it (also of the others).
        """
        return self._event_fd(Verb.SET)

    def get_lookup_and_lock_event_fd(self) -> int:
        """Readable when a lookup is complete."""
        return self._event_fd(Verb.TOUCH)

    def get_load_event_fd(self) -> int:
        """Readable when a load is complete."""
        return self._event_fd(Verb.GET)

    def _event_fd(self, verb: Verb) -> int:
        self._check_process()
        return int(self._events[verb].fileno())

    def _check_process(self) -> None:
        if os.getpid() != self._pid:  # its thread is in the process that forked
            raise BatchClosedError("the adapter belongs to the process that forked; make another")

    # --- Tasks ---

    def submit_store_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """Start to store the objects."""
        return self._submit(Verb.SET, keys, [each.byte_array for each in objects])

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        """An ``L2StoreResult`` for each store that is complete; a success if all its keys are."""
        with self._lock:
            done, self._stored = self._stored, {}
            return done

    def submit_lookup_and_lock_task(
        self, keys: Sequence[Any], group_layout_descs: Any = None
    ) -> int:
        """Start to ask which keys are there, and to lock those that are."""
        return self._submit(Verb.TOUCH, keys)

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        """A ``Bitmap`` once, then and before None."""
        with self._lock:
            return self._found.pop(task_id, None)

    def submit_unlock(self, keys: Sequence[Any]) -> None:
        """Take back one lock of each key."""
        with self._lock:
            for key in keys:
                left = self._locks.pop(key, 0) - 1
                if left > 0:
                    self._locks[key] = left

    def submit_load_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """Start to read into the objects."""
        return self._submit(Verb.GET, keys, [each.byte_array for each in objects])

    def query_load_result(self, task_id: int) -> Any:
        """A ``Bitmap`` once, then and before None."""
        with self._lock:
            return self._loaded.pop(task_id, None)

    def _submit(self, verb: Verb, keys: Sequence[Any], buffers: Any = None) -> int:
        self._check_process()
        sizes = [memoryview(each).nbytes for each in buffers or ()]
        names = [key_text(key) for key in keys]
        with self._lock:
            task_id = self._batches.submit(verb, names, buffers)
            self._tasks[task_id] = list(keys), sizes
            return task_id

    # --- Eviction ---

    def delete(self, keys: Sequence[Any]) -> None:
        """Delete what is not locked; returns when that is done, or was not answered in time."""
        with self._lock:
            keys = [key for key in keys if key not in self._locks]
        if not keys:
            return
        done = threading.Event()
        with self._lock:
            try:
                task_id = self._batches.submit(Verb.DELETE, [key_text(key) for key in keys])
            except BatchClosedError:
                return
            self._tasks[task_id] = list(keys), []
            self._deleted[task_id] = done
        if not done.wait(self._batches.settings.lookup_s + _GRACE_S):
            _log.warning("%d keys were not deleted in time", len(keys))

    def get_usage(self) -> Any:
        """What is held, by our own accounts or by the server's; see the head of this module."""
        usage = super().get_usage()
        used = self._server.used_bytes() if self._server else None
        if used is None:
            return usage
        return AdapterUsage(used, usage.total_capacity_bytes, usage.bytes_by_cache_salt)

    def report_status(self) -> dict[str, Any]:
        """Whether the server can be reached, and the client's counters."""
        status: dict[str, Any] = {"type": "kvferry", "is_healthy": False}
        if not self._ended:
            client = self._batches.client
            status.update(client.stats(), address=client.config.address)
            status["is_healthy"] = client.available and self._router.is_alive()
        return status

    # --- Completions ---

    def _route(self) -> None:
        poller = select.poll()
        poller.register(self._batches.event_fd(), select.POLLIN)
        poller.register(self._stop.fileno(), select.POLLIN)
        while not self._ended:
            poller.poll()
            try:
                self._complete(self._batches.drain())
            except KVFerryError as error:  # the process was forked
                _log.debug("completions cannot be had: %s", error)
                return

    def _complete(self, finished: Sequence[LmcacheBatch]) -> None:
        """LMCache's listeners are told without our lock, and those who wait after them."""
        told: list[Callable[[], None]] = []
        afterwards: list[Callable[[], None]] = []
        with self._lock:
            for each in finished:
                keys, sizes = self._tasks.pop(each.batch_id)
                try:
                    told += self._complete_one(each, keys, sizes)
                except Exception as error:  # LMCache's: the task is completed as failed
                    noticed("l2", error)
                    self._give_up(each)
                if each.verb in self._events:
                    afterwards.append(self._events[each.verb].notify)
                else:
                    afterwards.append(self._deleted.pop(each.batch_id).set)
                if each.reason and each.verb in (Verb.SET, Verb.GET):
                    _log.debug("%s: %s", each.verb.name, each.reason)
        for call in (*told, *afterwards):
            try:
                call()
            except Exception as error:  # a listener's: the others are told all the same
                noticed("l2", error)

    def _give_up(self, each: LmcacheBatch) -> None:
        if each.verb is Verb.SET:
            self._stored.setdefault(each.batch_id, L2StoreResult(False, 0))
        elif each.verb is Verb.GET:
            self._loaded.setdefault(each.batch_id, Bitmap(len(each.statuses)))
        elif each.verb is Verb.TOUCH:
            self._found.setdefault(each.batch_id, Bitmap(len(each.statuses)))

    def _complete_one(self, each: LmcacheBatch, keys: list[Any], sizes: list[int]) -> list[Any]:
        ok = [key for key, status in zip(keys, each.statuses, strict=True) if status == Status.OK]
        if each.verb is Verb.SET:
            return self._complete_store(each, keys, sizes)
        if each.verb is Verb.GET:
            self._loaded[each.batch_id] = _bitmap(each.statuses)
            return [lambda: self._notify_keys_accessed(ok)] if ok else []
        gone = [key for key, s in zip(keys, each.statuses, strict=True) if s == Status.MISS]
        if each.verb is Verb.DELETE:
            gone += ok
        else:
            self._found[each.batch_id] = _bitmap(each.statuses)
            for key in ok:
                self._locks[key] = self._locks.get(key, 0) + 1
        counted = [key for key in dict.fromkeys(gone) if key in self._sizes]
        freed = [self._sizes.pop(key) for key in counted]
        return [lambda: self._notify_keys_deleted(counted, freed)] if counted else []

    def _complete_store(self, each: LmcacheBatch, keys: list[Any], sizes: list[int]) -> list[Any]:
        stored: list[Any] = []
        added: list[int] = []
        for key, size, status in zip(keys, sizes, each.statuses, strict=True):
            if status == Status.OK:
                stored.append(key)
                added.append(0 if key in self._sizes else size)
                if len(self._sizes) >= SIZES_MAX and key not in self._sizes:
                    self._sizes.popitem(last=False)
                self._sizes[key] = size
        self._stored[each.batch_id] = L2StoreResult(len(stored) == len(keys), sum(added))
        return [lambda: self._notify_keys_stored(stored, added)] if stored else []

    # --- Life ---

    def close(self) -> None:
        """Withdraw what is in flight, complete it, and end all threads."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self._batches.close()
        self._stop.notify()
        self._router.join()
        self._complete(self._batches.drain())
        if self._server:
            self._server.close()
        for event in (*self._events.values(), self._stop):
            event.close()


class _ServerUsage:
    """What the servers hold and may hold, as they say themselves: the sum over all primaries.

    Any thread; a call waits `_USAGE_TIMEOUT_S` at most for each server."""

    def __init__(self, config: ClientConfig) -> None:
        self._client = RedisClient.from_config(sparing(config))
        self._lock = threading.Lock()
        self._asked = float("-inf")
        self._used: int | None = None
        self._capacity = 0

    def used_bytes(self) -> int | None:
        """Bytes of data; None: they do not say."""
        self._refresh()
        return self._used

    def capacity_bytes(self) -> int:
        """Their ``maxmemory`` together; 0: they have none, or do not say."""
        self._refresh()
        return self._capacity

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def _refresh(self) -> None:
        with self._lock:
            if time.monotonic() - self._asked < _USAGE_AGE_S:
                return
            try:
                told = [self._memory_of(name) for name in primaries(self._client, _USAGE_TIMEOUT_S)]
            except KVFerryError:
                self._used = None
            else:
                self._used = sum(used for used, _ in told)
                limits = [limit for _, limit in told]
                self._capacity = sum(limits) if all(limits) else 0
            self._asked = time.monotonic()

    def _memory_of(self, node: str) -> tuple[int, int]:
        told = information(self._client, "memory", node=node, timeout_s=_USAGE_TIMEOUT_S)
        used = told.get("used_memory_dataset") or told.get("used_memory", "0")
        return int(used), int(told.get("maxmemory", "0"))


def _bitmap(statuses: Sequence[int]) -> Any:
    bitmap = Bitmap(len(statuses))
    for index, status in enumerate(statuses):
        if status == Status.OK:
            bitmap.set(index)
    return bitmap


def _capacity_bytes(capacity_gb: object) -> int:
    number = isinstance(capacity_gb, int | float) and not isinstance(capacity_gb, bool)
    if not number or not 0 <= float(capacity_gb) < 1e12:  # type: ignore[arg-type]
        raise ConfigError(f"adapter_params: max_capacity_gb={capacity_gb!r} is no number of GiB")
    return int(float(capacity_gb) * _GIB)  # type: ignore[arg-type]
