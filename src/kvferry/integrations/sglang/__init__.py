"""SGLang: a storage backend for HiCache, `KvferryHiCache`, that SGLang loads by name.

    --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "kvferry", "interface_v1": 1,
        "module_path": "kvferry.integrations.sglang", "class_name": "KvferryHiCache",
        "url": "redis://localhost:6379"}'

`backend.py` is what SGLang sees, `ambiguity.py` which servers are refused, `identity.py` what the
bytes of a page mean, `host_pool.py` where the pages of a host pool lie, `page_store.py` how pages
go to the server and back, `hits.py` what a prefix needs of several pools. The keys of the extra
config are those of `SglangSettings`. Only `backend.py` needs SGLang to be imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvferry.integrations.sglang.backend import KvferryHiCache

__all__ = ["KvferryHiCache"]


def __getattr__(name: str) -> Any:
    if name == "KvferryHiCache":
        from kvferry.integrations.sglang.backend import KvferryHiCache

        return KvferryHiCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
