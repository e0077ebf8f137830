"""A tier of vLLM's ``OffloadingConnector`` in a store.

vLLM finds the class `KvferryTier` here by its name; what it needs of vLLM is imported then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvferry.integrations.vllm.tier.secondary_tier import KvferryTier

__all__ = ["KvferryTier"]


def __getattr__(name: str) -> Any:
    if name == "KvferryTier":
        from kvferry.integrations.vllm.tier.secondary_tier import KvferryTier

        return KvferryTier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
