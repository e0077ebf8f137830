"""The tiered cache: chunks of KV in memory and in stores, keyed by the tokens before them.

    TieredCache     what users hold                                      tiered_cache.py
    results         what its calls return                                results.py
    Memory          pages, and the index of what lies in them            memory.py
    Reader          one retrieve: look, ask, choose, load into pages     load/
    cost            load or compute, and until when to wait              cost/
    Storer          chunks into pages, and on to the writers of stores   storer.py
    StoreTier       a store: asked, written behind, kept below a limit   store/
    Clearing        the generation in force, and what ends it            clearing.py
    Explanation     where each chunk of a prompt is, or why it is not    explain.py
    Meter           from what happens to what is counted                 meter.py
    RequestLog      a line in the log for each retrieve and store        request_log.py
    Steps           work that waits, in steps                            steps.py
    caller_buffers  the buffers of a caller, checked                     caller_buffers.py

Data flows down: tokens become hashes (`kvferry.chunks.prompt`), hashes pages or keys, keys tickets
of connectors.
"""

from __future__ import annotations

from kvferry.cache.results import Lookup, Retrieved, Stored
from kvferry.cache.tiered_cache import TieredCache
from kvferry.chunks.prompt import Hashes

__all__ = ["Hashes", "Lookup", "Retrieved", "Stored", "TieredCache"]
