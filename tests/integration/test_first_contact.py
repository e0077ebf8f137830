"""The first read from an instance that was never talked to: how many waits, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kvferry import Identity, KVLayout, TieredCache
from kvferry.cache.store.store_tiers import space_of
from kvferry.chunks.prompt import read_prompt
from kvferry.config import ClientConfig
from kvferry.connectors.base import Connector
from kvferry.sharing.peers.lending import USER, LendingNode
from kvferry.sharing.peers.peer_tier import open_peer
from kvferry_lab.bench.programs import DelayProcess
from support.counted import CountedStore
from support.engines import expected, open_engine, pages_gb, prompt

LAYOUT = KVLayout(layers=32, kv_heads=8, head_dim=128, dtype="bfloat16", chunk_size=32)  # 4 MiB
IDENTITY = Identity(model="far", layout=LAYOUT)
CHUNKS = 29  # 0.12 GB
TOKENS = prompt(CHUNKS * LAYOUT.chunk_size)
RTT_MS = 5.0
WORD = "word"
WAITS_MAX = 3  # the greeting and two of the cache; connecting is not delayed


@pytest.fixture(scope="module")
def node() -> Iterator[LendingNode]:
    """Lends a prompt."""
    with open_engine(identity=IDENTITY, max_local_cpu_size=pages_gb(CHUNKS, LAYOUT)) as owner:
        owner.store(TOKENS, expected(TOKENS, IDENTITY))
        node = LendingNode("127.0.0.1", [0], WORD, {}, 1 << 30)
        space = space_of(IDENTITY)
        node.lend(owner.memory.cache, space.prefix, space.identity, LAYOUT.chunk_bytes)
        yield node
        node.stop()


def test_a_first_contact_takes_three_waits(
    node: LendingNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[CountedStore] = []

    def counting(*words: Any) -> Any:
        tier = open_peer(*words)
        counted.append(CountedStore(tier.tier.connector))
        tier.tier.connector = cast("Connector", counted[-1])
        return tier

    monkeypatch.setattr("kvferry.sharing.peers.named_nodes.open_peer", counting)
    log = tmp_path / "wire"
    config = ClientConfig(host="127.0.0.1", port=node.ports[0], username=USER, password=WORD)
    with DelayProcess(config, rtt_ms=RTT_MS, log=str(log)) as far, reader() as engine:
        source = ("127.0.0.1", far.port)
        asked = replace(read_prompt(TOKENS, LAYOUT.chunk_size, b""), source=source)
        with engine.retrieve(asked, timeout_s=30) as hit:
            assert hit.tokens == len(TOKENS)
            for page, chunk in zip(hit.pages, expected(TOKENS, IDENTITY), strict=True):
                assert bytes(page) == chunk.tobytes()
        far.bytes_passed()  # the log is whole
        waits = counted[0]._waits
        first, *others = greetings(log)
        assert first == ["HELLO"]
        assert others == [["HELLO"]] * len(others), "each connection has one more wait"
        assert 1 + waits.depth <= WAITS_MAX, waits.jobs


def reader() -> TieredCache:
    """An instance that has nothing."""
    hosts = ("127.0.0.0/8",)
    size_gb = pages_gb(2 * CHUNKS, LAYOUT)
    return open_engine(
        identity=IDENTITY, remote_kv_sources=hosts, p2p_secret=WORD, max_local_cpu_size=size_gb
    )


def greetings(log: Path) -> list[list[str]]:
    """What each connection that asks for chunks said before; others may ask about the host."""
    said: dict[str, list[str]] = {}
    asking: set[str] = set()
    for line in log.read_text().splitlines():
        _, connection, name, *_ = line.split(" ")
        if name in ("EXISTS", "TOUCH", "GET"):
            asking.add(connection)
        elif connection not in asking:
            said.setdefault(connection, []).append(name)
    return [words for connection, words in said.items() if connection in asking]
