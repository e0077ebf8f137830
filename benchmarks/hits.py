"""Bars of hit rates: the policies are what the literature means by their names, and leaf-first
order costs nothing. Of a trace that is given, or of a made one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.bars import Bar, Lab, Target
from benchmarks.made_trace import made_trace
from kvferry_lab.trace.format import HASH_BYTES, Trace, load_trace
from kvferry_lab.trace.replay import POLICIES, replay

__all__ = ["hit_rates"]

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
