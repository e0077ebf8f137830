"""The client of the cache server, against a small one that does as it is told: what calls do."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvferry import Hashes
from kvferry.base.errors import BadBufferError, ClosedError, ConfigError, UsageError
from kvferry.server import AsyncClient, Client
from kvferry.server import protocol as p
from support.engines import CHUNK, IDENTITY, LAYOUT, blanks, expected, prompt
from support.scripted_cache import ScriptedServer
from support.stamps import until

LIMIT_S = 20.0
PATIENT_S = 5.0  # of a question, where nothing else is meant
Open = Callable[..., Client]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


@pytest.fixture
def server(url: str) -> Iterator[ScriptedServer]:
    with ScriptedServer(url, LAYOUT) as server:
        yield server


@pytest.fixture
def open_client(url: str) -> Iterator[Open]:
    clients: list[Client] = []

    def make(**settings: Any) -> Client:
        clients.append(Client(IDENTITY, url, **{"timeout_s": PATIENT_S, **settings}))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(server: ScriptedServer, open_client: Open) -> Client:
    client = open_client()
    assert client.wait(LIMIT_S)
    return client


def test_store_and_retrieve(client: Client, server: ScriptedServer) -> None:
    tokens = prompt(5 * CHUNK + 3)
    chunks = expected(tokens)
    assert client.lookup(tokens).tokens == 0
    stored = client.store(tokens, chunks)
    assert (stored.chunks, stored.known, stored.shed) == (5, 0, 0)
    found = client.lookup(tokens)
    assert (found.tokens, dict(found.tiers)) == (5 * CHUNK, {"l1": 5 * CHUNK})
    assert client.contains(tokens) == 5 * CHUNK

    into = blanks(5)
    hit = client.retrieve(tokens, into)
    assert (hit.tokens, hit.tiers, hit.reason) == (5 * CHUNK, {"l1": 5 * CHUNK}, "")
    assert all(map(np.array_equal, into, chunks))
    assert not server.leases

    with client.retrieve(tokens) as hit:
        assert len(server.leases) == 1
        assert all(map(np.array_equal, map(np.frombuffer, hit.pages, [np.uint8] * 5), chunks))
        assert hit.arrays[0].shape == LAYOUT.chunk_shape
        assert all(page.readonly for page in hit.pages)
        assert hit.release() is True
    assert not server.leases

    again = client.store(tokens, chunks)
    assert (again.chunks, again.known, again.shed) == (0, 5, 0)


def test_a_part_of_a_prompt(client: Client) -> None:
    tokens = prompt(6 * CHUNK)
    chunks = expected(tokens)
    assert client.store(tokens[: 2 * CHUNK], chunks[:2]).chunks == 2
    assert client.store(tokens, chunks[2:5] + chunks[5:], first_chunk=2).chunks == 4
    into = blanks(3)
    assert client.retrieve(tokens, into, limit_tokens=4 * CHUNK - 1).tokens == 3 * CHUNK
    assert all(map(np.array_equal, into, chunks))
    longer = tokens + prompt(CHUNK, seed=9)
    hit = client.retrieve(longer, blanks(7))
    assert (hit.tokens, hit.reason) == (6 * CHUNK, "never_stored")
    assert client.retrieve(tokens[: CHUNK - 1]).tokens == 0


def test_no_payload_crosses_a_socket(client: Client) -> None:
    tokens = prompt(40 * CHUNK)
    before = client.stats()
    client.store(tokens, expected(tokens))
    client.retrieve(tokens, blanks(40))
    after = client.stats()
    assert after["bytes_stored"] == after["bytes_retrieved"] == 40 * LAYOUT.chunk_bytes
    sent = after["socket_bytes_sent"] - before["socket_bytes_sent"]
    received = after["socket_bytes_received"] - before["socket_bytes_received"]
    assert 2 * 16 * 40 < sent < 2 * 16 * 40 + 500
    assert 40 < received < 1500
    assert after["server"] == {"asked": "Stats"}


def test_salts_and_hashes(server: ScriptedServer, open_client: Open) -> None:
    tokens = prompt(2 * CHUNK)
    chunks = expected(tokens)
    one, other = open_client(salt=b"one"), open_client(salt=b"other")
    assert one.wait(LIMIT_S)
    assert other.wait(LIMIT_S)
    one.store(tokens, chunks)
    assert (one.contains(tokens), other.contains(tokens)) == (2 * CHUNK, 0)
    own = Hashes([b"a" * 20, b"b" * 20])
    one.store(own, chunks)
    assert (one.contains(own), other.contains(own)) == (2 * CHUNK, 0)
    said = b"".join(p.encode(request) for request in server.seen)
    assert b"one" not in said


def test_what_is_asked_without_chunks(client: Client, server: ScriptedServer) -> None:
    tokens = prompt(3 * CHUNK)
    client.store(tokens, expected(tokens))
    assert client.prefetch(tokens).result(LIMIT_S) == 3 * CHUNK
    assert client.pin(tokens) == client.unpin(tokens) == 3 * CHUNK
    client.observe_prefill(100, 20, 0.5)
    until(lambda: server.of(p.Speed), LIMIT_S)
    hit = client.begin_retrieve(tokens).result(LIMIT_S)
    assert hit.tokens == 3 * CHUNK
    assert hit.release()
    assert client.clear(stores=False) == 3
    assert server.of(p.Clear)[0].stores is False


def test_wrong_usage_is_told_before_the_server_is_asked(
    client: Client, server: ScriptedServer
) -> None:
    tokens = prompt(2 * CHUNK)
    chunks = expected(tokens)
    seen = len([r for r in server.seen if type(r) is not p.Ping])
    with pytest.raises(UsageError, match="1 buffers for 2 full chunks"):
        client.store(tokens, chunks[:1])
    with pytest.raises(UsageError, match="first_chunk must not be negative"):
        client.store(tokens, chunks, first_chunk=-1)
    with pytest.raises(BadBufferError, match="buffer 1 has 7 bytes; a chunk has"):
        client.store(tokens, [chunks[0], b"1234567"])
    with pytest.raises(BadBufferError, match="not C-contiguous"):
        client.store(tokens, [chunks[0], np.zeros((64, 64), np.uint8).T])
    with pytest.raises(UsageError, match="into has 1 buffers; the prompt has 2"):
        client.retrieve(tokens, blanks(1))
    with pytest.raises(BadBufferError, match="read-only"):
        client.retrieve(tokens, [bytes(LAYOUT.chunk_bytes)] * 2)
    with pytest.raises(BadBufferError, match="buffer 0 has 3 bytes"):
        client.retrieve(tokens, [bytearray(3)] * 2)
    with pytest.raises(UsageError, match="limit_tokens"):
        client.retrieve(tokens, limit_tokens=-1)
    assert len([r for r in server.seen if type(r) is not p.Ping]) == seen


def test_a_pool_that_is_full(url: str, open_client: Open) -> None:
    tokens = prompt(5 * CHUNK)
    with ScriptedServer(url, LAYOUT, pages=3):
        client = open_client()
        assert client.wait(LIMIT_S)
        stored = client.store(tokens, expected(tokens))
        assert (stored.chunks, stored.known, stored.shed) == (3, 0, 2)
        assert client.retrieve(tokens, blanks(5)).tokens == 3 * CHUNK


def test_leases_that_ended_too_soon_are_misses(client: Client, server: ScriptedServer) -> None:
    tokens = prompt(2 * CHUNK)
    client.store(tokens, expected(tokens))
    server.on(p.Release, lambda request: p.Count(request.id, 0))
    hit = client.retrieve(tokens, blanks(2))
    assert (hit.tokens, hit.reason, hit.tiers) == (0, "lease_lost", {"l1": 0})
    assert client.retrieve(tokens).release() is False
    assert client.stats()["lost_leases"] == 2
    server.on(p.Release, None)
    server.on(p.Commit, lambda request: p.Committed(request.id, 0))
    other = prompt(3 * CHUNK, seed=1)
    stored = client.store(other, expected(other))
    assert (stored.chunks, stored.known, stored.shed) == (0, 0, 3)
    assert client.stats()["lost_leases"] == 3


def test_pages_that_nobody_released_are(client: Client, server: ScriptedServer) -> None:
    tokens = prompt(2 * CHUNK)
    client.store(tokens, expected(tokens))
    hit = client.retrieve(tokens)
    assert hit.tokens == 2 * CHUNK
    assert len(server.leases) == 1
    del hit
    gc.collect()
    until(lambda: not server.leases, LIMIT_S)


def test_a_limit_of_nothing_is_what_memory_has(client: Client) -> None:
    tokens = prompt(2 * CHUNK)
    client.store(tokens, expected(tokens))
    assert client.lookup(tokens, timeout_s=0).tokens == 2 * CHUNK
    assert client.retrieve(tokens, blanks(2), timeout_s=0).tokens == 2 * CHUNK
    assert client.stats()["timeouts"] == 0


def test_many_threads(client: Client, server: ScriptedServer) -> None:
    failures: list[str] = []

    def work(seed: int) -> None:
        tokens = prompt(2 * CHUNK, seed)
        chunks, into = expected(tokens), blanks(2)
        stored = client.store(tokens, chunks)
        for _ in range(20):
            hit = client.retrieve(tokens, into)
            if (stored.chunks, hit.tokens) != (2, 2 * CHUNK):
                failures.append(f"{seed}: {stored} {hit}")
            if not all(map(np.array_equal, into, chunks)):
                failures.append(f"{seed}: wrong bytes")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert client.stats()["unavailable"] == client.stats()["timeouts"] == 0


def says_goodbye(server: ScriptedServer) -> None:
    """Once; its word may still be on the way when it has gone."""
    until(lambda: server.of(p.Unregister), LIMIT_S)
    assert len(server.of(p.Unregister)) == 1


def test_close_says_goodbye_once(client: Client, server: ScriptedServer) -> None:
    tokens = prompt(2 * CHUNK)
    client.store(tokens, expected(tokens))
    hit = client.retrieve(tokens)
    pages = hit.pages
    client.close()
    client.close()
    says_goodbye(server)
    assert hit.release() is False
    assert [bytes(page) for page in pages] == [bytes(chunk) for chunk in expected(tokens)]
    assert not client.available
    for call in (client.lookup, client.retrieve, client.pin, client.prefetch):
        with pytest.raises(ClosedError):
            call(tokens)
    with pytest.raises(ClosedError):
        client.stats()


def test_a_client_that_is_dropped_ends(server: ScriptedServer, url: str) -> None:
    client = Client(IDENTITY, url)
    assert client.wait(LIMIT_S)
    del client
    gc.collect()
    says_goodbye(server)
    until(lambda: "kvferry-session" not in {t.name for t in threading.enumerate()}, LIMIT_S)


def test_the_end_of_the_program_says_goodbye(server: ScriptedServer, url: str) -> None:
    code = (
        "from kvferry import Identity, KVLayout\n"
        "from kvferry.server import Client\n"
        "layout = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype='float32', chunk_size=16)\n"
        f"client = Client(Identity(model='test', layout=layout), {url!r})\n"
        "assert client.wait(20), client.refused\n"
        "hit = client.begin_retrieve(list(range(64)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, done.stderr) == (0, "")
    says_goodbye(server)


def test_a_forked_child_is_told_to_open_its_own(client: Client, server: ScriptedServer) -> None:
    tokens = prompt(CHUNK)
    client.store(tokens, expected(tokens))
    hit = client.retrieve(tokens)
    child = os.fork()
    if not child:
        try:
            client.lookup(tokens)
        except ClosedError:
            released = hit.release()
            client.close()
            os._exit(0 if not released else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert client.contains(tokens) == CHUNK
    assert hit.release() is True
    assert not server.of(p.Unregister)


def test_a_forked_child_may_end_as_it_likes(server: ScriptedServer, url: str) -> None:
    code = (
        "import gc, os, sys\n"
        "from support.engines import CHUNK, IDENTITY, expected, prompt\n"
        "from kvferry.server import Client\n"
        f"client = Client(IDENTITY, {url!r}, timeout_s={PATIENT_S})\n"
        "assert client.wait(20)\n"
        "tokens = prompt(CHUNK)\n"
        "client.store(tokens, expected(tokens))\n"
        "hit = client.retrieve(tokens)\n"
        "if not os.fork():\n"
        "    del hit, client\n"
        "    gc.collect()\n"
        "    sys.exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "assert hit.release()\n"
        "assert client.contains(tokens) == CHUNK\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=Path(__file__).parents[1],
    )
    assert (done.returncode, done.stderr) == (0, "")
    says_goodbye(server)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://localhost", "is no tcp://HOST:PORT and no ipc:///PATH"),
        ("tcp://localhost:0", "is no tcp"),
        ("tcp://localhost:65536", "is no tcp"),
        ("tcp://*:5555", "is no tcp"),
        ("tcp://user:secret@localhost:5555", "is no tcp"),
        ("ipc://", "must have 1 to 107 bytes"),
        ("ipc:///" + 107 * "x", "must have 1 to 107 bytes"),
        ("", "is no tcp"),
    ],
)
def test_urls_that_cannot_be(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Client(IDENTITY, url)


def test_the_url_of_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_SERVER_URL", url)
    with ScriptedServer(url, LAYOUT), Client(IDENTITY) as client:
        assert client.wait(LIMIT_S)
        assert client.url == url
    monkeypatch.setenv("KVFERRY_SERVER_URL", "nonsense")
    with pytest.raises(ConfigError, match="KVFERRY_SERVER_URL='nonsense'"):
        Client(IDENTITY)


def test_tcp(open_client: Open) -> None:
    with (
        ScriptedServer("tcp://127.0.0.1:*", LAYOUT) as server,
        Client(IDENTITY, server.url, timeout_s=PATIENT_S) as client,
    ):
        assert client.wait(LIMIT_S)
        tokens = prompt(2 * CHUNK)
        assert client.store(tokens, expected(tokens)).chunks == 2


def test_the_secret_of_a_session_is_in_no_text(
    client: Client, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.registered = {"session": 7_654_321_987}
    server.on(p.Ping, lambda request: p.Failure(request.id, "session", "unknown"))
    until(lambda: len(server.of(p.Register)) > 1, LIMIT_S)
    server.on(p.Ping, None)
    until(lambda: client.available, LIMIT_S)
    session = client._sessions.session
    assert session is not None
    assert session.number == 7_654_321_987
    for text in (repr(session), repr(client), str(client.stats()), caplog.text):
        assert "7654321987" not in text


def test_asyncio(server: ScriptedServer, url: str) -> None:
    tokens = prompt(3 * CHUNK)
    chunks = expected(tokens)

    async def run() -> None:
        async with await AsyncClient.open(IDENTITY, url, timeout_s=PATIENT_S) as client:
            assert await client.wait(LIMIT_S)
            assert client.available
            assert (await client.store(tokens, chunks)).chunks == 3
            assert (await client.lookup(tokens)).tokens == await client.contains(tokens) == 48
            into = blanks(3)
            results = await asyncio.gather(*(client.retrieve(tokens, blanks(3)) for _ in range(8)))
            assert [hit.tokens for hit in results] == [48] * 8
            assert (await client.retrieve(tokens, into)).tokens == 48
            assert all(map(np.array_equal, into, chunks))
            hit = await client.retrieve(tokens)
            assert await client.arelease(hit)
            assert await client.prefetch(tokens) == await client.pin(tokens) == 48
            assert await client.unpin(tokens) == 48
            await client.observe_prefill(10, 0, 0.1)
            assert (await client.stats())["bytes_retrieved"] == 10 * 3 * LAYOUT.chunk_bytes
            assert await client.clear() == 3
            with pytest.raises(UsageError):
                await client.store(tokens, chunks[:1])
        with pytest.raises(ClosedError):
            await client.lookup(tokens)

    asyncio.run(run())


def test_who_cancels_gets_his_buffers_back(server: ScriptedServer, url: str) -> None:
    tokens = prompt(2 * CHUNK)
    answers: list[p.Reply] = []
    asked = threading.Event()

    def later(request: p.Retrieve) -> None:
        answers.append(server.behave(request))
        asked.set()

    async def run() -> None:
        settings = {"timeout_s": PATIENT_S, "retrieve_timeout_s": 0.3}
        async with AsyncClient(IDENTITY, url, **settings) as client:
            assert await client.wait(LIMIT_S)
            await client.store(tokens, expected(tokens))
            server.on(p.Retrieve, later)
            task = asyncio.create_task(client.retrieve(tokens))
            await asyncio.to_thread(asked.wait, LIMIT_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.stats())["timeouts"] == 1  # so the call was over by then

    asyncio.run(run())
