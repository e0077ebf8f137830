"""What a cache counts, for Prometheus and for `stats()`.

    metrics = CacheMetrics(stores=["redis"])
    metrics.hit("l1", tokens=512, size_bytes=64 << 20)       # a fraction of a microsecond
    metrics.text()                                            # what Prometheus scrapes
    metrics.snapshot()["kvferry_tokens_hit_total"]["l1"]      # 512
    prometheus_client.REGISTRY.register(metrics.collector())

docs/guides/metrics.md has the list of the series; deploy/grafana/kvferry.json shows them.
"""

from __future__ import annotations

from kvferry.metrics.cache import DECISIONS, MISS_REASONS, SHED_REASONS, CacheMetrics

__all__ = ["DECISIONS", "MISS_REASONS", "SHED_REASONS", "CacheMetrics"]
