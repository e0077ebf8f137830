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

from kvferry_lab.demo.job import DemoJob, chunk_buffers, open_cache, warm_up
from kvferry_lab.transformer import F32, KVCache, Transformer

__all__ = ["ReaderReport", "read"]


@dataclass(frozen=True, kw_only=True)
class ReaderReport:
    """The results of process 2."""

    loaded_chunks: int
    missing: str  # why it is not all of them; "" if it is
    refused: dict[str, int]  # values that were not what they should be, by cause
    lookup_s: float
    load_s: float
    ttft_with_cache_s: float
    ttft_without_cache_s: float
    tokens_with_cache: list[int]
    tokens_without_cache: list[int]
    logits_equal: bool
    different_chunks: list[int]


def read(job: DemoJob) -> ReaderReport:
    """Answer the prompt with and without the stored chunks."""
    model = Transformer(job.model, job.seed)
    warm_up(model, job)
    loaded, computed = (model.new_cache(job.capacity_tokens) for _ in range(2))
    buffers = chunk_buffers(loaded, job.chunks)
    with open_cache(job) as cache:
        cache.contains(job.chunk_tokens[: job.model.page_tokens])  # connect, as a server has

        begin = time.perf_counter()
        hit = cache.retrieve(job.prompt, buffers, limit_tokens=len(job.prompt) - 1)
        loaded.length = hit.tokens
        first = model.prefill(job.prompt, loaded)
        ttft_with_cache_s = time.perf_counter() - begin
        with_cache = model.decode(first, loaded, job.new_tokens)
        refused = {
            name.removeprefix("refused_").replace("_", " "): count
            for name, count in cache.stats()["stores"]["redis"].items()
            if name.startswith("refused_") and count
        }

    start = time.perf_counter()
    first = model.prefill(job.prompt, computed)
    ttft_without_cache_s = time.perf_counter() - start
    without_cache = model.decode(first, computed, job.new_tokens)

    chunks = hit.tokens // job.model.page_tokens
    return ReaderReport(
        loaded_chunks=chunks,
        missing=hit.reason,
        refused=refused,
        lookup_s=hit.lookup_s,
        load_s=hit.load_s,
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
    """Run as `python -m kvferry_lab.demo.demo_reader`."""
    try:
        json.dump(asdict(read(DemoJob.from_json(sys.stdin.read()))), sys.stdout)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
