"""The worker's half of the server connector, with a real server and without vLLM.

Two engines with caches of their own share what one of them stored; what happens when the server is
away, ends in the middle, or comes back. Tokens stand for requests of vLLM's.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvferry.chunks.identity import Identity
from kvferry.chunks.layout import KVLayout
from kvferry.chunks.prompt import Prompt, read_prompt
from kvferry.integrations.vllm.blocks.copier import BlockCopier
from kvferry.integrations.vllm.connector.interfaces import LoadJob, SaveJob, Work
from kvferry.integrations.vllm.connector.lookup_threads import CacheFinder
from kvferry.integrations.vllm.connector.worker import WorkerHalf
from kvferry.server import Client
from support import clock
from support.cache_server import CacheServerProcess, running
from support.kv_tensors import DIM, HEADS, LAYERS, TOKENS, Case
from support.stamps import until

CHUNK_BLOCKS = 2
CHUNK = CHUNK_BLOCKS * TOKENS
PROMPT = list(range(3 * CHUNK + 1))  # three chunks, and a token that is always computed


class Engine:
    """Blocks of an engine, and the half of a connector that moves them.

    Args:
        url: Of the server.
        zero: Its blocks are empty.
        dtype: Of its KV, as its identity says.
    """

    def __init__(self, url: str, *, zero: bool = False, dtype: str = "uint32") -> None:
        self.case = Case("0.32 LBHNC", zero=zero)
        copier = BlockCopier(self.case.caches, TOKENS)
        layout = KVLayout(
            layers=LAYERS, kv_heads=HEADS, head_dim=DIM, dtype="float32", chunk_size=CHUNK
        )
        identity = Identity(model="tiny", layout=layout, engine=f"{copier.name} {dtype}")
        self.client = Client(
            identity, url, timeout_s=5.0, lookup_timeout_s=2.0, retrieve_timeout_s=5.0
        )
        self.finder = CacheFinder(self.client)
        self.half = WorkerHalf(
            self.client,
            copier,
            chunk_blocks=CHUNK_BLOCKS,
            load_timeout_s=5.0,
        )

    def prompt(self, tokens: list[int] = PROMPT) -> Prompt:
        return read_prompt(tokens, CHUNK, b"")

    def save(self, blocks: list[int]) -> None:
        """Save the prompt's chunks out of these blocks, and wait until that is done."""
        prompt = self.prompt().cut(len(blocks) // CHUNK_BLOCKS)
        before = self.done("saved_chunks", "shed_chunks", "known_chunks")
        self.half.begin_step(Work(saves=[SaveJob("a", prompt, 0, blocks)]))
        self.half.end_step()
        wanted = before + len(blocks) // CHUNK_BLOCKS
        until(lambda: self.done("saved_chunks", "shed_chunks", "known_chunks") == wanted, 10)

    def load(self, blocks: list[int], first: int = 0) -> set[int]:
        """Load chunks from `first` on into these blocks; those that were not filled."""
        count = len(blocks) // CHUNK_BLOCKS
        hashes = self.prompt().part(first, first + count)
        tokens = len(PROMPT)
        prompt = Prompt(hashes, tokens, CHUNK, start_tokens=first * CHUNK)
        self.half.start_loads(Work(loads=[LoadJob("a", prompt, blocks)]))
        until(lambda: self.half.finished() == {"a"}, 15)
        return self.half.failed_blocks()

    def done(self, *names: str) -> int:
        counts = self.half.counts.read()
        return int(sum(counts.get(name, 0) for name in names))

    def close(self) -> None:
        self.half.close()


@contextmanager
def engines(url: str, count: int = 2, *, served: bool = True) -> Iterator[list[Engine]]:
    opened = [Engine(url, zero=index > 0) for index in range(count)]
    try:
        for engine in opened if served else []:
            assert engine.client.wait(10)
        yield opened
    finally:
        for engine in opened:
            engine.close()


def test_what_one_engine_saved_another_one_loads(tmp_path: Path) -> None:
    with running(tmp_path) as server, engines(server.config.endpoints[0]) as (one, other):
        assert other.finder.find(other.prompt()) == 0
        one.save([7, 2, 9, 4, 0, 11])
        assert one.done("saved_chunks") == 3
        before = other.client.stats()
        assert other.finder.find(other.prompt()) == 3
        assert other.load([1, 3, 5, 6, 8, 10]) == set()
        assert other.case.expected([1, 3, 5, 6, 8, 10]) == one.case.expected([7, 2, 9, 4, 0, 11])
        after = other.client.stats()
        moved = after["bytes_retrieved"] - before["bytes_retrieved"]
        assert moved == 3 * CHUNK_BLOCKS * other.half._copier.block_bytes
        # Hashes and page numbers, and no KV.
        names = ("socket_bytes_sent", "socket_bytes_received")
        assert sum(after[name] - before[name] for name in names) < moved


def test_only_the_blocks_that_are_wanted_are_written(tmp_path: Path) -> None:
    with running(tmp_path) as server, engines(server.config.endpoints[0]) as (one, other):
        one.save([7, 2, 9, 4, 0, 11])
        assert other.finder.find(other.prompt()) == 3
        assert other.load([-1, 6, 8, -1], first=1) == set()
        assert other.case.expected([6, 8]) == one.case.expected([4, 0])
        assert not any(other.case.expected([0, 1, 2, 3, 4, 5, 7, 9, 10, 11]))


def test_what_is_held_is_not_evicted_by_others(tmp_path: Path) -> None:
    """A pool with room for eight chunks, half of which one engine may hold."""
    size = CHUNK_BLOCKS * LAYERS * HEADS * TOKENS * 2 * DIM * 4
    stride = -(-size // 4096) * 4096
    with (
        running(tmp_path, mib=8 * stride / (1 << 20)) as server,
        engines(server.config.endpoints[0]) as (one, other),
    ):
        one.save([7, 2, 9, 4, 0, 11])
        assert other.finder.find(other.prompt()) == 3
        for start in range(1, 20):  # others' chunks, more than there is room for
            tokens = [token + 1000 * start for token in range(CHUNK)]
            one.client.store(one.prompt(tokens), [bytes(size)])
        assert other.load([1, 3, 5, 6, 8, 10]) == set()
        assert other.case.expected([1, 3, 5, 6]) == one.case.expected([7, 2, 9, 4])


def test_another_identity_finds_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as server, engines(server.config.endpoints[0], 1) as (one,):
        one.save([7, 2, 9, 4, 0, 11])
        other = Engine(server.config.endpoints[0], zero=True, dtype="uint16")
        assert other.client.wait(10)
        assert other.finder.find(other.prompt()) == 0
        other.close()


def test_without_a_server_nothing_waits(tmp_path: Path) -> None:
    with engines(f"ipc://{tmp_path}/nobody", 1, served=False) as (one,):
        one.finder.find(one.prompt())
        began = clock.now_s()
        for _ in range(100):
            assert one.finder.find(one.prompt()) == 0
        assert clock.now_s() - began < 1
        one.save([7, 2, 9, 4, 0, 11])
        assert one.done("shed_chunks") == 3
        assert one.load([1, 3, 5, 6, 8, 10]) == {1, 3, 5, 6, 8, 10}


@pytest.mark.parametrize("when", ["held", "loading"])
def test_a_server_that_dies_fails_the_blocks_and_is_used_again(tmp_path: Path, when: str) -> None:
    blocks = [1, 3, 5, 6, 8, 10]
    with CacheServerProcess(tmp_path) as server, engines(server.endpoint) as (one, other):
        one.save([7, 2, 9, 4, 0, 11])
        assert other.finder.find(other.prompt()) == 3
        if when == "held":
            server.kill()
            until(lambda: not other.client.available, 10)
        else:
            scatter = other.half._copier.scatter

            def killing(*args: object, **more: object) -> None:
                server.kill()
                scatter(*args, **more)  # type: ignore[arg-type]

            other.half._copier.scatter = killing  # type: ignore[method-assign]
        assert other.load(blocks) == set(blocks)
        assert other.finder.find(other.prompt()) == 0
        server.start()
        until(lambda: one.client.available and other.client.available, 20)
        assert other.finder.find(other.prompt()) == 0
        one.save([7, 2, 9, 4, 0, 11])
        if when == "loading":
            other.half._copier.scatter = scatter  # type: ignore[method-assign]
        assert other.finder.find(other.prompt()) == 3
        assert other.load(blocks) == set()
        assert other.case.expected(blocks) == one.case.expected([7, 2, 9, 4, 0, 11])


def test_a_server_that_hangs_costs_one_look_up(tmp_path: Path) -> None:
    with CacheServerProcess(tmp_path) as server, engines(server.endpoint, 1) as (one,):
        one.save([7, 2, 9, 4, 0, 11])
        assert one.finder.find(one.prompt()) == 3
        assert one.load([7, 2, 9, 4, 0, 11]) == set()
        one.client._lookup_timeout_s = 0.04
        server.signal(signal.SIGSTOP)
        try:
            began = clock.now_s()
            for _ in range(100):
                assert one.finder.find(one.prompt()) == 0
            assert clock.now_s() - began < 2, "all of them would take four seconds"
        finally:
            server.signal(signal.SIGCONT)
        one.client._lookup_timeout_s = 2.0
        until(lambda: one.finder.find(one.prompt()) == 3, 20)
