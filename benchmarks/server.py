"""Bars of the cache server: what a chunk costs through its pool, and what a question costs."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median

from benchmarks.bars import Bar, Lab, Target
from benchmarks.prompt import PromptKV
from kvferry.base.errors import CorruptError, DeadlineExceeded
from kvferry.chunks.identity import Identity
from kvferry.chunks.layout import KVLayout
from kvferry.chunks.prompt import Prompt, read_prompt
from kvferry.server import Client
from kvferry_lab.bench.intervals import in_turn
from kvferry_lab.bench.programs import LineProcess
from kvferry_lab.servers.lab_server import wait_until

__all__ = ["server_control", "server_copies"]

_OF_MEMCPY = Target(">=", 0.90, "x memcpy")
_SOCKET = Target("<=", 0.001, "of the payload")

_CALL_S = 60.0
_P50 = Target("<=", 150.0, "us")
_P99 = Target("<=", 1000.0, "us")
_CPU = Target("<=", 2.2, "x a socket pair's CPU")

_HASHES = 256
_LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="float16", chunk_size=16)
_ROUNDS = 10
_LONG_S = 120.0


def server_copies(lab: Lab) -> Iterator[Bar]:
    """Store and retrieve of 1.3 GB through the pool, against memcpy with as many threads."""
    kv = PromptKV(lab)
    threads = min(4, os.cpu_count() or 1)
    with (
        _server(2 * kv.pool_gb) as server,  # writers may have three quarters of it
        Client(kv.identity, server.url, copy_threads=threads, timeout_s=_CALL_S) as client,
        ThreadPoolExecutor(threads) as workers,
    ):

        def through() -> float:
            kv.poison()
            client.clear(stores=False)
            start = time.perf_counter()
            stored = client.store(kv.tokens, kv.sources)
            hit = client.retrieve(kv.tokens, kv.targets)
            wall_s = time.perf_counter() - start
            if stored.chunks != kv.chunks or hit.tokens != len(kv.tokens):
                raise CorruptError(f"the prompt did not go through: {stored} {hit}")
            kv.verify(kv.targets)
            return wall_s / 2

        ours, theirs = in_turn(lab.pairs, through, lambda: kv.memcpy(workers, threads))
        counted = client.stats()
    payload = counted["bytes_stored"] + counted["bytes_retrieved"]
    sent = counted["socket_bytes_sent"] + counted["socket_bytes_received"]
    name = f"store + retrieve of {kv.label} through the server's pool"
    yield kv.compared(name, _OF_MEMCPY, ours, theirs, f"memcpy, {threads} threads")
    yield Bar(
        name=f"bytes over the socket for {kv.label}",
        target=_SOCKET,
        value=sent / payload,
        detail=f"{sent:,} bytes of messages for {payload:,} of payload",
    )


def server_control(lab: Lab) -> Iterator[Bar]:
    """Round trips of a lookup of 256 hashes over a Unix socket, one client, one at a time."""
    times: list[float] = []
    count = lab.count(20_000) // _ROUNDS or 1
    with _server(0.01) as server, _asking(server.url) as (client, prompt), _Pair() as pair:
        _lookups(client, prompt, lab.count(1000))

        def server_us() -> float:
            before = _cpu_s_of(server.pid)
            _lookups(client, prompt, count)
            return (_cpu_s_of(server.pid) - before) / count * 1e6

        for _ in range(_ROUNDS):
            times += _lookups(client, prompt, count)
        with _one_core(server.pid, pair.pid):
            ours_us, theirs_us = in_turn(_ROUNDS, server_us, lambda: pair.cpu_us(count))
    times.sort()
    name = f"lookup of {_HASHES} hashes over ipc"
    shown = (
        f"{len(times):,} one after the other; mean {fmean(times):.0f} us; a bare Unix "
        f"socket pair, as many bytes: p50 {median(pair.times):.0f} us"
    )
    yield Bar(name=f"{name}, p50", target=_P50, value=times[len(times) // 2], detail=shown)
    yield Bar(name=f"{name}, p99", target=_P99, value=times[len(times) * 99 // 100], detail=shown)
    yield Bar.of_pairs(
        f"{name}, server",
        _CPU,
        *(ours_us, theirs_us),
        f"{median(ours_us):.1f} us of the server's CPU, "
        f"{median(theirs_us):.1f} of the pair's, each on one core with its client",
    )


@contextmanager
def _asking(url: str) -> Iterator[tuple[Client, Prompt]]:
    """A client, and a prompt that it has stored."""
    identity = Identity(model=f"benchmark {os.urandom(8).hex()}", layout=_LAYOUT)
    tokens = list(range(_HASHES * 16))
    with Client(identity, url, timeout_s=_LONG_S) as client:  # that none is late is not asked here
        if not client.wait(_LONG_S):
            raise DeadlineExceeded("there is no session with the server")
        if client.store(tokens, [bytes(_LAYOUT.chunk_bytes)] * _HASHES).chunks != _HASHES:
            raise CorruptError("the server did not take the prompt")
        yield client, read_prompt(tokens, 16, b"", generation=client.generation)


@contextmanager
def _one_core(*pids: int) -> Iterator[None]:
    """This thread and the main ones of these processes, on one core.

    Else the system moves them now and then to one or to two, and to wake a core that sleeps costs
    more than all that is measured.
    """
    own = os.sched_getaffinity(0)
    try:
        for pid in (0, *pids):
            os.sched_setaffinity(pid, {min(own)})
        yield
    finally:
        for pid in (0, *pids):
            os.sched_setaffinity(pid, own)


def _lookups(client: Client, prompt: Prompt, count: int) -> list[float]:
    """Microseconds of each."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        found = client.contains(prompt)
        times.append((time.perf_counter() - start) * 1e6)
        if found != prompt.tokens:
            raise CorruptError(f"{found} of {prompt.tokens} tokens were found")
    return times


