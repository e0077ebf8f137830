"""`remote_serde` on a real server: what one engine encodes, others read, or it is a miss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from kvferry import Identity, KVLayout, Status, TieredCache
from kvferry.base.errors import ConfigError
from kvferry.config import ClientConfig
from kvferry.connectors import load_connector
from kvferry.connectors.redis import RedisConnector
from kvferry.connectors.serde import CODECS
from support.connectors import space_of
from support.engines import open_engine, prompt
from support.proxy import FaultProxy
from support.servers import TestServer, wait_for
from support.stamps import until

HEAD = 64  # bytes of a frame
CODED = [name for name in CODECS if name != "naive"]


def numbers(size_bytes: int, seed: int = 0) -> bytes:
    """bf16 as KV is: normally distributed."""
    count = -(-size_bytes // 2)
    values = np.random.default_rng(seed).standard_normal(count, np.float32)
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes()[:size_bytes]


def contents(size_bytes: int) -> list[bytes]:
    """Of each kind one."""
    plain = numbers(size_bytes)
    odd = np.frombuffer(plain[: size_bytes // 2 * 2], "<u2").copy()
    odd[::41] = 0x7FC0  # NaN
    odd[7::97] = 0xFF80  # -Inf
    odd[3::89] = 0x8001  # a denormal
    odd[5::31] = 0
    random = np.random.default_rng(1).bytes(size_bytes)
    ragged = plain[: size_bytes // 2] + random[size_bytes // 2 :]
    repeated = (b"\x80\x3f" * size_bytes)[:size_bytes]
    return [plain, odd.tobytes() + plain[odd.nbytes :], random, ragged, bytes(size_bytes), repeated]


def store(server: TestServer, size_bytes: int, serde: str) -> RedisConnector:
    config = ClientConfig(host=server.host, port=server.port)
    return RedisConnector(space_of(size_bytes), config, serde=serde)


@pytest.mark.parametrize("size", [1, 127, 4096, 65_537, 300_000, (5 << 20) + 3, 9 << 20])
@pytest.mark.parametrize("writer", CODED)
def test_every_reader_gets_what_was_written(valkey: TestServer, writer: str, size: int) -> None:
    values = contents(size)
    keys = [f"k{i}" for i in range(len(values))]
    with store(valkey, size, writer) as writing:
        assert writing.batch_set(keys, values).ok
        # Again, over what is there: by turns with naive, the stripes of both belong together.
        with store(valkey, size, "naive") as naive:
            assert naive.batch_set(keys[::2], values[::2]).ok
        assert writing.batch_set(keys[1:], values[1:]).ok
    for reader in CODECS:
        targets = [bytearray(size) for _ in keys]
        with store(valkey, size, reader) as reading:
            assert reading.batch_get(keys, targets).ok
        assert all(target == value for target, value in zip(targets, values, strict=True))


@pytest.mark.parametrize("serde", CODED)
def test_a_store_holds_the_bytes_of_the_payload(valkey: TestServer, serde: str) -> None:
    size = 1 << 20
    with store(valkey, size, serde) as one:
        noise = Random(1).randbytes(size)
        assert one.batch_set(["kv", "noise"], [numbers(size), noise]).ok
        assert valkey.cli("STRLEN", "kv:noise") == HEAD + size, "no byte more"
        held = valkey.cli("STRLEN", "kv:kv")
        assert size / 1.7 < held < size / 1.30
        before = one.usage(timeout_s=20).used_bytes
        keys = [f"k{i}" for i in range(16)]
        assert one.batch_set(keys, [numbers(size, i) for i in range(16)]).ok
        # What it says of its clients' buffers, which are taken off, lags behind them.
        until(lambda: one.usage(timeout_s=20).used_bytes - before < 16 * size / 1.1, 10)


@pytest.mark.parametrize("serde", CODED)
def test_stripes_of_writers_with_other_codecs_make_one_value(
    valkey: TestServer, serde: str
) -> None:
    size = 9 << 20
    value = numbers(size)
    with store(valkey, size, serde) as one, store(valkey, size, "naive") as other:
        assert one.batch_set(["a"], [value]).ok
        coded = valkey.cli("GET", "kv:a#1")
        assert other.batch_set(["a"], [value]).ok
        assert len(coded) < valkey.cli("STRLEN", "kv:a#1")
        valkey.cli("SET", "kv:a#1", coded)
        target = bytearray(size)
        assert other.batch_get(["a"], [target]).ok
        assert target == value


@pytest.mark.parametrize("serde", CODED)
def test_damage_to_what_is_encoded_is_a_miss(valkey: TestServer, serde: str) -> None:
    size, count = 200_000, 120
    value, rng = numbers(size), Random(serde)
    keys = [f"k{i}" for i in range(count)]
    with store(valkey, size, serde) as one:
        assert one.batch_set(["good"], [value]).ok
        good = valkey.cli("GET", "kv:good")
        assert HEAD < len(good) < size
        for key in keys:
            bad = bytearray(good)
            match rng.randrange(4):
                case 0:
                    bad[rng.randrange(HEAD, HEAD + 30)] ^= 1 << rng.randrange(8)
                case 1:
                    bad[rng.randrange(HEAD, len(bad))] ^= 1 << rng.randrange(8)
                case 2:
                    bad = bad[: rng.randrange(HEAD, len(bad))]
                case _:
                    start = rng.randrange(HEAD, len(bad))
                    bad[start:] = rng.randbytes(len(bad) - start)
            # The key is a part of the header, so the good one is stored under it first.
            assert one.batch_set([key], [value]).ok
            head = valkey.cli("GETRANGE", f"kv:{key}", 0, HEAD - 1)
            valkey.cli("SET", f"kv:{key}", head + bytes(bad[HEAD:]))
        targets = [bytearray(size) for _ in keys]
        result = one.batch_get(keys, targets)
        for status, target in zip(result, targets, strict=True):
            # What no number uses, in the table of a block, may be anything.
            assert status is not Status.OK or target == value
        assert sum(status is Status.OK for status in result) < count / 8
        assert one.batch_get(["good"], [targets[0]]).ok
        assert targets[0] == value


LAYOUT = KVLayout(layers=4, kv_heads=8, head_dim=64, dtype="bfloat16", chunk_size=16)
IDENTITY = Identity(model="coded", layout=LAYOUT)
PATTERN = f"kvf:{IDENTITY.digest.hex()}:*"


def test_engines_with_other_settings_read_each_other(valkey: TestServer) -> None:
    tokens = prompt(12 * 16)
    chunks = [np.frombuffer(numbers(LAYOUT.chunk_bytes, i), np.uint8) for i in range(12)]
    stores = [{"type": "redis", "host": valkey.host, "port": valkey.port}]
    settings: dict[str, Any] = {"identity": IDENTITY, "stores": stores, "recompute": "never"}
    for writer in CODECS:
        with open_engine(remote_serde=writer, **settings) as engine:
            assert engine.store(tokens, chunks).chunks == 12
            assert engine.flush(20)
        held = sum(valkey.cli("STRLEN", key) for key in valkey.cli("KEYS", PATTERN))
        whole = 12 * (HEAD + LAYOUT.chunk_bytes)
        assert held == whole if writer == "naive" else held < whole / 1.3
        for reader in CODECS:
            with (
                open_engine(remote_serde=reader, **settings) as engine,
                counted(engine, 12 * LAYOUT.chunk_bytes),
                engine.retrieve(tokens) as hit,
            ):
                assert hit.tokens == 12 * 16
                pairs = zip(hit.pages, chunks, strict=True)
                assert all(bytes(page) == chunk.tobytes() for page, chunk in pairs)
        valkey.cli("FLUSHALL")


def test_a_link_that_was_seen_to_be_slow_gets_encoded_chunks(valkey: TestServer) -> None:
    chunks = [np.frombuffer(numbers(LAYOUT.chunk_bytes, i), np.uint8) for i in range(12)]
    whole = HEAD + LAYOUT.chunk_bytes
    with FaultProxy(valkey.host, valkey.port) as proxy:
        proxy.down.shared, proxy.down.bandwidth_bytes_per_s = True, 50e6
        stores = [{"type": "redis", "url": proxy.url, **FaultProxy.settings}]
        settings: dict[str, Any] = {"identity": IDENTITY, "stores": stores, "recompute": "never"}
        with open_engine(remote_serde="auto", **settings) as engine:

            def held(seed: int) -> set[int]:
                """The lengths of the values of one more prompt."""
                before = valkey.cli("KEYS", PATTERN)
                assert engine.store(prompt(12 * 16, seed), chunks).chunks == 12
                assert engine.flush(20)
                fresh = set(valkey.cli("KEYS", PATTERN)) - set(before)
                return {valkey.cli("STRLEN", key) for key in fresh}

            assert held(0) == {whole}, "nobody knows the link yet"
            engine.clear(stores=False)
            with engine.retrieve(prompt(12 * 16, 0)) as hit:
                assert hit.tokens == 12 * 16
            held(1)  # behind it the choice is made
            assert all(length < whole / 1.3 for length in held(2))


@contextlib.contextmanager
def counted(engine: TieredCache, size_bytes: int) -> Iterator[None]:
    """What a load expects is what its flow is seen to bring, however that is encoded."""
    tier = engine.tiers[0].tier
    before = tier.received_bytes()
    yield
    # What has come is counted a moment after it is given out.
    wait_for("all bytes are counted", lambda: tier.received_bytes() - before > size_bytes)
    assert tier.received_bytes() - before < 1.1 * size_bytes


def test_an_unknown_serde_is_refused_by_name(valkey: TestServer) -> None:
    spec = {"type": "redis", "host": valkey.host, "port": valkey.port, "serde": "cachegen"}
    with pytest.raises(ConfigError, match="split12"):
        load_connector(spec, space_of(100))
