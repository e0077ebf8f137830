"""Clears at any moment, four engines, a store in trouble: nothing of before is ever found."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import pytest

from kvferry import TieredCache
from kvferry.base.errors import KVFerryError
from kvferry.chunks.prompt import read_prompt
from support import clock
from support.engines import CHUNK, expected, open_engine, pages_gb, prompt
from support.sentinel import SentinelGroup, start_sentinels

PROMPTS = [prompt(3 * CHUNK, seed) for seed in range(6)]
# What others may still read of before a clear for everybody: a store is asked once a second, and
# the Sentinels may promote a server that lacks it.
LAG_S = 6.0
PATIENT_S = 60.0


class Engines:
    """Engines whose weights change in place, and threads that compute and ask.

    Weights have a name; two engines with the same one compute the same KV.
    """

    def __init__(self, engines: Sequence[TieredCache]) -> None:
        self.engines = engines
        self.weights = ["shared"] * len(engines)
        self.locks = [threading.Lock() for _ in engines]
        self.over = threading.Event()
        self.wrong: list[str] = []
        self.found = 0

    def ask(self, index: int, seed: int) -> None:
        """One of the engine's requests after the other."""
        rng = random.Random(seed)
        while not self.over.is_set():
            tokens = rng.choice(PROMPTS)
            with self.locks[index]:  # as a request is admitted: weights and generation of now
                weights, engine = self.weights[index], self.engines[index]
                admitted = read_prompt(tokens, CHUNK, b"", generation=engine.generation)
            right = expected(tokens, salt=weights.encode())
            with engine.retrieve(admitted, timeout_s=0.5) as hit:
                for page, chunk in zip(hit.pages, right, strict=False):
                    if bytes(page) != chunk.tobytes():
                        self.wrong.append(f"engine {index} with weights {weights}")
                self.found += len(hit.pages)
            engine.store(admitted, right)

    def update(self, index: int, weights: str) -> None:
        """Other weights in place, and the engine cleared; by name, as others may have them too."""
        with self.locks[index]:
            self.weights[index] = weights
            self.engines[index].clear(weights_version=weights)

    def change_without_name(self, index: int, weights: str) -> None:
        with self.locks[index]:
            self.weights[index] = weights
            self.engines[index].clear()


def troubles(group: SentinelGroup) -> list[Callable[[], object]]:
    def stop() -> None:
        server = group.master()
        server.pause()
        time.sleep(0.2)
        server.resume()

    def flush() -> None:
        group.master().cli("FLUSHALL")

    def failover() -> None:
        group.wait_until_whole()
        group.failover()

    return [stop, flush, failover]


@pytest.mark.full
@pytest.mark.parametrize("clears", [60, pytest.param(1000, marks=pytest.mark.soak)])
def test_weights_change_in_place_and_no_engine_reads_those_of_before(clears: int) -> None:
    """Two engines are updated to the same weights one behind the other, one alone, one never."""
    rng = random.Random(clears)
    with start_sentinels("redis7") as group, ExitStack() as stack:
        store = {"type": "redis", "url": group.url, "timeout_s": 1.0}
        memory = pages_gb(12)
        engines = [
            stack.enter_context(open_engine(stores=[store], max_local_cpu_size=memory))
            for _ in range(4)
        ]
        play = Engines(engines)
        threads = [
            threading.Thread(target=play.ask, args=(index % 4, index), daemon=True)
            for index in range(8)
        ]
        for thread in threads:
            thread.start()
        happenings = troubles(group)
        for number in range(clears):
            time.sleep(rng.uniform(0.0, 0.05))
            which = rng.randrange(4)
            if which < 2:
                play.update(0, f"step-{number}")
                time.sleep(rng.uniform(0.0, 0.02))
                play.update(1, f"step-{number}")
            elif which == 2:
                play.change_without_name(2, f"alone-{number}")
            else:  # for everybody: the same weights, so what is found stays right
                with suppress(KVFerryError):
                    engines[3].clear(everybody=True)
            if rng.random() < 0.05:
                with suppress(LookupError):  # the Sentinels do not agree at this moment
                    rng.choice(happenings)()
            if play.wrong:
                break
        play.over.set()
        for thread in threads:
            thread.join(PATIENT_S)
            assert not thread.is_alive()
        assert not play.wrong
        assert play.found


@pytest.mark.full
def test_what_was_bad_for_everybody_is_found_by_nobody_soon() -> None:
    """KV that was stored before a clear for everybody, and a store that loses that clear."""
    rng = random.Random(7)
    with start_sentinels("redis7") as group, ExitStack() as stack:
        stores = [{"type": "redis", "url": group.url, "timeout_s": 1.0}]
        engines = [stack.enter_context(open_engine(stores=stores)) for _ in range(4)]
        _, flush, failover = troubles(group)
        for number, trouble in enumerate([lambda: None, failover, flush]):
            bad, tokens = f"bad-{number}", PROMPTS[number]
            for engine in engines:
                engine.store(tokens, expected(tokens, salt=bad.encode()))
            cleared = rng.choice(engines)
            until = clock.now_s() + PATIENT_S
            while True:
                try:
                    cleared.clear(everybody=True)
                    break
                except KVFerryError:
                    assert clock.now_s() < until
            trouble()
            assert cleared.lookup(tokens, timeout_s=1.0).tokens == 0
            end = clock.now_s() + LAG_S
            while clock.now_s() < end and any(one.lookup(tokens).tokens for one in engines):
                time.sleep(0.05)
            for engine in engines:
                assert engine.lookup(tokens).tokens == 0, number
