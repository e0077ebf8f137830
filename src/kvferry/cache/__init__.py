"""The tiered cache: chunks of KV in memory and in stores, keyed by the tokens before them.

    TieredCache  what users hold                               tiered_cache.py
    Retriever    one retrieve: look, ask, choose, load         load/retriever.py
    Load         chunks from stores into pages, cut in time    load/loader.py
    Writer       chunks from pages into a store, behind        store/writer.py
    Capacity     what leaves a store when it is full           store/capacity.py
    Tier         a store with what was learnt about it         store/tier.py
    Memory       pages, and the index of what lies in them     memory.py
    cost         load or compute, and until when to wait       cost/load_or_compute.py

Data flows down: tokens become hashes (`kvferry.chunks.prompt`), hashes pages or keys, keys
tickets of connectors.
"""

from __future__ import annotations

from kvferry.cache.results import Lookup, Retrieved, Stored
from kvferry.cache.tiered_cache import TieredCache
from kvferry.chunks.prompt import Hashes

__all__ = ["Hashes", "Lookup", "Retrieved", "Stored", "TieredCache"]
