"""One identity on the server: an engine whose memory others can map."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from kvferry.base.errors import KVFerryError, UnavailableError, UsageError
from kvferry.base.threads import Guarded, noticed
from kvferry.cache.steps import Steps
from kvferry.cache.store.store_tiers import StoreTier, open_tiers
from kvferry.chunks.generation import shared_of
from kvferry.chunks.identity import Identity
from kvferry.chunks.layout import KVLayout
from kvferry.chunks.prompt import Prompt
from kvferry.config import CacheConfig
from kvferry.config.server import ServerConfig
from kvferry.connectors.base import Connector
from kvferry.server.memory.pools import Pools, SharedMemory
from kvferry.server.protocol import HASHES_MAX
from kvferry.server.sessions.notifying_connector import NotifyingConnector
from kvferry.sharing import TieredCache

__all__ = ["IdentityShard", "Loop", "identity_of"]

_log = logging.getLogger("kvferry.server")
_OPEN_S = 10.0


class Loop(NamedTuple):
    """What the loop of the server does for stores. Threads: any.

    Attributes:
        watch: Calls a function when a descriptor is readable.
        in_background: Does steps that nobody waits for.
    """

    watch: Callable[[int, Callable[[], object]], None]
    in_background: Callable[[Steps[object]], object]


def identity_of(fields: Mapping[str, Any], digest: bytes) -> Identity:
    """The identity that a client described.

    Raises:
        UsageError: It cannot be, or its digest is another one.
    """
    values = dict(fields)
    layout = values.pop("layout", None)
    if not isinstance(layout, dict):
        raise UsageError("an identity needs a layout: a mapping of the fields of KVLayout")
    try:
        identity = Identity(**values, layout=KVLayout(**layout))
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"the identity has a field that this version does not know: {error}"
        ) from None
    if identity.digest != digest:
        raise UsageError(
            f"the digest is {digest.hex()}, that of the fields is {identity.digest.hex()}; client "
            "and server do not agree on how identities are written: use the same version"
        )
    return identity


class IdentityShard:
    """The chunks of one identity.

    Args:
        identity: Whose.
        config, pools: Of the server.
        loop: Of the server.

    Attributes:
        identity: Whose.
        memory: Where they lie.
        cache: Moves them between memory and stores, which are opened in the background.
        began: When that began, by ``time.monotonic``.
        opened: That is over.
        problems: Why a store could not be opened, by its name.
    """

    def __init__(self, identity: Identity, config: ServerConfig, pools: Pools, loop: Loop) -> None:
        self.identity = identity
        self._loop = loop
        self.memory: SharedMemory = pools.memory(identity.layout.chunk_bytes)
        try:
            # The server's own is for engines that name none; this one has chosen.
            settings = config.cache.replace(chunk_size=identity.layout.chunk_size)
            self.cache = TieredCache(identity, settings, memory=self.memory, open_stores=False)
        except BaseException:
            self.memory.pool.members.remove(self.memory)
            raise
        self.cache.in_background = loop.in_background
        if self.cache.named is not None:
            self.cache.named.prepare = self._watch_store
        self.cache.metrics.labels = {
            "model": identity.model,
            "identity": identity.digest.hex()[:12],
        }
        self.began = time.monotonic()
        self.opened = threading.Event()
        self.problems: dict[str, str] = {}
        self._unopened = {store.name: "it is being opened" for store in config.cache.stores}
        self.cache.clearing.unopened = self._unopened
        Guarded(self._open, "open", config.cache, errand=True).start()

    def _open(self, config: CacheConfig) -> None:
        """One store after the other; those that cannot be opened are left out."""
        cache = self.cache
        try:
            for store in config.stores:
                try:
                    [tier] = open_tiers(
                        [store], config, cache.identity, {}, cache.metrics, cache.clearing
                    )
                    self._watch_store(tier)
                    cache.storer.begin(tier)
                    cache.tiers.append(tier)
                    del self._unopened[store.name]
                except Exception as error:  # code of others: a plug-in is imported
                    if not isinstance(error, KVFerryError):
                        noticed("open", error)
                    self.problems[store.name] = self._unopened[store.name] = (
                        str(error) or type(error).__name__
                    )
                    _log.warning(
                        "%s goes on without store %s, which cannot be opened: %s",
                        self.identity.model,
                        store.name,
                        error,
                    )
            if config.enable_controller:
                self._share()
            if not cache.available:  # it was closed meanwhile
                for tier in cache.tiers:
                    tier.close(0.0)
        finally:
            self.opened.set()

    def _watch_store(self, tier: StoreTier) -> None:
        """What the store says wakes the loop, so that no thread waits for it."""
        connector = tier.tier.connector
        notifying = NotifyingConnector(connector)
        tier.tier.connector = cast(Connector, notifying)
        self._loop.watch(connector.event_fd(), notifying.drain)

    def _share(self) -> None:
        from kvferry.sharing.peers.instance import join  # for those alone who share

        try:
            join(self.cache, self._watch_store, rank=0)  # one process has the chunks of all ranks
        except (KVFerryError, OSError) as error:
            self.problems["peers"] = self._unopened["peers"] = str(error)
            _log.warning("%s shares nothing: %s", self.identity.model, error)

    @property
    def shared(self) -> bytes:
        """The half of generations that all engines here have in common."""
        return self.cache.clearing.shared

    def clear_everybody(self) -> int:
        """See `TieredCache.clear`; waits until all stores are open, for a few seconds at most.

        Raises:
            KVFerryError: As there.
        """
        if not self.opened.wait(_OPEN_S):
            raise UnavailableError("the stores of the server are still being opened; do it again")
        return self.cache.clear(everybody=True)

    def is_current(self, generation: bytes) -> bool:
        """Whether hashes of this generation may find something, and be stored."""
        fresh = self.cache.clearing.newest.is_fresh
        return fresh and shared_of(generation) == self.shared

    def prompt(self, prompt: Prompt) -> Prompt:
        """A prompt as it came in a message, as the cache here takes it.

        Raises:
            UsageError: It has chunks of another length, or too many, or fewer tokens than those.
        """
        size, chunks = self.identity.layout.chunk_size, prompt.chunks
        if prompt.chunk_size != size:
            raise UsageError(f"chunks of {prompt.chunk_size} tokens, and not of {size}")
        if chunks > HASHES_MAX:
            raise UsageError(f"hashes of {chunks} chunks; the most are {HASHES_MAX}")
        if prompt.tokens < prompt.start_tokens + chunks * size:
            raise UsageError(f"{prompt.tokens} tokens are fewer than those of {chunks} chunks")
        return replace(prompt, queued_at=0.0) if prompt.queued_at else prompt

    def status(self) -> dict[str, Any]:
        """For people and programs."""
        stats = self.cache.stats()
        return {
            "identity": self.identity.digest.hex(),
            "model": self.identity.model,
            "description": self.identity.description,
            "chunk_bytes": self.identity.layout.chunk_bytes,
            "chunk_size": self.identity.layout.chunk_size,
            "used_bytes": self.memory.used_bytes,
            "engines": self.memory.engines,
            "memory": stats["memory"],
            "stores": stats["stores"],
            "metrics": stats["metrics"],
            "prefill": stats["prefill"],
        }
