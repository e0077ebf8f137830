"""Transformers: the KV of prompts kept and loaded again, see `KvferryCache`."""

from __future__ import annotations

from kvferry.integrations.transformers.prefix_cache import KvferryCache

__all__ = ["KvferryCache"]
