"""The client of the cache server when that is away, hangs, forgets, or lies: no cache, at once."""

from __future__ import annotations

import logging
import math
import operator
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvferry.server import Client
from kvferry.server import protocol as p
from support import clock, scripted_cache
from support.engines import CHUNK, IDENTITY, LAYOUT, blanks, expected, prompt
from support.stamps import until, within

LIMIT_S = 20.0
TIMEOUT_S = 2.0  # whoever answers does so in time, on a machine with other work, too
HEARTBEAT_S = 1.0  # and a ping within two of these
TOKENS = prompt(3 * CHUNK)
CHUNKS = expected(TOKENS)
ALL = 3 * CHUNK
Open = Callable[..., Client]


class ScriptedServer(scripted_cache.ScriptedServer):
    """One that leaves its clients time for their pings, where a test says nothing else."""

    def welcome(self, request: p.Register) -> p.Registered:
        self.registered.setdefault("heartbeat_s", HEARTBEAT_S)
        return super().welcome(request)


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
        clients.append(Client(IDENTITY, url, **{"timeout_s": TIMEOUT_S, **settings}))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(server: ScriptedServer, open_client: Open) -> Client:
    """A client that has stored `TOKENS`."""
    client = open_client()
    assert client.wait(LIMIT_S)
    assert client.store(TOKENS, CHUNKS).chunks == 3
    return client


def nothing_works(client: Client) -> None:
    """Every call gives what there is without a server."""
    assert client.lookup(TOKENS).tokens == client.contains(TOKENS) == 0
    hit = client.retrieve(TOKENS, blanks(3))
    assert (hit.tokens, hit.reason, hit.tiers) == (0, "unavailable", {"l1": 0})
    assert client.retrieve(TOKENS).pages == ()
    stored = client.store(TOKENS, CHUNKS)
    assert (stored.chunks, stored.known, stored.shed) == (0, 0, 3)
    assert client.pin(TOKENS) == client.unpin(TOKENS) == client.clear() == 0
    assert client.prefetch(TOKENS).result(LIMIT_S) == 0
    client.observe_prefill(1, 0, 0.1)
    assert client.stats()["server"] == {}
    assert "no cache server answers" in str(client.explain(TOKENS))
    assert not client.available


def works(client: Client) -> bool:
    """Whether chunks go in and come out again."""
    if client.store(TOKENS, CHUNKS).shed:
        return False
    into = blanks(3)
    return client.retrieve(TOKENS, into).tokens == ALL and all(map(np.array_equal, into, CHUNKS))


def test_without_a_server(open_client: Open, url: str, caplog: pytest.LogCaptureFixture) -> None:
    with within(3.0):
        client = open_client()
    with within(1.0):
        for _ in range(20):
            nothing_works(client)
    assert client.stats()["unavailable"] >= 100
    assert client.stats()["requests"] == 0
    until(lambda: caplog.records, LIMIT_S)
    caplog.set_level(logging.INFO)
    with ScriptedServer(url, LAYOUT):
        until(lambda: works(client), LIMIT_S)
    assert [record.levelname for record in caplog.records][:2] == ["WARNING", "INFO"]
    assert url in caplog.text


