"""What every cache of ours can do, wherever its memory is.

`TieredCache` has its memory and its stores in the process that uses it; `kvferry.server.Client` is
the cache of a server on this host. Adapters of engines, measurements and HTTP are written against
`Cache` and work with both. What its calls promise:

- Every call ends within a stated time; what has arrived by then is the answer, and a miss always is
  one. No fault of a store or of a server is an exception.
- Bytes are those that were stored under this identity for exactly this prefix, or there are none.
- `Cache.store` returns when the caller's buffers may be reused. Stores get the chunks behind it;
  what they cannot take in time is dropped and counted, and never keeps anybody waiting.
- What was stored can be retrieved at once, whether stores have it yet or not.

Any number of threads may use a cache. After a fork the child has to open one of its own.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from kvferry.base.errors import ClosedError
from kvferry.base.threads import Workers
from kvferry.cache.cost.prefill import Coefficients
from kvferry.cache.explain import Explanation
from kvferry.cache.results import Lookup, Retrieved, Stored
from kvferry.chunks.identity import Identity
from kvferry.chunks.prompt import Prompt, Tokens
from kvferry.connectors.base import BufferLike
from kvferry.metrics import MISS_REASONS, CacheMetrics

__all__ = ["FLUSH_S", "Cache"]

T = TypeVar("T")

FLUSH_S = 5.0


class Cache(ABC):
    """A cache of the KV of one shard of one model, for one tenant.

    Args:
        identity: What the bytes are; its layout says how long and of what shape a chunk is.
        salt: Separates tenants: with another salt, the same tokens are other chunks.
        threads: Of the cache, for work that is not waited for.

    Attributes:
        identity, layout: What it was made of.
        metrics: What is counted.
    """

    metrics: CacheMetrics

    def __init__(self, identity: Identity, salt: bytes, threads: Workers) -> None:
        self.identity = identity
        self.layout = identity.layout
        self._salt = salt
        self._threads = threads
        self._pid = os.getpid()
        self._closed = False

    # --- Asking ---

    @abstractmethod
    def lookup(
        self, tokens: Tokens, *, timeout_s: float | None = None, lease: bool = False
    ) -> Lookup:
        """How much of a prompt could be had now; what is found counts as used.

        Args:
            tokens: Of the prompt.
            timeout_s: Limit for asking stores; default: as long as an answer can pay, within the
                limit of the settings.
            lease: A `retrieve` of what is found follows soon: what pays begins to be loaded, a
                server answers when that is done, and keeps it until then, for some seconds. Chunks
                that are not found count as missed.
        """

    @abstractmethod
    def contains(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        """How many tokens of the prefix some tier has. Changes nothing: nothing counts as used."""

    @abstractmethod
    def explain(self, tokens: Tokens, *, timeout_s: float = 5.0) -> Explanation:
        """Where each chunk of a prompt is, or why it is not, and what would be done about it."""

    # --- Loading ---

    @abstractmethod
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
                behind the result are undefined. None: the result has pages to read from, and its
                `release` tells whether they were ours until then.
            limit_tokens: Take no more than so many; e.g. all but the last one, for engines that
                have to compute a token.
            timeout_s: Limit of the call; default: `retrieve_timeout_s`.

        Raises:
            UsageError: `into` has too few buffers; nothing was loaded.
            BadBufferError: A buffer is read-only or has another length.
        """

    def begin_retrieve(
        self,
        tokens: Tokens,
        into: Sequence[BufferLike] | None = None,
        *,
        limit_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[Retrieved]:
        """`retrieve` in a thread of the cache. `into` is in use until the future is done."""
        return self._start(self._retrieving(self._read(tokens, limit_tokens), into, timeout_s))

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

    @abstractmethod
    def prefetch(self, tokens: Tokens, *, timeout_s: float | None = None) -> Future[int]:
        """Bring the prefix of a prompt into memory, in a thread; how many tokens are there then."""

    # --- Storing ---

    @abstractmethod
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

    # --- Keeping ---

    @abstractmethod
    def pin(self, tokens: Tokens, *, timeout_s: float | None = None) -> int:
        """Load the prefix of a prompt and keep it in memory until `unpin`; how many tokens are.

        Pins are counted: what was pinned twice is kept until it was unpinned twice.
        """

    @abstractmethod
    def unpin(self, tokens: Tokens) -> int:
        """Undo a `pin`; how many tokens lost one."""

    @property
    @abstractmethod
    def generation(self) -> bytes:
        """What prompts are hashed with from now on; see `kvferry.chunks.generation`."""

    @abstractmethod
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

    @abstractmethod
    def renewed(self, ended: bytes, own: bytes) -> None:
        """Who hashes prompts for this engine has cleared; see `kvferry.chunks.generation`.

        Args:
            ended, own: His half of the generation before, and from now on.
        """

    # --- Knowing ---

    @property
    @abstractmethod
    def available(self) -> bool:
        """False: nothing can be had from it now, and nothing is taken."""

    @property
    @abstractmethod
    def asks_stores(self) -> bool:
        """Whether a lookup has a store or a server to ask that is there, so it may take time."""

    def observe_prefill(self, tokens: int, cached_tokens: int, took_s: float) -> None:
        """Tell what the engine took to compute a prompt behind `cached_tokens` of its tokens.

        From a few of these the cost model knows when loading pays. It is not learnt when the
        settings have the coefficients.
        """
        self._check_open()
        if tokens > cached_tokens:
            pairs = tokens * tokens - cached_tokens * cached_tokens
            self.observe_step(tokens - cached_tokens, pairs, 0, took_s)

    @abstractmethod
    def observe_step(self, new_tokens: int, pairs: int, decodes: int, took_s: float) -> None:
        """Tell what a step of the engine took, by its totals; see `kvferry.cache.cost.prefill`."""

    @abstractmethod
    def expect_prefill(self, coefficients: Coefficients, step_tokens: int | None = None) -> None:
        """Tell how long computing is thought to take until steps say otherwise."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Everything countable."""

    # --- The end ---

    @abstractmethod
    def close(self, timeout_s: float = FLUSH_S) -> bool:
        """Write what waits for stores, for `timeout_s` at most, and end; whether all was written.

        Pages of results that were not released stay valid memory.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Inside ---

    @abstractmethod
    def _read(self, tokens: Tokens, limit_tokens: int | None = None) -> Prompt:
        """The prompt, as of now."""

    @abstractmethod
    def _retrieving(
        self, prompt: Prompt, into: Sequence[BufferLike] | None, timeout_s: float | None
    ) -> Callable[[], Retrieved]:
        """What `begin_retrieve` does in a thread; its limit counts from now."""

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the cache is closed")
        if os.getpid() != self._pid:
            raise ClosedError("the cache belongs to the process that forked; open another one")

    def _start(self, call: Callable[..., T], *args: Any) -> Future[T]:
        try:
            return self._threads.submit(call, *args)
        except RuntimeError:  # between our check and here
            raise ClosedError("the cache is closed") from None

    def _count_rest(self, prompt: Prompt, found: int, reason: str) -> None:
        """A lookup found so many chunks of a prompt; nobody asks for the rest any more.

        What the engine has itself was not wanted.
        """
        rest = prompt.chunks - max(found, prompt.computed_tokens // prompt.chunk_size)
        if rest > 0:
            self.metrics.requested(rest * prompt.chunk_size)
            why = reason if reason in MISS_REASONS else "error" if reason else "never_stored"
            self.metrics.missed(why, rest)
