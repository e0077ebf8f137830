"""`remote_serde` of what engines load: fewer bytes on the server, the same in every engine.

The cache's own way, which the vLLM connectors, `kvferry server` and Transformers take, is in
test_codecs.py.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from integration.test_codecs import numbers
from kvferry import RedisClient
from kvferry.base.errors import ConfigError
from kvferry.cache.store.coding import Coding
from kvferry.config.integrations import SglangSettings
from kvferry.config.tuning import TierLimits
from kvferry.connectors.redis import RedisConnector
from kvferry.connectors.serde import CODECS
from kvferry.integrations.lmcache import KvferryClient
from kvferry.integrations.sglang.page_store import PagePart, PageStore
from kvferry.integrations.vllm.tier.core import TierCore
from kvferry.integrations.vllm.tier.tier_options import read_options
from support.connectors import space_of
from support.lmcache_client import Caller
from support.servers import TestServer
from support.stamps import until

SIZE = 96 << 10  # of a value
COUNT = 6
HEAD = 64  # bytes of a frame
VALUES = [numbers(SIZE, seed) for seed in range(COUNT)]
SERDES = ["naive", *(name for name in CODECS if name != "naive")]


def names(of: str) -> list[bytes]:
    """Of the chunks of one prompt."""
    return [hashlib.sha256(f"{of}{index}".encode()).digest() for index in range(COUNT)]


def _hex(of: str) -> list[str]:
    return [name.hex() for name in names(of)]


class Way(Protocol):
    """How an engine's KV goes to a server and comes back."""

    def __init__(self, server: TestServer, serde: str) -> None: ...
    def write(self, of: str = "") -> None:
        """Store `VALUES`."""

    def read(self, of: str = "") -> list[bytes | None]:
        """What is there of them; None: a miss."""

    def close(self) -> None: ...


class VllmTier:
    def __init__(self, server: TestServer, serde: str) -> None:
        options = read_options({"url": server.url, "remote_serde": serde}, SIZE * COUNT)
        connector = options.open(space_of(SIZE))
        assert isinstance(connector, RedisConnector)
        coding = Coding("tier", connector.write_as) if serde == "auto" else None
        until(lambda: connector.available, 30)
        self.memory = mmap.mmap(-1, SIZE * COUNT)
        patient = TierLimits(lookup_timeout_s=20, load_stall_s=20, load_timeout_s=20)
        self.job = 0
        self.core = TierCore(connector, memoryview(self.memory), patient, coding=coding)

    def write(self, of: str = "") -> None:
        self.memory[:] = b"".join(VALUES)
        self.job += 1
        self.core.store(self.job, names(of), range(COUNT))
        assert self._done().success

    def read(self, of: str = "") -> list[bytes | None]:
        self.memory[:] = bytes(SIZE * COUNT)
        self.job += 1
        self.core.load(self.job, names(of), range(COUNT))
        done = self._done().done
        rows = [self.memory[i * SIZE : (i + 1) * SIZE] for i in range(COUNT)]
        return [row if name in done else None for name, row in zip(names(of), rows, strict=True)]

    def _done(self) -> Any:
        done: list[Any] = []

        def over() -> bool:
            done.extend(self.core.finished())
            return bool(done)

        until(over, 30)
        return done[0]

    def close(self) -> None:
        self.core.close()


