"""What is promised to a scheduler is held until it is loaded, on a cache that is made up."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from kvferry.base.errors import ClosedError
from kvferry.cache import Lookup, Retrieved, Stored
from kvferry.cache.cost.prefill import Coefficients
from kvferry.chunks.prompt import Prompt, Tokens
from kvferry.client.buffers import BufferLike
from kvferry.integrations.vllm.connector.held_cache import HeldCache
from kvferry.integrations.vllm.connector.interfaces import Finder
from kvferry.metrics import CacheMetrics
from support.stamps import until

SIZE = 4  # tokens of a chunk


def prompt(chunks: int, of: str = "a", start: int = 0) -> Prompt:
    hashes = b"".join(f"{of}{chunk:015}".encode() for chunk in range(start, chunks))
    return Prompt(hashes, chunks * SIZE + 1, SIZE)


class Server:
    """A cache with chunks in memory and in a store."""

    def __init__(self, memory: int = 0, store: int = 0, retrieved: int | None = None) -> None:
        self.available = True
        self.memory, self.store_has = memory, store
        self.retrieved = retrieved
        self.reason = ""
        self.in_force = True
        self.asked: list[tuple[str, Any]] = []
        self.leases = 0
        self.gate: threading.Event | None = None

    def lookup(
        self, tokens: Tokens, *, timeout_s: float | None = None, limit_s: float | None = None
    ) -> Lookup:
        assert isinstance(tokens, Prompt)
        self.asked.append(("lookup", limit_s))
        memory = min(self.memory, tokens.chunks) * SIZE
        store = min(self.store_has, tokens.chunks - memory // SIZE) * SIZE
        return Lookup(tokens=memory + store, tiers={"l1": memory, "redis": store})

    def retrieve(
        self,
        tokens: Tokens,
        into: Sequence[BufferLike] | None = None,
        *,
        limit_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Retrieved:
        assert isinstance(tokens, Prompt)
        self.asked.append(("retrieve", timeout_s))
        if self.gate is not None:
            assert self.gate.wait(10)
        count = min(tokens.chunks, self.memory + self.store_has)
        count = count if self.retrieved is None else min(count, self.retrieved)
        self.leases += bool(count)

        def release() -> bool:
            self.leases -= 1
            return self.in_force

        return Retrieved(
            tokens=count * SIZE,
            tiers={"l1": count * SIZE},
            decision=None,
            reason=self.reason,
            lookup_s=0.0,
            load_s=0.0,
            pages=[memoryview(tokens.digest(chunk)) for chunk in range(count)],
            release=release if count else None,
        )

    def expect_prefill(self, coefficients: Coefficients, step_tokens: int = 0) -> None:
        self.asked.append(("speed", (coefficients, step_tokens)))

    def counted(self, sums: Mapping[str, Any], histograms: Mapping[str, Any]) -> None:
        self.asked.append(("counted", (sums, histograms)))

    def store(
        self, tokens: Tokens, chunks: Sequence[BufferLike], *, first_chunk: int = 0
    ) -> Stored:
        self.asked.append(("store", first_chunk))
        return Stored(chunks=len(chunks), known=0, shed=0)

    generation = b""

    def renewed(self, ended: bytes, own: bytes) -> None:
        self.asked.append(("renewed", (ended, own)))

    def stats(self) -> dict[str, Any]:
        return {"requests": len(self.asked)}

    def close(self) -> None:
        self.asked.append(("close", None))


def cache(server: Server, **options: Any) -> HeldCache:
    return HeldCache(server, lookup_timeout_s=0.04, load_timeout_s=7.0, **options)


def pages(hit: Retrieved) -> bytes:
    return b"".join(hit.pages)


def test_what_was_found_is_held_and_loaded_from_the_hold() -> None:
    server = Server(memory=3)
    held = cache(server)
    assert held.find(prompt(5)) == 3
    assert server.leases == 1
    assert held.stats()["holds"] == 1
    hit = held.retrieve(prompt(3), timeout_s=1)
    assert pages(hit) == prompt(3).hashes
    assert hit.tokens == 3 * SIZE
    assert server.leases == 1, "the pages are read now"
    assert [name for name, _ in server.asked] == ["lookup", "retrieve"]
    assert hit.release()
    assert server.leases == 0
    held.close()


def test_what_the_engine_has_itself_is_neither_brought_nor_held() -> None:
    server = Server(memory=2, store=3)
    held = cache(server)
    asked = replace(prompt(5), computed_tokens=2 * SIZE + 1)
    seen: list[Any] = []
    retrieve = server.retrieve

    def noted(tokens: Any, *words: Any, **options: Any) -> Retrieved:
        seen.append((tokens.hashes, tokens.start_tokens))
        return retrieve(tokens, *words, **options)

    server.retrieve = noted  # type: ignore[method-assign]
    assert held.find(asked) == 5
    assert seen == [(prompt(5, start=2).hashes, 2 * SIZE)]
    assert held.find(asked) == 5, "it is held"
    assert len(seen) == 1
    assert held.find(replace(asked, computed_tokens=0)) == 5, "the engine lacks more now"
    assert len(seen) == 2
    everything = replace(asked, computed_tokens=5 * SIZE)
    assert cache(server).find(everything) == 5
    assert len(seen) == 2, "nothing is missing"
    held.close()


def test_a_part_of_what_is_held() -> None:
    held = cache(Server(memory=5))
    assert held.find(prompt(5)) == 5
    hit = held.retrieve(prompt(4, start=2))
    assert pages(hit) == prompt(4, start=2).hashes
    hit.release()
    held.close()


def test_a_chunk_begins_where_a_hash_does() -> None:
    """Sixteen bytes that lie across two hashes are no chunk."""
    server = Server(memory=2)
    held = cache(server)
    assert held.find(prompt(2)) == 2
    across = Prompt(prompt(2).hashes[8:24], 5, SIZE)
    held.retrieve(across).release()
    assert server.asked[-1][0] == "retrieve"
    assert server.leases == 1
    held.close()


def test_what_is_not_held_is_asked_for() -> None:
    server = Server(memory=5)
    held = cache(server)
    assert held.find(prompt(5)) == 5
    other = held.retrieve(prompt(5, "b"), timeout_s=1.5)
    assert server.asked[-1] == ("retrieve", 1.5)
    other.release()
    first = held.retrieve(prompt(5))
    second = held.retrieve(prompt(5))  # the hold was used
    assert pages(first) == pages(second)
    assert server.leases == 2
    first.release()
    second.release()
    held.close()


def test_a_lease_that_was_lost_is_told() -> None:
    server = Server(memory=2)
    held = cache(server)
    held.find(prompt(2))
    hit = held.retrieve(prompt(2))
    server.in_force = False
    assert not hit.release()
    held.close()


@pytest.mark.parametrize(("memory", "store", "limit_s"), [(3, 0, 0.25), (1, 2, 7.0), (0, 3, 7.0)])
def test_only_what_stores_have_is_waited_for(memory: int, store: int, limit_s: float) -> None:
    server = Server(memory, store)
    held = cache(server)
    assert held.find(prompt(3)) == 3
    assert server.asked == [("lookup", 0.04), ("retrieve", limit_s)]
    held.close()


def test_no_more_is_promised_than_was_leased() -> None:
    server = Server(memory=5, retrieved=2)
    held = cache(server)
    assert held.find(prompt(5)) == 2
    server.retrieved = 0
    assert held.find(prompt(5, "b")) == 0
    assert server.leases == 1
    held.close()


def test_what_may_not_be_held_is_promised_if_it_is_in_memory() -> None:
    server = Server(memory=4, store=1, retrieved=2)
    server.reason = "pool_full"
    held = cache(server)
    assert held.find(prompt(5)) == 4
    assert server.leases == 1
    server.retrieved = 0
    assert held.find(prompt(5, "b")) == 4
    assert server.leases == 1
    server.retrieved = None
    hit = held.retrieve(prompt(4))  # more than is held
    assert pages(hit) == prompt(4).hashes
    hit.release()
    held.close()


def test_what_the_engine_has_itself_is_not_held() -> None:
    server = Server(memory=3)
    held = cache(server)
    assert held.find(replace(prompt(5), computed_tokens=3 * SIZE)) == 3
    assert [what for what, _ in server.asked] == ["lookup"]
    assert held.find(replace(prompt(5, "b"), computed_tokens=2 * SIZE)) == 3
    assert server.leases == 1
    held.close()


def test_nothing_there_costs_one_look_up() -> None:
    server = Server()
    held = cache(server)
    assert held.find(prompt(5)) == 0
    assert server.asked == [("lookup", 0.04)]
    held.close()


def test_a_server_that_is_away_is_not_asked() -> None:
    server = Server(memory=5)
    server.available = False
    held = cache(server)
    assert held.find(prompt(5)) == 0
    assert server.asked == []
    held.close()


def test_asking_again_asks_nobody_and_holds_longer() -> None:
    now = [0.0]
    server = Server(memory=5)
    held = cache(server, hold_s=10.0, clock=lambda: now[0])
    assert held.find(prompt(5)) == 5
    now[0] = 8.0
    assert held.find(prompt(5)) == 5
    now[0] = 17.0
    assert held.find(prompt(5)) == 5
    assert server.leases == 1
    assert len(server.asked) == 2
    now[0] = 27.0
    assert held.find(prompt(5)) == 5, "it was let go, and is there all the same"
    assert server.leases == 1
    assert len(server.asked) == 4
    held.close()
    assert server.leases == 0


def test_what_nobody_loads_is_let_go() -> None:
    server = Server(memory=5)
    held = cache(server, hold_s=0.05)
    held.find(prompt(5))
    held.find(prompt(5, "b"))
    until(lambda: server.leases == 0, 10)
    assert held.stats()["holds"] == 0
    held._hold_s = 60.0
    held.find(prompt(5))  # and it goes on
    assert server.leases == 1
    held.close()


def test_a_new_generation_lets_go_of_what_is_held() -> None:
    server = Server(memory=5)
    held = cache(server)
    held.find(prompt(5))
    finder: Finder = held
    assert finder.shared == bytes(8)
    finder.renewed(bytes(8), b"another.")
    assert server.leases == 0
    assert server.asked[-1] == ("renewed", (bytes(8), b"another."))
    assert finder.now(prompt(5)) is None
    server.available = False
    assert finder.now(prompt(5)) == 0
    finder.renewed(b"another.", b"a third.")  # nobody is told, and nothing is waited for
    held.close()


def test_close_lets_go_of_what_comes_later() -> None:
    server = Server(memory=5)
    server.gate = threading.Event()
    held = cache(server)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(held.find(prompt(5))))
    thread.start()
    held.wait(0.001)
    while len(server.asked) < 2:
        held.wait(0.001)
    held.close()
    server.gate.set()
    thread.join(10)
    assert found == [0]
    assert server.leases == 0
    assert held.find(prompt(5)) == 0


def test_a_cache_that_is_being_closed_finds_nothing() -> None:
    class Closed(Server):
        def lookup(self, *args: Any, **more: Any) -> Lookup:
            raise ClosedError("the client is closed")

    held = cache(Closed(memory=5))
    assert held.find(prompt(5)) == 0
    held.close()


def test_stores_go_to_the_server() -> None:
    server = Server()
    held = cache(server)
    assert held.store(prompt(5), [b""] * 3, first_chunk=2).chunks == 3
    assert server.asked == [("store", 2)]
    held.close()
    assert server.asked[-1] == ("close", None)


def test_the_server_is_told_how_quickly_we_compute_when_that_is_news() -> None:
    server, now = Server(), [100.0]
    held = cache(server, clock=lambda: now[0])
    held.expect_prefill((0.0, 1e-3, 0.0, 0.0), 512)

    def told() -> list[Any]:
        return [value for name, value in server.asked if name == "speed"]

    for _ in range(50):
        held.observe_step(512, 512**2, 0, 1.0)
    until(told, 10)
    assert len(told()) == 1, "not with every step"
    now[0] += 2.0
    held.observe_step(512, 512**2, 0, 1.0)
    until(lambda: len(told()) == 2, 10)
    (_, c, _, _), step_tokens = told()[-1]
    assert c == pytest.approx(1.0 / 512, rel=0.1)
    assert step_tokens == 512
    now[0] += 2.0
    held.observe_step(512, 512**2, 0, 1.0)  # no news
    server.available = False
    now[0] += 2.0
    held.observe_step(512, 512**2, 0, 9.0)
    held.close()
    assert len(told()) == 2


def test_the_server_is_told_what_only_the_engine_knows() -> None:
    server, now = Server(memory=2), [0.0]
    held = cache(server, clock=lambda: now[0], chunk_bytes=10)
    assert held.find(prompt(5)) == 2  # the rest is not even asked for
    held.store(prompt(5), [b""] * 3, first_chunk=2)
    held.metrics.first_token(0.1, 0.4)
    held.observe_step(100, 10_000, 0, 0.1)
    until(lambda: any(what == "counted" for what, _ in server.asked), 10)
    ((sums, histograms),) = [told for what, told in server.asked if what == "counted"]
    assert sums == {
        "kvferry_tokens_requested": {"": 3 * SIZE},
        "kvferry_missed_chunks": {"never_stored": 3},
        "kvferry_memory_bytes": {"in": 30},
    }
    assert [*histograms] == ["kvferry_memory_seconds", "kvferry_ttft_share"]
    CacheMetrics().add(sums, histograms)  # the server takes it
    taken = held.metrics.snapshot()  # and what the engine shows is all of it
    assert taken["kvferry_tokens_requested_total"] == 5 * SIZE
    assert taken["kvferry_tokens_hit_total"]["l1"] == 2 * SIZE
    assert taken["kvferry_missed_chunks_total"]["never_stored"] == 3
    now[0] += 10
    before = len(server.asked)
    held.observe_step(100, 10_000, 0, 0.1)
    held.close()
    assert all(what != "counted" for what, _ in server.asked[before:])


def test_a_server_that_hangs_is_waited_for_as_a_part_of_what_computing_takes() -> None:
    server = Server(memory=1)
    held = HeldCache(server, lookup_timeout_s=None, load_timeout_s=7.0)
    held.find(prompt(3, "a"))
    held.expect_prefill((0.0, 0.5, 0.0, 0.0), 0)
    held.find(prompt(3, "b"))  # of 13 tokens
    queued = prompt(3, "c")
    held.find(Prompt(queued.hashes, queued.tokens, SIZE, queued=(4, 16)))
    held.find(prompt(90, "d"))
    limits = [limit for name, limit in server.asked if name == "lookup"]
    assert limits == [0.25, pytest.approx(3.25), pytest.approx(5.25), 7.0]
    held.close()
