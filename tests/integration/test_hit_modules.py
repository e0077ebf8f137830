"""How many Python modules of ours a hit passes, from the engine's hooks to the pages and back.

A reader of "what happens on a hit" opens these. They are counted by a profile hook in all threads;
what runs beside (heartbeats, marks of stores) is not part of every hit, and drops out.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kvferry import Identity, StoreConfig, TieredCache
from kvferry.cache.interface import Cache
from kvferry.integrations.vllm.connector.lookup_threads import CacheFinder
from kvferry.integrations.vllm.connector.ranks import RankAnswers, RankFinder, address
from kvferry.integrations.vllm.connector.scheduler import SchedulerHalf
from kvferry.integrations.vllm.connector.worker import WorkerHalf
from kvferry.server import Client
from support.cache_server import running
from support.servers import TestServer
from support.stamps import until
from support.vllm_halves import BLOCK, CHUNK, CHUNKS, LAYER_BYTES, LAYOUT, SOON_S, Vllm
from support.vllm_shapes import PlainCopier

HITS = 5  # what all of them pass counts
CONNECTOR_MAX = {"memory": 40, "redis": 45}
SERVER_MAX = {"memory": 50, "redis": 62}  # of memory: messages; of a store: the whole cache, too


class Passed:
    """The modules that calls pass, in all threads that begin while this is in force."""

    def __init__(self) -> None:
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            name = frame.f_globals.get("__name__", "")
            if name.startswith("kvferry.") and not name.startswith("kvferry.testing"):
                self.modules.add(name)


@contextmanager
def profiled() -> Iterator[Passed]:
    passed = Passed()
    threading.setprofile(passed)
    sys.setprofile(passed)
    try:
        yield passed
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def of_hits(passed: Passed, hit: Callable[[int], None]) -> list[str]:
    found: set[str] | None = None
    for number in range(HITS):
        passed.modules.clear()
        hit(number)
        found = set(passed.modules) if found is None else found & passed.modules
    assert found
    return sorted(found)


def told(what: str, modules: list[str]) -> None:
    print(f"\na hit {what} passes {len(modules)} modules:")
    print("\n".join(f"  {name}" for name in modules))


class Engine(Vllm):
    """Both halves of a connector over some cache, with what is between them in an engine."""

    def __init__(self, cache: Cache) -> None:
        name = address(uuid.uuid4().hex, 0)
        self.cache = cache
        self.answers = RankAnswers(name, CacheFinder(cache))
        self.ranks = RankFinder([name], SOON_S)
        self.scheduler = SchedulerHalf(
            self.ranks, chunk_size=CHUNK, block_size=BLOCK, limit_s=SOON_S
        )
        self.copier = PlainCopier(200, LAYOUT.layers, LAYER_BYTES)
        self.worker = WorkerHalf(cache, self.copier, chunk_blocks=2, load_timeout_s=SOON_S)
        self._count = 0

    def hits(self, passed: Passed, store: TestServer | None) -> list[str]:
        """What hits of the store pass, or of memory."""
        for seed in range(HITS):
            self.compute(self.request(seed))
        until(lambda: self.worker.counts.read()["saved_chunks"] == HITS * CHUNKS, SOON_S)
        if store is not None:
            until(lambda: store.cli("DBSIZE") == HITS * CHUNKS + 1, SOON_S)
            self.cache.clear(stores=False)

        def hit(seed: int) -> None:
            request = self.request(seed)
            found, _ = self.ask(request)
            assert found == CHUNKS * CHUNK
            assert not self.load(request, found)
            self.right(request, set())

        return of_hits(passed, hit)

    def close(self) -> None:
        self.answers.close()
        super().close()


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_of_the_connector(store: str, valkey: TestServer) -> None:
    with profiled() as passed:
        cache = TieredCache(
            Identity(model=f"modules of {store}", layout=LAYOUT),
            remote_url=valkey.url if store == "redis" else None,
            max_local_cpu_size=0.01,
            recompute="never",
        )
        with closing(Engine(cache)) as engine:
            modules = engine.hits(passed, valkey if store == "redis" else None)
    told(f"of {store} by vLLM's connector", modules)
    assert len(modules) <= CONNECTOR_MAX[store]


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_through_a_server(store: str, valkey: TestServer, tmp_path: Path) -> None:
    stores = (StoreConfig.of(type="redis", url=valkey.url),) if store == "redis" else ()
    settings = {"stores": stores, "recompute": "never"}
    with profiled() as passed, running(tmp_path, cache=settings) as server:
        identity = Identity(model=f"modules of {store}", layout=LAYOUT)
        client = Client(identity, server.config.endpoints[0], timeout_s=SOON_S)
        with closing(Engine(client)) as engine:
            assert client.wait(SOON_S)
            modules = engine.hits(passed, valkey if stores else None)
    told(f"of {store} through a server", modules)
    assert len(modules) <= SERVER_MAX[store]
