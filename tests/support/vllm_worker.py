"""A worker's half over a cache that a test can stop, break or limit.

half = half_of(cache, plain())
step(half, Work(saves=[save(0, [0, 1])]))
stored(cache, 1)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from kvferry import Identity, KVLayout, TieredCache
from kvferry.chunks.keys import chunk_hashes
from kvferry.chunks.prompt import Prompt
from kvferry.integrations.vllm.connector.interfaces import LoadJob, SaveJob, Work
from kvferry.integrations.vllm.connector.worker import WorkerHalf
from kvferry.metrics import CacheMetrics
from support import clock
from support.vllm_shapes import PlainCopier

LAYERS, BLOCK, CHUNK = 2, 4, 8
LAYOUT = KVLayout(layers=LAYERS, kv_heads=1, head_dim=8, dtype="uint8", chunk_size=CHUNK)
LAYER_BYTES = LAYOUT.chunk_bytes // 2 // LAYERS  # of a block
BLOCKS = 64
TOKENS = list(range(100, 148))
HASHES = b"".join(chunk_hashes(TOKENS, CHUNK))


class Cache:
    """An engine, and what a test wants to go wrong with it."""

    def __init__(self, engine: TieredCache) -> None:
        self.engine = engine
        self.go = threading.Event()
        self.go.set()
        self.lose_lease = False
        self.breaks: Exception | None = None
        self.only = 1000  # chunks at most
        self.available = True
        self.limits: list[float | None] = []
        self.steps: list[tuple[int, int, int, float]] = []
        self.prompts: list[Any] = []

    def lookup(self, tokens: Any, **options: Any) -> Any:
        return self.engine.lookup(tokens, **options)

    def retrieve(
        self, tokens: Any, into: Any = None, *, limit_tokens: Any = None, timeout_s: Any = None
    ) -> Any:
        self.limits.append(timeout_s)
        self.prompts.append(tokens)
        assert self.go.wait(10)
        if self.breaks is not None:
            raise self.breaks
        hit = self.engine.retrieve(tokens, limit_tokens=self.only * CHUNK, timeout_s=timeout_s)
        if self.lose_lease:
            release = hit._release  # the pages are read, and were somebody else's meanwhile
            hit._release = lambda: release is None or (release() and False)
        return hit

    def store(self, tokens: Any, chunks: Sequence[Any], *, first_chunk: int = 0) -> Any:
        assert self.go.wait(10)
        if self.breaks is not None:
            raise self.breaks
        return self.engine.store(tokens, chunks, first_chunk=first_chunk)

    @property
    def generation(self) -> bytes:
        return self.engine.generation

    def renewed(self, ended: bytes, own: bytes) -> None:
        self.engine.renewed(ended, own)

    def observe_step(self, new_tokens: int, pairs: int, decodes: int, took_s: float) -> None:
        self.steps.append((new_tokens, pairs, decodes, took_s))

    @property
    def metrics(self) -> CacheMetrics:
        return self.engine.metrics

    def stats(self) -> dict[str, Any]:
        return self.engine.stats()

    def close(self, timeout_s: float = 5.0) -> object:
        self.go.set()
        return self.engine.close(timeout_s)


def half_of(cache: Cache, copier: Any, **settings: Any) -> WorkerHalf:
    settings = {"load_timeout_s": 30.0, "chunk_blocks": 2, **settings}
    return WorkerHalf(cast(Any, cache), copier, **settings)


def plain() -> PlainCopier:
    copier = PlainCopier(BLOCKS, LAYERS, LAYER_BYTES)
    for block in range(BLOCKS):
        copier.fill(block, block)
    return copier


def prompt_of(first: int, end: int) -> Prompt:
    hashes = HASHES[first * 16 : end * 16]
    return Prompt(hashes, end * CHUNK, CHUNK, start_tokens=first * CHUNK)


def save(first: int, blocks: list[int], request_id: str = "s") -> SaveJob:
    end = first + len(blocks) // 2
    return SaveJob(request_id, prompt_of(0, end), first, blocks)


def load(first: int, blocks: list[int], request_id: str = "l") -> LoadJob:
    return LoadJob(request_id, prompt_of(first, first + len(blocks) // 2), blocks)


def step(half: WorkerHalf, work: Work, layers: Sequence[str] = ()) -> None:
    half.begin_step(work)
    half.start_loads(work)
    for name in layers:
        half.save_layer(name)
    half.end_step()


def wait_for(what: Any) -> None:
    until = clock.now_s() + 10
    while not what():
        assert clock.now_s() < until
        threading.Event().wait(0.002)


def stored(cache: Cache, chunks: int) -> None:
    prompt = Prompt(HASHES[: chunks * 16], chunks * CHUNK, CHUNK)
    wait_for(lambda: cache.engine.contains(prompt) == chunks * CHUNK)


def reported(half: WorkerHalf, count: int = 1) -> tuple[set[str], set[int]]:
    """What loads ended, and the blocks that they did not fill."""
    names: set[str] = set()
    failed: set[int] = set()

    def all_there() -> bool:
        names.update(half.finished(computing=False))
        failed.update(half.failed_blocks())
        return len(names) >= count

    wait_for(all_there)
    return names, failed


@contextmanager
def opened_cache() -> Iterator[Cache]:
    """A small one, which goes on when the test ends."""
    identity = Identity(model="worker-half", layout=LAYOUT)
    with TieredCache(identity, max_local_cpu_size=0.001, prefault=False) as engine:
        made = Cache(engine)
        yield made
        made.go.set()
