"""The cache server with stores behind it: what they get, what comes back, and whom they slow."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from kvferry.server import Client
from support.cache_server import CacheServerProcess
from support.engines import CHUNK, IDENTITY, blanks, expected, prompt
from support.scripted import ScriptedServer, Silence
from support.servers import TestServer
from support.stamps import until


def adapter(**fields: object) -> tuple[str, str]:
    return "--l2-adapter", json.dumps(fields)


def check(client: Client, tokens: list[int], chunks: int, tier: str) -> None:
    """All of a prompt comes from that tier, and every byte is right."""
    into = blanks(chunks)
    hit = client.retrieve(tokens, into)
    assert hit.tokens == chunks * CHUNK, hit
    assert hit.tiers.get(tier, 0) == chunks * CHUNK, hit
    for got, right in zip(into, expected(tokens), strict=True):
        assert (got == right).all()


def test_what_a_store_was_promised_it_gets_before_the_end(tmp_path: Path) -> None:
    """SIGTERM right behind a store: the next server, without a state, has it from the files."""
    file = adapter(type="file", base_path=str(tmp_path / "kv"), max_capacity_gb=0.1)
    tokens = prompt(64 * CHUNK)
    with (
        CacheServerProcess(tmp_path, *file, mib=4) as server,
        Client(IDENTITY, server.endpoint) as client,
    ):
        stored = client.store(tokens, expected(tokens))
        assert (stored.chunks, sum(stored.queued.values())) == (64, 64)
        assert server.stop() == 0
        assert "were not written" not in server.log
        assert client.retrieve(tokens, blanks(64)).tokens == 0
        server.start()
        until(lambda: client.available, 5)
        check(client, tokens, 64, "file")
        check(client, tokens, 64, "l1")


def test_two_engines_and_a_redis_behind_them(valkey: TestServer, tmp_path: Path) -> None:
    resp = adapter(
        type="resp", host="localhost", port=valkey.port, num_workers=2, max_capacity_gb=0.1
    )
    tokens = prompt(16 * CHUNK)
    server = CacheServerProcess(tmp_path, *resp, mib=1)
    with server, Client(IDENTITY, server.endpoint) as one, Client(IDENTITY, server.endpoint) as two:
        assert one.store(tokens, expected(tokens)).chunks == 16
        for seed in range(1, 40):  # more than the pool holds
            other = prompt(16 * CHUNK, seed)
            one.store(other, expected(other))
        name = next(tier for tier in two.lookup(tokens).tiers if tier != "l1")
        until(lambda: two.lookup(tokens).tokens == 16 * CHUNK, 10)
        check(two, tokens, 16, name)
        check(one, tokens, 16, "l1")  # what one loads, the other one has
        assert one.prefetch(prompt(16 * CHUNK, 20)).result(10) == 16 * CHUNK


@pytest.mark.parametrize("what", ["silent", "dead"])
def test_a_store_that_is_bad_slows_nobody_who_has_no_use_of_it(what: str, tmp_path: Path) -> None:
    """One engine waits for a store; another one's chunks are in memory, and it does not."""
    here, elsewhere = prompt(4 * CHUNK, 1), prompt(4 * CHUNK, 2)

    with ScriptedServer(lambda command: Silence()) as store:
        if what == "dead":
            store.close()
        resp = adapter(type="resp", host="127.0.0.1", port=store.port, max_capacity_gb=0.1)
        server = CacheServerProcess(tmp_path, *resp, mib=1)
        with server, Client(IDENTITY, server.endpoint) as client:
            assert client.wait(10)
            assert client.store(here, expected(here)).chunks == 4
            ended = threading.Event()

            def wait_for_the_store() -> None:
                while not ended.is_set():
                    assert client.retrieve(elsewhere, blanks(4), timeout_s=1.0).tokens == 0

            waiting = [threading.Thread(target=wait_for_the_store) for _ in range(4)]
            for thread in waiting:
                thread.start()
            took = []
            for _ in range(50):
                began = time.monotonic()
                assert client.retrieve(here, blanks(4)).tokens == 4 * CHUNK
                took.append(time.monotonic() - began)
            ended.set()
            for thread in waiting:
                thread.join()
            assert sorted(took)[45] < 0.1
