"""The cache: memory, stores, and everything in between, behind one object.

    identity = Identity(model="my-model", layout=KVLayout(layers=32, kv_heads=8, head_dim=128))
    with kvferry.TieredCache(identity, remote_url="redis://cache-1") as cache:
        cache.store(tokens, chunks)              # chunks: one buffer for each full chunk
        with cache.retrieve(tokens) as hit:      # the longest prefix that pays
            use(hit.tokens, hit.arrays)

What its calls promise is said by `kvferry.cache.interface`.

The class reads prompts, checks limits of time, and passes on; what it passes to is put together
when it is made: `Memory` and the `StoreTier` of each store, the `Reader` over the `Retriever` that
asks and loads, the `Storer` that writes, `Clearing`, which knows the generation in force,
`Learning`, which knows what computing takes, and the `Meter` that counts. Instances that share are
above: `kvferry.sharing` sets the hook `TieredCache.sharing`.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar, Protocol

from typing_extensions import override

from kvferry.base.errors import ConfigError
from kvferry.base.threads import Workers
from kvferry.cache.clearing import Clearing, check_clear, without_chunks
from kvferry.cache.cost.learning import Learning
from kvferry.cache.cost.prefill import Coefficients, PrefillModel
from kvferry.cache.explain import Explanation, explain_prompt
from kvferry.cache.interface import FLUSH_S, Cache
from kvferry.cache.load.reader import Reader
from kvferry.cache.load.retriever import Retriever
from kvferry.cache.memory import Memory
from kvferry.cache.meter import Meter
from kvferry.cache.results import Lookup, Retrieved, Stored
from kvferry.cache.steps import Steps, finish
from kvferry.cache.store.store_tiers import MEMORY, StoreTier, open_tiers
from kvferry.cache.storer import Storer
from kvferry.chunks.identity import Identity
from kvferry.chunks.prompt import Prompt, Tokens, read_prompt
from kvferry.config import CacheConfig, StoreConfig, chosen_config
from kvferry.connectors.base import BufferLike, Connector
from kvferry.connectors.serde import FP8, with_fp8
from kvferry.metrics import CacheMetrics

__all__ = ["LOAD_THREADS", "NamedSources", "SharingHooks", "TieredCache"]

LOAD_THREADS = 4  # that run loads, and copies of chunks where the host has as many cores
_KEEP_LEARNT_S = 1.0  # that keeping the learnt coefficients may take at the end
_open: weakref.WeakSet[TieredCache] = weakref.WeakSet()


class NamedSources(Protocol):
    """Nodes that prompts name; see `kvferry.sharing.peers.named_nodes`."""

    def of(self, prompt: Prompt) -> Sequence[StoreTier]:
        """The node that a prompt names."""

    def close(self) -> None:
        """Ask no node any more."""


class SharingHooks(Protocol):
    """How a cache takes part in sharing, if its settings say so; `kvferry.sharing` sets it."""

    def join(self, cache: TieredCache, rank: int | None) -> None:
        """The cache takes part."""

    def leave(self, cache: TieredCache) -> None:
        """The cache ends."""

    def named_nodes(self, cache: TieredCache) -> NamedSources:
        """The nodes that prompts of the cache name."""


class TieredCache(Cache):
    """A tiered cache of the KV of one shard of one model.

    Args:
        identity: What the bytes are; its layout says how long and of what shape a chunk is. With
            ``remote_serde: fp8`` the cache's own says that too.
        config: The settings; default: `CacheConfig.load`, with the file and the environment.
        salt: Separates tenants: with another salt, the same tokens are other chunks.
        connectors: Stores that are open already, by name, behind those of `config`. They are closed
            with the cache.
        memory: Where chunks lie, if it is not the cache's own; see `kvferry.cache.memory`.
        open_stores: False: those of `config` are opened later, each by `open_store`.
        background: Does steps that nobody waits for; default: in the cache's threads.
        wraps: Each store's connector is used through what this makes of it.
        labels: Of its metrics.
        **settings: Single settings, which win over `config`, e.g. `remote_url`,
            `max_local_cpu_size`.

    Raises:
        ConfigError: A setting cannot be, or not for this layout, or the host does not have that
            memory.

    Attributes:
        config: What it was made of.
        memory: Pages, and the index of what lies in them.
        tiers: The stores, in the order in which they are asked; peers in front.
        clearing: The generation in force, and what ends it.
        learning, prefill: What computing takes, and the model of it.
        cost_prefill: The model as decisions see it; without a say for the cost model nothing is
            known of computing, and all that is there is loaded.
        reader, storer: The halves that load and write.
        named: Nodes that prompts name; None: the settings allow none.
        wraps: As given.
        sharing: How caches take part in sharing; None: `kvferry.sharing` is not imported.
    """

    sharing: ClassVar[SharingHooks | None] = None

    def __init__(
        self,
        identity: Identity,
        config: CacheConfig | None = None,
        *,
        salt: bytes = b"",
        connectors: dict[str, Connector] | None = None,
        memory: Memory | None = None,
        open_stores: bool = True,
        background: Callable[[Steps[object]], object] | None = None,
        wraps: Callable[[Connector], Connector] = lambda connector: connector,
        labels: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.config = chosen_config(identity.layout.chunk_size, config, settings)
        if self.config.remote_serde == FP8:  # encoded with loss, its chunks are others
            identity = with_fp8(identity)
        super().__init__(identity, salt, Workers(LOAD_THREADS, "load"))
        self.wraps = wraps
        self.metrics = CacheMetrics(
            stores=[*(store.name for store in self.config.stores), *(connectors or ())]
        )
        self.metrics.labels = {**self.metrics.labels, **(labels or {})}

        self.memory = memory or Memory.private(
            self.layout.chunk_bytes,
            self.config.l1_bytes,
            self.config.eviction_policy,
            hugetlb=self.config.hugetlb,
            prefault=self.config.prefault,
        )
        self.memory.on_copy = self.metrics.copied
        self.clearing = Clearing(self.memory, self.config.weights_version or "")
        if not open_stores:
            self.clearing.unopened |= dict.fromkeys(
                (store.name for store in self.config.stores), "it is being opened"
            )
        stores = self.config.stores if open_stores else ()
        self.tiers = self.clearing.tiers = self._opened(stores, connectors or {})
        self.named = self._sharing().named_nodes(self) if self.config.remote_kv_sources else None

        self.learning = Learning(
            self.config.tuning.prefill,
            lambda: [store.tier.connector for store in self.tiers],
            partial(self.metrics.predicted, "prefill"),
        )
        self.prefill = self.learning.prefill
        self._meter = Meter(self.metrics, self.memory, self.tiers, self.prefill)
        self.cost_prefill = self.prefill if self.config.recompute == "auto" else PrefillModel()

        copy_threads = min(LOAD_THREADS, os.cpu_count() or 1)
        self._retriever = Retriever(
            self.memory,
            self.tiers,
            self.cost_prefill,
            lambda: self.config.lookup_timeout_s,
            copy_threads,
            background or partial(self._start, finish),
            lambda prompt: self.named.of(prompt) if self.named is not None else (),
        )
        keep = self.config.local_cpu
        self.storer = Storer(
            *(self.memory, self.tiers, self.metrics, self._meter.receipts, copy_threads), keep=keep
        )
        self.reader = Reader(
            *(self.memory, self._retriever, self._meter, self.layout, self.storer), keep=keep
        )

        _open.add(self)
        if open_stores:
            try:
                self.share()
            except BaseException:
                self.close(0.0)
                raise

    def open_store(self, store: StoreConfig) -> None:
        """Open a store of the settings that was left for later.

        Raises:
            KVFerryError: It cannot be opened; `clearing` knows why from now on.
        """
        try:
            [tier] = self._opened([store], {})
            self.storer.begin(tier)
            self.tiers.append(tier)
            if self._closed:  # meanwhile
                tier.close(0.0)
        except Exception as error:  # code of others: a plug-in is imported
            self.clearing.unopened[store.name] = str(error) or type(error).__name__
            raise
        del self.clearing.unopened[store.name]

    def share(self, rank: int | None = None) -> None:
        """Take part in sharing, if the settings say so.

        Args:
            rank: Of this process in its instance; default: that of the layout.
        """
        if self.config.enable_controller:
            self._sharing().join(self, rank)

    def _opened(
        self, stores: Sequence[StoreConfig], connectors: Mapping[str, Connector]
    ) -> list[StoreTier]:
        return open_tiers(
            *(stores, self.config, self.identity, connectors),
            *(self.metrics, self.clearing, self.wraps),
        )

    # --- Asking ---

    @override
    def lookup(
        self, tokens: Tokens, *, timeout_s: float | None = None, lease: bool = False
    ) -> Lookup:
        found = finish(self.lookup_steps(tokens, timeout_s, lease))
        if lease and isinstance(tokens, Prompt):
            worth = found.tokens if found.worth_tokens is None else found.worth_tokens
            self._count_rest(tokens, worth // tokens.chunk_size, found.reason)
        return found

    def lookup_steps(
        self, tokens: Tokens, timeout_s: float | None, lease: bool = False
    ) -> Steps[Lookup]:
        """`lookup`, in steps."""
        yield from self.clearing.awaiting_generation(timeout_s)
        prompt, begin = self._read(tokens), lease or self.config.enable_async_loading
        return (yield from self.looking(prompt, timeout_s, touch=True, begin=begin))

    @override
    def contains(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        self.clearing.await_generation(timeout_s)
        return finish(self.looking(self._read(tokens), timeout_s, touch=False)).tokens

    def looking(
        self,
        prompt: Prompt,
        timeout_s: float | None = None,
        *,
        touch: bool,
        limit_s: float | None = None,
        begin: bool = False,
    ) -> Steps[Lookup]:
        """What `lookup` and `contains` answer, in steps.

        Chunks that the engine has itself (`Prompt.computed_tokens`) are not asked for, and count
        like those in memory.

        Args:
            prompt: Which.
            timeout_s: See `lookup`.
            touch: What is found in stores counts as used.
            limit_s: The longest that may be waited where it pays; default: `retrieve_timeout_s`.
            begin: A retrieve follows: begin to load what pays.
        """
        began = time.monotonic()
        self.storer.observe(prompt, self.memory.ready(prompt)[0])
        first, rest = prompt.behind_computed()
        deadline = self._deadline(limit_s)
        how = {"touch": touch, "begin": begin}
        found = yield from self._retriever.looking(rest, timeout_s, deadline, **how)
        if first:
            found = found.behind(first * prompt.chunk_size, MEMORY)
        self.metrics.looked_up(time.monotonic() - began)
        return found

    def keys(self, tokens: Tokens) -> list[str]:
        """The names of a prompt's full chunks in every store, behind ``kvf:<identity>:``."""
        prompt = self._read(tokens)
        return prompt.keys(0, prompt.chunks)

    @override
    def explain(self, tokens: Tokens, *, timeout_s: float = 5.0) -> Explanation:
        return explain_prompt(self, self._read(tokens), timeout_s)

    # --- Loading ---

    @override
    def retrieve(
        self,
        tokens: Tokens,
        into: Sequence[BufferLike] | None = None,
        *,
        limit_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Retrieved:
        self.clearing.await_generation(timeout_s)
        prompt = self._read(tokens, limit_tokens)
        return self.reader.retrieve(prompt, self._deadline(timeout_s), into)

    @override
    def prefetch(self, tokens: Tokens, *, timeout_s: float | None = None) -> Future[int]:
        prompt, deadline = self._read(tokens), self._deadline(timeout_s)

        def run() -> int:
            self.reader.gather(prompt, deadline)
            return self.memory.ready(prompt)[0] * prompt.chunk_size

        return self._start(run)

    # --- Storing ---

    @override
    def store(
        self, tokens: Tokens, chunks: Sequence[BufferLike], *, first_chunk: int = 0
    ) -> Stored:
        prompt = self._read(tokens, finds=False)
        if isinstance(tokens, Prompt) and prompt.chunks < tokens.chunks:  # of before a clear
            return Stored(chunks=0, known=0, shed=len(chunks))
        self._meter.receipts.sweep()
        return self.storer.store(prompt, chunks, first_chunk)

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until the stores have what they will get; False: it takes longer."""
        until = time.monotonic() + timeout_s
        return all(store.writer.flush(max(0.0, until - time.monotonic())) for store in self.tiers)

    # --- Keeping ---

    @override
    def pin(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        prompt = self._read(tokens)
        self.reader.gather(prompt, self._deadline(timeout_s))
        return self.memory.cache.pin(prompt.hashes) * prompt.chunk_size

    @override
    def unpin(self, tokens: Tokens) -> int:
        prompt = self._read(tokens, finds=False)
        return self.memory.cache.unpin(prompt.hashes) * prompt.chunk_size

    @property
    @override
    def generation(self) -> bytes:
        return self.clearing.generation

    @override
    def clear(
        self,
        *,
        stores: bool = True,
        everybody: bool = False,
        weights_version: str | None = None,
    ) -> int:
        self._check_open()
        check_clear(stores=stores, everybody=everybody, weights_version=weights_version)
        if not stores:
            return self.memory.cache.clear()
        clearing = self.clearing
        return clearing.clear_everybody() if everybody else clearing.clear(weights_version)

    @override
    def renewed(self, ended: bytes, own: bytes) -> None:
        self._check_open()
        self.clearing.end(ended, own)

    # --- Knowing ---

    @property
    @override
    def available(self) -> bool:
        return not self._closed  # there is always memory

    @property
    @override
    def asks_stores(self) -> bool:
        return any(store.tier.connector.available and not store.tier.silent for store in self.tiers)

    @override
    def observe_step(self, new_tokens: int, pairs: int, decodes: int, took_s: float) -> None:
        self.learning.observe(new_tokens, pairs, decodes, took_s)

    @override
    def expect_prefill(self, coefficients: Coefficients, step_tokens: int | None = None) -> None:
        self.learning.expect(coefficients, step_tokens)

    @override
    def stats(self) -> dict[str, Any]:
        self._retriever.pending.sweep()
        return self._meter.stats()

    def __repr__(self) -> str:
        stores = "".join(f" + {store.tier.name}" for store in self.tiers)
        state = " closed" if self._closed else ""
        return f"<TieredCache {self.identity.model!r} {self.memory.pages} pages{stores}{state}>"

    # --- The end ---

    @override
    def close(self, timeout_s: float = FLUSH_S) -> bool:
        if self._closed:
            return True
        self._closed = True
        if self.config.enable_controller:
            self._sharing().leave(self)
        if self.named is not None:
            self.named.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + timeout_s
        self.learning.close(min(_KEEP_LEARNT_S, timeout_s))
        done = [store.close(max(0.0, until - time.monotonic())) for store in self.tiers]
        self._retriever.pending.sweep(0.2)
        return all(done)

    # --- Inside ---

    @override
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

    def _sharing(self) -> SharingHooks:
        if self.sharing is None:
            raise ConfigError(
                "enable_controller and remote_kv_sources need kvferry.TieredCache; it is imported "
                "from kvferry, not from kvferry.cache"
            )
        return self.sharing

    def _deadline(self, timeout_s: float | None) -> float:
        limit_s = self.config.retrieve_timeout_s if timeout_s is None else timeout_s
        return time.monotonic() + max(0.0, limit_s)

    @override
    def _retrieving(
        self, prompt: Prompt, into: Sequence[BufferLike] | None, timeout_s: float | None
    ) -> Callable[[], Retrieved]:
        return partial(self.reader.retrieve, prompt, self._deadline(timeout_s), into)


@atexit.register  # after those of the connectors, and therefore called before them
def _close_all() -> None:
    for cache in list(_open):
        if cache._pid == os.getpid():
            cache.close()