class Sglang:
    def __init__(self, server: TestServer, serde: str) -> None:
        settings = SglangSettings.read({"url": server.url, "remote_serde": serde, "revision": "r"})
        self.client = RedisClient.from_config(settings.client)
        parts = (PagePart(".0", SIZE // 2), PagePart(".1", SIZE // 2))
        self.store = PageStore(self.client, {"weights": "w"}, parts, settings)

    def write(self, of: str = "") -> None:
        halves = [v[at : at + SIZE // 2] for v in VALUES for at in (0, SIZE // 2)]
        assert self.store.set(_hex(of), halves) == [True] * COUNT

    def read(self, of: str = "") -> list[bytes | None]:
        memory = [bytearray(SIZE // 2) for _ in range(2 * COUNT)]
        good = self.store.get(_hex(of), memory)
        pages = [bytes(a + b) for a, b in zip(memory[::2], memory[1::2], strict=True)]
        return [page if fine else None for page, fine in zip(pages, good, strict=True)]

    def close(self) -> None:
        self.store.close()
        self.client.close()


class Lmcache:
    def __init__(self, server: TestServer, serde: str) -> None:
        self.client = KvferryClient(url=server.url, verify=True, remote_serde=serde)
        self.caller = Caller(self.client)

    def write(self, of: str = "") -> None:
        assert self.caller.set(_hex(of), VALUES)[0]

    def read(self, of: str = "") -> list[bytes | None]:
        targets = [bytearray(SIZE) for _ in VALUES]
        mask = self.caller.get(_hex(of), targets)[2]
        assert mask is not None
        return [bytes(t) if good else None for t, good in zip(targets, mask, strict=True)]

    def close(self) -> None:
        self.client.close()


class Ways:
    def __init__(self, kind: type[Way], server: TestServer, stack: ExitStack) -> None:
        self.kind, self.server, self._stack = kind, server, stack

    def open(self, serde: str) -> Way:
        way = self.kind(self.server, serde)
        self._stack.callback(way.close)
        return way

    def held(self) -> dict[bytes, int]:
        """The lengths of values on the server."""
        names = [name for name in self.server.cli("KEYS", "*") if name != b"kvf:identities"]
        return {name: self.server.cli("STRLEN", name) for name in names}


@pytest.fixture(params=[VllmTier, Sglang, Lmcache])
def ways(request: pytest.FixtureRequest, valkey: TestServer) -> Iterator[Ways]:
    with ExitStack() as stack:
        yield Ways(request.param, valkey, stack)


@pytest.mark.parametrize("serde", SERDES)
def test_what_one_engine_encodes_every_engine_reads(ways: Ways, serde: str) -> None:
    ways.open(serde).write()
    held = sum(ways.held().values()) - HEAD * len(ways.held())
    assert held == SIZE * COUNT if serde == "naive" else held < SIZE * COUNT / 1.3
    for reader in SERDES:
        assert ways.open(reader).read() == VALUES


def test_damage_to_what_an_engine_has_encoded_is_a_miss(ways: Ways) -> None:
    way = ways.open("split12")
    way.write()
    for name in ways.held():
        good = bytearray(ways.server.cli("GET", name))
        good[len(good) // 2] ^= 4
        ways.server.cli("SET", name, bytes(good))
    assert way.read() == [None] * COUNT
    assert ways.open("naive").read() == [None] * COUNT


def test_an_engine_whose_loads_were_slow_encodes(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ways.kind is Lmcache:
        with pytest.raises(ConfigError, match="remote_serde"):
            ways.open("auto")
        return
    # No load is as fast as these, on any machine.
    fast = {"split12": 1e15, "zstd": 1e15}
    monkeypatch.setattr("kvferry.cache.store.coding.coder_bytes_s", lambda: fast)
    way = ways.open("auto")
    way.write()
    naive = ways.held()
    assert sum(naive.values()) > SIZE * COUNT
    assert way.read() == VALUES
    way.write("others")
    assert 0 < sum(ways.held().values()) - sum(naive.values()) < SIZE * COUNT / 1.3
    assert way.read() == way.read("others") == VALUES


def test_values_that_lmcache_reads_itself_stay_its_own() -> None:
    with pytest.raises(ConfigError, match="without verify"):
        KvferryClient(host="localhost", remote_serde="split12")


def test_a_tier_of_files_has_no_serde() -> None:
    given = {"url": "file:///kv", "capacity_gb": 1, "remote_serde": "split12"}
    with pytest.raises(ConfigError, match="for servers"):
        read_options(given, 1 << 30)