def test_a_server_that_dies_and_another_one(
    client: Client, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    hit = client.retrieve(TOKENS)
    pages = hit.pages
    before = client.stats()["incarnation"]
    server.close()
    until(lambda: not client.available, LIMIT_S)
    with within(1.0):
        nothing_works(client)
        nothing_works(client)
        assert hit.release() is False
    # The old segment is memory of ours for as long as somebody looks at it.
    assert [bytes(page) for page in pages] == [bytes(chunk) for chunk in CHUNKS]
    with ScriptedServer(server.url, LAYOUT) as other:
        until(lambda: client.available, LIMIT_S)
        assert client.lookup(TOKENS).tokens == 0
        assert works(client)
        assert client.stats()["incarnation"] == other.incarnation != before
        assert client.stats()["reconnects"] == 1
    assert sum(record.levelname == "WARNING" for record in caplog.records) <= 2


@pytest.mark.parametrize("kind", [p.Retrieve, p.Release, p.Reserve, p.Commit])
def test_death_ends_calls_under_way_at_once(
    open_client: Open, server: ScriptedServer, kind: type[p.Request]
) -> None:
    client = open_client(timeout_s=60.0, retrieve_timeout_s=60.0)
    assert client.wait(LIMIT_S)
    if kind in (p.Retrieve, p.Release):
        assert works(client)
    arrived = threading.Event()
    server.on(kind, lambda request: arrived.set())
    results: list[Any] = []

    def call() -> None:
        if kind in (p.Retrieve, p.Release):
            results.append(client.retrieve(TOKENS, blanks(3)).tokens)
        else:
            results.append(client.store(TOKENS, CHUNKS).chunks)

    thread = threading.Thread(target=call)
    thread.start()
    assert arrived.wait(LIMIT_S)
    server.close()
    with within(5.0):
        thread.join(LIMIT_S)
    assert results == [0]


def test_a_hung_server_costs_one_time_limit(client: Client, server: ScriptedServer) -> None:
    server.deaf = True
    client.lookup(TOKENS)  # it may have been polling: the second one is not answered at all
    with within(3 * TIMEOUT_S + 1.0):
        nothing_works(client)
        nothing_works(client)
    assert 1 <= client.stats()["timeouts"] <= 2
    until(lambda: client._sessions.session is None, LIMIT_S)  # pings are not answered either
    server.deaf = False
    until(lambda: works(client), LIMIT_S)


def test_one_answer_that_does_not_come(client: Client, server: ScriptedServer) -> None:
    session = client._sessions.session
    server.on(p.LookupRequest, lambda request: None)
    with within(TIMEOUT_S + 1.0):
        assert client.lookup(TOKENS).tokens == 0
    assert client.stats()["timeouts"] == 1
    server.on(p.LookupRequest, None)
    until(lambda: client.available, LIMIT_S)  # it has answered a ping
    assert client._sessions.session is session
    assert client.lookup(TOKENS).tokens == ALL


def test_a_late_store_costs_no_answer_from_memory(client: Client, server: ScriptedServer) -> None:
    """A call that may wait for stores has no answer in time: the next one is asked all the same."""
    server.on(p.Retrieve, lambda r: None if r.timeout_ms < 1000 else server.behave(r))
    for count in range(1, 9):  # where a ping has to come first, one of these meets it
        assert client.retrieve(TOKENS, blanks(3), timeout_s=0.01).tokens == 0
        assert client.retrieve(TOKENS, blanks(3), timeout_s=LIMIT_S).tokens == ALL
        assert client.stats()["timeouts"] == count


def test_what_comes_too_late_goes_back(client: Client, server: ScriptedServer) -> None:
    other = prompt(2 * CHUNK, seed=5)
    late: list[Any] = []

    def hold(request: Any) -> None:
        late.append(server.behave(request))

    def with_late(request: Any) -> list[p.Reply | bytes | None]:
        return [*late, server.behave(request)]

    server.on(p.Retrieve, hold)
    assert client.retrieve(TOKENS, timeout_s=0.05).reason == "unavailable"
    until(lambda: client.available, LIMIT_S)
    server.on(p.Reserve, hold)
    assert client.store(other, expected(other)).chunks == 0
    until(lambda: client.available and len(late) == 2, LIMIT_S)
    assert len(server.leases) == 1
    server.on(p.LookupRequest, with_late)
    assert client.lookup(TOKENS).tokens == ALL
    until(lambda: not server.leases and server.of(p.Abort), LIMIT_S)
    server.on(p.Reserve, None)
    assert client.store(other, expected(other)).chunks == 2


def test_answers_of_others_and_garbage_are_skipped(client: Client, server: ScriptedServer) -> None:
    def noise(request: p.LookupRequest) -> list[p.Reply | bytes | None]:
        wrong = p.Found(request.id + 1, {"l1": 1})
        return [b"", b"garbage", b"\xff" * 5000, wrong, server.behave(request)]

    server.on(p.LookupRequest, noise)
    assert client.lookup(TOKENS).tokens == ALL
    assert client.stats()["nonsense"] == 3


def test_an_answer_of_another_kind(client: Client, server: ScriptedServer) -> None:
    for kind in (p.LookupRequest, p.Retrieve, p.Reserve, p.Pin, p.Stats, p.Explain):
        server.on(kind, lambda request: p.Done(request.id))
    assert client.lookup(TOKENS).tokens == client.pin(TOKENS) == 0
    assert client.retrieve(TOKENS).reason == "unavailable"
    assert client.store(TOKENS, CHUNKS).shed == 3
    assert client.stats()["server"] == {}
    assert client.stats()["nonsense"] == 5


@pytest.mark.parametrize("code", ["usage", "draining", "busy", "internal", "message", "new"])
def test_failures_are_misses(
    client: Client, server: ScriptedServer, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: p.Request) -> p.Reply:
        return p.Failure(request.id, code, "for a reason")

    for kind in (p.LookupRequest, p.Retrieve, p.Reserve, p.Pin, p.Clear, p.Release):
        server.on(kind, fail)
    with within(2.0):
        assert client.lookup(TOKENS).tokens == client.pin(TOKENS) == client.clear() == 0
        assert client.retrieve(TOKENS).reason == "unavailable"
        assert client.store(TOKENS, CHUNKS).shed == 3
        assert client.store(TOKENS, CHUNKS).shed == 3
    assert client.stats()["failures"] == 6
    assert client.available
    told = [record for record in caplog.records if "for a reason" in record.getMessage()]
    assert len(told) == (0 if code in ("draining", "busy") else 1)


@pytest.mark.parametrize("code", ["session", "attach"])
def test_a_session_that_is_forgotten(client: Client, server: ScriptedServer, code: str) -> None:
    hit = client.retrieve(TOKENS)
    first = server.of(p.Attached)[0].session

    def forgotten(request: Any) -> p.Reply:
        if request.session == first:
            return p.Failure(request.id, code, "who is it?")
        return server.behave(request)

    for kind in (p.LookupRequest, p.Ping, p.Release):
        server.on(kind, forgotten)
    client.lookup(TOKENS)
    until(lambda: len(server.of(p.Attached)) == 2, LIMIT_S)
    until(lambda: client.available, LIMIT_S)
    assert client.lookup(TOKENS).tokens == ALL
    assert hit.release() is False


@pytest.mark.parametrize("code", ["version", "identity"])
def test_a_refusal_is_told_once(
    server: ScriptedServer, open_client: Open, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.on(p.Register, lambda request: p.Failure(request.id, code, "other chunks"))
    client = open_client()
    assert not client.wait(LIMIT_S)
    assert client.refused == "other chunks"
    nothing_works(client)
    told = [record.levelname for record in caplog.records]
    assert told[told.index("ERROR") :] == ["ERROR"]  # it may have been slow to connect before
    asked = len(server.of(p.Register))
    server.close()  # somebody starts the right one
    with ScriptedServer(server.url, LAYOUT):
        until(lambda: works(client), LIMIT_S)
    assert client.refused == ""
    assert asked == 1


@pytest.mark.parametrize(
    "lie",
    [
        {"version": p.VERSION + 1},
        {"session": 0},
        {"page_bytes": 1},
        {"page_stride": 100},
        {"page_stride": -4096},
        {"pages": 0},
        {"pages": 1 << 40},
        {"segment_bytes": 1 << 50},
        {"segment_bytes": 4096},
        {"lock": 5},
        {"lock": 1 << 63},
        {"lock": -1},
        {"heartbeat_s": 0.0},
        {"heartbeat_s": float("nan")},
        {"heartbeat_s": 1e9},
        {"lease_s": -1.0},
        {"lease_s": math.inf},
        {"path": ""},
        {"path": "relative"},
        {"path": "/dev/null"},
        {"path": "/dev/shm"},
        {"path": "/nowhere/at/all"},
        {"path": "/dev/shm/\0"},
        {"path": "/" + "x" * 10_000},
    ],
    ids=str,
)
def test_a_segment_that_cannot_be(
    server: ScriptedServer, open_client: Open, lie: dict[str, Any]
) -> None:
    server.registered = lie
    client = open_client()
    assert not client.wait(LIMIT_S)
    assert client.refused
    assert not server.of(p.Attached)
    nothing_works(client)


def test_a_file_that_is_no_segment(
    server: ScriptedServer, open_client: Open, tmp_path: Path
) -> None:
    """It is ours, private, and of the right length; but no server holds a lock on it."""
    mine = tmp_path / "mine"
    mine.write_bytes(bytes(64 * 4096))
    mine.chmod(0o600)
    server.registered = {"path": str(mine), "pages": 64, "segment_bytes": 64 * 4096}
    client = open_client()
    assert not client.wait(LIMIT_S)
    assert "no cache server owns it" in client.refused


@pytest.mark.parametrize(
    ("chunks", "pages"),
    [
        ([0, 1, 2], [0, 1, 64]),
        ([0, 1, 2], [0, 1, -1]),
        ([0, 1, 2], [0, 1, 1 << 40]),
        ([0, 1, 2], [0, 1, 1]),
        ([0, 1, 2], [0, 1]),
        ([0, 1], [0, 1, 2]),
        ([0, 1, 3], [0, 1, 2]),
        ([-1, 0, 1], [0, 1, 2]),
        ([0, 2, 1], [0, 1, 2]),
        ([0, 0, 1], [0, 1, 2]),
    ],
)
def test_pages_to_write_that_cannot_be(
    client: Client, server: ScriptedServer, chunks: list[int], pages: list[int]
) -> None:
    server.on(p.Reserve, lambda request: p.ReservedPages(request.id, 77, chunks, pages))
    before = server.path.read_bytes()
    stored = client.store(TOKENS, [np.ones_like(chunk) for chunk in CHUNKS])
    assert (stored.chunks, stored.shed) == (0, 3)
    assert server.path.read_bytes() == before
    until(lambda: [r.reservation for r in server.of(p.Abort)] == [77], LIMIT_S)
    assert client.stats()["nonsense"] == 1


@pytest.mark.parametrize(
    "pages", [[0, 1, 64], [-1], [1 << 60], [0, 0], [0, 1, 2, 3], list(range(64))]
)
def test_pages_to_read_that_cannot_be(
    client: Client, server: ScriptedServer, pages: list[int]
) -> None:
    tiers = {"l1": len(pages)}
    server.on(p.Retrieve, lambda request: p.Leased(request.id, 77, pages, tiers))
    into = blanks(3)
    for hit in (client.retrieve(TOKENS, into), client.retrieve(TOKENS)):
        assert (hit.tokens, hit.reason) == (0, "unavailable")
    assert all(map(np.array_equal, into, blanks(3)))
    until(lambda: [r.leases for r in server.of(p.Release)] == [[77], [77]], LIMIT_S)


def too_many(count: int, request: p.Commit) -> p.Reply:
    return p.Committed(request.id, count)


def test_numbers_that_cannot_be(client: Client, server: ScriptedServer) -> None:
    server.on(p.LookupRequest, lambda request: p.Found(request.id, {"l1": 4}))
    assert client.lookup(TOKENS).tokens == 0
    server.on(p.LookupRequest, lambda request: p.Found(request.id, {"l1": -4}, -1))
    assert client.lookup(TOKENS).tokens == 0
    server.on(p.Pin, lambda request: p.Count(request.id, 1 << 50))
    assert client.pin(TOKENS) == ALL
    server.on(p.Clear, lambda request: p.Count(request.id, -1))
    assert client.clear() == 0
    other = prompt(2 * CHUNK, seed=3)
    for count in (-1, 3, 1 << 50):
        server.on(p.Commit, partial(too_many, count))
        assert client.store(other, expected(other)).chunks == 0


def test_a_server_that_talks_without_end(client: Client, server: ScriptedServer) -> None:
    server.on(p.LookupRequest, lambda request: [p.Done(request.id + 1)] * 20_000)
    with within(5.0):
        assert client.lookup(TOKENS).tokens == 0


def test_close_ends_calls_under_way(open_client: Open, server: ScriptedServer) -> None:
    client = open_client(retrieve_timeout_s=60.0)
    assert client.wait(LIMIT_S)
    arrived = threading.Event()
    server.on(p.Retrieve, lambda request: arrived.set())
    future = client.begin_retrieve(TOKENS)
    assert arrived.wait(LIMIT_S)
    started = clock.now_s()
    client.close()
    assert future.result(LIMIT_S).reason == "unavailable"
    assert clock.now_s() - started < 5.0


def test_close_of_a_client_of_a_hung_server(client: Client, server: ScriptedServer) -> None:
    server.deaf = True
    with within(2.0):
        client.close()
    server.deaf = False


def test_what_listens_is_no_cache_server(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)
        said: list[bytes] = []

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                said.append(connection.recv(100))
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with Client(IDENTITY, url) as client:
            thread.join(LIMIT_S)
            nothing_works(client)
        assert said


def test_nothing_is_left(url: str) -> None:
    """Descriptors, threads and mappings, after many sessions and many servers."""

    def left() -> tuple[int, int, int]:
        maps = Path("/proc/self/maps").read_text().count("kvferry-test-")
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), maps

    def go() -> None:
        with ScriptedServer(url, LAYOUT), Client(IDENTITY, url, timeout_s=TIMEOUT_S) as client:
            assert client.wait(LIMIT_S)
            assert works(client)

    def go_on() -> None:
        with Client(IDENTITY, url, timeout_s=TIMEOUT_S) as client:
            for _ in range(10):
                with ScriptedServer(url, LAYOUT):
                    until(lambda: works(client), LIMIT_S)
                until(lambda: not client.available, LIMIT_S)

    def settled() -> bool:  # the first round's own remains may still be going
        looks = set()
        for _ in range(5):
            looks.add(left())
            time.sleep(0.1)
        return len(looks) == 1

    go()
    until(settled, LIMIT_S)
    before = left()
    for _ in range(10):
        go()
    go_on()
    until(lambda: all(map(operator.le, left(), before)), LIMIT_S)
