"""Process 2 of the demo: the same model in a process that has computed nothing yet.

Reads a job from standard input, answers the prompt twice, with the chunks that process 1 stored and
without them, and writes one JSON object to standard output. The run with the cache goes first,
which is the worse place. Time to first token begins with the tokens and ends with the next token:
with the cache it contains hashing, lookup, loading, and computing what is behind the last chunk.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np

from kvferry.lab.demo_job import Job, chunk_buffers, open_client, warm_up
from kvferry.testing.transformer import F32, KVCache, Transformer

__all__ = ["ReaderReport", "read"]


@dataclass(frozen=True, kw_only=True)
class ReaderReport:
    """What process 2 found out."""

    client: str
    found_chunks: int
    loaded_chunks: int
    load_error: str | None
    lookup_s: float
    load_s: float
    ttft_with_cache_s: float
    ttft_without_cache_s: float
    tokens_with_cache: list[int]
    tokens_without_cache: list[int]
    logits_equal: bool
    different_chunks: list[int]


def read(job: Job) -> ReaderReport:
    """Answer the prompt with and without the stored chunks."""
    model = Transformer(job.model, job.seed)
    warm_up(model, job)
    loaded, computed = (model.new_cache(job.capacity_tokens) for _ in range(2))
    buffers = chunk_buffers(loaded, job.chunks)
    with open_client(job.url) as client:
        client.batch_exists(job.keys()[:1])  # connect, as a serving process has long done

        begin = time.perf_counter()
        keys = job.keys()
        found = client.batch_exists(keys, prefix=True).prefix_len
        looked_up = time.perf_counter()
        result = client.batch_get(keys[:found], buffers[:found])
        arrived = time.perf_counter()
        chunks = result.prefix_len
        loaded.length = chunks * job.model.page_tokens
        with np.errstate(all="ignore"):  # chunks that somebody damaged may hold any float
            first = model.prefill(job.prompt, loaded)
            ttft_with_cache_s = time.perf_counter() - begin
            with_cache = model.decode(first, loaded, job.new_tokens)

    start = time.perf_counter()
    first = model.prefill(job.prompt, computed)
    ttft_without_cache_s = time.perf_counter() - start
    without_cache = model.decode(first, computed, job.new_tokens)

    return ReaderReport(
        client=type(client).__name__,
        found_chunks=found,
        loaded_chunks=chunks,
        load_error=None if result.ok else result.error or result[chunks].name,
        lookup_s=looked_up - begin,
        load_s=arrived - looked_up,
        ttft_with_cache_s=ttft_with_cache_s,
        ttft_without_cache_s=ttft_without_cache_s,
        tokens_with_cache=with_cache[0],
        tokens_without_cache=without_cache[0],
        logits_equal=_same_bits(with_cache[1], without_cache[1]),
        different_chunks=_different(loaded, computed, chunks),
    )


def _same_bits(a: F32, b: F32) -> bool:
    return a.tobytes() == b.tobytes()


def _different(loaded: KVCache, computed: KVCache, chunks: int) -> list[int]:
    pairs = zip(chunk_buffers(loaded, chunks), chunk_buffers(computed, chunks), strict=True)
    return [index for index, (a, b) in enumerate(pairs) if bytes(a) != bytes(b)]


def main() -> int:
    """Run as `python -m kvferry.lab.demo_reader`."""
    try:
        json.dump(asdict(read(Job.from_json(sys.stdin.read()))), sys.stdout)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