class _Pair:
    """A bare Unix socket pair: a child that answers as many bytes as the server, and no more."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self.times: list[float] = []
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            while theirs.recv(1 << 16):
                theirs.send(bytes(30))
            os._exit(0)
        theirs.close()

    def cpu_us(self, count: int) -> float:
        """The child's CPU for one exchange, of so many."""
        question, before = bytes(_HASHES * 16 + 30), _cpu_s_of(self.pid)
        for _ in range(count):
            start = time.perf_counter()
            self._socket.send(question)
            self._socket.recv(100)
            self.times.append((time.perf_counter() - start) * 1e6)
        return (_cpu_s_of(self.pid) - before) / count * 1e6

    def __enter__(self) -> _Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        os.waitpid(self.pid, 0)


class _CacheServer(LineProcess):
    """`kvferry server` on a socket in a directory, without HTTP; it listens when this returns.

    Raises:
        DeadlineExceeded: It does not.
    """

    def __init__(self, directory: Path, pool_gb: float) -> None:
        self.url = f"ipc://{directory}/server"
        command = [
            *(sys.executable, "-m", "kvferry.cli.main", "server", "--no-tcp", "--no-http"),
            *("--ipc", f"{directory}/server", "--l1-size-gb", str(pool_gb), "--log-level", "error"),
            *("--shm-name", f"kvferry-bench-{os.getpid()}"),
        ]
        super().__init__(command, name="kvferry server", stop_s=15.0, signal=signal.SIGTERM)
        wait_until("kvferry server to listen", (directory / "server").exists)


def _cpu_s_of(pid: int) -> float:
    """CPU that a process has used, user and system, to the nanosecond; see clock_getcpuclockid(3).

    /proc counts in ticks of 10 ms.
    """
    return time.clock_gettime(~pid << 3 | 2)


@contextmanager
def _server(pool_gb: float) -> Iterator[_CacheServer]:
    """A server that runs as long as the block."""
    with (
        tempfile.TemporaryDirectory() as directory,
        _CacheServer(Path(directory), pool_gb) as server,
    ):
        yield server
