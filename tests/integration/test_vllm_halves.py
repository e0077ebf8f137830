"""Both halves of the vLLM connector over a real store that is away, silent, slow, or dies."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kvferry import Identity, KVLayout, TieredCache
from kvferry.cache.prompt import read_prompt
from kvferry.integrations.vllm.backend import Work
from kvferry.integrations.vllm.finder import BackendFinder
from kvferry.integrations.vllm.ranks import RankFinder, address
from kvferry.integrations.vllm.scheduler import SchedulerHalf
from kvferry.integrations.vllm.worker import WorkerHalf
from support import clock
from support.proxy import FaultProxy
from support.servers import TestServer, start_server, wait_for
from support.vllm_shapes import EngineRequest, PlainCopier, SchedulerStep

BLOCK, CHUNK, CHUNKS = 8, 16, 12
LAYOUT = KVLayout(layers=4, kv_heads=2, head_dim=512, dtype="uint8", chunk_size=CHUNK)
LAYER_BYTES = LAYOUT.chunk_bytes // 2 // LAYOUT.layers
LIMIT_S = 0.04
SOON_S = 10.0  # for what is due at once, on a machine that has other things to do


class Vllm:
    """A scheduler, a worker and their cache, in place of an engine."""

    def __init__(self, url: str, **settings: Any) -> None:
        given = {
            "remote_url": url,
            "max_local_cpu_size": 0.01,
            "prefault": False,
            "recompute": "never",
            "lookup_timeout_s": LIMIT_S,
            **settings,
        }
        self.engine = TieredCache(Identity(model="halves", layout=LAYOUT), **given)
        self.finder = BackendFinder([self.engine])
        self.scheduler = SchedulerHalf(
            self.finder, chunk_size=CHUNK, block_size=BLOCK, limit_s=SOON_S
        )
        self.copier = PlainCopier(200, LAYOUT.layers, LAYER_BYTES)
        self.worker = WorkerHalf(
            self.engine, self.copier, chunk_size=CHUNK, chunk_blocks=2, load_timeout_s=3.0
        )
        self._count = 0

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


@pytest.fixture
def server() -> Iterator[TestServer]:
    with start_server("valkey") as made:
        yield made


@pytest.fixture
def proxy(server: TestServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.host, server.port) as made:
        yield made


@pytest.fixture
def vllm(server: TestServer, proxy: FaultProxy) -> Iterator[Vllm]:
    writer = Vllm(server.url)
    for seed in range(4):
        request = writer.request(seed)
        writer.ask(request)
        writer.compute(request)
    writer.close()
    made = Vllm(f"redis://{proxy.host}:{proxy.port}")
    ready(made)
    yield made
    proxy.heal()
    made.close()


def ready(vllm: Vllm) -> None:
    """Wait until the store is reached, and has said its generation."""
    store = vllm.engine.tiers[0]
    wait_for("the store", lambda: store.tier.connector.available)
    assert store.generations.wait(time.monotonic() + SOON_S)


def test_what_one_saved_another_loads(vllm: Vllm) -> None:
    request = vllm.found(1)
    assert vllm.load(request, CHUNKS * CHUNK) == set()
    vllm.right(request, set())
    assert vllm.ask(vllm.request(99))[0] == 0


def test_a_silent_store_is_waited_for_once(vllm: Vllm, proxy: FaultProxy) -> None:
    proxy.black_hole()
    began = time.monotonic()
    first, _ = vllm.ask(vllm.request(1))
    assert first == 0
    assert time.monotonic() - began >= LIMIT_S * 0.9
    wait_for("its silence", lambda: vllm.engine.tiers[0].tier.silent, SOON_S)  # seen by a thread
    quick = sorted(vllm.ask(vllm.request(seed)) for seed in range(2, 40))
    assert {found for found, _ in quick} == {0}
    assert quick[len(quick) // 2][1] < LIMIT_S / 2  # of those in the middle
    proxy.heal()
    vllm.found(1)  # it is used again


def test_a_store_that_is_away_costs_nothing(vllm: Vllm, proxy: FaultProxy) -> None:
    assert vllm.engine.asks_stores
    proxy.refuse()
    proxy.cut_now()
    until = clock.now_s() + SOON_S
    while vllm.engine.tiers[0].tier.connector.available:
        assert clock.now_s() < until
        threading.Event().wait(0.01)
    quick = sorted(vllm.ask(vllm.request(seed)) for seed in range(30))
    assert {found for found, _ in quick} == {0}
    assert quick[15][1] < LIMIT_S / 2
    assert not vllm.engine.asks_stores
    assert vllm.engine.available
    assert vllm.scheduler.matched(vllm.request(40), 0) == 0, "at once, without a thread"
    proxy.heal()
    vllm.found(1)  # it is used again


def test_what_memory_has_is_found_and_loaded_without_the_store(
    vllm: Vllm, proxy: FaultProxy
) -> None:
    assert vllm.load(vllm.found(2), CHUNKS * CHUNK) == set()
    proxy.black_hole()
    vllm.ask(vllm.request(3))
    again = vllm.found(2)
    assert vllm.load(again, CHUNKS * CHUNK) == set()
    vllm.right(again, set())


@pytest.mark.parametrize("after", [0, 1000, 60_000, 150_000])
def test_a_store_that_dies_while_it_is_read_leaves_what_came(
    vllm: Vllm, proxy: FaultProxy, after: int
) -> None:
    request, found = vllm.found(1), CHUNKS * CHUNK
    proxy.down.bandwidth_bytes_per_s = 1_000_000
    proxy.cut_after(after)
    proxy.refuse()
    failed = vllm.load(request, found)
    assert failed == set(range(min(failed, default=124), 124))  # a prefix is left
    vllm.right(request, failed)


def test_a_load_ends_with_its_limit(vllm: Vllm, proxy: FaultProxy) -> None:
    request, found = vllm.found(1), CHUNKS * CHUNK
    proxy.down.bandwidth_bytes_per_s = 20_000  # 10 s for all of it
    began = clock.now_s()
    failed = vllm.load(request, found)
    assert clock.now_s() - began < SOON_S
    assert failed
    vllm.right(request, failed)


def test_saving_to_a_slow_store_delays_no_step(vllm: Vllm, proxy: FaultProxy) -> None:
    proxy.up.bandwidth_bytes_per_s = 10_000
    took = []
    for seed in range(100, 140):  # 8 MB
        request = vllm.request(seed)
        vllm.ask(request)
        began = clock.now_s()
        vllm.compute(request)
        took.append(clock.now_s() - began)
    assert sorted(took)[20] < 0.5


def test_what_still_waits_for_the_store_at_the_end_is_lost_and_counted(
    server: TestServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kvferry.integrations.vllm.worker._CLOSE_S", 0.2)
    vllm = Vllm(server.url)
    request = vllm.request(7)
    vllm.ask(request)
    server.pause()
    try:
        vllm.compute(request)
        until = clock.now_s() + SOON_S
        while vllm.worker.counts.read()["saved_chunks"] < CHUNKS:
            assert clock.now_s() < until
            threading.Event().wait(0.01)
        began = clock.now_s()
        vllm.close()
        assert clock.now_s() - began < SOON_S
    finally:
        server.resume()
    assert vllm.worker.counts.read()["lost_chunks"] == CHUNKS
    assert f"{CHUNKS} chunks were not saved before the end" in caplog.text


@pytest.mark.parametrize("how", ["flip", "cut", "swap", "delete"])
def test_values_that_are_not_what_they_were_are_not_loaded(
    vllm: Vllm, server: TestServer, how: str
) -> None:
    request, found = vllm.found(1), CHUNKS * CHUNK
    keys = vllm.engine.keys(request.all_token_ids)
    names = [f"kvf:{vllm.engine.identity.digest.hex()}:{key}" for key in (keys[5], keys[6])]
    values = [server.cli("GET", name) for name in names]
    if how == "delete":
        server.cli("DEL", names[0])
    else:
        spoilt = {
            "flip": values[0][:900] + bytes([values[0][900] ^ 1]) + values[0][901:],
            "cut": values[0][:900],
            "swap": values[1],
        }
        server.cli("SET", names[0], spoilt[how])
    failed = vllm.load(request, found)
    assert failed == set(range(110, 124))
    vllm.right(request, failed)


WORKER = """
import sys
from kvferry import TieredCache, Identity, KVLayout
from kvferry.integrations.vllm.finder import BackendFinder
from kvferry.integrations.vllm.ranks import RankAnswers, address

