"""What a worker's cache has counted is told now and then, for vLLM's metrics."""

from __future__ import annotations

import pytest

from kvferry import Identity, KVLayout, TieredCache
from kvferry.chunks.keys import chunk_hashes
from kvferry.chunks.prompt import Prompt
from kvferry.integrations.vllm.connector.interfaces import LoadJob, SaveJob, Work
from kvferry.integrations.vllm.connector.worker import WorkerHalf
from support.stamps import until
from support.vllm_shapes import PlainCopier

LAYERS, CHUNK = 2, 8
LAYOUT = KVLayout(layers=LAYERS, kv_heads=1, head_dim=8, dtype="uint8", chunk_size=CHUNK)
HASHES = b"".join(chunk_hashes(list(range(CHUNK)), CHUNK))


def step(half: WorkerHalf, work: Work) -> None:
    half.start_loads(work)
    half.end_step()


def test_what_the_cache_counts_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """First tokens by one rank alone: all of them see the same."""
    identity = Identity(model="worker-deltas", layout=LAYOUT)
    with TieredCache(identity, max_local_cpu_size=0.001, prefault=False) as engine:
        halves = [
            WorkerHalf(
                engine,
                PlainCopier(64, LAYERS, LAYOUT.chunk_bytes // 2 // LAYERS),
                chunk_blocks=2,
                load_timeout_s=30.0,
                rank=rank,
            )
            for rank in (0, 1)
        ]
        prompt = Prompt(HASHES, CHUNK, CHUNK)
        half, work = halves[0], Work(first_tokens=[(0.1, 0.4)])
        for each in halves:
            each.begin_step(work)
        told = half.deltas()
        assert sum(told["histograms"]["kvferry_ttft_share"][""][1]) == 1
        assert told["gauges"]["0"]["kvferry_pool_pages"][""] > 0

        step(half, Work(saves=[SaveJob("a", prompt, 0, [0, 1])]))
        until(lambda: half.counts.read()["saved_chunks"], 60)
        step(half, Work(loads=[LoadJob("b", prompt, [20, 21])]))
        until(lambda: half.counts.read()["loads"], 60)
        monkeypatch.setattr(half, "_deltas_at", float("inf"))
        told = half.deltas()  # the cache's last one was just now
        assert [*told] == ["counters"]
        assert told["counters"]["vllm:kvferry_loads"] == {"": 1}
        assert all(name.startswith("vllm:kvferry_") for name in told["counters"])
        assert half.deltas() == {}
        monkeypatch.setattr(half, "_deltas_at", 0.0)
        told = half.deltas()
        assert told["counters"]["kvferry_tokens_hit"] == {"l1": CHUNK}
        both = {"in": LAYOUT.chunk_bytes, "out": LAYOUT.chunk_bytes}
        assert told["counters"]["kvferry_memory_bytes"] == both
        for each in halves:
            each.close()
