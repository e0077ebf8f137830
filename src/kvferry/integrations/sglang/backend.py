"""`KvferryHiCache`: the storage of HiCache on a Redis or Valkey server.

SGLang makes it by name (``--hicache-storage-backend dynamic``), registers its host pools, and then
asks from threads of its own: which pages are there (`batch_exists`), bring them (`batch_get_v1`),
keep them (`batch_set_v1`), and the same of several pools at once (``_v2``). Pages go straight
between the memory of the pools and the socket, in native batches.

- Only the constructor and the registration of the main pool raise, each with one sentence that
  names the key or the reason. After that nothing here does: a fault is a page that is not there,
  and every call ends within a stated time.
- What is loaded is what was stored for this page under this identity (`identity.py`), or it is a
  miss. What is damaged is deleted, and stored again by whoever computes it.
- The memory of a page is the pool's; we use it during a call alone.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sglang.srt.mem_cache import hicache_storage
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from kvferry.base.errors import ConfigError
from kvferry.client.sync import RedisClient
from kvferry.config.integrations import SglangSettings
from kvferry.integrations.sglang.ambiguity import check_server
from kvferry.integrations.sglang.hits import PoolNeed, restorable_prefixes
from kvferry.integrations.sglang.host_pool import HostPages, HostPool
from kvferry.integrations.sglang.identity import (
    has_draft,
    heads_of,
    is_replicated,
    model_path,
    page_fields,
    server_fields,
)
from kvferry.integrations.sglang.page_store import PageStore

__all__ = ["KvferryHiCache"]

_log = logging.getLogger("kvferry.integrations.sglang")
_WARN_EVERY_S = 60.0  # for each kind of call
_KV = "kv"
# What versions of SGLang have in different places is found by looking, never by their numbers.
_SERVER_ARGS = (
    ("sglang.srt.runtime_context", "get_server_args"),
    ("sglang.srt.server_args", "get_global_server_args"),
    ("sglang.srt.server_args", "get_server_args"),
)
_METRICS = ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector")

T = TypeVar("T")


class KvferryHiCache(HiCacheStorage):  # type: ignore[misc]  # SGLang is not there for mypy
    """See the head of this module.

    Args:
        storage_config: SGLang's; its `extra_config` has our settings (`SglangSettings`).
        kwargs: What SGLang hands to every dynamic backend; not used.

    Raises:
        ConfigError: A key of the extra config is unknown, or its value cannot be; or the server is
            one on which a hash stands for two contents (`ambiguity.py`).
    """

    def __init__(self, storage_config: Any, kwargs: dict[str, Any] | None = None) -> None:
        self.storage_config = storage_config
        self.settings = SglangSettings.read(storage_config.extra_config)
        name = storage_config.model_name or ""
        if not (name or self.settings.revision or self.settings.model_path):
            raise ConfigError('the server names no model; set "model_path" or "revision"')
        server = _server_args()
        check_server(server, str(model_path(server, self.settings, name)))
        self._server = server_fields(server, self.settings, name)
        client = self.settings.client
        named = client.tuning.replace(client_name="kvferry-sglang")
        client = client.replace(tuning=named)
        self.client = RedisClient.from_config(client)
        self._pools: dict[str, HostPool] = {}
        self._warned: dict[str, float] = {}
        self._warn_lock = threading.Lock()

    # --- Pools ---

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take the main pool; its pages are what the calls without a pool mean.

        Raises:
            ConfigError: Its pages cannot be kept.
        """
        self.mem_pool_host = mem_pool_host
        self._pools[_KV] = pool = self._register(mem_pool_host, _KV)
        _log.info(
            "HiCache keeps pages of %d tokens, %d parts and %d bytes at %s%s, identity %s",
            pool.host_pages.page_size,
            len(pool.host_pages.parts),
            pool.host_pages.page_bytes,
            self.client.config.address,
            "" if self.client.available else " (not reachable yet)",
            ", ".join(pool.store.identities) if pool.store else "none",
        )

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Take one of several pools; of one whose pages cannot be kept, none is ever found."""
        name = _name_of(host_pool_name)
        if not hasattr(self, "registered_pools"):
            self.registered_pools: dict[Any, Any] = {}
        self.registered_pools[host_pool_name] = host_pool
        main = self._pools.get(name)
        if name == _KV and main is not None and main.host_pages.pool is host_pool:
            return
        try:
            self._pools[name] = self._register(host_pool, name)
        except Exception as error:
            _log.warning("the pool %s is not kept: %s", name, error)

    def _register(self, pool: Any, name: str) -> HostPool:
        import torch

        config = self.storage_config
        split, first_group = heads_of(pool, config)
        page_size = int(getattr(pool, "page_size", 1) or 1)
        first_page = torch.zeros(page_size, dtype=torch.int64)
        host_pages = HostPages(pool, first_page, split, first_group)
        if name in self._pools:
            self._pools[name].close()
        if not host_pages.parts:
            return HostPool(host_pages, None, writes=True)
        fields = {**self._server, **page_fields(pool, name, config)}
        if not has_draft(pool, name):
            fields.pop("draft", None)
        store = PageStore(self.client, fields, host_pages.parts, self.settings)
        writer = bool(getattr(config, "is_storage_writer", True))
        return HostPool(host_pages, store, writes=writer or not is_replicated(pool, name, config))

    # --- Pages of the main pool ---

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many leading pages are there: one batch, whatever the number."""
        return self._of_pool(_KV, "batch_exists", 0, lambda pool: pool.leading(keys))

    def batch_get_v1(
        self, keys: Sequence[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Read pages into the pool; for each page whether it is there now."""
        return self._move(_KV, keys, host_indices, HostPool.get)

    def batch_set_v1(
        self, keys: Sequence[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Keep pages of the pool; for each page whether the server has it now."""
        return self._move(_KV, keys, host_indices, HostPool.set)

    # --- Several pools ---

    def batch_exists_v2(
        self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> Any:
        """How long a prefix all pools can restore together; see `hits.py`."""
        try:
            kv_pages = self.batch_exists(keys, extra_info)
            asked = (pool_transfers or ()) if kv_pages else ()
            needs = [self._need(keys[:kv_pages], transfer) for transfer in asked]
            lengths, longest = restorable_prefixes(kv_pages, needs)
            if kv_pages:
                longest[_KV] = kv_pages
            return _prefix_result(hicache_storage.PoolTransferResult, lengths, longest)
        except Exception as error:
            nothing = _prefix_result(hicache_storage.PoolTransferResult, [], {})
            return self._failed("batch_exists_v2", error, nothing)

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        """`batch_get_v1` of the pool of each transfer."""
        return {t.name: self._move(t.name, t.keys, t.host_indices, HostPool.get) for t in transfers}

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        """`batch_set_v1` of the pool of each transfer."""
        return {t.name: self._move(t.name, t.keys, t.host_indices, HostPool.set) for t in transfers}

    def _need(self, keys: Sequence[str], transfer: Any) -> PoolNeed:
        name, own = _name_of(transfer.name), list(transfer.keys or ())
        policy = _name_of(transfer.hit_policy)
        asked = own if policy == "block_groups" else keys
        pool = self._pools.get(name)
        pages = [False] * len(asked) if pool is None else pool.exists(asked)
        return PoolNeed(
            name,
            policy,
            pages,
            trailing=max(1, len(own)),
            block_pages=int(getattr(transfer, "block_pages", 0) or 0),
            group_pages=int(getattr(transfer, "group_pages", 0) or 0),
        )

    def _move(
        self,
        name: Any,
        keys: Sequence[str] | None,
        indices: Any,
        how: Callable[[HostPool, Sequence[str], Any], list[bool]],
    ) -> list[bool]:
        given = list(keys or ())
        nothing = [False] * len(given)
        what = f"{how.__name__} of pool {_name_of(name)}"
        return self._of_pool(_name_of(name), what, nothing, lambda p: how(p, given, indices))

    # --- Pages as flat tensors ---

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Read a page into a flat tensor; None: it is not there."""
        return self.batch_get([key], None if target_location is None else [target_location])[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        """Read pages into flat tensors of the pool's form; None for each that is not there."""
        nothing: list[Any] = [None] * len(keys)
        targets = target_locations or None
        return self._of_pool(_KV, "batch_get", nothing, lambda p: p.get_flat(keys, targets))

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        """Keep a page that is a flat tensor; whether the server has it now."""
        return self.batch_set([key], [target_location if value is None else value])

    def batch_set(
        self,
        keys: Sequence[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Keep pages that are flat tensors; whether the server has all of them now."""
        given = values if values is not None else target_locations
        return self._of_pool(_KV, "batch_set", False, lambda p: p.set_flat(keys, list(given or ())))

    def exists(self, key: str) -> bool:
        """Whether a page is there."""
        return self.batch_exists([key]) == 1

    # --- The rest ---

    def clear(self) -> bool:
        """Delete the pages of all pools of this model and rank; False: not all may be gone."""
        try:
            gone = sum(pool.store.clear() for pool in self._pools.values() if pool.store)
        except Exception as error:
            return self._failed("clear", error, False)
        _log.info("HiCache: %d values deleted at %s", gone, self.client.config.address)
        return True

    def get_stats(self) -> Any:
        """Pages and rates since the last call, as SGLang's Prometheus series want them."""
        kind = _metrics_type()
        if kind is None or not getattr(self.storage_config, "enable_storage_metrics", False):
            return None
        told = kind()
        for pool in list(self._pools.values()):
            if pool.store is not None:
                _drain(pool.store.loaded, told.prefetch_pgs, told.prefetch_bandwidth)
                _drain(pool.store.stored, told.backup_pgs, told.backup_bandwidth)
        return told

    def stats(self) -> dict[str, Any]:
        """Counters: of each pool what became of its pages, and those of the client."""
        pools = {name: pool.store.stats() for name, pool in self._pools.items() if pool.store}
        return {"pools": pools, "client": self.client.stats()}

    def close(self) -> None:
        """End; what is in flight is withdrawn. May be called twice."""
        for pool in list(self._pools.values()):
            pool.close()
        self.client.close()

    def _of_pool(self, name: str, what: str, nothing: T, call: Callable[[HostPool], T]) -> T:
        """What a pool answers; `nothing` where there is no such pool, or it fails."""
        pool = self._pools.get(name)
        try:
            return nothing if pool is None else call(pool)
        except Exception as error:
            return self._failed(what, error, nothing)

    def _failed(self, what: str, error: Exception, answer: T) -> T:
        """Say once a minute what went wrong, and go on without the cache."""
        now = time.monotonic()
        with self._warn_lock:
            said = self._warned.get(what)
            if said is None or now - said >= _WARN_EVERY_S:
                self._warned[what] = now
                _log.warning("HiCache %s: %s: %s", what, type(error).__name__, error)
        return answer


def _name_of(word: Any) -> str:
    """The text of a name or policy, which is an enumeration in SGLang."""
    return str(getattr(word, "value", word))


def _drain(rates: Any, pages: list[int], bandwidth: list[float]) -> None:
    while rates:
        count, rate = rates.popleft()
        pages.append(count)
        bandwidth.append(rate)


def _server_args() -> Any:
    """SGLang's server arguments; None where there is no server in this process."""
    for module, name in _SERVER_ARGS:
        try:
            return getattr(importlib.import_module(module), name)()
        except Exception as error:
            _log.debug("no server arguments from %s.%s: %s", module, name, error)
    return None


def _metrics_type() -> Any:
    """The class of what `get_stats` returns, or None."""
    for module in _METRICS:
        try:
            return importlib.import_module(module).StorageMetrics
        except (ImportError, AttributeError):
            continue
    return None


def _prefix_result(kind: Any, lengths: list[int], longest: dict[str, int]) -> Any:
    """The answer of `batch_exists_v2`, with the fields that this version has.

    Args:
        kind: ``PoolTransferResult``.
        lengths: That can be restored, in pages, ascending.
        longest: By pool, the longest that it allows by itself.
    """
    told: list[Any] = [lengths[-1] if lengths else 0, longest]
    if "restorable_prefix_pages" in inspect.signature(kind).parameters:
        told.append(lengths)
    return kind(*told)
