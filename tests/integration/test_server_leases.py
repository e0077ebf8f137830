"""Lookups that lease: what was promised stays in the server's memory until it is loaded.

Three messages bring a hit: the lookup, the load, and the release. What a lookup leased and nobody
loads ends by the server's clock, and never holds all that an engine may have.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvferry.chunks.prompt import Prompt, read_prompt
from kvferry.config import StoreConfig
from kvferry.integrations.vllm.connector.lookup_threads import CacheFinder
from kvferry.server import Client
from kvferry.server import protocol as p
from kvferry.server.server import Server
from kvferry.server.sessions import handlers
from support import clock
from support.cache_server import CacheServerProcess, running
from support.engines import CHUNK, IDENTITY, LAYOUT, expected, pages_gb, prompt
from support.raw_peer import Peer
from support.scripted_cache import ScriptedServer
from support.servers import TestServer
from support.stamps import until

LIMIT_S = 20.0
TOKENS = prompt(4 * CHUNK)


def asked(tokens: list[int], **facts: Any) -> Prompt:
    return replace(read_prompt(tokens, CHUNK, b""), **facts)


@contextmanager
def served(tmp_path: Path, pages: int = 64, **settings: Any) -> Iterator[tuple[Server, Client]]:
    """A server that has the prompt, and a client of it."""
    with (
        running(tmp_path, mib=1024 * pages_gb(pages), **settings) as server,
        Client(IDENTITY, server.config.endpoints[0], timeout_s=LIMIT_S) as client,
    ):
        assert client.wait(LIMIT_S)
        assert client.store(TOKENS, expected(TOKENS)).chunks == 4
        yield server, client


def held(server: Server) -> int:
    """Pages that engines hold."""
    return sum(session["pages"] for session in server.status()["sessions"])


def right(client: Client, tokens: Prompt, first: int = 0) -> bool:
    """Whether all of it is loaded, byte for byte."""
    with client.retrieve(tokens) as hit:
        pages = [bytes(page) for page in hit.pages]
        return pages == [chunk.tobytes() for chunk in expected(TOKENS)[first:]]


def test_a_hit_takes_three_messages(tmp_path: Path) -> None:
    with served(tmp_path) as (server, client):
        wanted, finder = asked(TOKENS), CacheFinder(client)
        before = client.stats()["requests"]
        assert finder.find(wanted) == 4
        assert held(server) == 4
        assert right(client, wanted)
        assert client.stats()["requests"] - before == 3 + 1  # and `stats`
        assert held(server) == 0


def test_a_hit_of_a_store_takes_three_messages(valkey: TestServer, tmp_path: Path) -> None:
    store = StoreConfig.of(type="redis", url=valkey.url)
    with served(tmp_path, cache={"stores": (store,)}) as (server, client):
        (shard,) = server._registry.shards.values()
        assert shard.opened.wait(LIMIT_S)
        assert shard.cache.flush()
        until(lambda: valkey.cli("DBSIZE") == 5, LIMIT_S)
        assert client.clear(stores=False) == 4
        wanted = asked(TOKENS)
        before = client.stats()["requests"]
        found = client.lookup(wanted, lease=True)
        assert found.tiers == {"l1": 0, "redis": 4 * CHUNK}
        assert held(server) == 4
        assert right(client, wanted)
        assert client.stats()["requests"] - before == 3 + 1
        told = client.stats()["server"]["metrics"]
        assert told["kvferry_tokens_hit_total"] == {"l1": 0, "redis": 4 * CHUNK}, "counted once"


def test_both_sides_count_a_hit_once_and_a_miss_once(tmp_path: Path) -> None:
    with served(tmp_path) as (_, client):
        longer = asked(TOKENS + prompt(2 * CHUNK, seed=5))
        assert client.lookup(longer, lease=True).tokens == 4 * CHUNK
        assert right(client, longer.cut(4))
        for taken in (client.metrics.snapshot(), client.stats()["server"]["metrics"]):
            assert taken["kvferry_tokens_requested_total"] == 6 * CHUNK
            assert taken["kvferry_tokens_hit_total"]["l1"] == 4 * CHUNK
            assert taken["kvferry_missed_chunks_total"]["never_stored"] == 2


def test_what_is_leased_is_not_evicted(tmp_path: Path) -> None:
    with served(tmp_path, pages=12) as (_, client):
        with Client(IDENTITY, client.url, timeout_s=LIMIT_S) as other:
            assert client.lookup(asked(TOKENS), lease=True).tokens == 4 * CHUNK
            for seed in range(1, 30):
                tokens = prompt(2 * CHUNK, seed=seed)
                other.store(tokens, expected(tokens))
            assert right(client, asked(TOKENS))
        for seed in range(30, 60):
            tokens = prompt(2 * CHUNK, seed=seed)
            client.store(tokens, expected(tokens))
        assert client.contains(asked(TOKENS)) < 4 * CHUNK, "the lease has ended"


def test_what_nobody_loads_ends_by_the_servers_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "LOOKUP_LEASE_S", 0.3)
    with served(tmp_path) as (server, client):
        assert client.lookup(asked(TOKENS), lease=True).tokens == 4 * CHUNK
        assert held(server) == 4
        until(lambda: held(server) == 0, LIMIT_S)
        assert right(client, asked(TOKENS)), "it is there all the same"


def test_asking_again_leases_once_and_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as (server, client):
        monkeypatch.setattr(handlers, "LOOKUP_LEASE_S", 0.6)
        for _ in range(5):
            assert client.lookup(asked(TOKENS), lease=True).tokens == 4 * CHUNK
            assert held(server) == 4
        monkeypatch.setattr(handlers, "LOOKUP_LEASE_S", 60.0)
        assert client.lookup(asked(TOKENS), lease=True).tokens == 4 * CHUNK
        ended = clock.now_s() + 1.5
        until(lambda: clock.now_s() > ended, LIMIT_S)
        assert held(server) == 4
        told = client.stats()["server"]["metrics"]
        assert told["kvferry_tokens_hit_total"]["l1"] == 4 * CHUNK, "one request"


def test_a_burst_leases_a_part_of_what_an_engine_may_hold(tmp_path: Path) -> None:
    with served(tmp_path, pages=32) as (server, client):
        prompts = [prompt(4 * CHUNK, seed=seed) for seed in range(1, 7)]
        for tokens in prompts:
            client.store(tokens, expected(tokens))
        for tokens in prompts:
            assert client.lookup(asked(tokens), lease=True).tokens == 4 * CHUNK, "unheld, too"
        assert held(server) == 12  # three quarters of the half of 32
        more = prompt(2 * CHUNK, seed=99)
        assert client.store(more, expected(more)).chunks == 2, "there is room to store"
        with client.retrieve(asked(TOKENS)) as hit:
            assert hit.tokens == 4 * CHUNK
        with Peer(client.url) as other:
            found = other.attach().want(p.Found, p.LookupRequest, asked(prompts[-1]), True, True)
            assert found.tiers == {"l1": 4}
            assert held(server) == 16, "another engine has its own part"


def test_an_engine_that_dies_holds_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as (server, client):
        with Client(IDENTITY, client.url, timeout_s=LIMIT_S) as other:
            assert other.lookup(asked(TOKENS), lease=True).tokens == 4 * CHUNK
            assert held(server) == 4
        until(lambda: held(server) == 0, LIMIT_S)


def test_a_part_of_what_is_leased_ends_the_lease(tmp_path: Path) -> None:
    with served(tmp_path) as (server, client):
        for first, end in ((0, 2), (2, 4), (0, 4)):
            assert client.lookup(asked(TOKENS), lease=True).tokens == 4 * CHUNK
            whole = asked(TOKENS)
            part = replace(whole, hashes=whole.part(first, end), start_tokens=first * CHUNK)
            with client.retrieve(part) as hit:
                assert len(hit.pages) == end - first
                assert held(server) == end - first
            assert held(server) == 0


def test_what_the_engine_has_itself_is_neither_brought_nor_leased(tmp_path: Path) -> None:
    with served(tmp_path) as (server, client):
        own = asked(TOKENS, computed_tokens=2 * CHUNK + 1)
        assert client.lookup(own, lease=True).tokens == 4 * CHUNK
        assert held(server) == 2
        assert right(client, own.behind_computed()[1], first=2)
        assert held(server) == 0
        everything = asked(TOKENS, computed_tokens=4 * CHUNK)
        assert client.lookup(everything, lease=True).tokens == 4 * CHUNK
        elsewhere = asked(prompt(4 * CHUNK, seed=7), computed_tokens=3 * CHUNK)
        assert client.lookup(elsewhere, lease=True).tokens == 3 * CHUNK
        assert held(server) == 0


def test_a_new_generation_lets_go(tmp_path: Path) -> None:
    with served(tmp_path) as (server, client):
        finder = CacheFinder(client)
        assert finder.find(asked(TOKENS)) == 4
        finder.renewed(bytes(8), b"another.")
        assert held(server) == 0
        assert finder.find(asked(TOKENS)) == 0


def test_a_server_that_lives_is_waited_for(tmp_path: Path) -> None:
    with ScriptedServer(f"ipc://{tmp_path}/s", LAYOUT) as server:
        late: list[Any] = []
        server.on(p.LookupRequest, lambda request: late.append(request))

        def answered(request: p.Ping) -> list[p.Reply | bytes | None]:
            pong, waiting = server.behave(request), late[:] if len(server.of(p.Ping)) > 3 else []
            return [pong, *(p.Found(each.id, {"l1": 4}) for each in waiting)]

        server.on(p.Ping, answered)
        with Client(IDENTITY, server.url, lookup_timeout_s=0.2) as client:
            assert client.wait(LIMIT_S)
            found = client.lookup(asked(TOKENS), lease=True)
            assert found.tokens in (4 * CHUNK, 0)  # 0: that answer went to another socket
            assert len(server.of(p.LookupRequest)) == 1
            assert len(server.of(p.Ping)) > 3, "it was asked for signs of life"


def test_a_server_that_hangs_costs_a_part_of_computing_once(tmp_path: Path) -> None:
    with (
        CacheServerProcess(tmp_path) as server,
        Client(IDENTITY, server.endpoint, timeout_s=LIMIT_S) as client,
    ):
        assert client.wait(LIMIT_S)
        client.store(TOKENS, expected(TOKENS))
        client.expect_prefill((0.0, 2.0 / len(TOKENS), 0.0, 0.0))  # the prompt takes 2 s
        finder = CacheFinder(client)
        until(lambda: finder.find(asked(TOKENS)) == 4, LIMIT_S)
        server.signal(signal.SIGSTOP)
        try:
            began = clock.now_s()
            assert finder.find(asked(TOKENS)) == 0
            took = clock.now_s() - began
            assert took < 1.5, "half of computing, and not the ten seconds of a load"
            began = clock.now_s()
            for _ in range(50):
                assert finder.find(asked(TOKENS)) == 0
            assert clock.now_s() - began < 1
        finally:
            server.signal(signal.SIGCONT)
        until(lambda: finder.find(asked(TOKENS)) == 4, LIMIT_S)


def test_without_a_server_nothing_is_counted(tmp_path: Path) -> None:
    with Client(IDENTITY, f"ipc://{tmp_path}/nobody") as client:
        finder = CacheFinder(client)
        assert finder.now(asked(TOKENS)) == finder.find(asked(TOKENS)) == 0
        taken = client.metrics.snapshot()
        assert taken["kvferry_tokens_requested_total"] == 0


def test_a_load_of_nothing_ends_no_lease(tmp_path: Path) -> None:
    with served(tmp_path) as (server, client), Peer(client.url) as other:
        found = other.attach().want(p.Found, p.LookupRequest, asked(TOKENS), True, True)
        assert found.tiers == {"l1": 4}
        assert other.want(p.Leased, p.Retrieve, asked([])).pages == []
        assert held(server) == 4
