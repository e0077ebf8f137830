"""Bars of hit rates: the policies are what the literature means by their names, and leaf-first
order costs nothing. Of a trace that is given, or of a made one.

The made trace has sessions over documents that many of them share. Some documents are asked about
far more often than others (Zipf). A session takes several turns, each of them the one before and a
few blocks more; between its turns others have theirs, and one request in five never comes back. The
same numbers make the same trace everywhere.
"""

from __future__ import annotations

import importlib
import itertools
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.bars import Bar, Lab, Target
from kvferry import _native
from kvferry_lab.trace.format import HASH_BYTES, Trace, load_trace
from kvferry_lab.trace.replay import POLICIES, replay

__all__ = ["hit_rates", "made_trace"]

_COMPARED = ("LRU", "FIFO", "LFU", "ARC")
_PARTS = (1 / 64, 1 / 16, 1 / 4)  # capacities, of the distinct chunks
_NEAR = Target("<=", 0.5, "points off")
_NO_LOSS = Target(">=", -0.2, "points")


def hit_rates(lab: Lab) -> Iterator[Bar]:
    """LRU, FIFO, LFU and ARC as libcachesim has them; leaf-first order against plain order."""
    trace = load_trace(lab.trace) if lab.trace else made_trace(lab.count(4_000))
    capacities = [max(1, int(trace.distinct * part)) for part in _PARTS]
    requests = _numbered(trace)
    try:
        library = importlib.import_module("libcachesim")
    except ImportError:
        library = None
    for policy in _COMPARED:
        name = f"hit rate of {policy} against libcachesim, {trace.name}"
        if library is None:
            reason = "libcachesim is not installed"
            yield Bar(name=name, target=_NEAR, value=None, reason=reason, skipped=True)
            continue
        theirs = [_block_hits(library, policy, size, requests) for size in capacities]
        ours = [replay(trace, policy, size, leaf_first=False).block_hits for size in capacities]
        yield _bar(name, _NEAR, trace, capacities, ours, theirs, lambda off: max(map(abs, off)))
    for policy in POLICIES:
        leaf_first, plain = (
            [replay(trace, policy, size, order).prefix_hits for size in capacities]
            for order in (True, False)
        )
        name = f"leaf-first against plain {policy}, {trace.name}"
        yield _bar(name, _NO_LOSS, trace, capacities, leaf_first, plain, min)


def _bar(
    name: str,
    target: Target,
    trace: Trace,
    capacities: Sequence[int],
    ours: Sequence[int],
    theirs: Sequence[int],
    worst: Callable[[Sequence[float]], float],
) -> Bar:
    """The worst difference of two rows of hits, in points of all chunks that were asked for."""
    rates = [
        (100 * a / trace.chunks, 100 * b / trace.chunks) for a, b in zip(ours, theirs, strict=True)
    ]
    shown = "; ".join(
        f"{a:.2f} and {b:.2f} % of {size:,} chunks"
        for size, (a, b) in zip(capacities, rates, strict=True)
    )
    return Bar(name=name, target=target, value=worst([a - b for a, b in rates]), detail=shown)


def _numbered(trace: Trace) -> list[int]:
    """The chunks of all requests, one after the other, as numbers from 1 on."""
    numbers: dict[bytes, int] = {}
    return [
        numbers.setdefault(hashes[at : at + HASH_BYTES], len(numbers) + 1)
        for hashes in trace.requests
        for at in range(0, len(hashes), HASH_BYTES)
    ]


def _block_hits(library: Any, policy: str, capacity: int, requests: Sequence[int]) -> int:
    """Hits of libcachesim, a chunk being an object of size 1."""
    cache = getattr(library, policy)(cache_size=capacity)
    request = library.Request()
    request.obj_size = 1
    hits = 0
    for number in requests:
        request.obj_id = number
        hits += cache.get(request)
    return hits


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
