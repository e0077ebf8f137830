"""What an engine writes behind its back, and in how many batches."""

from __future__ import annotations

import threading

from kvferry.client.batch import BatchResult, Status
from kvferry.client.operation import Operation, Verb
from kvferry.connectors.base import Usage
from kvferry.connectors.blocking import BlockingConnector
from support.engines import CHUNK, check, expected, open_engine, prompt, space
from support.stamps import until

LIMIT_S = 30.0
PROMPTS = 6


class Batches(BlockingConnector):
    """A store in Python that notes batches of writes; it waits, and refuses, on demand."""

    def __init__(self) -> None:
        super().__init__(space(), threads=8)
        self.held: dict[bytes, bytes] = {}
        self.refused: set[bytes] = set()
        self.writes: list[int] = []
        self.gate = threading.Event()

    def perform(self, operation: Operation) -> BatchResult:
        if operation.verb is Verb.SET:
            self.writes.append(len(operation.keys))
        return super().perform(operation)

    def get_one(self, name: bytes, target: memoryview, left_s: float) -> Status:
        if name not in self.held:
            return Status.MISS
        target[:] = self.held[name]
        return Status.OK

    def set_one(self, name: bytes, value: memoryview, ttl_s: float | None, left_s: float) -> Status:
        self.gate.wait(LIMIT_S)
        if bytes(value) in self.refused:
            return Status.SERVER_ERROR
        self.held[name] = bytes(value)
        return Status.OK

    def exists_one(self, name: bytes, touch: bool, left_s: float) -> Status:
        return Status.OK if name in self.held else Status.MISS

    def delete_one(self, name: bytes, left_s: float) -> Status:
        return Status.MISS if self.held.pop(name, None) is None else Status.OK

    def usage(self, timeout_s: float = 1.0) -> Usage:
        return Usage(sum(map(len, self.held.values())), None, len(self.held))


def test_what_waits_is_written_together() -> None:
    """Each batch takes a round trip, however little is in it: 2 MB/s at a second."""
    store = Batches()
    prompts = [prompt(2 * CHUNK, seed) for seed in range(PROMPTS)]
    with open_engine(store) as engine:
        engine.store(prompts[0], expected(prompts[0]))
        until(lambda: store.writes == [2], LIMIT_S)
        for tokens in prompts[1:]:
            engine.store(tokens, expected(tokens))
        store.gate.set()
        assert engine.flush(LIMIT_S)
        assert store.writes == [2, 2 * (PROMPTS - 1)]
        engine.clear(stores=False)
        for tokens in prompts:
            check(engine, tokens, want=2 * CHUNK)


def test_of_what_is_written_together_each_prompt_fails_by_itself() -> None:
    store = Batches()
    prompts = [prompt(2 * CHUNK, seed) for seed in range(PROMPTS)]
    with open_engine(store) as engine:
        engine.store(prompts[0], expected(prompts[0]))
        until(lambda: store.writes == [2], LIMIT_S)
        for tokens in prompts[1:]:
            engine.store(tokens, expected(tokens))
        store.refused = {expected(prompts[3])[1].tobytes()}
        store.gate.set()
        assert engine.flush(LIMIT_S)
        writer = engine.tiers[0].writer
        missed = [bool(writer.missed(engine._read(tokens))) for tokens in prompts]
        assert missed == [index == 3 for index in range(PROMPTS)]
        metrics = engine.stats()["metrics"]
        assert sum(metrics["kvferry_shed_chunks_total"].values()) == 1
        assert len(store.held) == 2 * PROMPTS - 1
        store.refused.clear()
        engine.store(prompts[3], expected(prompts[3]))  # what was missed is offered again
        assert engine.flush(LIMIT_S)
        assert len(store.held) == 2 * PROMPTS
