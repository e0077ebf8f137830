"""Stored bytes that somebody changed: none is taken, each is a miss that is counted, and gone."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from kvferry import Identity, KVLayout, TieredCache
from kvferry.chunks.keys import chunk_hashes
from kvferry.config import ClientConfig
from kvferry.connectors.base import Connector, Space
from kvferry.connectors.file import FileConnector
from kvferry.connectors.memory import MemoryConnector
from kvferry.connectors.redis import RedisConnector
from support.corrupt import KINDS, FileBytes, ServerBytes, Values, spoil
from support.engines import (
    CHUNK,
    IDENTITY,
    LAYOUT,
    MIB,
    check,
    expected,
    memory_store,
    open_engine,
    prompt,
    space,
)
from support.servers import TestServer
from support.stamps import until

SIZE = LAYOUT.chunk_bytes
STRANGER = Identity(model="another", layout=LAYOUT)
Open = Callable[[Space], Connector]


def key_of(tokens: list[int]) -> str:
    return chunk_hashes(tokens, CHUNK)[0].hex()


def refusals(engine: TieredCache) -> Counter[str]:
    """What the connector counted, by cause."""
    stats = engine.tiers[0].tier.connector.stats()
    start = "refused_"
    return +Counter({k.removeprefix(start): n for k, n in stats.items() if k.startswith(start)})


class Field:
    """A store, its bytes as they lie, and an engine before it."""

    def __init__(self, open_store: Open, at: Values) -> None:
        self.at = at
        self.open_store = open_store
        self.store = open_store(space())
        self.engine = open_engine(self.store)

    def sow(self, prompts: list[list[int]]) -> tuple[list[bytes], list[bytes]]:
        """Store one-chunk prompts; their values as they lie, and those of another identity."""
        keys = [key_of(tokens) for tokens in prompts]
        names = [space().prefix + key for key in keys]
        found = []
        stranger = Space(space().prefix, STRANGER.digest, SIZE)
        with self.open_store(stranger) as other:
            assert other.batch_set(keys, [expected(p, STRANGER)[0] for p in prompts]).ok
            found.append(self.at.read(names, SIZE))
        assert self.store.batch_set(keys, [expected(p)[0] for p in prompts]).ok
        found.append(self.at.read(names, SIZE))
        return found[1], found[0]

    def close(self) -> None:
        self.engine.close()
        self.at.close()


@pytest.fixture(params=["valkey", "file"])
def field(request: pytest.FixtureRequest, tmp_path: Path, valkey: TestServer) -> Iterator[Field]:
    if request.param == "file":
        made = Field(lambda space: FileConnector(space, tmp_path), FileBytes(tmp_path))
    else:
        config = ClientConfig.from_url(valkey.url)
        made = Field(lambda space: RedisConnector(space, config), ServerBytes(valkey.url))
    yield made
    made.close()


def restored(engine: TieredCache, prompts: list[list[int]]) -> None:
    """Store them again, and read them from the store."""
    for tokens in prompts:
        assert engine.store(tokens, expected(tokens)).chunks == 1
    assert engine.flush()
    engine.clear(stores=False)
    for tokens in prompts:
        check(engine, tokens, want=CHUNK)


@pytest.mark.ways("tcp")
@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", KINDS)
def test_no_changed_value_is_taken(
    field: Field, kind: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In the soak 500 of each kind in each store: 10,000 in all."""
    rng, engine = Random(f"{kind} {type(field.at)}"), field.engine
    allowed: set[str] = set()
    refused_in_all = 0
    for start in range(0, count, 250):
        prompts = [prompt(CHUNK, seed) for seed in range(start, min(start + 250, count))]
        names = [space().prefix + key_of(tokens) for tokens in prompts]
        values, strangers = field.sow(prompts)
        spoiled = {}
        for index, name in enumerate(names):
            spoiled[name], causes = spoil(kind, field.at, values, index, strangers, rng)
            assert spoiled[name] != values[index]
            allowed |= causes
        field.at.write(spoiled)
        met = [
            name
            for name, value in zip(names, values, strict=True)
            if len(spoiled[name]) == len(value) or not field.at.asks_for_lengths
        ]
        refused_in_all += len(met)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "kvferry"):
            for tokens in prompts:
                with engine.retrieve(tokens) as hit:
                    assert hit.tokens == 0, f"{kind}: {hit}"
        refused = refusals(engine)
        assert set(refused) <= allowed
        assert refused.total() == refused_in_all
        until(lambda met=met: field.at.held(met) == 0, 5)  # deleted behind the answer
        told = [record.getMessage() for record in caplog.records]
        assert sum("is not taken: " in text for text in told) == len(met)
        restored(engine, prompts[:10])
    counted = engine.stats()["metrics"]["kvferry_corrupt_values_total"]
    assert sum(counted.values()) == refused_in_all


@pytest.mark.ways("tcp")
def test_a_chunk_in_the_middle_cuts_the_prefix_there(field: Field) -> None:
    """What is before it is used, what is behind it is not lost."""
    tokens, rng = prompt(20 * CHUNK), Random(3)
    keys = [space().prefix + digest.hex() for digest in chunk_hashes(tokens, CHUNK)]
    engine = field.engine
    engine.store(tokens, expected(tokens))
    assert engine.flush()
    values = field.at.read(keys, SIZE)
    for bad in (19, 7, 0, 13):
        engine.clear(stores=False)
        field.at.write({keys[bad]: spoil("flip_payload", field.at, values, bad, [], rng)[0]})
        with engine.retrieve(tokens) as hit:
            assert (hit.tokens, hit.reason) == (bad * CHUNK, "checksum")
            assert [bytes(page) for page in hit.pages] == [
                c.tobytes() for c in expected(tokens)[:bad]
            ]
        until(lambda: field.at.held(keys) == 19, 5)
        assert "wrong checksum" in str(engine.explain(tokens))
        engine.store(tokens, expected(tokens))
        assert engine.flush()
        engine.clear(stores=False)
        check(engine, tokens, want=20 * CHUNK)
        assert "wrong" not in str(engine.explain(tokens))


