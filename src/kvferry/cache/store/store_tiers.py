"""The stores of a cache, opened from its settings: each a tier, its writer, and its limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kvferry.base.errors import ConfigError, KVFerryError, UnavailableError
from kvferry.cache.steps import Steps
from kvferry.cache.store.capacity import Capacity
from kvferry.cache.store.coding import Coding
from kvferry.cache.store.generations import NewestMark, StoreGenerations
from kvferry.cache.store.tier import Tier
from kvferry.cache.store.writer import Writer
from kvferry.chunks.identity import Identity
from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import Status
from kvferry.config import CacheConfig, EvictionConfig, StoreConfig
from kvferry.connectors.base import Connector, Space
from kvferry.connectors.load import load_connector
from kvferry.connectors.redis import RedisConnector
from kvferry.metrics import SHED_REASONS, CacheMetrics

__all__ = ["MEMORY", "StoreTier", "open_tiers", "space_of"]

MEMORY = "l1"  # the name of the tier in this process


class Clears(Protocol):
    """What a store asks about clears, and tells; see `kvferry.cache.clearing`."""

    newest: NewestMark

    def is_current(self, generation: bytes) -> bool: ...


class StoreTier:
    """One store of a cache.

    Attributes:
        tier: Asks the store, and loads from it.
        capacity: Keeps the store below its limit, or below what it turns out to hold.
        writer: Writes to the store.
        writes: Whether chunks are written there; False: others do that.
    """

    writes = True

    def __init__(
        self,
        name: str,
        connector: Connector,
        chunk_bytes: int,
        queue_bytes_max: int,
        metrics: CacheMetrics,
        clearing: Clears,
        *,
        limit_bytes: int | None = None,
        eviction: EvictionConfig | None = None,
        ttl_s: float | None = None,
        lets_go: bool = False,
        coding: Coding | None = None,
        wraps: Callable[[Connector], Connector] = lambda connector: connector,
    ) -> None:
        self.metrics = metrics
        self._coding = coding
        eviction = eviction or EvictionConfig()
        self.capacity = Capacity(
            name,
            connector,
            chunk_bytes,
            limit_bytes,
            policy=eviction.eviction_policy,
            watermark=eviction.trigger_watermark,
            ratio=eviction.eviction_ratio,
            evicted=lambda count: metrics.count("evicted_chunks", count, name),
        )
        self.generations = StoreGenerations(name, connector, clearing.newest)
        self.tier = Tier(
            name,
            wraps(connector),
            chunk_bytes,
            capacity=self.capacity,
            lets_go=lets_go,
            may_read=self._may_read,
        )
        self.capacity.recall = self.tier.known.prompts
        self._clearing = clearing
        self.writer = Writer(self.tier, queue_bytes_max, self.capacity, ttl_s, self._wrote)

    @property
    def is_deaf(self) -> bool:
        """Whether a clear for everybody does not reach who else uses this store."""
        return not self.generations.keeps

    def forget(self, which: Callable[[bytes], bool], *, delete: bool) -> None:
        """Nobody here asks for these generations any more: nothing of them is written from now on.
        `delete`: nobody at all asks for them, so what is there is deleted some time."""
        self.writer.drop(which)
        self.tier.known.forget(which)
        if delete:
            self.generations.delete(which, lambda: not self.writer.writes(which))

    def contact(self, timeout_s: float) -> str:
        """Whether the store can be used, asked of the store itself: words behind "it"."""
        try:
            told = self.tier.connector.batch_exists(["contact"], timeout_s=timeout_s)
        except KVFerryError as error:
            return f"cannot be asked: {error}"
        if told[0] in (Status.OK, Status.MISS):
            return "is reached"
        away = told[0] in (Status.UNAVAILABLE, Status.TIMEOUT)
        refused = not away or (told.kind is not None and told.kind is not UnavailableError)
        why = told.error or told[0].name
        return f"refuses us: {why}" if refused else f"is not reached yet: {why}"

    def close(self, timeout_s: float) -> bool:
        """Write what waits, for `timeout_s` at most, and close the store; whether all was."""
        done = self.writer.close(timeout_s)
        self.generations.close()
        self.tier.connector.close()
        return done

    def _may_read(self, prompt: Prompt, until: float) -> Steps[bool]:
        known = yield from self.generations.waiting(until)
        return known and self._clearing.is_current(prompt.generation)

    def _wrote(self, chunks: int, took_s: float, reason: str) -> None:
        size_bytes = chunks * self.tier.chunk_bytes
        if reason:
            self.metrics.shed(reason if reason in SHED_REASONS else "error", chunks)
        elif chunks:
            self.metrics.observe("store_seconds", took_s, self.tier.name)
            self.metrics.count("store_bytes", size_bytes, self.tier.name)
        if self._coding is not None:
            self._coding.choose(self.tier.figures()["seen_bytes_s"])


def space_of(identity: Identity) -> Space:
    """Where values of an identity are in every store."""
    return Space(
        prefix=f"kvf:{identity.digest.hex()}:",
        identity=identity.digest,
        value_size_bytes=identity.layout.chunk_bytes,
        description=identity.description,
    )


def open_tiers(
    stores: Sequence[StoreConfig],
    config: CacheConfig,
    identity: Identity,
    connectors: Mapping[str, Connector],
    metrics: CacheMetrics,
    clearing: Clears,
    wraps: Callable[[Connector], Connector] = lambda connector: connector,
) -> list[StoreTier]:
    """Open stores of the settings, and take those that are open.

    Args:
        config, identity, metrics: Of the cache.
        connectors: Stores that are open, by name.
        clearing: Of the cache.
        wraps: Each connector is used through what this makes of it.

    Raises:
        ConfigError: A store cannot be, or two have the same name.
        KVFerryError: A store cannot be opened. (One that is away can: it may come.)
    """
    space = space_of(identity)
    size, queue = identity.layout.chunk_bytes, config.tuning.write_queue_bytes_max
    tiers: list[StoreTier] = []
    try:
        for store in stores:
            spec, auto = store.connector_spec(), config.remote_serde == "auto"
            if store.type == "redis":
                spec["serde"] = "naive" if auto else config.remote_serde
            connector = load_connector(spec, space)
            coding = None
            if auto and isinstance(connector, RedisConnector):
                coding = Coding(store.name, connector.write_as)
            # Of files and memory the driver refuses what does not fit, just behind our limit.
            tiers.append(
                StoreTier(
                    store.name,
                    connector,
                    size,
                    queue,
                    metrics,
                    clearing,
                    limit_bytes=store.capacity_bytes,
                    eviction=store.eviction,
                    ttl_s=store.client.ttl_s if store.client is not None else None,
                    lets_go=store.type in ("redis", "memory"),
                    coding=coding,
                    wraps=wraps,
                )
            )
        for name, connector in connectors.items():
            if name == MEMORY or name in (tier.tier.name for tier in tiers):
                raise ConfigError(f"two stores have the name {name!r}; rename one")
            tiers.append(StoreTier(name, connector, size, queue, metrics, clearing, wraps=wraps))
    except BaseException:
        for tier in tiers:
            tier.close(0.0)
        raise
    return tiers
