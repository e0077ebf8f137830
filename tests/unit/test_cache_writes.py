"""What an engine writes behind its back, and in how many batches."""

from __future__ import annotations

from kvferry.client.batch import BatchResult, Operation, Status, Verb
from support.dict_store import DictStore
from support.engines import CHUNK, check, expected, open_engine, prompt
from support.stamps import until

LIMIT_S = 30.0
PROMPTS = 6


class Batches(DictStore):
    """It notes batches of writes, refuses on demand, and begins with its gate shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate.clear()
        self.refused: set[bytes] = set()
        self.writes: list[int] = []

    def perform(self, operation: Operation) -> BatchResult:
        if operation.verb is Verb.SET:
            self.writes.append(len(operation.keys))
        return super().perform(operation)

    def set_one(self, name: bytes, value: memoryview, ttl_s: float | None, left_s: float) -> Status:
        if bytes(value) in self.refused:
            return Status.SERVER_ERROR
        return super().set_one(name, value, ttl_s, left_s)


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
