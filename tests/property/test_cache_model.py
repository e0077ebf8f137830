"""An engine against a model of it: what was stored, and what may have left, as sets of chunks.

Prompts are paths in a tree of three branches, so that they share prefixes all the time; memory has
so few pages that every second call evicts. The store that the engine has may be without a limit
(then nothing that was stored may be missed), have one, or be a server that evicts.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvferry import TieredCache
from kvferry.chunks.keys import chunk_hashes
from kvferry.connectors.base import Connector
from support.engines import CHUNK, LAYOUT, check, expected, memory_store, open_engine, pages_gb
from support.servers import TestServer

PAGES = 10
GB = 1 << 30
# Three branches behind two chunks that they share: few, so that calls meet what others left.
PATHS = st.builds(
    lambda branch, length: [0, 0, *[branch] * 6][:length], st.integers(0, 2), st.integers(1, 8)
)
ROUNDS = settings(
    max_examples=30,
    stateful_step_count=50,
    suppress_health_check=list(HealthCheck),
)


def tokens_of(path: list[int]) -> list[int]:
    return [branch for branch in path for _ in range(CHUNK)]


def chunks_of(path: list[int]) -> list[bytes]:
    return chunk_hashes(tokens_of(path), CHUNK)


class EngineModel(RuleBasedStateMachine):
    """Rules for an engine before a store that forgets nothing; see those below for others."""

    forgets = False  # whether the store may

    def __init__(self) -> None:
        super().__init__()
        self.name = uuid4().hex
        self.keeper: Connector | None = None
        self.engine: TieredCache | None = None
        self.surely: set[bytes] = set()  # stored, and nobody took it away
        self.maybe: set[bytes] = set()  # may have been left out, or evicted
        self.pins: list[list[int]] = []
        self.weights = 0  # their version; a restart knows it

    def open(self) -> TieredCache:
        self.keeper = self.keeper or memory_store(self.name)
        return open_engine(
            memory_store(self.name),
            max_local_cpu_size=pages_gb(PAGES),
            weights_version=str(self.weights) if self.weights else None,
        )

    @initialize()
    def begin(self) -> None:
        self.engine = self.open()

    @property
    def it(self) -> TieredCache:
        assert self.engine is not None
        return self.engine

    def bounds(self, path: list[int]) -> tuple[int, int]:
        """Between how many tokens of a prompt there must be."""
        low = high = 0
        for count, digest in enumerate(chunks_of(path), 1):
            if digest in self.surely and low == count - 1:
                low = count
            if digest in self.surely | self.maybe and high == count - 1:
                high = count
        return low * CHUNK, high * CHUNK

    @rule(path=PATHS, first=st.sampled_from([0, 0, 0, 0, 2]))
    def store(self, path: list[int], first: int) -> None:
        first = min(first, len(path))
        tokens = tokens_of(path)
        stored = self.it.store(tokens, expected(tokens)[first:], first_chunk=first)
        assert stored.chunks + stored.known + stored.shed == len(path) - first
        left_out = self.forgets or stored.shed or stored.dropped
        (self.maybe if left_out else self.surely).update(chunks_of(path)[first:])
        if first == 0 and not stored.shed:
            check(self.it, tokens, want=len(tokens))  # at once, whatever the store has by now

    @rule(path=PATHS)
    def retrieve(self, path: list[int]) -> None:
        low, high = self.bounds(path)
        if not self.pins:  # else there may be no pages to load into
            assert low <= check(self.it, tokens_of(path)) <= high
        else:
            assert check(self.it, tokens_of(path)) <= high

    @rule(path=PATHS)
    def look(self, path: list[int]) -> None:
        assert self.it.flush(60)
        low, high = self.bounds(path)
        assert low <= self.it.lookup(tokens_of(path)).tokens <= high
        assert low <= self.it.contains(tokens_of(path)) <= high
        assert low <= self.it.explain(tokens_of(path)).usable_tokens <= high

    @rule(path=PATHS)
    def prefetch(self, path: list[int]) -> None:
        assert self.it.prefetch(tokens_of(path)).result(60) <= self.bounds(path)[1]

    @precondition(lambda self: len(self.pins) < 1)
    @rule(path=PATHS)
    def pin(self, path: list[int]) -> None:
        path = path[:4]
        kept = self.it.pin(tokens_of(path)) // CHUNK
        self.pins.append(path[:kept])

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        path = self.pins.pop()
        check(self.it, tokens_of(path), want=len(path) * CHUNK)
        assert self.it.unpin(tokens_of(path)) == len(path) * CHUNK

    @rule()
    def forget_memory(self) -> None:
        assert self.it.flush(60)
        self.it.clear(stores=False)
        self.pins.clear()

    @rule(dice=st.integers(0, 4))
    def forget_all(self, dice: int) -> None:
        if dice:  # else there is mostly nothing to be remembered
            return
        assert self.it.flush(60)
        self.weights += 1
        self.it.clear(weights_version=str(self.weights))
        self.surely.clear()
        self.maybe.clear()
        self.pins.clear()

    @rule()
    def restart(self) -> None:
        assert self.it.close(60)
        self.engine = self.open()
        self.pins.clear()

    @invariant()
    def nothing_is_held(self) -> None:
        if self.engine is None:
            return
        assert self.it.flush(60)
        memory = self.it.stats()["memory"]
        assert memory["writing"] == memory["leases"] == memory["reservations"] == 0
        assert memory["resident"] <= PAGES

    def teardown(self) -> None:
        if self.engine is not None:
            self.engine.close()
        if self.keeper is not None:
            self.keeper.close()


def test_before_a_store_that_forgets_nothing() -> None:
    run_state_machine_as_test(EngineModel, settings=ROUNDS)


class BoundedModel(EngineModel):
    """The store refuses what does not fit."""

    forgets = True

    def open(self) -> TieredCache:
        size = 12 * (LAYOUT.chunk_bytes + 64)
        self.keeper = self.keeper or memory_store(self.name, capacity_bytes=size)
        second = memory_store(self.name, capacity_bytes=size)
        version = str(self.weights) if self.weights else None
        return open_engine(second, max_local_cpu_size=pages_gb(PAGES), weights_version=version)


def test_before_a_store_that_is_full() -> None:
    run_state_machine_as_test(BoundedModel, settings=ROUNDS)


@pytest.mark.parametrize("kind", ["valkey", "file", "nothing"])
def test_before_a_store_that_evicts(kind: str, valkey: TestServer, tmp_path: Any) -> None:
    class EvictingModel(EngineModel):
        forgets = True

        def open(self) -> TieredCache:
            if kind == "nothing":
                stores = []
            elif kind == "file":
                size = 16 * 3 * LAYOUT.chunk_bytes
                path = str(tmp_path / self.name)
                stores = [{"type": "file", "path": path, "max_capacity_gb": size / GB}]
            else:
                used = int(valkey.info("memory")["used_memory_dataset"])
                size = used + (200 << 10)
                stores = [{"type": "redis", "url": valkey.url, "max_capacity_gb": size / GB}]
            version = str(self.weights) if self.weights else None
            memory = pages_gb(PAGES)
            return open_engine(stores=stores, max_local_cpu_size=memory, weights_version=version)

        @initialize()
        def begin(self) -> None:
            valkey.flush()
            super().begin()

    run_state_machine_as_test(EvictingModel, settings=settings(ROUNDS, max_examples=10))
