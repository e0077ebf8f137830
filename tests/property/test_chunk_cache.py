"""Holders of chunks on random schedules: whoever holds a page finds in it what belongs there.

Writers stamp their pages with the chunk's number, readers look for it when they come and when they
go, and also holders whose time was up look: memory that somebody may touch is nobody else's.
"""

from __future__ import annotations

from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvferry._native import ChunkCache, PagePool, PageView

PAGE_BYTES = 64
CAPACITY, PAGES, NODES = 8, 10, 40
LONG_S = 1000.0
AT_ONCE_S = 1e-9

a_path = st.integers(1, NODES)
a_life = st.sampled_from([LONG_S, LONG_S, LONG_S, AT_ONCE_S])
policies = st.sampled_from(["LRU", "LFU", "FIFO", "S3-FIFO", "ARC", "W-TinyLFU"])


def path_to(node: int) -> list[int]:
    """The chunks of a prompt: a way from the root of a binary tree."""
    path = [node]
    while path[0] > 1:
        path.insert(0, path[0] // 2)
    return path


def packed(nodes: list[int]) -> bytes:
    return b"".join(node.to_bytes(16, "little") for node in nodes)


class Held(NamedTuple):
    id: int
    nodes: list[int]
    pages: list[int]
    ttl_s: float


class Holders(RuleBasedStateMachine):
    @initialize(policy=policies, leaf_first=st.booleans())
    def start(self, policy: str, leaf_first: bool) -> None:
        self.pool = PagePool(PAGE_BYTES, PAGES)
        self.cache = ChunkCache(CAPACITY, policy, leaf_first=leaf_first, pool=self.pool)
        self.readers: list[Held] = []
        self.writers: list[Held] = []
        self.views: dict[int, PageView] = {}

    def stamp(self, page: int, node: int) -> None:
        self.views[page] = PageView(self.pool, page)
        memoryview(self.views[page])[:] = bytes([node]) * PAGE_BYTES

    def check(self, held: Held) -> None:
        # A chunk that left took its handle along: then reserve() looks that nobody gets the page.
        for node, page in zip(held.nodes, held.pages, strict=True):
            try:
                content = bytes(memoryview(self.views[page]))
            except BufferError:
                continue
            assert content == bytes([node]) * PAGE_BYTES

    @rule(node=a_path, ttl_s=a_life, first=st.integers(0, 3))
    def reserve(self, node: int, ttl_s: float, first: int) -> None:
        nodes = path_to(node)
        absent = [state < 2 for state in self.cache.states(packed(nodes))]
        id_, indices, pages, shed = self.cache.reserve(packed(nodes), first, ttl_s)
        assert len(indices) == len(pages) == len(set(pages))
        assert len(indices) + shed == sum(absent[first:])
        others = [page for held in (*self.readers, *self.writers) for page in held.pages]
        assert not set(pages) & set(others)
        taken = {page & 0xFFFFFFFF for page in pages}  # the same memory under another handle
        assert not taken & {page & 0xFFFFFFFF for page in others}
        if id_:
            held = Held(id_, [nodes[index] for index in indices], pages, ttl_s)
            if ttl_s == LONG_S:
                for page, number in zip(pages, held.nodes, strict=True):
                    self.stamp(page, number)
            self.writers.append(held)

    @rule(keep=st.integers(0, 255))
    def commit(self, keep: int) -> None:
        if self.writers:
            held = self.writers.pop(0)
            ok = bytes(keep >> index % 8 & 1 for index in range(len(held.nodes)))
            count = self.cache.commit(held.id, ok)
            assert count <= sum(ok)
            assert held.ttl_s == LONG_S or count == 0

    @rule()
    def abort(self) -> None:
        if self.writers:
            held = self.writers.pop()
            assert self.cache.abort(held.id) == (held.ttl_s == LONG_S)

    @rule(node=a_path, ttl_s=a_life)
    def acquire(self, node: int, ttl_s: float) -> None:
        nodes = path_to(node)
        ready, _ = self.cache.lookup(packed(nodes))
        id_, pages = self.cache.acquire(packed(nodes), ttl_s)
        assert len(pages) == ready
        if id_:
            held = Held(id_, nodes[:ready], pages, ttl_s)
            self.check(held)
            self.readers.append(held)

    @rule()
    def release(self) -> None:
        if self.readers:
            held = self.readers.pop(0)
            self.check(held)
            assert self.cache.release(held.id) == (held.ttl_s == LONG_S)
            assert not self.cache.release(held.id)

    @rule()
    def revoke(self) -> None:
        if self.readers:
            assert self.cache.revoke(self.readers.pop().id)

    @rule(count=st.integers(0, 4))
    def evict(self, count: int) -> None:
        kept = {node for held in self.readers if held.ttl_s == LONG_S for node in held.nodes}
        states = self.cache.states(packed([*range(NODES + 1)]))
        for victim in self._numbers(self.cache.evict(count)):
            assert states[victim] == 3
            assert victim not in kept

    @rule(node=a_path)
    def remove(self, node: int) -> None:
        state = self.cache.states(packed([node]))[0]
        assert self.cache.remove(packed([node])) == (state >= 2)

    @staticmethod
    def _numbers(hashes: bytes) -> list[int]:
        return [int.from_bytes(hashes[at : at + 16], "little") for at in range(0, len(hashes), 16)]

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "cache"):
            return
        stats = self.cache.stats()
        states = self.cache.states(packed([*range(1, NODES + 1)]))
        assert stats["resident"] == sum(state >= 2 for state in states) <= CAPACITY
        assert stats["writing"] == states.count(2)
        assert stats["leased"] == states.count(4)
        assert stats["leases"] == sum(held.ttl_s == LONG_S for held in self.readers)
        assert stats["reservations"] == sum(held.ttl_s == LONG_S for held in self.writers)
        assert stats["expired_held"] == sum(
            held.ttl_s != LONG_S for held in (*self.readers, *self.writers)
        )
        in_hands = {page for held in (*self.readers, *self.writers) for page in held.pages}
        used = PAGES - self.pool.free_count
        assert max(stats["resident"], len(in_hands)) <= used <= stats["resident"] + len(in_hands)

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            del self.cache
            assert self.pool.free_count == PAGES


def test_nobody_holds_anothers_memory() -> None:
    run_state_machine_as_test(
        Holders,
        settings=settings(
            max_examples=150,
            stateful_step_count=50,
            suppress_health_check=list(HealthCheck),
        ),
    )
