"""Where vLLM finds our connectors by name.

`KvferryConnector` caches in vLLM's own processes (`in_process`), `KvferryMPConnector` in a cache
server (`mp`). `KvferryTierConnector` is vLLM's own with our tier, in `tier`.

The names need vLLM, which is imported with the first of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvferry.integrations.vllm.connector.in_process import ConnectorMetadata, KvferryConnector
    from kvferry.integrations.vllm.mp import KvferryMPConnector

__all__ = ["ConnectorMetadata", "KvferryConnector", "KvferryMPConnector"]

_HOME = {
    "ConnectorMetadata": "kvferry.integrations.vllm.connector.in_process",
    "KvferryConnector": "kvferry.integrations.vllm.connector.in_process",
    "KvferryMPConnector": "kvferry.integrations.vllm.mp",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
