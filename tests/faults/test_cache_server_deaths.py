"""Engines that die by SIGKILL, at every step of the protocol, and what the server has after it.

Committed chunks stay, half-written ones are gone, and every page is free or holds a chunk.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvferry.server import protocol as p
from kvferry.server.server import Server
from support.cache_server import running
from support.engines import CHUNK, prompt
from support.raw_peer import Peer
from support.stamps import until

TESTS = Path(__file__).parents[1]

PROGRAM = """
import os, signal, sys, time
from kvferry.server import protocol as p
from support.engines import CHUNK, prompt
from support.raw_peer import Peer, prompt_of

endpoint, step, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])

def reserve():
    global reserved
    reserved = peer.want(p.ReservedPages, p.Reserve, prompt_of(tokens))

def half():
    peer.pages.copy(reserved.pages[:4], [bytes(peer.registered.page_bytes)] * 4, True, 1)

def whole():
    peer.write(reserved, tokens)

def commit():
    assert peer.want(p.Committed, p.Commit, reserved.reservation).chunks == 8

def lease():
    global leased
    leased = peer.want(p.Leased, p.Retrieve, prompt_of(tokens))
    assert len(leased.pages) == 8

def pin():
    assert peer.want(p.Count, p.Pin, prompt_of(tokens)).count == 8

def release():
    assert peer.want(p.Count, p.Release, [leased.lease]).count == 1

def again():
    global reserved
    reserved = peer.want(p.ReservedPages, p.Reserve, prompt_of(other))

steps = {
    "connect": lambda: None,
    "register": lambda: peer.register(),
    "map": lambda: peer.map(),
    "attach": lambda: peer.want(p.Done, p.Attached),
    "reserve": reserve,
    "half": half,
    "whole": whole,
    "commit": commit,
    "lease": lease,
    "pin": pin,
    "again": again,
    "release": release,
}
def go(step, seed):
    global peer, tokens, other
    tokens, other = prompt(8 * CHUNK, seed), prompt(8 * CHUNK, seed + 1)
    peer = Peer(endpoint)
    for name, do in steps.items():
        do()
        if name == step:
            break

if len(sys.argv) > 4:  # so many engines, a process each, that die at all steps in turn
    for number in range(int(sys.argv[4])):
        child = os.fork()
        if not child:
            go(list(steps)[number % len(steps)], seed + 2 * number)
            os.kill(os.getpid(), signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, status
else:
    go(step, seed)
    print("there", flush=True)
    time.sleep(60)
"""
STEPS = (
    *("connect", "register", "map", "attach", "reserve", "half", "whole"),
    *("commit", "lease", "pin", "again", "release"),
)
COMMITTED = STEPS[STEPS.index("commit") :]


@contextmanager
def engine_at(step: str, server: Server, seed: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process that has come as far as `step`, and waits."""
    arguments = [sys.executable, "-c", PROGRAM, server.config.endpoints[0], step, str(seed)]
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            yield process
        finally:
            process.kill()


def pages_held(server: Server) -> int:
    """Pages that are neither free nor a chunk that could leave."""
    segments = server.status()["pool"]["segments"]
    memory = server.cache().memory.cache.stats()
    assert (memory["leased"], memory["pinned"], memory["writing"]) == (0, 0, 0)
    used: int = sum(s["pages"] - s["free"] for s in segments)
    return used - int(memory["ready"])


@pytest.mark.parametrize("step", STEPS)
def test_an_engine_is_killed(step: str, tmp_path: Path) -> None:
    with running(tmp_path, mib=1, heartbeat_s=0.5, dead_after_s=3.0) as server:
        with engine_at(step, server) as process:
            process.send_signal(signal.SIGKILL)
            process.wait()
            until(lambda: not server.status()["sessions"], 5)
        until(lambda: server.status()["fenced_pages"] == 0, 5)
        with Peer(server.config.endpoints[0]) as peer:
            peer.attach()
            assert pages_held(server) == 0
            tokens = prompt(8 * CHUNK)
            kept = 8 if step in COMMITTED else 0
            assert peer.read(tokens)[0] == kept
            assert peer.store(tokens) == 8 - kept
            assert peer.read(tokens)[0] == 8


def test_an_engine_is_stopped_while_it_writes(tmp_path: Path) -> None:
    """Its chunks are dropped; its pages wait until it is really gone."""
    with (
        running(tmp_path, mib=1, heartbeat_s=0.4, dead_after_s=3.0) as server,
        Peer(server.config.endpoints[0]) as peer,
    ):
        peer.attach()
        with engine_at("half", server) as process:
            process.send_signal(signal.SIGSTOP)
            until(lambda: server.status()["fenced_pages"] == 8, 10)
            peer.session = 0
            peer.attach()
            assert peer.store(prompt(8 * CHUNK)) == 8
            assert server.status()["fenced_pages"] == 8
            process.send_signal(signal.SIGKILL)
            process.wait()

            def is_free() -> bool:
                peer.want(p.Pong, p.Ping)  # we live
                return bool(server.status()["fenced_pages"] == 0)

            until(is_free, 5)
        assert peer.read(prompt(8 * CHUNK))[0] == 8
        assert pages_held(server) == 0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def ours(shm_name: str) -> list[str]:
    """The segments of our server; other tests have theirs at the same time."""
    return sorted(name for name in os.listdir("/dev/shm") if name.startswith(f"{shm_name}-"))


def deaths(server: Server, count: int, seed: int) -> None:
    """So many engines die, at all steps in turn."""
    arguments = [sys.executable, "-c", PROGRAM, server.endpoints[0], "", str(seed), str(count)]
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    subprocess.run(arguments, check=True, timeout=900, env=environ)
    until(lambda: not server.status()["sessions"], 20)


@pytest.mark.parametrize(
    "count", [100, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_nothing_is_left_of_dead_engines(count: int, tmp_path: Path) -> None:
    shm_name = f"kvferry-dead-{os.getpid()}"
    with running(tmp_path, mib=1, shm_name=shm_name) as server:
        deaths(server, 12, 0)
        before = descriptors(), ours(shm_name)
        assert before[1]
        deaths(server, count, 1000)
        until(lambda: descriptors() <= before[0], 5)
        assert ours(shm_name) == before[1]
        until(lambda: server.status()["fenced_pages"] == 0, 5)
        assert pages_held(server) == 0
