"""A made trace, for when nobody gives a real one: sessions over documents that many of them share.

Some documents are asked about far more often than others (Zipf). A session takes several turns,
each of them the one before and a few blocks more; between its turns others have theirs, and one
request in five never comes back. The same numbers make the same trace everywhere.
"""

from __future__ import annotations

import itertools
import random
from array import array
from collections.abc import Iterator

from kvferry import _native
from kvferry_lab.trace.format import Trace

__all__ = ["made_trace"]

_CHUNK_TOKENS = 512  # for the record: blocks are made, not tokens
_LIVE = 32  # sessions between which turns alternate
_DOCUMENT_BLOCKS = (4, 64)
_TURN_BLOCKS = (1, 8)
_ONCE_BLOCKS = (4, 32)
_ONCE = 0.2
_LAST_TURN = 0.25


def made_trace(requests: int, seed: int = 20) -> Trace:
    """So many requests, as chunk hashes."""
    return Trace.of(f"made, {requests:,} requests", "made", _CHUNK_TOKENS, _hashes(requests, seed))


def _hashes(requests: int, seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    numbers = itertools.count()

    def blocks(least: int, most: int) -> list[int]:
        return [next(numbers) for _ in range(chance.randint(least, most))]

    documents = [blocks(*_DOCUMENT_BLOCKS) for _ in range(max(8, requests // 32))]
    weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(len(documents))))

    def session() -> list[int]:
        return list(chance.choices(documents, cum_weights=weights)[0])

    live = [session() for _ in range(_LIVE)]
    for _ in range(requests):
        if chance.random() < _ONCE:
            asked = blocks(*_ONCE_BLOCKS)
        else:
            place = chance.randrange(_LIVE)
            asked = live[place] = live[place] + blocks(*_TURN_BLOCKS)
            if chance.random() < _LAST_TURN:
                live[place] = session()
        yield _native.hash_chunks(array("I", asked), 1, b"")