@pytest.mark.ways("tcp")
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("flip_payload", "checksum"),
        ("identity", "identity"),
        ("swap", "key"),
        ("version", "version"),
        ("extend", "size"),
    ],
)
def test_the_miss_says_what_was_wrong(valkey: TestServer, kind: str, reason: str) -> None:
    config = ClientConfig.from_url(valkey.url)
    field = Field(lambda space: RedisConnector(space, config), ServerBytes(valkey.url))
    prompts = [prompt(CHUNK, seed) for seed in range(10)]
    names = [space().prefix + key_of(tokens) for tokens in prompts]
    values, strangers = field.sow(prompts)
    rng = Random(1)
    field.at.write(
        {
            name: spoil(kind, field.at, values, index, strangers, rng)[0]
            for index, name in enumerate(names)
        }
    )
    for tokens in prompts:
        assert field.engine.retrieve(tokens).reason == reason
        assert f"wrong {reason}" in str(field.engine.explain(tokens))
    stats = field.engine.stats()["metrics"]
    assert stats["kvferry_missed_chunks_total"][reason] == 10
    assert stats["kvferry_corrupt_values_total"][reason] == 10
    field.close()


LARGE = KVLayout(layers=2, kv_heads=40, head_dim=128, dtype="float32", chunk_size=64)
STRIPED = Identity(model="striped", layout=LARGE)


@pytest.mark.ways("tcp")
@pytest.mark.parametrize(
    "how", ["mixed", "swapped_stripe", "lost", "lost_first", "flipped", "short"]
)
def test_stripes_that_do_not_belong_together_are_no_value(valkey: TestServer, how: str) -> None:
    """Values above 4 MiB: of two writes, in a wrong order, lacking one, damaged."""
    size = LARGE.chunk_bytes
    assert 4 * MIB < size < 8 * MIB
    one, two = prompt(LARGE.chunk_size, 1), prompt(LARGE.chunk_size, 2)
    key, other = (space(STRIPED).prefix + chunk_hashes(p, 64)[0].hex() for p in (one, two))
    stores = [{"type": "redis", "url": valkey.url}]
    with open_engine(identity=STRIPED, stores=stores, max_local_cpu_size=0.1) as engine:
        old = [chunk + 1 for chunk in expected(one, STRIPED)]
        engine.store(one, old)
        engine.store(two, expected(two, STRIPED))
        assert engine.flush()
        old_stripe = valkey.cli("GET", f"{key}#1")
        valkey.cli("FLUSHALL")
        engine.clear(stores=False)
        engine.store(one, expected(one, STRIPED))
        engine.store(two, expected(two, STRIPED))
        assert engine.flush()
        engine.clear(stores=False)
        stripe = valkey.cli("GET", f"{key}#1")
        cause = ""
        if how == "mixed":
            valkey.cli("SET", f"{key}#1", old_stripe)
        elif how == "swapped_stripe":
            cause = "key"
            valkey.cli("SET", f"{key}#1", valkey.cli("GET", f"{other}#1"))
        elif how == "lost":
            valkey.cli("DEL", f"{key}#1")
        elif how == "lost_first":
            valkey.cli("DEL", key)
        elif how == "flipped":
            cause = "checksum"
            valkey.cli("SETRANGE", f"{key}#1", 100_000, bytes([stripe[100_000] ^ 8]))
        else:
            cause = "size"
            valkey.cli("SET", f"{key}#1", stripe[:-1])
        with engine.retrieve(one) as hit:
            assert hit.tokens == 0
        check(engine, two, want=LARGE.chunk_size)
        if cause:
            assert sum(refusals(engine).values()) == 1
        assert engine.store(one, expected(one, STRIPED)).chunks == 1
        assert engine.flush()
        engine.clear(stores=False)
        check(engine, one, want=LARGE.chunk_size)


def test_a_shared_memory_store_keeps_identities_and_lengths_apart() -> None:
    """Its bytes cannot be reached from outside, but others may write under our names."""
    tokens = prompt(CHUNK)
    key = key_of(tokens)
    for identity, size, reason in ((STRANGER, SIZE, "identity"), (IDENTITY, SIZE + 1, "size")):
        name = f"bad {reason}"
        with open_engine(memory_store(name)) as engine:
            foreign = Space(space().prefix, identity.digest, size)
            with MemoryConnector(foreign, name=name) as other:
                assert other.batch_set([key], [bytes(size)]).ok
                assert engine.retrieve(tokens).reason == reason
                assert other.batch_exists([key])[0] == 1
            assert refusals(engine) == {reason: 1}
            restored(engine, [tokens])


@pytest.mark.ways("tcp")
def test_a_key_of_another_type_is_deleted_like_a_corrupt_value(valkey: TestServer) -> None:
    tokens = prompt(2 * CHUNK)
    key = space().prefix + key_of(tokens)
    with open_engine(stores=[{"type": "redis", "url": valkey.url}]) as engine:
        engine.store(tokens, expected(tokens))
        assert engine.flush()
        valkey.cli("DEL", key)
        valkey.cli("LPUSH", key, "not a chunk")
        engine.clear(stores=False)
        check(engine, tokens, want=0)
        assert refusals(engine)
        until(lambda: valkey.cli("TYPE", key) == b"none", 10)
        restored(engine, [tokens[:CHUNK]])
