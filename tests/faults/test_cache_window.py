"""Reads that left together with their question, and what may happen before they are used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from kvferry import TieredCache
from kvferry.client.batch import BatchResult
from kvferry.config import ClientConfig
from kvferry.connectors.base import Connector
from kvferry.connectors.redis import RedisConnector
from support.engines import CHUNK, check, expected, open_engine, pages_gb, prompt, space
from support.servers import TestServer, wait_for

LIMIT_S = 15.0
FEW = 6

pytestmark = pytest.mark.ways("tcp")


class Held:
    """A question whose answer is given when the reads are done and `before` has been called."""

    def __init__(
        self, ticket: Any, reads: list[Any], before: Callable[[], object] = lambda: None
    ) -> None:
        self._ticket, self._reads = ticket, reads
        self._before: Callable[[], object] | None = before

    def wait(self, timeout_s: float) -> BatchResult | None:
        before = self._before
        if before is not None:
            if timeout_s <= 0:
                return None
            for read in self._reads:
                assert read.wait(LIMIT_S) is not None
            self._before = None
            before()
        return cast("BatchResult | None", self._ticket.wait(timeout_s))

    def cancel(self) -> None:
        self._ticket.cancel()

    done = False
    prefix_len = 0


class Never:
    """A question without an answer."""

    done = False
    prefix_len = 0

    def wait(self, timeout_s: float) -> None:
        threading.Event().wait(min(timeout_s, 0.05))

    def cancel(self) -> None:
        """Nothing was sent."""


class Store:
    """A store whose questions a test answers."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.ask: Callable[..., Any] = connector.submit_exists
        self.reads: list[Any] = []

    def submit_exists(self, *words: Any, **options: Any) -> Any:
        return self.ask(*words, **options)

    def submit_get(self, *words: Any, **options: Any) -> Any:
        self.reads.append(self._connector.submit_get(*words, **options))
        return self.reads[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)


@contextmanager
def opened(
    url: str, pages: int = 64, **settings: Any
) -> Iterator[tuple[TieredCache, Store, list[int]]]:
    config = ClientConfig.from_url(url, presence="off")
    store = Store(RedisConnector(space(), config))
    with open_engine(
        cast("Connector", store), max_local_cpu_size=pages_gb(pages), **settings
    ) as engine:
        tokens = prompt(FEW * CHUNK, seed=1)
        engine.store(tokens, expected(tokens))
        assert engine.flush()
        engine.clear(stores=False)
        engine.tiers[0].tier.learn(0, 0.1)  # all of it fits into a round trip
        yield engine, store, tokens


def drained(engine: TieredCache) -> int:
    return int(engine.stats()["stores"]["store0"]["drained_chunks"])


def test_a_question_without_an_answer_costs_no_page_in_the_end(valkey: TestServer) -> None:
    with opened(valkey.url, lookup_timeout_s=0.2) as (engine, store, tokens):
        store.ask = lambda *_, **__: Never()
        assert engine.retrieve(tokens).reason == "deadline"
        wait_for("the reads to end", lambda: engine._retriever.leftovers.sweep() == 0, LIMIT_S)
        assert drained(engine) == FEW, "what came was of no use, and is counted"
        memory = engine.stats()["memory"]
        assert (memory["resident"], memory["reservations"]) == (0, 0)


@pytest.mark.parametrize("stores", [False, True])
def test_a_clear_between_the_question_and_its_answer(valkey: TestServer, stores: bool) -> None:
    with opened(valkey.url) as (engine, store, tokens):
        ask = store.ask

        def held(*words: Any, **options: Any) -> Any:
            store.ask = ask
            return Held(ask(*words, **options), store.reads, clear)

        def clear() -> None:
            cleared.append(engine.clear(stores=stores))

        store.ask, cleared = held, list[int]()
        with engine.retrieve(tokens) as hit:
            pages = [bytes(page) for page in hit.pages]
            assert pages == [chunk.tobytes() for chunk in expected(tokens)][: len(pages)]
        engine._retriever.leftovers.sweep(LIMIT_S)
        assert cleared == [FEW], "they had their pages"
        if stores:
            assert engine.retrieve(tokens).tokens == 0, "what was cleared is not found"
        else:
            check(engine, tokens, want=len(tokens))
        assert engine.stats()["memory"]["reservations"] == 0


def test_a_memory_without_room_loads_what_it_can(valkey: TestServer) -> None:
    with opened(valkey.url, pages=FEW) as (engine, _, tokens):
        other = prompt(FEW * CHUNK, seed=2)
        engine.store(other, expected(other))
        assert engine.flush()
        with engine.retrieve(other) as kept:
            assert kept.tokens == len(other)
            assert engine.retrieve(tokens).reason == "pool_full"
            assert [bytes(page) for page in kept.pages] == [c.tobytes() for c in expected(other)]
        engine._retriever.leftovers.sweep(LIMIT_S)
        check(engine, tokens, want=len(tokens))


def test_a_value_that_was_lost_by_half_is_stored_anew(valkey: TestServer) -> None:
    """The question finds it and the read does not: the question alone decides, and it goes."""
    with opened(valkey.url) as (engine, store, tokens):
        keys = engine.keys(tokens)
        ask = store.ask
        store.batch_delete(keys[2:3])

        def there(*_: Any, **__: Any) -> Any:  # as where one of two stripes is left
            store.ask = ask
            whole = BatchResult(bytes(len(keys)), [0] * len(keys), 0.01)
            return Held(_Answer(whole), store.reads)

        store.ask = there
        with engine.retrieve(tokens) as hit:
            assert hit.tokens == 2 * CHUNK
        status = store.batch_exists(keys)
        assert [each == 0 for each in status] == [True, True, False, True, True, True]


class _Answer:
    def __init__(self, result: BatchResult) -> None:
        self._result = result

    def wait(self, timeout_s: float) -> BatchResult:
        return self._result

    def cancel(self) -> None:
        """It is over."""


@pytest.mark.parametrize("seed", range(3))
def test_many_at_once_with_clears_never_see_another_byte(valkey: TestServer, seed: int) -> None:
    with opened(valkey.url, pages=2 * FEW, enable_async_loading=True) as (engine, _, _tokens):
        prompts = [prompt(FEW * CHUNK, seed=10 * seed + n, shared=2 * CHUNK) for n in range(4)]
        problems: list[BaseException] = []

        def play(number: int) -> None:
            try:
                for turn in range(12):
                    tokens = prompts[(number + turn) % len(prompts)]
                    if turn % 4 == number % 4:
                        engine.store(tokens, expected(tokens))
                    engine.lookup(tokens)
                    check(engine, tokens)
                    if turn % 5 == 4:
                        engine.clear(stores=turn % 2 == 0)
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not problems, problems
        wait_for("the reads to end", lambda: engine._retriever.leftovers.sweep() == 0, LIMIT_S)

        def quiet() -> bool:
            memory = engine.stats()["memory"]
            return not memory["writing"] and not memory["reservations"]

        wait_for("all pages to be settled", quiet, LIMIT_S)
