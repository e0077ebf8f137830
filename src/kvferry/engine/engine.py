"""The engine: memory, stores, and everything in between, behind one object.

    identity = Identity(model="my-model", layout=KVLayout(layers=32, kv_heads=8, head_dim=128))
    with kvferry.Engine(identity, remote_url="redis://cache-1") as engine:
        engine.store(tokens, chunks)              # chunks: one buffer for each full chunk
        with engine.retrieve(tokens) as hit:      # the longest prefix that pays
            use(hit.tokens, hit.arrays)

One engine holds the KV of one shard of one model, for one tenant (`salt`). Any number of threads
may use it. What its calls promise:

- Every call ends within a stated time; what has arrived by then is the answer, and a miss always is
  one. No fault of a store is an exception.
- Bytes are those that were stored under this identity for exactly this prefix, or there are none.
- `store` returns when the caller's buffers may be reused. Stores get the chunks behind it; what
  they cannot take in time is dropped and counted, and never keeps anybody waiting.
- What was stored can be retrieved at once, whether stores have it yet or not.

After a fork the child has to open an engine of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from kvferry.connectors.base import BufferLike, Connector
from kvferry.engine.cost import PrefillModel
from kvferry.engine.explain import Explanation, explain_prompt
from kvferry.engine.memory import Memory
from kvferry.engine.meter import Meter
from kvferry.engine.prompt import Prompt, Tokens, read_prompt
from kvferry.engine.reader import Reader
from kvferry.engine.results import Lookup, Retrieved, Stored
from kvferry.engine.retriever import Retriever
from kvferry.engine.store_tiers import MEMORY, open_tiers
from kvferry.engine.storer import Storer
from kvferry.engine_config import EngineConfig
from kvferry.errors import ClosedError, ConfigError, UsageError
from kvferry.identity import Identity
from kvferry.metrics import EngineMetrics

__all__ = ["Engine"]

T = TypeVar("T")

_FLUSH_S = 5.0
_open: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """A tiered cache of the KV of one shard of one model.

    Args:
        identity: What the bytes are; its layout says how long and of what shape a chunk is.
        config: The settings; default: `EngineConfig.load`, with the file and the environment.
        salt: Separates tenants: with another salt, the same tokens are other chunks.
        connectors: Stores that are open already, by name, behind those of `config`. They are closed
            with the engine.
        memory: Where chunks lie, if it is not the engine's own; see `kvferry.engine.memory`.
        **settings: Single settings, which win over `config`, e.g. `remote_url`,
            `max_local_cpu_size`.

    Raises:
        ConfigError: A setting cannot be.
        MemoryError: The system refused the memory.
    """

    def __init__(
        self,
        identity: Identity,
        config: EngineConfig | None = None,
        *,
        salt: bytes = b"",
        connectors: dict[str, Connector] | None = None,
        memory: Memory | None = None,
        **settings: Any,
    ) -> None:
        self.identity = identity
        self.layout = identity.layout
        self.config = self._configured(config, settings)
        self.metrics = EngineMetrics(
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
        self.prefill = PrefillModel() if known is None else PrefillModel(*known, fixed=True)
        self._prefill_lock = threading.Lock()
        self.tiers = open_tiers(self.config, identity, connectors or {}, self.metrics)
        self._executor = ThreadPoolExecutor(self.config.load_threads, "kvferry-load")
        # Without a say for the cost model nothing is known of computing, and all is loaded.
        self.cost_prefill = self.prefill if self.config.recompute == "auto" else PrefillModel()
        copy_threads = min(self.config.load_threads, os.cpu_count() or 1)
        self._retriever = Retriever(
            self.memory,
            [store.tier for store in self.tiers],
            self.cost_prefill,
            self.config.lookup_timeout_s,
            copy_threads,
            self._start,
        )
        self.reader = Reader(
            self.memory, self._retriever, self._meter, self.layout, keep=self.config.local_cpu
        )
        self.storer = Storer(
            self.memory, self.tiers, self.metrics, copy_threads, keep=self.config.local_cpu
        )
        _open.add(self)

    def _configured(self, config: EngineConfig | None, settings: dict[str, Any]) -> EngineConfig:
        size = self.layout.chunk_size
        if config is None:
            config = EngineConfig.load(**{"chunk_size": size, **settings})
        elif settings:
            raise UsageError("pass either config or single settings, not both")
        if config.chunk_size not in (size, EngineConfig().chunk_size):
            raise ConfigError(
                f"chunk_size is {config.chunk_size} in the settings and {size} in the layout; "
                "make them equal"
            )
        return config

    @property
    def available(self) -> bool:
        """Whether it is open: there is always memory."""
        return not self._closed

    @property
    def asks_stores(self) -> bool:
        """Whether a lookup has a store to ask that is there, and so may take its time."""
        return any(store.tier.connector.available for store in self.tiers)

    # --- Asking ---

    def lookup(self, tokens: Tokens, *, timeout_s: float | None = None) -> Lookup:
        """How much of a prompt could be had now; what stores have counts as used.

        With `enable_async_loading` it also begins to load what pays, so that the `retrieve` that
        follows finds it in memory.

        Args:
            tokens: Of the prompt.
            timeout_s: Limit for asking stores; default: `lookup_timeout_s`.
        """
        prompt = self._read(tokens)
        found = self.look(prompt, timeout_s, touch=True)
        if self.config.enable_async_loading and found.tokens > found.tiers[MEMORY]:
            self._start(self.reader.gather, prompt, self._deadline(None))
        return found

    def contains(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        """How many tokens of the prefix some tier has. Changes nothing: nothing counts as used."""
        return self.look(self._read(tokens), timeout_s, touch=False).tokens

    def look(self, prompt: Prompt, timeout_s: float | None = None, *, touch: bool) -> Lookup:
        """What `lookup` and `contains` answer; `touch`: what is found in stores counts as used."""
        held, coming = self.memory.ready(prompt)
        size, start = prompt.chunk_size, held
        tiers = {MEMORY: held * size}
        began = time.monotonic()
        until = began + (self.config.lookup_timeout_s if timeout_s is None else timeout_s)
        for store in self.tiers:
            end = start
            if start < prompt.chunks:
                end = store.tier.probe(prompt, start, until, touch=touch).end
            tiers[store.tier.name] = (end - start) * size
            start = end
        self.metrics.looked_up(time.monotonic() - began)
        return Lookup(tokens=start * size, tiers=tiers, arriving_tokens=coming * size)

    def keys(self, tokens: Tokens) -> list[str]:
        """The names of a prompt's full chunks in every store, without what all of them begin with.

        In a Redis or Valkey store that is ``kvf:<identity>:``.
        """
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
        """`retrieve` in a thread of the engine. `into` is in use until the future is done."""
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
        return self.storer.store(self._read(tokens), chunks, first_chunk)

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
        prompt = self._read(tokens)
        return self.memory.cache.unpin(prompt.hashes) * prompt.chunk_size

    def clear(self, *, stores: bool = True) -> int:
        """Forget everything of this identity; how many chunks there were.

        Args:
            stores: In the stores too, whoever has put it there. Otherwise in memory alone.

        Raises:
            UnavailableError, DeadlineExceeded: A store cannot be cleared; memory is, and the stores
                before it.
        """
        self._check_open()
        count = self.memory.cache.clear()
        if stores:
            for store in self.tiers:
                count += store.clear()
        return count

    def flush(self, timeout_s: float = _FLUSH_S) -> bool:
        """Wait until the stores have what they will get; False: it takes longer."""
        until = time.monotonic() + timeout_s
        return all(store.writer.flush(max(0.0, until - time.monotonic())) for store in self.tiers)

    # --- Knowing ---

    def observe_prefill(self, tokens: int, cached_tokens: int, took_s: float) -> None:
        """Tell what the engine took to compute a prompt behind `cached_tokens` of its tokens.

        From a few of these the cost model knows when loading pays. It is not learnt when the
        settings have the coefficients.
        """
        with self._prefill_lock:
            predicted = self.prefill.predict_s(tokens, cached_tokens) if self.prefill.known else 0.0
            self.prefill.observe(tokens, cached_tokens, took_s)
        if predicted > 0:
            self.metrics.predicted("prefill", predicted, took_s)

    def stats(self) -> dict[str, Any]:
        """Everything countable: the metrics, memory, and what is known of each store."""
        self._retriever.leftovers.sweep()
        return self._meter.stats()

    def close(self, timeout_s: float = _FLUSH_S) -> bool:
        """Write what waits for stores, for `timeout_s` at most, and end; whether all was written.

        Pages of results that were not released stay valid.
        """
        if self._closed:
            return True
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + timeout_s
        done = [store.close(max(0.0, until - time.monotonic())) for store in self.tiers]
        self._retriever.leftovers.sweep(0.2)
        return all(done)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        stores = "".join(f" + {store.tier.name}" for store in self.tiers)
        state = " closed" if self._closed else ""
        return f"<Engine {self.identity.model!r} {self.memory.pages} pages{stores}{state}>"

    # --- Inside ---

    def _read(self, tokens: Tokens, limit_tokens: int | None = None) -> Prompt:
        self._check_open()
        return read_prompt(tokens, self.layout.chunk_size, self._salt, limit_tokens)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed")
        if os.getpid() != self._pid:
            raise ClosedError("the engine belongs to the process that forked; open another one")

    def _deadline(self, timeout_s: float | None) -> float:
        limit_s = self.config.retrieve_timeout_s if timeout_s is None else timeout_s
        return time.monotonic() + max(0.0, limit_s)

    def _start(self, call: Callable[..., T], *args: Any) -> Future[T]:
        try:
            return self._executor.submit(call, *args)
        except RuntimeError:  # between our check and here
            raise ClosedError("the engine is closed") from None


@atexit.register  # after those of the connectors, and therefore called before them
def _close_all() -> None:
    for engine in list(_open):
        if engine._pid == os.getpid():
            engine.close()
