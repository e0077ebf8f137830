"""The cache server, asked by hand: what each message does, and what is refused."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest

from kvferry.chunks.prompt import Prompt, read_prompt
from kvferry.config.tuning import ServerTuning
from kvferry.server import protocol as p
from kvferry.server.client.session_connection import greet
from kvferry.server.server import Server
from support.cache_server import running
from support.clock import now_s
from support.engines import CHUNK, IDENTITY, LAYOUT, prompt
from support.raw_peer import Peer, prompt_of
from support.stamps import until

Connect = Callable[..., Peer]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    # Peers send no heartbeats, and wait for a processor as long as they have to.
    with running(tmp_path, mib=1, dead_after_s=60.0) as server:
        yield server


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    peers: list[Peer] = []

    def make(**settings: object) -> Peer:
        peers.append(Peer(server.config.endpoints[0], **settings))  # type: ignore[arg-type]
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


def pages_free(server: Server) -> int:
    return sum(segment["free"] for segment in server.status()["pool"]["segments"])


def test_what_one_stores_another_one_reads(connect: Connect) -> None:
    one, other = connect().attach(), connect().attach()
    tokens = prompt(10 * CHUNK + 3)
    assert one.store(tokens) == 10
    count, leased = other.read(tokens)
    assert (count, leased.tiers, leased.reason) == (10, {"l1": 10}, "")
    assert one.store(tokens) == 0  # nothing is copied twice


def test_a_longer_prompt_reserves_what_is_new(connect: Connect) -> None:
    peer = connect().attach()
    short = prompt(4 * CHUNK, seed=1)
    long = short + prompt(3 * CHUNK, seed=2)
    peer.store(short)
    reserved = peer.want(p.ReservedPages, p.Reserve, prompt_of(long))
    assert reserved.chunks == [4, 5, 6]
    found = peer.want(p.Found, p.LookupRequest, prompt_of(long))
    assert (found.tiers, found.coming) == ({"l1": 4}, 3)
    peer.write(reserved, long)
    assert peer.want(p.Committed, p.Commit, reserved.reservation).chunks == 3
    assert peer.read(long)[0] == 7


def test_pages_that_were_not_written_are_no_chunks(connect: Connect) -> None:
    peer = connect().attach()
    tokens = prompt(4 * CHUNK)
    reserved = peer.want(p.ReservedPages, p.Reserve, prompt_of(tokens))
    peer.write(reserved, tokens)
    done = peer.want(p.Committed, p.Commit, reserved.reservation, b"\x01\x01\x00\x01")
    assert done.chunks == 3
    assert peer.read(tokens)[0] == 2
    reserved = peer.want(p.ReservedPages, p.Reserve, prompt_of(tokens))
    assert reserved.chunks == [2]
    assert type(peer.say(p.Commit, reserved.reservation, b"\x01\x01")) is p.Failure
    peer.want(p.Done, p.Abort, reserved.reservation)
    assert peer.want(p.Committed, p.Commit, reserved.reservation).chunks == 0
    assert peer.read(tokens)[0] == 2


def test_nobody_ends_what_another_one_holds(connect: Connect) -> None:
    one, other = connect().attach(), connect().attach()
    tokens = prompt(2 * CHUNK)
    reserved = one.want(p.ReservedPages, p.Reserve, prompt_of(tokens))
    assert other.want(p.Committed, p.Commit, reserved.reservation).chunks == 0
    other.want(p.Done, p.Abort, reserved.reservation)
    one.write(reserved, tokens)
    assert one.want(p.Committed, p.Commit, reserved.reservation).chunks == 2
    leased = one.want(p.Leased, p.Retrieve, prompt_of(tokens))
    assert other.want(p.Count, p.Release, [leased.lease]).count == 0
    assert one.want(p.Count, p.Release, [leased.lease]).count == 1


def test_pages_come_after_the_lock(server: Server, connect: Connect) -> None:
    peer = connect()
    peer.register()
    some = prompt_of(prompt(CHUNK))
    for kind, fields in (
        *((kind, (some,)) for kind in (p.LookupRequest, p.Reserve, p.Retrieve)),
        *((kind, (some,)) for kind in (p.Prefetch, p.Pin, p.Explain)),
        (p.Unpin, (some.hashes,)),
        *((kind, ()) for kind in (p.Stats, p.Clear)),
    ):
        failure = peer.say(kind, *fields)
        assert (type(failure), failure.code) == (p.Failure, "attach")
    assert peer.say(p.Attached).code == "attach"
    peer.map()
    peer.want(p.Done, p.Attached)
    peer.store(prompt(CHUNK))


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"version": 0}, "version", "same release"),
        ({"version": p.VERSION + 1}, "version", "same release"),
        ({"digest": bytes(16)}, "identity", "same version"),
        ({"digest": b""}, "identity", "same version"),
        ({"identity": {}}, "identity", "layout"),
        ({"identity": {"model": "m", "layout": {"layers": -1}}}, "identity", "layers"),
        ({"identity": {"model": "m", "layout": {"stripes": 1}}}, "identity", "stripes"),
        ({"identity": {"model": 5, "layout": {}}}, "identity", "layers"),
    ],
)
def test_who_cannot_register(
    connect: Connect, changes: dict[str, object], code: str, words: str
) -> None:
    failure = connect().register(**changes)
    assert (type(failure), failure.code) == (p.Failure, code)
    assert words in failure.text


@pytest.mark.parametrize("token", [None, "", "wrong", "the-token ", "the-toke", "x" * 1_000_000])
def test_who_does_not_know_the_token_is_told_nothing(tmp_path: Path, token: str | None) -> None:
    """Not even the version; and nothing is made for him."""
    shown: dict[str, Any] = {} if token is None else {"token": token}
    with running(tmp_path, mib=1, token="the-token") as server, Peer(server.endpoints[0]) as peer:
        more = {"process": "", **shown} if shown else {}
        assert peer.register(**more).code == "token"
        assert peer.register(version=99, **more).code == "token"
        assert peer.say(p.Hello, **shown).code == "token"
        assert peer.say(p.Ping).code == "session"
        assert peer.say(p.LookupRequest, prompt_of(prompt(CHUNK))).code == "session"
        assert server.shards == []
        assert server.status()["pool"]["segments"] == []
        told = peer.register(process="", token="the-token")
        assert type(told) is p.Registered


def test_a_chunk_larger_than_the_pool(connect: Connect) -> None:
    huge = replace(IDENTITY, layout=replace(LAYOUT, layers=4096))
    failure = connect(identity=huge).register()
    assert (failure.code, "--l1-size-gb" in failure.text) == ("identity", True)


def test_chunks_of_another_size_share_the_pool(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wide = replace(IDENTITY, layout=replace(LAYOUT, chunk_size=2 * CHUNK))
    caplog.set_level(logging.INFO, "kvferry.server")
    sizes = {"chunk_size": CHUNK, "cache": {"chunk_size": CHUNK}}  # as the command line sets them
    with running(tmp_path, mib=1, **sizes) as server:
        endpoint = server.config.endpoints[0]
        with Peer(endpoint) as one, Peer(endpoint, identity=wide) as other:
            assert one.say(p.Hello).chunk_size == CHUNK  # before there is a session
            one.attach().store(prompt(CHUNK))
            asked = read_prompt(prompt(2 * CHUNK), 2 * CHUNK, b"")
            assert other.attach().want(p.ReservedPages, p.Reserve, asked).pages
            pool = server.status()["pool"]
    assert len(pool["segments"]) == 2
    assert pool["granted_bytes"] <= pool["bytes"] == 1 << 20
    assert [f"chunks of {2 * CHUNK} tokens" in text for text in caplog.messages].count(True) == 1


def test_a_server_says_what_it_was_started_with(tmp_path: Path) -> None:
    with running(tmp_path, mib=1, chunk_size=24) as server:
        welcome = greet(server.config.endpoints[0], timeout_s=10.0)
        assert welcome is not None
        assert welcome.chunk_size == 24
    began = now_s()
    assert greet(f"ipc://{tmp_path}/nobody", timeout_s=0.2) is None
    assert now_s() - began < 5


def test_a_refused_engine_is_seen(
    server: Server, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    huge = replace(IDENTITY, layout=replace(LAYOUT, layers=4096))
    for _ in range(3):
        assert type(connect(identity=huge).register()) is p.Failure
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert [IDENTITY.model in text and "--l1-size-gb" in text for text in warned] == [True]
    (refused,) = server.status()["refusals"]["engines"]
    assert (refused["model"], refused["code"], refused["count"]) == (IDENTITY.model, "identity", 3)
    assert 'kvferry_server_refused_engines_total{code="identity"} 3.0' in server.metrics_text()
    assert type(connect().register()) is p.Registered
    assert server.status()["refusals"]["engines"] == [refused | {"silent_s": ANY}]


def test_strangers_do_not_fill_the_log(
    server: Server, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    peer = connect()
    for number in range(200):
        failure = peer.register(pid=number, software="x\n" * 100, version=9)
        assert failure.code == "version"
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warned) == len(server.status()["refusals"]["engines"]) == 64
    assert all("\n" not in text and len(text) < 1000 for text in warned)
    assert server.status()["refusals"]["by_code"] == {"version": 200}


GARBAGE = [
    b"",
    b"\x00",
    b"\xc1" * 100,
    b"hello",
    b"\x93\x03\x01\x02",
    msgspec.msgpack.encode([99, 1, 2, 3]),
    msgspec.msgpack.encode(["3", 1, 0, 0, b""]),
    msgspec.msgpack.encode([3, 1, 0, 0, "text"]),
    msgspec.msgpack.encode({"op": "lookup"}),
    b"\xdd\xff\xff\xff\xff" + b"\x91" * 1000,
    b"\x91" * 100_000,
]


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_answered_and_hurts_nobody(
    server: Server, connect: Connect, body: bytes
) -> None:
    peer, bad = connect().attach(), connect()
    reply = bad.raw(body)
    assert (type(reply), reply.code) == (p.Failure, "message")
    assert peer.store(prompt(CHUNK)) == 1
    assert server.alive


def test_hashes_that_are_cut(connect: Connect) -> None:
    peer = connect().attach()
    for kind in (p.LookupRequest, p.Reserve, p.Retrieve, p.Prefetch, p.Pin, p.Explain):
        frame = msgspec.to_builtins(kind(7, peer.session, 1000, prompt_of(prompt(CHUNK))))
        frame[4][0] = b"short"
        reply = peer.raw(msgspec.msgpack.encode(frame))
        assert (type(reply), reply.id, reply.code) == (p.Failure, 7, "message"), kind
    assert peer.want(p.Count, p.Unpin, b"short").count == 0


@pytest.mark.parametrize(
    "other",
    [
        Prompt(bytes(16 * (p.HASHES_MAX + 1)), 1 << 40, CHUNK),
        Prompt(bytes(32), CHUNK, CHUNK),  # fewer tokens than those of its chunks
        Prompt(bytes(32), 4 * CHUNK, CHUNK, start_tokens=3 * CHUNK),
        Prompt(bytes(32), 4 * CHUNK, 2 * CHUNK),  # chunks of another length
    ],
    ids=["hashes", "tokens", "start", "size"],
)
def test_a_prompt_that_cannot_be_here(connect: Connect, other: Prompt) -> None:
    peer = connect().attach()
    for kind in (p.Reserve, p.Retrieve, p.Prefetch, p.Pin, p.Explain, p.LookupRequest):
        assert peer.say(kind, other).code == "usage", kind


def test_an_unknown_session(connect: Connect) -> None:
    peer = connect()
    for session in (0, 1, -1, 1 << 62):
        peer.session = session
        assert peer.say(p.Ping).code == "session"


def test_an_engine_that_leaves_takes_its_holds_along(server: Server, connect: Connect) -> None:
    peer = connect().attach()
    tokens = prompt(4 * CHUNK)
    peer.store(tokens)
    peer.want(p.Leased, p.Retrieve, prompt_of(tokens))
    peer.want(p.ReservedPages, p.Reserve, prompt_of(prompt(4 * CHUNK, seed=9)))
    peer.want(p.Count, p.Pin, prompt_of(tokens))
    peer.want(p.Done, p.Unregister)
    assert peer.say(p.Ping).code == "session"
    assert server.status()["fenced_pages"] == 4  # it could still write to them
    peer.close()
    until(lambda: server.status()["fenced_pages"] == 0, 5)
    memory = server.cache().memory.cache.stats()
    assert (memory["leased"], memory["writing"], memory["pinned"]) == (0, 0, 0)
    assert memory["ready"] == 4
    with Peer(server.config.endpoints[0]) as other:
        assert other.attach().read(tokens)[0] == 4


def test_a_silent_engine_loses_its_holds_and_not_the_memory(
    server: Server, connect: Connect
) -> None:
    """One that was stopped could wake in the middle of a copy: its pages stay out of use."""
    peer = connect().attach()
    tokens = prompt(4 * CHUNK)
    reserved = peer.want(p.ReservedPages, p.Reserve, prompt_of(tokens))
    server._sessions.dead_after_s = 1.0
    until(lambda: not server.status()["sessions"], 20)
    server._sessions.dead_after_s = 60.0
    other = connect().attach()
    others = other.want(p.ReservedPages, p.Reserve, prompt_of(tokens))
    assert others.chunks == [0, 1, 2, 3]
    assert not set(others.pages) & set(reserved.pages)
    other.write(others, tokens)
    peer.write(reserved, prompt(4 * CHUNK, seed=5))  # it wakes, and writes
    assert peer.say(p.Commit, reserved.reservation).code == "session"
    assert other.want(p.Committed, p.Commit, others.reservation).chunks == 4
    assert other.read(tokens)[0] == 4
    free = pages_free(server)
    assert peer.pages is not None
    peer.pages.close()
    until(lambda: pages_free(server) == free + 4, 5)


def test_leases_end_at_their_deadline(tmp_path: Path) -> None:
    with (
        running(tmp_path, mib=1, dead_after_s=60.0) as server,
        Peer(server.config.endpoints[0]) as peer,
    ):
        peer.attach()
        tokens = prompt(2 * CHUNK)
        peer.store(tokens)
        server._take_over(server.config.replace(tuning=ServerTuning(lease_s=0.5)))
        leased = peer.want(p.Leased, p.Retrieve, prompt_of(tokens))
        until(lambda: not server.status()["sessions"][0]["leases"], 5)
        assert peer.want(p.Count, p.Release, [leased.lease]).count == 0
        reserved = peer.want(p.ReservedPages, p.Reserve, prompt_of(prompt(CHUNK, seed=3)))
        assert reserved.chunks == [0]
        until(lambda: not server.status()["sessions"], 5)  # who is late may be anything
        assert server.status()["sessions_ended"] == {"late": 1}


def test_one_engine_cannot_have_all_pages(server: Server, connect: Connect) -> None:
    greedy, modest = connect().attach(), connect().attach()
    pages = server.status()["pool"]["bytes"] // LAYOUT.chunk_bytes
    asked = prompt(2 * pages * CHUNK)
    reserved = greedy.want(p.ReservedPages, p.Reserve, prompt_of(asked))
    assert 0 < len(reserved.pages) <= pages // 2
    assert reserved.shed == 2 * pages - len(reserved.pages)
    again = greedy.want(p.ReservedPages, p.Reserve, prompt_of(prompt(8 * CHUNK, seed=4)))
    assert (again.pages, again.shed) == ([], 8)
    assert modest.store(prompt(4 * CHUNK, seed=5)) == 4
    # Nor by reading, nor by pinning.
    greedy.want(p.Done, p.Abort, reserved.reservation)
    half = prompt((pages // 2) * CHUNK, seed=6)
    greedy.store(half)
    while greedy.want(p.Leased, p.Retrieve, prompt_of(half)).pages:
        assert server.status()["sessions"][0]["pages"] <= pages // 2
    assert greedy.want(p.Count, p.Pin, prompt_of(half)).count == 0
    assert modest.store(prompt(4 * CHUNK, seed=7)) == 4


def test_what_is_full_evicts_the_oldest(server: Server, connect: Connect) -> None:
    peer = connect().attach()
    pages = server.status()["pool"]["bytes"] // LAYOUT.chunk_bytes
    prompts = [prompt(8 * CHUNK, seed=seed) for seed in range(pages // 8 + 4)]
    for tokens in prompts:
        assert peer.store(tokens) == 8
    assert peer.read(prompts[-1])[0] == 8
    assert peer.read(prompts[0])[0] == 0
    assert pages_free(server) >= 0


def test_two_models_and_two_tenants(server: Server, connect: Connect) -> None:
    wide = replace(IDENTITY, model="wide", layout=replace(LAYOUT, layers=4))
    narrow, broad = connect().attach(), connect(identity=wide).attach()
    tokens = prompt(4 * CHUNK)
    assert narrow.store(tokens) == 4
    assert narrow.store(tokens, b"tenant") == 4
    assert broad.read(tokens)[0] == 0
    assert broad.store(tokens) == 4
    assert narrow.read(tokens)[0] == broad.read(tokens)[0] == 4
    assert narrow.read(tokens, b"tenant")[0] == 4
    assert narrow.read(tokens, b"other")[0] == 0
    pool = server.status()["pool"]
    assert pool["granted_bytes"] <= pool["bytes"]
    assert len(pool["segments"]) == 2


def test_models_share_the_pool_by_bytes(server: Server, connect: Connect) -> None:
    """A model that comes later gets its share of a pool that is full."""
    wide = replace(IDENTITY, model="wide", layout=replace(LAYOUT, layers=4))
    narrow = connect().attach()
    budget = server.status()["pool"]["bytes"]
    for seed in range(2 * budget // LAYOUT.chunk_bytes // 8):
        narrow.store(prompt(8 * CHUNK, seed=seed))
    broad = connect(identity=wide).attach()
    for seed in range(2 * budget // wide.layout.chunk_bytes // 4):
        assert broad.store(prompt(4 * CHUNK, seed=seed)) == 4
    used = {one["model"]: one["used_bytes"] for one in server.status()["identities"]}
    assert used["wide"] > 0.4 * budget
    assert used["test"] > 0.4 * budget
    pool = server.status()["pool"]
    assert pool["granted_bytes"] <= pool["bytes"]


def test_segments_are_private_and_leave_with_the_server(tmp_path: Path) -> None:
    with running(tmp_path, mib=1) as server, Peer(server.config.endpoints[0]) as peer:
        peer.attach()
        assert peer.registered is not None
        path = peer.registered.path
        found = os.stat(path)
        assert (found.st_mode & 0o777, found.st_uid) == (0o600, os.geteuid())
        assert len(Path(path).name) >= len("kvferry-") + 32
    assert not Path(path).exists()


def test_clear_and_stats_and_explain(connect: Connect) -> None:
    peer = connect().attach()
    tokens = prompt(4 * CHUNK + 1)
    peer.store(tokens)
    report = peer.want(p.Report, p.Explain, prompt_of(tokens)).report
    assert "4 in l1" in report["text"]
    assert peer.want(p.Report, p.Stats).report["memory"]["ready"] == 4
    assert peer.want(p.Count, p.Clear).count == 4
    assert peer.read(tokens)[0] == 0


def test_tiny_chunks_do_not_make_the_books_larger_than_the_pool(tmp_path: Path) -> None:
    tiny = replace(
        IDENTITY, layout=replace(LAYOUT, layers=1, kv_heads=1, head_dim=2, dtype="float16")
    )
    assert tiny.layout.chunk_bytes <= 128
    with (
        running(tmp_path, mib=1024) as server,
        Peer(server.config.endpoints[0], tiny) as peer,
    ):
        peer.attach()
        assert peer.registered is not None
        assert peer.registered.pages <= 1 << 22
        tokens = prompt(32 * CHUNK)
        assert peer.store(tokens) == 32
        assert peer.read(tokens)[0] == 32