layout = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="uint8", chunk_size=8)
with TieredCache(Identity(model="memory alone", layout=layout), max_local_cpu_size=0.001) as engine:
    engine.store(list(range(80)), [bytes(layout.chunk_bytes)] * 10)
    finder = BackendFinder([engine])
    release_blocks = lambda: print("left alone", flush=True) is None
    answers = RankAnswers(address(sys.argv[1], 0), finder, None, release_blocks)
    print("ready", flush=True)
    sys.stdin.read()
    answers.close()
"""


def test_memory_of_another_process_is_found() -> None:
    """The scheduler and the worker are two processes, and there is no store."""
    engine_id = uuid.uuid4().hex
    finder = RankFinder([address(engine_id, 0)], 5.0)
    command = [sys.executable, "-c", WORKER, engine_id]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdin is not None
        assert worker.stdout.readline() == "ready\n"
        finder.check()
        assert finder.find(read_prompt(range(80), 8, b"")) == 10
        assert finder.release_blocks()
        assert worker.stdout.readline() == "left alone\n"
        assert finder.find(read_prompt(range(1, 80), 8, b"")) == 0
        finder.renewed(bytes(8), b"another.")
        wait_for("the rank", lambda: finder.find(read_prompt(range(80), 8, b"")) == 0)
        worker.stdin.close()
        assert worker.wait(SOON_S) == 0
    assert finder.find(read_prompt(range(80), 8, b"")) == 0  # it is gone: nothing, and no error
    assert not finder.release_blocks()
    finder.close()
