"""The stores of an engine, opened from its settings: each a tier, its writer, and its limit."""

from __future__ import annotations

from collections.abc import Mapping

from kvferry.client.batch import Status
from kvferry.connectors.base import Connector, Space
from kvferry.connectors.load import load_connector
from kvferry.engine.capacity import Capacity
from kvferry.engine.tier import Tier
from kvferry.engine.writer import Writer
from kvferry.engine_config import EngineConfig, EvictionConfig
from kvferry.errors import ConfigError
from kvferry.identity import Identity
from kvferry.metrics import SHED_REASONS, EngineMetrics

__all__ = ["MEMORY", "StoreTier", "open_tiers", "space_of"]

MEMORY = "l1"  # the name of the tier in this process


class StoreTier:
    """One store of an engine.

    Attributes:
        tier: What it is asked.
        capacity: Keeps it below its limit; None: it has none.
        writer: Writes to it.
    """

    def __init__(
        self,
        name: str,
        connector: Connector,
        chunk_bytes: int,
        queue_bytes_max: int,
        metrics: EngineMetrics,
        *,
        limit_bytes: int | None = None,
        eviction: EvictionConfig | None = None,
        ttl_s: float | None = None,
        lets_go: bool = False,
    ) -> None:
        self.metrics = metrics
        self.capacity: Capacity | None = None
        if limit_bytes is not None and eviction is not None:
            self.capacity = Capacity(
                connector,
                chunk_bytes,
                limit_bytes,
                policy=eviction.eviction_policy,
                watermark=eviction.trigger_watermark,
                ratio=eviction.eviction_ratio,
                evicted=lambda count: metrics.evicted(name, count),
            )
        self.tier = Tier(name, connector, chunk_bytes, capacity=self.capacity, lets_go=lets_go)
        self.writer = Writer(self.tier, queue_bytes_max, self.capacity, ttl_s, self._wrote)

    def clear(self) -> int:
        """Delete all that the store has of this identity; how many chunks there were."""
        count, connector = 0, self.tier.connector
        for batch in connector.scan():
            count += connector.batch_delete([key for key, _ in batch]).count(Status.OK)
        connector.undescribe()
        self.writer.described = False
        if self.capacity is not None:
            self.capacity.forget()
        return count

    def close(self, timeout_s: float) -> bool:
        """Write what waits, for `timeout_s` at most, and close the store; whether all was."""
        done = self.writer.close(timeout_s)
        self.tier.connector.close()
        return done

    def _wrote(self, chunks: int, took_s: float, reason: str) -> None:
        size_bytes = chunks * self.tier.chunk_bytes
        if reason:
            self.metrics.shed(reason if reason in SHED_REASONS else "error", chunks)
        elif chunks:
            self.metrics.stored(self.tier.name, size_bytes, took_s)


def space_of(identity: Identity) -> Space:
    """Where values of an identity are in every store."""
    return Space(
        prefix=f"kvf:{identity.digest.hex()}:",
        identity=identity.digest,
        value_size_bytes=identity.layout.chunk_bytes,
        description=identity.description,
    )


def open_tiers(
    config: EngineConfig,
    identity: Identity,
    connectors: Mapping[str, Connector],
    metrics: EngineMetrics,
) -> list[StoreTier]:
    """Open the stores of the settings, and take those that are open.

    Raises:
        ConfigError: A store cannot be, or two have the same name.
        KVFerryError: A store cannot be opened. (One that is away can: it may come.)
    """
    space = space_of(identity)
    size, queue = identity.layout.chunk_bytes, config.write_queue_bytes_max
    tiers: list[StoreTier] = []
    try:
        for store in config.stores:
            # Of files and memory the driver refuses what does not fit, just behind our limit.
            tiers.append(
                StoreTier(
                    store.name,
                    load_connector(store.connector_spec(), space),
                    size,
                    queue,
                    metrics,
                    limit_bytes=store.capacity_bytes,
                    eviction=store.eviction,
                    ttl_s=store.client.ttl_s if store.client is not None else None,
                    lets_go=store.type in ("redis", "memory"),
                )
            )
        for name, connector in connectors.items():
            if name == MEMORY or name in (tier.tier.name for tier in tiers):
                raise ConfigError(f"two stores have the name {name!r}; rename one")
            tiers.append(StoreTier(name, connector, size, queue, metrics))
    except BaseException:
        for tier in tiers:
            tier.close(0.0)
        raise
    return tiers
