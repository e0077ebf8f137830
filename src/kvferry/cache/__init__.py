"""The tiered cache: chunks of KV in memory and in stores, keyed by the tokens before them.

    Cache           what every cache can do, wherever its memory is      interface.py
    TieredCache     the cache of this process                            tiered_cache.py
    results         what calls return, and a line in the log for each    results.py
    Memory          pages, and the index of what lies in them            memory.py
    Reader          one retrieve: look, ask, choose, load into pages     load/
    cost            load or compute, and until when to wait              cost/
    Storer          chunks into pages, and on to the writers of stores   storer.py
    StoreTier       a store: asked, written behind, kept below a limit   store/
    Clearing        the generation in force, and what ends it            clearing.py
    Explanation     where each chunk of a prompt is, or why it is not    explain.py
    Meter           from what happens to what is counted                 meter.py
    Steps           work that waits, in steps                            steps.py

Data flows down: tokens become hashes (`kvferry.chunks.prompt`), hashes pages or keys, keys tickets
of connectors.
"""

from __future__ import annotations

from kvferry.cache.interface import Cache
from kvferry.cache.results import Lookup, Retrieved, Stored
from kvferry.cache.tiered_cache import TieredCache
from kvferry.chunks.prompt import Hashes

__all__ = ["Cache", "Hashes", "Lookup", "Retrieved", "Stored", "TieredCache"]
