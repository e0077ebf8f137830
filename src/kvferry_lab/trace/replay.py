"""Traces replayed through the index and the policies that the engine itself uses.

A request is one call: what is there is used, the rest is stored at once, as after a prefill. No
bytes are moved here; `kvferry_lab.trace.store_replay` does that as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvferry import _native
from kvferry.config.setting import GB
from kvferry_lab.trace.format import HASH_BYTES, Trace

__all__ = [
    "POLICIES",
    "Replay",
    "ReplayPoint",
    "Replayer",
    "capacities_of",
    "new_cache",
    "point_of",
    "prefix_hits",
    "replay",
]

POLICIES = _native.policies()
_STEP = 64  # requests between two reports of progress
_PARTS = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 1)  # of the distinct chunks, where nobody names a capacity


@dataclass(frozen=True, kw_only=True)
class ReplayPoint:
    """What one policy makes of one trace with one capacity.

    Rates are parts of all chunks that were asked for. `prefix_hit_rate` counts those in an unbroken
    run from the first one on, which is what an engine can use; `block_hit_rate` counts all.
    """

    trace: str
    policy: str
    order: str
    capacity_chunks: int
    capacity_gb: float
    chunk_tokens: int
    requests: int
    chunks: int
    prefix_hits: int
    block_hits: int
    prefix_hits_max: int
    evictions: int
    elapsed_s: float
    verified_bytes: int = 0

    @property
    def prefix_hit_rate(self) -> float:
        """Usable hits."""
        return self.prefix_hits / self.chunks if self.chunks else 0.0

    @property
    def block_hit_rate(self) -> float:
        """Hits anywhere in a request."""
        return self.block_hits / self.chunks if self.chunks else 0.0

    @property
    def infinite_hit_rate(self) -> float:
        """Usable hits of a cache without limits."""
        return self.prefix_hits_max / self.chunks if self.chunks else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All fields, then the rates."""
        rates = ("prefix_hit_rate", "block_hit_rate", "infinite_hit_rate")
        return {**asdict(self), **{name: round(getattr(self, name), 6) for name in rates}}


Replayer = Callable[[Trace, str, int, bool, int, Callable[[int], object]], ReplayPoint]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What is replayed.

    Attributes:
        traces: All of them, one after the other.
        policies: Names that the index knows.
        capacities: In chunks, for each trace.
        leaf_first: Orders in which the chunks of a request become younger.
        chunk_bytes: Of one chunk of each trace, for GB.
    """

    traces: Sequence[Trace]
    policies: Sequence[str]
    capacities: Sequence[Sequence[int]]
    leaf_first: Sequence[bool]
    chunk_bytes: Sequence[int]

    @property
    def requests(self) -> int:
        """The number of requests that the replay makes."""
        each = len(self.policies) * len(self.leaf_first)
        return sum(
            len(trace.requests) * len(sizes) * each
            for trace, sizes in zip(self.traces, self.capacities, strict=True)
        )

    def run(
        self,
        progress: Callable[[int], object] = lambda _: None,
        replayer: Replayer | None = None,
    ) -> Iterator[ReplayPoint]:
        """Every combination; `progress` hears of requests as they are done.

        Args:
            replayer: What replays one of them; default: `replay`.
        """
        one = replayer or replay
        rows = zip(self.traces, self.capacities, self.chunk_bytes, strict=True)
        for trace, sizes, chunk_bytes in rows:
            for leaf_first in self.leaf_first:
                for policy in self.policies:
                    for capacity in sizes:
                        yield one(trace, policy, capacity, leaf_first, chunk_bytes, progress)


def replay(
    trace: Trace,
    policy: str,
    capacity: int,
    leaf_first: bool = True,
    chunk_bytes: int = 0,
    progress: Callable[[int], object] = lambda _: None,
) -> ReplayPoint:
    """Replay one trace through one index.

    Raises:
        UsageError: There is no such policy, or the capacity is below 1.
    """
    cache = new_cache(policy, capacity, leaf_first)
    prefix_hits = block_hits = 0
    started = time.perf_counter()
    for begin in range(0, len(trace.requests), _STEP):
        some = trace.requests[begin : begin + _STEP]
        for hashes in some:
            prefix, blocks = cache.access(hashes)
            prefix_hits += prefix
            block_hits += blocks
        progress(len(some))
    return point_of(
        trace,
        cache,
        policy,
        leaf_first,
        chunk_bytes,
        hits=(prefix_hits, block_hits),
        elapsed_s=time.perf_counter() - started,
    )


def prefix_hits(
    trace: Trace,
    policy: str,
    capacity: int,
    leaf_first: bool = True,
    progress: Callable[[int], object] = lambda _: None,
) -> Iterator[int]:
    """For each request of a trace the chunks that it can use, in the order of the requests.

    Raises:
        UsageError: There is no such policy, or the capacity is below 1.
    """
    cache = new_cache(policy, capacity, leaf_first)
    for number, hashes in enumerate(trace.requests, 1):
        yield cache.access(hashes)[0]
        if number % _STEP == 0:
            progress(_STEP)


def point_of(
    trace: Trace,
    cache: _native.ChunkCache,
    policy: str,
    leaf_first: bool,
    chunk_bytes: int,
    *,
    hits: tuple[int, int],
    elapsed_s: float,
    verified_bytes: int = 0,
) -> ReplayPoint:
    """The result of a replay; `hits` are those in the prefix, and all."""
    return ReplayPoint(
        trace=trace.name,
        policy=policy,
        order="leaf-first" if leaf_first else "plain",
        capacity_chunks=cache.capacity,
        capacity_gb=cache.capacity * chunk_bytes / GB,
        chunk_tokens=trace.chunk_tokens,
        requests=len(trace.requests),
        chunks=trace.chunks,
        prefix_hits=hits[0],
        block_hits=hits[1],
        prefix_hits_max=trace.prefix_hits_max,
        evictions=cache.stats()["evictions"],
        elapsed_s=elapsed_s,
        verified_bytes=verified_bytes,
    )


def new_cache(policy: str, capacity: int, leaf_first: bool) -> _native.ChunkCache:
    """The index of the engine, without memory for payload."""
    return _native.ChunkCache(capacity, policy, leaf_first=leaf_first)


def capacities_of(trace: Trace) -> list[int]:
    """Capacities that show the whole curve: parts of the distinct chunks."""
    longest = max((len(hashes) // HASH_BYTES for hashes in trace.requests), default=1)
    parts = {max(1, longest, int(trace.distinct * part)) for part in _PARTS}
    return sorted(parts)
