"""Both halves of the vLLM connector over a cache, in place of an engine."""

from __future__ import annotations

import threading
from typing import Any

from kvferry import Identity, KVLayout, TieredCache
from kvferry.integrations.vllm.connector.interfaces import Work
from kvferry.integrations.vllm.connector.lookup_threads import CacheFinder
from kvferry.integrations.vllm.connector.scheduler import SchedulerHalf
from kvferry.integrations.vllm.connector.worker import WorkerHalf
from support import clock
from support.vllm_shapes import EngineRequest, PlainCopier, SchedulerStep

__all__ = ["BLOCK", "CHUNK", "CHUNKS", "LAYOUT", "LIMIT_S", "SOON_S", "Vllm"]

BLOCK, CHUNK, CHUNKS = 8, 16, 12
LAYOUT = KVLayout(layers=4, kv_heads=2, head_dim=512, dtype="uint8", chunk_size=CHUNK)
LAYER_BYTES = LAYOUT.chunk_bytes // 2 // LAYOUT.layers
LIMIT_S = 0.04
SOON_S = 10.0  # for what is due at once, on a machine that has other things to do


class Vllm:
    """A scheduler, a worker and their cache, in place of an engine."""

    def __init__(self, url: str | None, **settings: Any) -> None:
        given = {
            "remote_url": url,
            "max_local_cpu_size": 0.01,
            "prefault": False,
            "recompute": "never",
            "lookup_timeout_s": SOON_S,
            **settings,
        }
        self.engine = TieredCache(Identity(model="halves", layout=LAYOUT), **given)
        self.finder = CacheFinder(self.engine)
        self.scheduler = SchedulerHalf(
            self.finder, chunk_size=CHUNK, block_size=BLOCK, limit_s=SOON_S
        )
        self.copier = PlainCopier(200, LAYOUT.layers, LAYER_BYTES)
        self.worker = WorkerHalf(self.engine, self.copier, chunk_blocks=2, load_timeout_s=3.0)
        self._count = 0

    def hurry(self) -> None:
        """From now on nobody waits for a store longer than `LIMIT_S`."""
        self.engine.config = self.engine.config.replace(lookup_timeout_s=LIMIT_S)

    def request(self, seed: int) -> EngineRequest:
        self._count += 1
        tokens = [(seed * 131 + i * 7) % 30_000 for i in range(CHUNK * CHUNKS + 3)]
        return EngineRequest(f"r{self._count}", tokens)

    def ask(self, request: EngineRequest) -> tuple[int, float]:
        """How much can be loaded, and how long it took to say so, by clock.py."""
        began = clock.now_s()
        while (found := self.scheduler.matched(request, 0)) is None:
            self.step(self.scheduler.work(SchedulerStep()))
        return found, clock.now_s() - began

    def found(self, seed: int) -> EngineRequest:
        """A request of which everything can be loaded; the limit may be too short for some."""
        until = clock.now_s() + 3 * SOON_S
        while self.ask(request := self.request(seed))[0] != CHUNKS * CHUNK:
            assert clock.now_s() < until
            threading.Event().wait(0.02)
        return request

    def step(self, work: Work) -> None:
        self.worker.begin_step(work)
        self.worker.start_loads(work)
        self.worker.end_step()

    def compute(self, request: EngineRequest) -> None:
        """As if its KV were computed and saved: block i holds its number and the seed."""
        self.scheduler.allocated(request, range(30), 0)
        for block in range(30):
            self.copier.fill(block, block + request.all_token_ids[0])
        step = SchedulerStep().new(request.request_id, list(range(30)), 0, request.num_tokens)
        self.step(self.scheduler.work(step))
        self.scheduler.finished(request.request_id)

    def load(self, request: EngineRequest, tokens: int) -> set[int]:
        """Load into blocks 100 on; the blocks that were not filled."""
        self.scheduler.allocated(request, range(100, 130), tokens)
        self.step(self.scheduler.work(SchedulerStep()))
        until = clock.now_s() + SOON_S
        while not self.worker.finished(computing=False):
            assert clock.now_s() < until
        return self.worker.failed_blocks()

    def right(self, request: EngineRequest, failed: set[int]) -> None:
        """Every block that was not reported holds what was computed."""
        for block in range(2 * CHUNKS):
            if 100 + block not in failed:
                expected = [(block + request.all_token_ids[0] + i) % 256 for i in range(4)]
                row = b"".join(bytes([value]) * LAYER_BYTES for value in expected)
                assert self.copier.content(100 + block) == row

    def close(self) -> None:
        self.scheduler.close()
        self.worker.close()
