"""vLLM's ``OffloadingConnector`` with a tier in a store.

vLLM finds `KvferryTierConnector` and its tier `KvferryTier` here by their names; what they need of
vLLM is imported with the first of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvferry.integrations.vllm.tier.secondary_tier import KvferryTier
    from kvferry.integrations.vllm.tier.tier_connector import KvferryTierConnector

__all__ = ["KvferryTier", "KvferryTierConnector"]

_HOME = {
    "KvferryTier": "kvferry.integrations.vllm.tier.secondary_tier",
    "KvferryTierConnector": "kvferry.integrations.vllm.tier.tier_connector",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
