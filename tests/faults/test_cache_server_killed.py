"""A cache server that is killed while engines work: they go on, nothing is wrong, and it comes
back."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from kvferry.server import Client
from kvferry.server import protocol as p
from support.cache_server import CacheServerProcess
from support.cache_worker import CacheWorker
from support.engines import CHUNK, IDENTITY, LAYOUT, blanks, expected, prompt
from support.raw_peer import Peer, hashes_of
from support.stamps import until


def test_engines_go_on_without_a_server_and_with_the_next_one(tmp_path: Path) -> None:
    server = CacheServerProcess(tmp_path, mib=1)
    with ExitStack() as stack:
        stack.enter_context(server)
        workers = [stack.enter_context(CacheWorker(server.endpoint, seed)) for seed in range(2)]
        time.sleep(1.0)
        killed = time.time()
        server.kill()
        time.sleep(0.5)
        server.start()
        back = time.time()
        time.sleep(2.5)
        reports = [worker.finish() for worker in workers]
    for report in reports:
        assert report["wrong"] == 0
        calls = report["calls"]
        before = [c for what, began, _, c in calls if what == "retrieve" and began < killed]
        assert max(before) > 0
        hit = min(
            began
            for what, began, _, c in calls
            if what == "retrieve" and c and began > killed + 0.1
        )
        # The bar is 2 s on a quiet machine, and 50 ms for a call that is hit by the end.
        assert hit - back < 2.0
        across = [took for _, began, took, _ in calls if began < killed + 0.4 < began + took + 0.4]
        assert max(across) < 0.25
        assert report["stats"]["reconnects"] >= 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_call_ends_with_its_server(number: signal.Signals, tmp_path: Path) -> None:
    """A killed server ends a call at once; one that hangs, at the call's limit, and once."""
    tokens = prompt(4 * CHUNK)
    with CacheServerProcess(tmp_path, mib=1) as server, Client(IDENTITY, server.endpoint) as client:
        assert client.store(tokens, expected(tokens)).chunks == 4
        server.signal(number)
        began = time.monotonic()
        assert client.retrieve(tokens, blanks(4), timeout_s=0.5).tokens == 0
        first_s = time.monotonic() - began
        assert first_s < (0.3 if number == signal.SIGKILL else 1.5)
        began = time.monotonic()
        for _ in range(10):
            assert client.lookup(tokens).tokens == 0
            assert client.store(tokens, expected(tokens)).chunks == 0
        assert time.monotonic() - began < 0.5
        if number == signal.SIGSTOP:
            server.signal(signal.SIGCONT)
            until(lambda: client.available, 5)
            assert client.retrieve(tokens, blanks(4)).tokens == 4 * CHUNK


def test_a_server_that_was_stopped_does_not_take_its_engines_for_dead(tmp_path: Path) -> None:
    tokens = prompt(4 * CHUNK)
    times = ("--heartbeat-s", "0.5", "--dead-after-s", "2")
    with CacheServerProcess(tmp_path, *times, mib=1) as server, Peer(server.endpoint) as peer:
        assert peer.attach().store(tokens) == 4
        leased = peer.want(p.Leased, p.Retrieve, hashes_of(tokens), len(tokens))
        server.signal(signal.SIGSTOP)
        time.sleep(2.5)
        server.signal(signal.SIGCONT)
        peer.want(p.Pong, p.Ping)
        assert peer.want(p.Count, p.Release, [leased.lease]).count == 1


def test_a_large_pool_does_not_delay_the_news_of_its_end(tmp_path: Path) -> None:
    """The kernel takes down what a process has mapped before it closes its sockets."""
    large = replace(IDENTITY, layout=replace(LAYOUT, layers=1024))
    server = CacheServerProcess(tmp_path, mib=2048)
    with server, Client(large, server.endpoint, prefault=False) as client:
        assert client.wait(10)

        def backed() -> bool:
            pool = server.status()["pool"]
            return bool(pool["granted_bytes"] > 0.99 * pool["bytes"])

        until(backed, 60)
        time.sleep(0.6)  # the pool is tended that often
        server.signal(signal.SIGKILL)
        began = time.monotonic()
        assert client.lookup(prompt(4 * CHUNK)).tokens == 0
        assert time.monotonic() - began < 0.1


def test_a_killed_server_leaves_nothing_to_the_next_one(tmp_path: Path) -> None:
    server = CacheServerProcess(tmp_path, mib=1)
    tokens = prompt(4 * CHUNK)
    with server, Client(IDENTITY, server.endpoint) as client:
        client.store(tokens, expected(tokens))
        hit = client.retrieve(tokens)
        assert hit.tokens == 4 * CHUNK
        pages = [bytes(page) for page in hit.pages]
        server.kill()
        assert len(server.segments()) == 1
        until(lambda: not client.available, 1)
        assert [bytes(page) for page in hit.pages] == pages  # memory that is mapped stays
        server.start()
        until(lambda: client.available, 5)
        assert len(server.segments()) == 1  # its own
        assert not hit.release()  # nobody knows any more whose these pages were
        assert client.retrieve(tokens, blanks(4)).tokens == 0
        assert client.store(tokens, expected(tokens)).chunks == 4
    assert not server.segments()
