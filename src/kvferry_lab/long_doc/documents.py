"""The long documents as a trace: what their chunks are, and in which order they are asked for.

A document shares nothing with another one. Its last token is always computed, so it has the full
chunks of the tokens before that one.
"""

from __future__ import annotations

from array import array

from kvferry import _native
from kvferry_lab.long_doc.run import LongDocPlan
from kvferry_lab.trace.format import Trace

__all__ = ["CHUNK_TOKENS", "document_trace"]

CHUNK_TOKENS = 256


def document_trace(name: str, plan: LongDocPlan, chunk_tokens: int = CHUNK_TOKENS) -> Trace:
    """The warm-up round and all that follow, one request after the other."""
    each = (plan.document_length - 1) // chunk_tokens
    orders = [list(range(plan.num_documents)), *plan.query_rounds]
    asked = [document for order in orders for document in order]
    hashes = [
        _native.hash_chunks(array("I", range(one * each, (one + 1) * each)), 1, b"")
        for one in range(plan.num_documents)
    ]
    return Trace.of(name, "documents", chunk_tokens, (hashes[one] for one in asked))
