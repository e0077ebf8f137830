"""Series of ours in the registry of prometheus-client that vLLM's ``/metrics`` shows."""

from __future__ import annotations

from prometheus_client import REGISTRY

__all__ = ["unregister_series"]


def unregister_series() -> None:
    """Make room for the series of a new engine, as vLLM does for its own, which begin otherwise.

    A process that opens a second engine would fail else: a series can be there only once.
    """
    for collector in list(REGISTRY._collector_to_names):
        if str(getattr(collector, "_name", "")).startswith("kvferry_"):
            REGISTRY.unregister(collector)
