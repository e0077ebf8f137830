"""A cache server that is killed while engines work: they go on, nothing is wrong, and it comes
back."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from kvferry.server import Client
from kvferry.server import protocol as p
from support import clock
from support.cache_server import CacheServerProcess
from support.cache_worker import CacheWorker
from support.engines import CHUNK, IDENTITY, LAYOUT, blanks, expected, prompt
from support.raw_peer import Peer, prompt_of
from support.stamps import until


class Moments:
    """What clock.py said at moments of the wall clock, by which other processes tell times."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def took_s(self, began: float, ended: float) -> float:
        """How long that was by clock.py; a little less, for it looks now and then."""
        inside = [now for at, now in self._seen if began <= at <= ended]
        return inside[-1] - inside[0] if inside else 0.0

    def _look(self) -> None:
        while not self._enough.wait(0.01):
            self._seen.append((time.time(), clock.now_s()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()


def test_engines_go_on_without_a_server_and_with_the_next_one(tmp_path: Path) -> None:
    server = CacheServerProcess(tmp_path, mib=1)
    with ExitStack() as stack:
        moments = stack.enter_context(Moments())
        stack.enter_context(server)
        workers = [stack.enter_context(CacheWorker(server.endpoint, seed, 4)) for seed in range(2)]
        pids = {worker.process.pid for worker in workers}

        def have_hit() -> bool:
            """Each has asked so often that it has met a prompt of the four again."""
            sessions = server.status()["sessions"]
            return pids == {one["pid"] for one in sessions if one["requests"] > 60}

        until(have_hit, 20)
        killed = time.time()
        server.kill()
        time.sleep(0.5)
        server.start()
        back = time.time()
        until(have_hit, 20)
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
        assert moments.took_s(back, hit) < 2.0
        across = [
            moments.took_s(began, began + took)
            for _, began, took, _ in calls
            if began < killed + 0.4 < began + took + 0.4
        ]
        assert max(across) < 0.25
        assert report["stats"]["reconnects"] >= 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_call_ends_with_its_server(number: signal.Signals, tmp_path: Path) -> None:
    """A killed server ends a call at once; one that hangs, at the call's limit, and once."""
    tokens = prompt(4 * CHUNK)
    with (
        CacheServerProcess(tmp_path, mib=1) as server,
        Client(IDENTITY, server.endpoint, timeout_s=5.0) as client,
    ):
        assert client.wait(20)
        assert client.store(tokens, expected(tokens)).chunks == 4
        server.signal(number)
        began = clock.now_s()
        assert client.retrieve(tokens, blanks(4), timeout_s=0.5).tokens == 0
        first_s = clock.now_s() - began
        assert first_s < (0.3 if number == signal.SIGKILL else 1.5)
        began = clock.now_s()
        for _ in range(10):
            assert client.lookup(tokens).tokens == 0
            assert client.store(tokens, expected(tokens)).chunks == 0
        assert clock.now_s() - began < 0.5
        if number == signal.SIGSTOP:
            server.signal(signal.SIGCONT)
            until(lambda: client.available, 5)
            assert client.retrieve(tokens, blanks(4)).tokens == 4 * CHUNK


def test_a_server_that_was_stopped_does_not_take_its_engines_for_dead(tmp_path: Path) -> None:
    tokens = prompt(4 * CHUNK)
    times = {"KVFERRY_SERVER_TUNING": '{"heartbeat_s": 0.5, "dead_after_s": 2}'}
    with CacheServerProcess(tmp_path, mib=1, **times) as server, Peer(server.endpoint) as peer:
        assert peer.attach().store(tokens) == 4
        leased = peer.want(p.Leased, p.Retrieve, prompt_of(tokens))
        server.signal(signal.SIGSTOP)
        time.sleep(2.5)
        server.signal(signal.SIGCONT)
        peer.want(p.Pong, p.Ping)
        assert peer.want(p.Count, p.Release, [leased.lease]).count == 1


def mapped_kib(server: CacheServerProcess) -> int:
    """How much of its pool is mapped in the server's own process."""
    size, is_pool = 0, False
    for line in Path(f"/proc/{server.pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            is_pool = server.shm_name in line
        elif is_pool and words[0] == "Rss:":
            size += int(words[1])
    return size


def test_a_large_pool_does_not_delay_the_news_of_its_end(tmp_path: Path) -> None:
    """The kernel takes down what a process has mapped before it closes its sockets."""
    large = replace(IDENTITY, layout=replace(LAYOUT, layers=1024))
    server = CacheServerProcess(tmp_path, "--prefault", mib=2048)
    with server, Client(large, server.endpoint, prefault=False) as client:
        assert client.wait(10)

        def backed() -> bool:
            pool = server.status()["pool"]
            return bool(pool["granted_bytes"] > 0.99 * pool["bytes"])

        until(backed, 60)
        until(lambda: mapped_kib(server) < 64 << 10, 20)  # it does not keep them mapped
        server.signal(signal.SIGKILL)
        began = clock.now_s()
        assert client.lookup(prompt(4 * CHUNK)).tokens == 0
        assert clock.now_s() - began < 0.1


def test_a_killed_server_leaves_nothing_to_the_next_one(tmp_path: Path) -> None:
    server = CacheServerProcess(tmp_path, mib=1)
    tokens = prompt(4 * CHUNK)
    with server, Client(IDENTITY, server.endpoint, timeout_s=5.0) as client:
        assert client.wait(20)
        assert client.store(tokens, expected(tokens)).chunks == 4
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
