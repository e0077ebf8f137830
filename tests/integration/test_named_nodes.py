"""Nodes that requests name (`kv_transfer_params.remote_kv_source`), asked by vLLM's connectors."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kvferry import TieredCache
from kvferry.cache.store.store_tiers import space_of
from kvferry.chunks.prompt import Prompt, node_in, read_prompt
from kvferry.config.remote_sources import Address
from kvferry.integrations.vllm.connector.lookup_threads import CacheFinder
from kvferry.server import Client
from kvferry.sharing.peers.lending import USER, LendingNode
from kvferry.sharing.peers.named_nodes import NAME, NODES_MAX
from kvferry.sharing.peers.peer_tier import client_of, open_peer
from support import clock
from support.cache_server import running
from support.engines import CHUNK, IDENTITY, expected, open_engine, prompt, space
from support.proxy import FaultProxy
from support.servers import free_port, start_server, wait_for
from support.vllm_halves import CHUNK as OF_VLLM
from support.vllm_halves import CHUNKS, Vllm

TOKENS = 10 * CHUNK
ALL = CHUNKS * OF_VLLM
HOSTS = ("127.0.0.0/8",)
WORD = "word"  # that nodes are asked with: a port of this host may be anybody's
TIER = f"peer {NAME}"


@contextmanager
def lent(cache: TieredCache, secret: str = WORD) -> Iterator[Address]:
    """A node that lends what a cache has in memory."""
    node = LendingNode("127.0.0.1", [0], secret, {}, 1 << 30)
    try:
        of = space_of(cache.identity)
        node.lend(cache.memory.cache, of.prefix, of.identity, cache.layout.chunk_bytes)
        yield "127.0.0.1", node.ports[0]
    finally:
        node.stop()


def open_with(**settings: Any) -> TieredCache:
    """An engine that asks the nodes which requests name."""
    return open_engine(**{"remote_kv_sources": HOSTS, "p2p_secret": WORD, **settings})


@pytest.fixture
def owner() -> Iterator[TieredCache]:
    """An engine that has a prompt."""
    with open_engine() as engine:
        tokens = prompt(TOKENS)
        engine.store(tokens, expected(tokens))
        yield engine


def naming(address: Address | None, tokens: int = TOKENS) -> Prompt:
    return replace(read_prompt(prompt(tokens), CHUNK, b""), source=address)


def params(address: Address) -> dict[str, Any]:
    source = {"kv_request_id": "x", "remote_host": address[0], "remote_port": address[1]}
    return {"remote_kv_source": source}


def found(engine: TieredCache, address: Address | None) -> int:
    """How many right tokens a retrieve brings that names a node."""
    chunks = expected(prompt(TOKENS))
    with engine.retrieve(naming(address), timeout_s=10) as hit:
        for index, page in enumerate(hit.pages):
            assert bytes(page) == chunks[index].tobytes()
        return hit.tokens


def test_a_prompt_is_read_from_the_node_that_it_names(owner: TieredCache) -> None:
    with lent(owner) as address, open_with(local_cpu=False) as engine:
        assert engine.lookup(naming(None)).tokens == 0
        seen = engine.lookup(naming(address))  # the first contact
        assert (seen.tokens, seen.tiers) == (TOKENS, {"l1": 0, TIER: TOKENS})
        assert found(engine, address) == TOKENS
        assert found(engine, None) == 0  # others do not ask it
        assert engine.tiers == []
        assert not engine.asks_stores


def test_what_a_store_has_not_comes_from_the_node(owner: TieredCache) -> None:
    tokens = prompt(TOKENS)
    with start_server("valkey") as server, lent(owner) as address:
        stores = [{"type": "redis", "url": server.url}]
        with open_engine(stores=stores) as writer:
            writer.store(tokens[: 4 * CHUNK], expected(tokens)[:4])
            assert writer.flush()
        with open_with(stores=stores) as engine:
            wait_for("the store", lambda: engine.contains(tokens) == 4 * CHUNK)
            seen = engine.lookup(naming(address))
            [store] = [tier.tier.name for tier in engine.tiers]
            assert seen.tiers == {"l1": 0, store: 4 * CHUNK, TIER: 6 * CHUNK}
            assert found(engine, address) == TOKENS


def test_a_secret_is_shown_to_the_node(owner: TieredCache) -> None:
    with lent(owner, "right") as address:
        for secret, tokens in (("right", TOKENS), ("wrong", 0)):
            with open_engine(remote_kv_sources=HOSTS, p2p_secret=secret) as engine:
                assert found(engine, address) == tokens


def test_nobody_is_asked_whom_the_operator_has_not_allowed(owner: TieredCache) -> None:
    with lent(owner) as address, FaultProxy(*address) as way:
        for hosts in ((), ("10.0.0.0/8", "localhost")):
            with open_with(remote_kv_sources=hosts) as engine:
                assert found(engine, ("127.0.0.1", way.port)) == 0
        assert way.connections == 0


def test_a_wrong_address_costs_a_recompute_and_never_a_stall(owner: TieredCache) -> None:
    with (
        lent(owner) as address,
        socket.create_server(("127.0.0.1", 0)) as mute,
        FaultProxy(*address) as hole,
        open_with() as engine,
    ):
        hole.black_hole()
        for port in (free_port(), mute.getsockname()[1], hole.port):
            for _ in range(3):
                began = clock.now_s()
                assert found(engine, ("127.0.0.1", port)) == 0
                assert clock.now_s() - began < 2
        assert found(engine, address) == TOKENS


def test_a_node_that_lies_is_refused(owner: TieredCache) -> None:
    """Frames say whose bytes they are: those of other tokens cannot pass for these."""
    tokens, others = prompt(TOKENS), prompt(TOKENS, 1)
    with start_server("valkey") as server:
        with open_engine(stores=[{"type": "redis", "url": server.url}]) as liar:
            liar.store(others, expected(others))
            assert liar.flush()
        prefix = space().prefix
        names = [read_prompt(each, CHUNK, b"").keys(0, 10) for each in (tokens, others)]
        for true, false in zip(*names, strict=True):
            server.cli("RENAME", prefix + false, prefix + true)
        server.cli("ACL", "SETUSER", USER, "on", f">{WORD}", "~*", "&*", "+@all")
        with open_with() as engine:
            assert found(engine, ("127.0.0.1", server.port)) == 0
        asked = server.cli("INFO", "commandstats").decode()
        assert "cmdstat_get:" in asked  # it was believed until its bytes came


def test_there_is_a_limit_on_nodes_and_the_one_named_longest_ago_goes(owner: TieredCache) -> None:
    with open_with() as engine:
        assert engine.named is not None
        ports = [free_port() for _ in range(2)] + list(range(1, NODES_MAX))
        for port in ports:
            engine.lookup(naming(("127.0.0.1", port)), timeout_s=0.0)
        assert [port for _, port in cast(Any, engine.named)._nodes] == ports[1:]


def test_a_peer_that_is_named_is_asked_once(owner: TieredCache) -> None:
    with lent(owner) as address, open_with() as engine:
        engine.tiers.append(open_peer(engine, "one", client_of(engine.config, WORD, address)))
        wait_for("the peer", lambda: engine.contains(prompt(TOKENS)) == TOKENS)
        assert set(engine.lookup(naming(address)).tiers) == {"l1", "peer one"}


def test_the_connector_in_process_loads_from_the_node_that_a_request_names() -> None:
    theirs, here = Vllm(None), Vllm(None, remote_kv_sources=HOSTS, p2p_secret=WORD)
    try:
        theirs.compute(theirs.request(1))
        wait_for("it is saved", lambda: theirs.ask(theirs.request(1))[0] == ALL)
        with lent(theirs.engine) as address:
            assert here.ask(here.request(1))[0] == 0
            request = here.request(1)
            request.kv_transfer_params = params(address)
            assert here.ask(request)[0] == ALL
            assert here.load(request, ALL) == set()
            here.right(request, set())
        wrong = here.request(2)
        wrong.kv_transfer_params = params(("127.0.0.1", free_port()))
        tokens, took_s = here.ask(wrong)
        assert tokens == 0
        assert took_s < 2
    finally:
        theirs.close()
        here.close()


@pytest.mark.parametrize("hosts", [HOSTS, ()])
def test_a_cache_server_loads_from_the_node_that_a_request_names(
    tmp_path: Path, owner: TieredCache, hosts: tuple[str, ...]
) -> None:
    want = TOKENS // CHUNK if hosts else 0
    with (
        lent(owner) as address,
        running(tmp_path, cache={"remote_kv_sources": hosts, "p2p_secret": WORD}) as server,
    ):
        client = Client(IDENTITY, server.config.endpoints[0], timeout_s=5.0)
        finder = CacheFinder(client)
        try:
            assert client.wait(10)
            assert finder.find(naming(None)) == 0
            assert finder.find(naming(("127.0.0.1", free_port()))) == 0
            assert finder.find(naming(address)) == want
            with client.retrieve(naming(address)) as hit:
                pages = [bytes(page) for page in hit.pages]
            chunks = expected(prompt(TOKENS))
            assert pages == [chunk.tobytes() for chunk in chunks][:want]
        finally:
            client.close()


@pytest.mark.parametrize("host", ["", "a b", "[::1]", "ho/st", "x" * 300, "h\udcff"])
def test_what_is_no_host_names_nobody(host: str) -> None:
    assert node_in(params((host, 1))) is None
