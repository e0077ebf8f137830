"""Both halves of the vLLM connector over a real store that is away, silent, slow, or dies."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from kvferry.cache.steps import finish
from kvferry.chunks.prompt import read_prompt
from kvferry.integrations.vllm.connector.ranks import RankFinder, address
from support import clock
from support.proxy import FaultProxy
from support.servers import TestServer, start_server, wait_for
from support.vllm_halves import CHUNK, CHUNKS, LIMIT_S, SOON_S, Vllm
from support.vllm_shapes import EngineRequest


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
    assert finish(store.generations.waiting(time.monotonic() + SOON_S))


def found_in_store(vllm: Vllm, seed: int) -> EngineRequest:
    """A prompt that was found; what the lookup has begun to bring is gone from memory again."""
    request = vllm.found(seed)
    here, prompt = vllm.engine.memory, vllm.engine._read(request.all_token_ids)
    wait_for("the lookup's load", lambda: here.ready(prompt)[0] == CHUNKS)
    vllm.engine.clear(stores=False)
    return request


def test_what_one_saved_another_loads(vllm: Vllm) -> None:
    request = vllm.found(1)
    assert vllm.load(request, CHUNKS * CHUNK) == set()
    vllm.right(request, set())
    assert vllm.ask(vllm.request(99))[0] == 0


def test_a_silent_store_is_waited_for_once(vllm: Vllm, proxy: FaultProxy) -> None:
    vllm.hurry()
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
    vllm.hurry()
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
    vllm.hurry()
    proxy.black_hole()
    vllm.ask(vllm.request(3))
    again = vllm.found(2)
    assert vllm.load(again, CHUNKS * CHUNK) == set()
    vllm.right(again, set())


@pytest.mark.parametrize("after", [0, 1000, 60_000, 150_000])
def test_a_store_that_dies_while_it_is_read_leaves_what_came(
    vllm: Vllm, proxy: FaultProxy, after: int
) -> None:
    request, found = found_in_store(vllm, 1), CHUNKS * CHUNK
    proxy.down.bandwidth_bytes_per_s = 1_000_000
    proxy.cut_after(after, times=16)
    proxy.refuse()
    failed = vllm.load(request, found)
    assert failed == set(range(min(failed), 124))  # a prefix is left
    vllm.right(request, failed)


def test_a_load_ends_with_its_limit(vllm: Vllm, proxy: FaultProxy) -> None:
    request, found = found_in_store(vllm, 1), CHUNKS * CHUNK
    proxy.down.bandwidth_bytes_per_s = 20_000  # 10 s for all of it
    began = clock.now_s()
    failed = vllm.load(request, found)
    assert clock.now_s() - began < SOON_S
    assert failed
    vllm.right(request, failed)


def test_saving_to_a_slow_store_delays_no_step(vllm: Vllm, proxy: FaultProxy) -> None:
    vllm.hurry()
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
    monkeypatch.setattr("kvferry.integrations.vllm.connector.worker._CLOSE_S", 0.2)
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
    request, found = found_in_store(vllm, 1), CHUNKS * CHUNK
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
from kvferry.integrations.vllm.connector.lookup_threads import CacheFinder
from kvferry.integrations.vllm.connector.ranks import RankAnswers, address

layout = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="uint8", chunk_size=8)
with TieredCache(Identity(model="memory alone", layout=layout), max_local_cpu_size=0.001) as engine:
    engine.store(list(range(80)), [bytes(layout.chunk_bytes)] * 10)
    finder = CacheFinder(engine)
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
