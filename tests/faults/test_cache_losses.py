"""Stores that lose what they had: memory offers it again, root first, and not all at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvferry import TieredCache
from kvferry.cache.store import losses, writer
from kvferry.client.batch import BatchResult, Status, Verb
from kvferry.connectors.threaded import Checked
from support.dict_store import DictStore
from support.engines import CHUNK, LAYOUT, check, expected, open_engine, prompt
from support.servers import TestServer, wait_for
from support.stamps import until

LIMIT_S = 15.0
SIZE = LAYOUT.chunk_bytes
PROMPTS = [prompt(8 * CHUNK, seed=seed) for seed in range(5)]


def fill(engine: TieredCache) -> None:
    for tokens in PROMPTS:
        assert engine.store(tokens, expected(tokens)).chunks == 8
    assert engine.flush()


def redis(server: TestServer) -> dict[str, Any]:
    return {"type": "redis", "url": server.url}


@pytest.mark.parametrize("how", ["flushed", "restarted"])
@pytest.mark.parametrize("presence", ["auto", "off"])
def test_a_store_that_lost_everything_gets_it_again(
    valkey: TestServer, how: str, presence: str
) -> None:
    with open_engine(stores=[redis(valkey) | {"presence": presence}]) as engine:
        fill(engine)
        full = valkey.cli("DBSIZE")
        if how == "flushed":
            valkey.cli("FLUSHALL")
        else:
            valkey.restart()
        assert valkey.cli("DBSIZE") == 0

        def is_full() -> bool:  # whoever asks for one prompt that memory has
            assert engine.lookup(PROMPTS[2]).tokens == 8 * CHUNK
            return bool(valkey.cli("DBSIZE") == full)

        wait_for("memory's chunks in the store", is_full, LIMIT_S)
        until(lambda: engine.stats()["stores"]["redis"]["written_again_chunks"] == 40, LIMIT_S)
        assert engine.flush()
    with open_engine(stores=[redis(valkey)]) as other:
        assert other.tiers[0].tier.connector.descriptions(), "what they are in words, too"
        for tokens in PROMPTS:
            check(other, tokens, want=8 * CHUNK)


def test_one_lookup_is_enough_even_right_behind_another(valkey: TestServer) -> None:
    with open_engine(stores=[redis(valkey)]) as engine:
        fill(engine)
        looked = valkey.info("commandstats").get("cmdstat_touch")
        assert engine.lookup(PROMPTS[0]).tokens == 8 * CHUNK
        until(lambda: valkey.info("commandstats").get("cmdstat_touch") != looked, LIMIT_S)
        valkey.cli("FLUSHALL")
        assert engine.lookup(PROMPTS[1]).tokens == 8 * CHUNK
        until(lambda: valkey.cli("DBSIZE") == 41, LIMIT_S)


def test_what_was_loaded_from_a_store_is_offered_to_it_again(valkey: TestServer) -> None:
    with open_engine(stores=[redis(valkey)]) as engine:
        fill(engine)
    with open_engine(stores=[redis(valkey)]) as other:
        check(other, PROMPTS[0], want=8 * CHUNK)
        valkey.cli("FLUSHALL")
        until(lambda: check(other, PROMPTS[0]) and valkey.cli("DBSIZE") == 9, LIMIT_S)


class Recorded(DictStore):
    """It remembers what was written in one call, and gives nothing out."""

    def __init__(self) -> None:
        super().__init__(threads=2)
        self.batches: list[list[bytes]] = []

    def answer(self, operation: Checked) -> BatchResult:
        if operation.verb is Verb.SET:
            self.batches.append(list(operation.names))
        return super().answer(operation)

    def get_one(self, name: bytes, target: memoryview, left_s: float) -> Status:
        return Status.MISS

    def names_of(self, tokens: list[int], engine: TieredCache) -> list[bytes]:
        return [f"{self.space.prefix}{key}".encode() for key in engine.keys(tokens)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setattr(writer, "_BATCH_BYTES", 3 * SIZE)
    monkeypatch.setattr(losses, "_LOOK_EVERY_S", 0.01)
    return Recorded()


@pytest.fixture
def engine(store: Recorded) -> Iterator[TieredCache]:
    with open_engine(store) as opened:
        fill(opened)
        yield opened


def test_a_batch_at_a_time_and_the_root_first(store: Recorded, engine: TieredCache) -> None:
    store.batches.clear()
    store.held.clear()
    assert engine.lookup(PROMPTS[3]).tokens == 8 * CHUNK
    until(lambda: len(store.held) == 40, LIMIT_S)
    assert max(map(len, store.batches)) <= 3
    written = [key for batch in store.batches for key in batch]
    assert written[:8] == store.names_of(PROMPTS[3], engine), "what is asked for goes first"
    for tokens in PROMPTS:
        places = [written.index(name) for name in store.names_of(tokens, engine)]
        assert places == sorted(places)
    assert len(written) == 40, "nothing twice"


def test_what_nobody_asks_for_makes_no_store_evict(store: Recorded, engine: TieredCache) -> None:
    store.batches.clear()
    store.held = {b"others": bytes(100 * SIZE)}
    store.capacity = 110 * SIZE
    names = {*store.names_of(PROMPTS[3], engine), b"others"}
    for _ in range(3):
        assert engine.lookup(PROMPTS[3]).tokens == 8 * CHUNK
        until(lambda: set(store.held) == names, LIMIT_S)
        del store.held[store.names_of(PROMPTS[3], engine)[7]]
        until(lambda: bool(engine.lookup(PROMPTS[3])) and set(store.held) == names, LIMIT_S)
    assert {key for batch in store.batches for key in batch} | {b"others"} == names


def test_what_a_store_never_had_is_not_offered_to_it(store: Recorded) -> None:
    second = Recorded()
    with open_engine(store, second) as engine:
        fill(engine)
        # The first has lost it; the second never had more than what was written to it.
        tokens = PROMPTS[0]
        second.held.clear()
        second.batches.clear()
        engine.tiers[1].tier.known.forget(lambda generation: True)
        store.held.clear()
        until(lambda: bool(engine.lookup(tokens)) and len(store.held) == 40, LIMIT_S)
        assert not second.batches


def test_what_could_not_be_written_goes_when_it_is_asked_for(
    store: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = True
    monkeypatch.setattr(Recorded, "available", property(lambda self: not away))
    with open_engine(store) as engine:
        fill(engine)
        assert not store.held
        away = False
        for tokens in PROMPTS:
            names = set(store.names_of(tokens, engine))
            until(
                lambda tokens=tokens, names=names: (
                    bool(engine.lookup(tokens)) and names <= set(store.held)
                ),
                LIMIT_S,
            )


def test_time_to_live_is_no_loss(valkey: TestServer) -> None:
    """What ends by its own time is written again when it is asked for, and nothing with it."""
    with open_engine(stores=[redis(valkey) | {"ttl_s": 0.3}]) as engine:
        fill(engine)
        until(lambda: valkey.cli("DBSIZE") <= 1, LIMIT_S)
        again = engine.tiers[0].writer
        until(lambda: bool(engine.lookup(PROMPTS[0])) and again.written_again >= 8, LIMIT_S)
        assert again.written_again % 8 == 0
        assert not engine.tiers[0].writer._losses._others
