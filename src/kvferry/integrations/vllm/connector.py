"""Where vLLM finds our connectors by name.

`KvferryConnector` caches in vLLM's own processes (`in_process`), `KvferryMPConnector` in a cache
server (`mp`). `KvferryTierConnector` is vLLM's own with our tier, in `tier_connector`.

This module needs vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvferry.integrations.vllm.in_process import ConnectorMetadata, KvferryConnector

if TYPE_CHECKING:
    from kvferry.integrations.vllm.mp import KvferryMPConnector

__all__ = ["ConnectorMetadata", "KvferryConnector", "KvferryMPConnector"]


def __getattr__(name: str) -> Any:
    """The connector to a cache server, whose modules are loaded for those alone who use it."""
    if name == "KvferryMPConnector":
        from kvferry.integrations.vllm.mp import KvferryMPConnector

        return KvferryMPConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
