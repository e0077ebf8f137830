"""The cache: memory, stores, and everything in between, behind one object.

    identity = Identity(model="my-model", layout=KVLayout(layers=32, kv_heads=8, head_dim=128))
    with kvferry.TieredCache(identity, remote_url="redis://cache-1") as cache:
        cache.store(tokens, chunks)              # chunks: one buffer for each full chunk
        with cache.retrieve(tokens) as hit:      # the longest prefix that pays
            use(hit.tokens, hit.arrays)

One cache holds the KV of one shard of one model, for one tenant (`salt`). Any number of threads
may use it. What its calls promise:

- Every call ends within a stated time; what has arrived by then is the answer, and a miss always is
  one. No fault of a store is an exception.
- Bytes are those that were stored under this identity for exactly this prefix, or there are none.
- `store` returns when the caller's buffers may be reused. Stores get the chunks behind it; what
  they cannot take in time is dropped and counted, and never keeps anybody waiting.
- What was stored can be retrieved at once, whether stores have it yet or not.

The class reads prompts, checks limits of time, and passes on; what it passes to is put together
when it is made: `Memory` and the `StoreTier` of each store, the `Reader` over the `Retriever` that
asks and loads, the `Storer` that writes, `Clearing`, which knows the generation in force,
`Learning`, which knows what computing takes, and the `Meter` that counts. Instances that share are
above: `kvferry.sharing` sets the hook `TieredCache.sharing`.

After a fork the child has to open a cache of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar, Protocol, Self, TypeVar

from kvferry.base.errors import ClosedError, ConfigError
from kvferry.base.threads import Workers
from kvferry.cache.clearing import Clearing, check_clear, without_chunks
from kvferry.cache.cost.learning import Learning
from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.explain import Explanation, explain_prompt
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
from kvferry.config import CacheConfig, chosen_config
from kvferry.connectors.base import BufferLike, Connector
from kvferry.connectors.serde import FP8, with_fp8
from kvferry.metrics import CacheMetrics

__all__ = ["NamedSources", "SharingHooks", "TieredCache"]

T = TypeVar("T")

FLUSH_S = 5.0
_KEEP_LEARNT_S = 1.0  # that keeping the learnt coefficients may take at the end
_open: weakref.WeakSet[TieredCache] = weakref.WeakSet()


class NamedSources(Protocol):
    """Nodes that prompts name; see `kvferry.sharing.peers.named_nodes`."""

    prepare: Callable[[StoreTier], object]

    def of(self, prompt: Prompt) -> Sequence[StoreTier]:
        """The node that a prompt names."""

    def close(self) -> None:
        """Ask no node any more."""


class SharingHooks(Protocol):
    """How a cache takes part in sharing, if its settings say so; `kvferry.sharing` sets it."""

    def join(self, cache: TieredCache) -> None:
        """The cache takes part."""

    def leave(self, cache: TieredCache) -> None:
        """The cache ends."""

    def named_nodes(self, cache: TieredCache) -> NamedSources:
        """The nodes that prompts of the cache name."""


class TieredCache:
    """A tiered cache of the KV of one shard of one model.

    Args:
        identity: What the bytes are; its layout says how long and of what shape a chunk is. With
            ``remote_serde: fp8`` the cache's own says that too.
        config: The settings; default: `CacheConfig.load`, with the file and the environment.
        salt: Separates tenants: with another salt, the same tokens are other chunks.
        connectors: Stores that are open already, by name, behind those of `config`. They are closed
            with the cache.
        memory: Where chunks lie, if it is not the cache's own; see `kvferry.cache.memory`.
        open_stores: False: somebody else opens those of `config`, and adds them to `tiers`.
        **settings: Single settings, which win over `config`, e.g. `remote_url`,
            `max_local_cpu_size`.

    Raises:
        ConfigError: A setting cannot be, or not for this layout, or the host does not have that
            memory.

    Attributes:
        config, identity, layout: What it was made of.
        memory: Pages, and the index of what lies in them.
        tiers: The stores, in the order in which they are asked; peers in front.
        metrics: What is counted.
        clearing: The generation in force, and what ends it.
        learning, prefill: What computing takes, and the model of it.
        cost_prefill: The model as decisions see it; without a say for the cost model nothing is
            known of computing, and all that is there is loaded.
        reader, storer: The halves that load and write.
        named: Nodes that prompts name; None: the settings allow none.
        in_background: Does steps that nobody waits for, in the cache's threads unless whoever has
            something better sets it.
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
        **settings: Any,
    ) -> None:
        self.layout = identity.layout
        self.config = chosen_config(self.layout.chunk_size, config, settings)
        if self.config.remote_serde == FP8:  # encoded with loss, its chunks are others
            identity = with_fp8(identity)
        self.identity = identity
        self._salt = salt
        self._pid = os.getpid()
        self._closed = False
        self.metrics = CacheMetrics(
            stores=[*(store.name for store in self.config.stores), *(connectors or ())]
        )
        self._meter = Meter(self)

        self.memory = memory or Memory.private(
            self.layout.chunk_bytes,
            self.config.l1_bytes,
            self.config.eviction_policy,
            hugetlb=self.config.hugetlb,
            prefault=self.config.prefault,
        )
        self.memory.on_copy = self.metrics.copied
        self.clearing = Clearing(self.memory, self.config.weights_version or "")
        stores = self.config.stores if open_stores else ()
        self.tiers = self.clearing.tiers = open_tiers(
            stores, self.config, identity, connectors or {}, self.metrics, self.clearing
        )
        self.named = self._sharing().named_nodes(self) if self.config.remote_kv_sources else None

        self.learning = Learning(
            self.config.prefill,
            lambda: [store.tier.connector for store in self.tiers],
            partial(self.metrics.predicted, "prefill"),
        )
        self.prefill = self.learning.prefill
        self.cost_prefill = self.prefill if self.config.recompute == "auto" else PrefillModel()

        self._executor = Workers(self.config.tuning.load_threads, "load")
        self.in_background: Callable[[Steps[object]], object] = partial(self._start, finish)
        copy_threads = min(self.config.tuning.load_threads, os.cpu_count() or 1)
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
            try:
                self._sharing().join(self)
            except BaseException:
                self.close(0.0)
                raise

    # --- Asking ---

    def lookup(self, tokens: Tokens, *, timeout_s: float | None = None) -> Lookup:
        """How much of a prompt could be had now; what stores have counts as used.

        With `enable_async_loading` it also begins to load what pays, so that the `retrieve` that
        follows finds it in memory.

        Args:
            tokens: Of the prompt.
            timeout_s: Limit for asking stores; default: as long as an answer can pay, and
                `lookup_timeout_s` at most.
        """
        return finish(self.lookup_steps(tokens, timeout_s))

    def lookup_steps(self, tokens: Tokens, timeout_s: float | None) -> Steps[Lookup]:
        """`lookup`, in steps."""
        yield from self.clearing.awaiting_generation(timeout_s)
        prompt, begin = self._read(tokens), self.config.enable_async_loading
        return (yield from self.looking(prompt, timeout_s, touch=True, begin=begin))

    def contains(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        """How many tokens of the prefix some tier has. Changes nothing: nothing counts as used."""
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

    def explain(self, tokens: Tokens, *, timeout_s: float = 5.0) -> Explanation:
        """Where each chunk of a prompt is, or why it is not, and what would be done about it."""
        return explain_prompt(self, self._read(tokens), timeout_s)

    # --- Loading ---

    def retrieve(
        self,
        tokens: Tokens,
        into: Sequence[BufferLike] | None = None,
        *,
        limit_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Retrieved:
        """Bring the prefix of a prompt, as much of it as pays.

        Args:
            tokens: Of the whole prompt, those behind the last full chunk too: what they cost to
                compute enters the decision.
            into: A writable buffer for each full chunk of the prompt (or of `limit_tokens`); those
                behind the result are undefined. None: the result has pages to read from.
            limit_tokens: Take no more than so many; e.g. all but the last one, for engines that
                have to compute a token.
            timeout_s: Limit of the call; default: `retrieve_timeout_s`.

        Raises:
            UsageError: `into` has too few buffers; nothing was loaded.
            BadBufferError: A buffer is read-only or has another length.
        """
        self.clearing.await_generation(timeout_s)
        prompt = self._read(tokens, limit_tokens)
        return self.reader.retrieve(prompt, self._deadline(timeout_s), into)

    def begin_retrieve(
        self,
        tokens: Tokens,
        into: Sequence[BufferLike] | None = None,
        *,
        limit_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[Retrieved]:
        """`retrieve` in a thread of the cache. `into` is in use until the future is done."""
        prompt = self._read(tokens, limit_tokens)
        return self._start(self.reader.retrieve, prompt, self._deadline(timeout_s), into)

    async def aretrieve(
        self,
        tokens: Tokens,
        into: Sequence[BufferLike] | None = None,
        *,
        limit_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Retrieved:
        """`retrieve` for asyncio."""
        future = self.begin_retrieve(tokens, into, limit_tokens=limit_tokens, timeout_s=timeout_s)
        return await asyncio.wrap_future(future)

    def prefetch(self, tokens: Tokens, *, timeout_s: float | None = None) -> Future[int]:
        """Bring the prefix of a prompt into memory, in a thread; how many tokens are there then."""
        prompt, deadline = self._read(tokens), self._deadline(timeout_s)

        def run() -> int:
            self.reader.gather(prompt, deadline)
            return self.memory.ready(prompt)[0] * prompt.chunk_size

        return self._start(run)

    # --- Storing ---

    def store(
        self, tokens: Tokens, chunks: Sequence[BufferLike], *, first_chunk: int = 0
    ) -> Stored:
        """Keep the KV of a prompt: in memory now, in the stores soon.

        Args:
            tokens: Of the whole prompt, from its beginning.
            chunks: A buffer for each full chunk from `first_chunk` on, of the layout's length;
                free to be reused when the call returns.
            first_chunk: How many full chunks of the prefix are left out, e.g. because they came
                from here.

        Raises:
            UsageError: The number of buffers is another one.
            BadBufferError: A buffer is not contiguous, or has another length.
        """
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

    def pin(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        """Load the prefix of a prompt and keep it in memory until `unpin`; how many tokens are.

        Pins are counted: what was pinned twice is kept until it was unpinned twice.
        """
        prompt = self._read(tokens)
        self.reader.gather(prompt, self._deadline(timeout_s))
        return self.memory.cache.pin(prompt.hashes) * prompt.chunk_size

    def unpin(self, tokens: Tokens) -> int:
        """Undo a `pin`; how many tokens lost one."""
        prompt = self._read(tokens, finds=False)
        return self.memory.cache.unpin(prompt.hashes) * prompt.chunk_size

    @property
    def generation(self) -> bytes:
        """What prompts are hashed with from now on; see `kvferry.chunks.generation`."""
        return self.clearing.generation

    def clear(
        self,
        *,
        stores: bool = True,
        everybody: bool = False,
        weights_version: str | None = None,
    ) -> int:
        """Forget everything, at once, whether stores are up or down; how many chunks memory had.

        What was stored before has names that this cache does not look for any more. It stays in
        the stores for caches of the same identity, which go on with it, and leaves by eviction;
        unless `everybody` is said: then it is deleted in the background.

        Args:
            stores: False: empty the memory alone; what stores have is found again.
            everybody: For all caches on these stores, and all instances that share; their memory
                follows within a second. Who was away hears of it before it answers again.
            weights_version: Engines that were given the same name find each other's chunks again.
                Without, this cache shares with nobody until it is opened anew.

        Raises:
            UsageError: Two of these at a time; or `everybody`, and a store keeps no generation.
                Nothing was cleared.
            KVFerryError: `everybody`, and somebody was not reached: the text says who, and whether
                something was cleared. Do it again.
        """
        self._check_open()
        check_clear(stores=stores, everybody=everybody, weights_version=weights_version)
        if not stores:
            return self.memory.cache.clear()
        clearing = self.clearing
        return clearing.clear_everybody() if everybody else clearing.clear(weights_version)

    def renewed(self, ended: bytes, own: bytes) -> None:
        """Who hashes prompts for this engine has cleared: his own half of the generation."""
        self._check_open()
        self.clearing.end(ended, own)

    # --- Knowing ---

    @property
    def available(self) -> bool:
        """Whether it is open: there is always memory."""
        return not self._closed

    @property
    def asks_stores(self) -> bool:
        """Whether a lookup has a store to ask that is there, and so may take its time."""
        return any(store.tier.connector.available and not store.tier.silent for store in self.tiers)

    def observe_prefill(self, tokens: int, cached_tokens: int, took_s: float) -> None:
        """Tell what the engine took to compute a prompt behind `cached_tokens` of its tokens.

        From a few of these the cost model knows when loading pays. It is not learnt when the
        settings have the coefficients.
        """
        if tokens > cached_tokens:
            pairs = tokens * tokens - cached_tokens * cached_tokens
            self.observe_step(tokens - cached_tokens, pairs, 0, took_s)

    def observe_step(self, new_tokens: int, pairs: int, decodes: int, took_s: float) -> None:
        """Tell what a step of the engine took, by its totals; see `PrefillModel.observe_step`."""
        self.learning.observe(new_tokens, pairs, decodes, took_s)

    def stats(self) -> dict[str, Any]:
        """Everything countable: metrics, memory, and what is known of each store."""
        self._retriever.pending.sweep()
        return self._meter.stats()

    def __repr__(self) -> str:
        stores = "".join(f" + {store.tier.name}" for store in self.tiers)
        state = " closed" if self._closed else ""
        return f"<TieredCache {self.identity.model!r} {self.memory.pages} pages{stores}{state}>"

    # --- The end ---

    def close(self, timeout_s: float = FLUSH_S) -> bool:
        """Write what waits for stores, for `timeout_s` at most, and end; whether all was written.

        Pages of results that were not released stay valid.
        """
        if self._closed:
            return True
        self._closed = True
        if self.config.enable_controller:
            self._sharing().leave(self)
        if self.named is not None:
            self.named.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + timeout_s
        self.learning.close(min(_KEEP_LEARNT_S, timeout_s))
        done = [store.close(max(0.0, until - time.monotonic())) for store in self.tiers]
        self._retriever.pending.sweep(0.2)
        return all(done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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

    def _sharing(self) -> SharingHooks:
        if self.sharing is None:
            raise ConfigError(
                "enable_controller and remote_kv_sources need kvferry.TieredCache; it is imported "
                "from kvferry, not from kvferry.cache"
            )
        return self.sharing

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
