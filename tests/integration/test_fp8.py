"""`remote_serde: fp8` on a real server: half the bytes, near the numbers, and nobody else's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from integration.test_codecs import numbers
from kvferry import Identity, KVLayout
from kvferry.base.errors import ConfigError
from kvferry.config import ClientConfig
from kvferry.connectors.redis import RedisConnector
from kvferry.connectors.serde import with_fp8
from support import engines
from support.cache_server import CacheServerProcess
from support.connectors import space_of
from support.engines import open_engine, prompt
from support.raw_peer import Peer
from support.servers import TestServer
from support.stamps import until

HEAD = 64  # bytes of a frame
COUNT = 6
LAYOUT = KVLayout(layers=4, kv_heads=8, head_dim=64, dtype="bfloat16", chunk_size=16)
IDENTITY = Identity(model="coded", layout=LAYOUT)
SHAPE = (-1, 32)  # numbers with one scale lie side by side


def floats(chunk: bytes | npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "bfloat16":
        return (np.frombuffer(chunk, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(chunk, dtype).astype(np.float32)


def kv(dtype: str, size_bytes: int, seed: int = 0) -> bytes:
    if dtype == "bfloat16":
        return numbers(size_bytes, seed)
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(size_bytes // np.dtype(dtype).itemsize, np.float32)
    return values.astype(dtype).tobytes()


def assert_near(came: Any, stored: bytes, dtype: str) -> None:
    a, b = floats(stored, dtype), floats(bytes(came), dtype)
    small = np.abs(a).reshape(SHAPE).max(1, keepdims=True) / 224 / 1024
    wrong = np.abs(a - b).reshape(SHAPE)
    assert (wrong <= np.maximum(np.abs(a).reshape(SHAPE) / 16, small)).all()
    assert wrong.any(), "nothing was lost"


@pytest.mark.parametrize(
    ("dtype", "ratio"), [("bfloat16", 1.93), ("float16", 1.93), ("float32", 3.85)]
)
def test_fp8_engines_share_and_others_see_nothing(
    valkey: TestServer, dtype: str, ratio: float
) -> None:
    layout = replace(LAYOUT, dtype=dtype)
    identity = replace(IDENTITY, layout=layout)
    tokens, size = prompt(COUNT * 16), layout.chunk_bytes
    chunks = [kv(dtype, size, seed) for seed in range(COUNT)]
    stores = [{"type": "redis", "host": valkey.host, "port": valkey.port}]
    settings: dict[str, Any] = {"identity": identity, "stores": stores, "recompute": "never"}
    with open_engine(remote_serde="fp8", **settings) as engine:
        assert engine.store(tokens, [np.frombuffer(c, np.uint8) for c in chunks]).chunks == COUNT
        assert engine.flush(20)
        prefix = f"kvf:{engine.identity.digest.hex()}:*"
    held = sum(valkey.cli("STRLEN", key) for key in valkey.cli("KEYS", prefix))
    assert held < COUNT * (HEAD + size / ratio)
    for serde in ("naive", "split12", "auto"):
        with open_engine(remote_serde=serde, **settings) as other:
            assert other.lookup(tokens).tokens == 0
    with open_engine(remote_serde="fp8", **settings) as engine, engine.retrieve(tokens) as hit:
        assert hit.tokens == COUNT * 16
        for page, chunk in zip(hit.pages, chunks, strict=True):
            assert_near(page, chunk, dtype)
        # Stored once more it stays what it is.
        once = [bytes(page) for page in hit.pages]
        valkey.cli("FLUSHALL")
        with open_engine(remote_serde="fp8", **settings) as second:
            pages = [np.frombuffer(page, np.uint8) for page in once]
            assert second.store(tokens, pages).chunks == COUNT
            assert second.flush(20)
    with open_engine(remote_serde="fp8", **settings) as third, third.retrieve(tokens) as hit:
        assert [bytes(page) for page in hit.pages] == once


def test_stripes_of_what_was_computed_and_what_was_loaded_make_one_value(
    valkey: TestServer,
) -> None:
    size = 9 << 20
    described = with_fp8(IDENTITY).description
    space = replace(space_of(size), description=described)
    config, value = ClientConfig(host=valkey.host, port=valkey.port), numbers(size)
    loaded: dict[str, bytearray] = {}
    with RedisConnector(space, config, serde="fp8") as one:
        for key in ("a", "b"):
            assert one.batch_set([key], [loaded.get("a", value)]).ok
            loaded[key] = bytearray(size)
            assert one.batch_get([key], [loaded[key]]).ok
        assert loaded["a"] == loaded["b"] != value
        first = valkey.cli("GET", "kv:a#1")
        assert one.batch_set(["a"], [loaded["a"]]).ok
        valkey.cli("SET", "kv:a#1", first)
        target = bytearray(size)
        assert one.batch_get(["a"], [target]).ok
        assert target == loaded["a"]
        bad = bytearray(first)
        bad[len(bad) // 2] ^= 1
        valkey.cli("SET", "kv:a#1", bytes(bad))
        assert not one.batch_get(["a"], [target]).ok


def test_a_server_keeps_what_fp8_leaves_under_its_own_identity(
    valkey: TestServer, tmp_path: Path
) -> None:
    (tmp_path / "fp8.yaml").write_text(
        f"cache: {{remote_serde: fp8, stores: [{{type: redis, url: '{valkey.url}'}}]}}\n"
    )
    arguments = ("--config", str(tmp_path / "fp8.yaml"))
    with CacheServerProcess(tmp_path, *arguments) as server, Peer(server.endpoint) as peer:
        peer.attach().store(prompt(COUNT * engines.CHUNK))
        own = with_fp8(engines.IDENTITY).digest.hex()
        until(lambda: len(valkey.cli("KEYS", f"kvf:{own}:*")) >= COUNT, 20)
        assert not valkey.cli("KEYS", f"kvf:{engines.IDENTITY.digest.hex()}:*")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8", "float64"])
def test_types_that_fp8_has_no_numbers_of_are_refused(dtype: str) -> None:
    identity = replace(IDENTITY, layout=replace(LAYOUT, dtype=dtype))
    with pytest.raises(ConfigError, match=dtype):
        open_engine(identity=identity, remote_serde="fp8")


def test_nothing_is_lost_under_an_identity_that_does_not_say_so(valkey: TestServer) -> None:
    config = ClientConfig(host=valkey.host, port=valkey.port)
    with pytest.raises(ConfigError, match="identity"):
        RedisConnector(space_of(1000), config, serde="fp8")
    with RedisConnector(space_of(1000), config) as one, pytest.raises(ConfigError):
        one.write_as("fp8")
