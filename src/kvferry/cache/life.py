"""The life of a cache: what it consists of, from its opening to its close."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from kvferry._threads import Workers
from kvferry.cache.clearing import Clearing, without_chunks
from kvferry.cache.learning import Learning
from kvferry.cache.memory import Memory
from kvferry.cache.meter import Meter
from kvferry.cache.prefill import PrefillModel
from kvferry.cache.prompt import Prompt, Tokens, read_prompt
from kvferry.cache.reader import Reader
from kvferry.cache.retriever import Retriever
from kvferry.cache.steps import Steps, finish
from kvferry.cache.store_tiers import open_tiers
from kvferry.cache.storer import Storer
from kvferry.chunks.identity import Identity
from kvferry.config import CacheConfig, chosen_config
from kvferry.connectors.base import Connector
from kvferry.connectors.serde import FP8, with_fp8
from kvferry.errors import ClosedError
from kvferry.metrics import CacheMetrics

__all__ = ["FLUSH_S", "CacheLife"]

if TYPE_CHECKING:
    from kvferry.cache.named import NamedNodes
    from kvferry.cache.peers import Sharer

T = TypeVar("T")

FLUSH_S = 5.0
# What keeping what was learnt may take at the end.
_NOTE_S = 1.0
_open: weakref.WeakSet[CacheLife] = weakref.WeakSet()


class CacheLife:
    """The parts of a cache; its calls are in `kvferry.TieredCache`."""

    def __init__(
        self,
        identity: Identity,
        config: CacheConfig | None = None,
        *,
        salt: bytes = b"",
        connectors: dict[str, Connector] | None = None,
        memory: Memory | None = None,
        open_stores: bool = True,
        **settings: Any,
    ) -> None:
        self.layout = identity.layout
        self.config = chosen_config(self.layout.chunk_size, config, settings)
        if self.config.remote_serde == FP8:  # its chunks are others
            identity = with_fp8(identity)
        self.identity = identity
        self.metrics = CacheMetrics(
            stores=[*(store.name for store in self.config.stores), *(connectors or ())]
        )
        self._meter = Meter(self)
        self._salt = salt
        self._pid = os.getpid()
        self._closed = False
        self.memory = memory or Memory.private(
            self.layout.chunk_bytes,
            self.config.l1_bytes,
            self.config.eviction_policy,
            hugetlb=self.config.hugetlb,
            prefault=self.config.prefault,
        )
        known = self.config.prefill
        self.memory.on_copy = self.metrics.copied
        self.clearing = Clearing(self.memory, self.config.weights_version or "")
        stores = self.config.stores if open_stores else ()
        self.tiers = self.clearing.tiers = open_tiers(
            stores, self.config, identity, connectors or {}, self.metrics, self.clearing
        )
        self.named: NamedNodes | None = None
        if self.config.remote_kv_sources:
            from kvferry.cache.named import NamedNodes  # for those alone who ask them

            self.named = NamedNodes(cast("Sharer", self))
        self.learning = Learning(
            known,
            lambda: [store.tier.connector for store in self.tiers],
            partial(self.metrics.predicted, "prefill"),
        )
        self.prefill = self.learning.prefill
        # Does steps that nobody waits for; whoever has something better than our threads says so.
        self.in_background: Callable[[Steps[object]], object] = partial(self._start, finish)
        self._executor = Workers(self.config.load_threads, "load")
        # Without a say for the cost model nothing is known of computing, and all is loaded.
        self.cost_prefill = self.prefill if self.config.recompute == "auto" else PrefillModel()
        copy_threads = min(self.config.load_threads, os.cpu_count() or 1)
        self._retriever = Retriever(
            self.memory,
            self.tiers,
            self.cost_prefill,
            lambda: self.config.lookup_timeout_s,
            copy_threads,
            lambda steps: self.in_background(steps),
            lambda prompt: self.named.of(prompt) if self.named is not None else (),
        )
        keep = self.config.local_cpu
        self.storer = Storer(self.memory, self.tiers, self.metrics, copy_threads, keep=keep)
        self.storer.receipts = self._meter.receipts
        self.reader = Reader(
            *(self.memory, self._retriever, self._meter, self.layout, self.storer), keep=keep
        )
        _open.add(self)
        if open_stores and self.config.enable_controller:
            self._share()

    def _share(self) -> None:
        from kvferry.cache.sharing import join  # for those alone who share

        try:
            join(cast("Sharer", self))
        except BaseException:
            self.close(0.0)
            raise

    def close(self, timeout_s: float = FLUSH_S) -> bool:
        """Write what waits for stores, for `timeout_s` at most, and end; whether all was written.

        Pages of results that were not released stay valid.
        """
        if self._closed:
            return True
        self._closed = True
        if self.config.enable_controller:
            from kvferry.cache.sharing import leave

            leave(cast("Sharer", self))
        if self.named is not None:
            self.named.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + timeout_s
        self.learning.close(min(_NOTE_S, timeout_s))
        done = [store.close(max(0.0, until - time.monotonic())) for store in self.tiers]
        self._retriever.pending.sweep(0.2)
        return all(done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        stores = "".join(f" + {store.tier.name}" for store in self.tiers)
        state = " closed" if self._closed else ""
        return f"<TieredCache {self.identity.model!r} {self.memory.pages} pages{stores}{state}>"

    # --- Inside ---

    def _read(
        self, tokens: Tokens, limit_tokens: int | None = None, *, finds: bool = True
    ) -> Prompt:
        """`finds`: something may be found for it, so no clear may have been missed."""
        self._check_open()
        generation = self.clearing.generation
        prompt = read_prompt(tokens, self.layout.chunk_size, self._salt, limit_tokens, generation)
        # A prompt that was read before may be of before a clear: nothing is found for it.
        if isinstance(tokens, Prompt):
            prompt = self.clearing.without_obsolete(prompt)
        return prompt if not finds or self.clearing.newest.is_fresh else without_chunks(prompt)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the cache is closed")
        if os.getpid() != self._pid:
            raise ClosedError("the cache belongs to the process that forked; open another one")

    def _deadline(self, timeout_s: float | None) -> float:
        limit_s = self.config.retrieve_timeout_s if timeout_s is None else timeout_s
        return time.monotonic() + max(0.0, limit_s)

    def _start(self, call: Callable[..., T], *args: Any) -> Future[T]:
        try:
            return self._executor.submit(call, *args)
        except RuntimeError:  # between our check and here
            raise ClosedError("the cache is closed") from None


@atexit.register  # after those of the connectors, and therefore called before them
def _close_all() -> None:
    for cache in list(_open):
        if cache._pid == os.getpid():
            cache.close()
