"""Bars of a question to the cache server: what it costs, alone and while others wait for stores."""

from __future__ import annotations

import json
import os
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from benchmarks.bars import Bar, Lab, Target
from benchmarks.cache_server import CacheServer, cache_server, cpu_s_of
from benchmarks.trickle import Trickle
from kvferry.base.errors import CorruptError, DeadlineExceeded
from kvferry.cache import Retrieved, TieredCache
from kvferry.chunks.identity import Identity
from kvferry.chunks.layout import KVLayout
from kvferry.chunks.prompt import Prompt, read_prompt
from kvferry.server import Client
from kvferry_lab.bench.intervals import in_turn

__all__ = ["server_control", "server_shares"]

_P50 = Target("<=", 150.0, "us")
_P99 = Target("<=", 1000.0, "us")
_CPU = Target("<=", 2.2, "x a socket pair's CPU")
_P50_ATTACKED = Target("<=", 1.2, "x of without")
_P99_ATTACKED = Target("<=", 2.0, "x of without")
_LOST = Target("<=", 0.0, "hits")

_HASHES = 256
_LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="float16", chunk_size=16)
_ROUNDS = 10
# The engine that waits: so many calls at a time, for values that take so long to trickle.
_CALLS = 89
_LARGE = KVLayout(layers=8, kv_heads=8, head_dim=128, dtype="float16", chunk_size=16)
_LONG_S = 120.0
_SETTLE_S = 0.5
_OPEN_S = 10.0


def server_control(lab: Lab) -> Iterator[Bar]:
    """Round trips of a lookup of 256 hashes over a Unix socket, one client, one at a time."""
    times: list[float] = []
    count = lab.count(20_000) // _ROUNDS or 1
    with cache_server(0.01) as server, _asking(server.url) as (client, prompt), _Pair() as pair:
        _lookups(client, prompt, lab.count(1000))

        def server_us() -> float:
            before = server.cpu_s
            _lookups(client, prompt, count)
            return (server.cpu_s - before) / count * 1e6

        for _ in range(_ROUNDS):
            times += _lookups(client, prompt, count)
        with _one_core(server.pid, pair.pid):
            ours_us, theirs_us = in_turn(_ROUNDS, server_us, lambda: pair.cpu_us(count))
    times.sort()
    name = f"lookup of {_HASHES} hashes over ipc"
    shown = (
        f"{len(times):,} one after the other; mean {statistics.fmean(times):.0f} us; a bare Unix "
        f"socket pair, as many bytes: p50 {statistics.median(pair.times):.0f} us"
    )
    yield Bar(name=f"{name}, p50", target=_P50, value=times[len(times) // 2], detail=shown)
    yield Bar(name=f"{name}, p99", target=_P99, value=times[len(times) * 99 // 100], detail=shown)
    yield Bar.of_pairs(
        f"{name}, server",
        _CPU,
        *(ours_us, theirs_us),
        f"{statistics.median(ours_us):.1f} us of the server's CPU, "
        f"{statistics.median(theirs_us):.1f} of the pair's, each on one core with its client",
    )


def server_shares(lab: Lab) -> Iterator[Bar]:
    """The same, and retrieves from memory, while another engine waits for a store that trickles."""
    p50s, p99s, lost, waited = [], [], 0, []
    count = lab.count(1000)
    with lab.server(needs_bytes=_CALLS * _LARGE.chunk_bytes) as store:
        greedy = Identity(model=f"greedy {os.urandom(8).hex()}", layout=_LARGE)
        _fill(greedy, store.port)
        for _ in range(lab.rounds):  # nobody waits for a store that was given up before
            with _attacked(store.port) as server, _asking(server.url) as (client, prompt):
                _lookups(client, prompt, count)
                with _one_core(server.pid):
                    alone = sorted(_lookups(client, prompt, count))
                with _waiting(greedy, server.url) as calls:
                    with _one_core(server.pid):
                        attacked = sorted(_lookups(client, prompt, count))
                    waited.append(sum(not call.done() for call in calls))
                    for _ in range(count):
                        with client.retrieve(prompt) as hit:
                            lost += hit.tokens != prompt.tokens
            p50s.append(attacked[count // 2] / alone[count // 2])
            p99s.append(attacked[count * 99 // 100] / alone[count * 99 // 100])
    name = f"lookup of {_HASHES} hashes beside {_CALLS} calls that wait for a store"
    shown = (
        f"medians of {lab.rounds} rounds of {count:,}, in turns with as many without; of the calls "
        f"{min(waited)} to {max(waited)} waited all the time"
    )
    for which, target, found in (("p50", _P50_ATTACKED, p50s), ("p99", _P99_ATTACKED, p99s)):
        if min(waited):
            yield Bar.of_median(f"{name}, {which}", target, found, shown)
        else:
            yield Bar(name=f"{name}, {which}", target=target, value=None, reason="nobody waited")
    yield Bar(
        name=f"retrieves from memory beside {_CALLS} calls that wait for a store, lost",
        target=_LOST,
        value=float(lost),
        detail=f"of {lab.rounds * count:,}",
    )


@contextmanager
def _attacked(store_port: int) -> Iterator[CacheServer]:
    """A server whose store trickles; with room, or hits would be lost to eviction."""
    with Trickle(store_port) as trickle:
        adapter = {"type": "resp", "host": "127.0.0.1", "port": trickle.port}
        with cache_server(0.2, "--l2-adapter", json.dumps(adapter)) as server:
            yield server


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


def _prompts() -> Sequence[list[int]]:
    return [[number] * _LARGE.chunk_size for number in range(_CALLS)]


def _fill(identity: Identity, port: int) -> None:
    """Have the store get what is waited for later."""
    url = f"redis://127.0.0.1:{port}"
    with TieredCache(identity, remote_url=url, chunk_size=16, max_local_cpu_size=0.5) as engine:
        chunk = bytes(_LARGE.chunk_bytes)
        for tokens in _prompts():
            engine.store(tokens, [chunk])
        if not engine.flush(_LONG_S):
            raise CorruptError("the store did not take the prompts")


@contextmanager
def _waiting(identity: Identity, url: str) -> Iterator[Sequence[Future[Retrieved]]]:
    """An engine whose calls wait for the store."""
    with (
        ThreadPoolExecutor(_CALLS) as threads,
        Client(identity, url, retrieve_timeout_s=_LONG_S) as client,
    ):
        until = time.monotonic() + _OPEN_S
        while not client.contains(_prompts()[0]) and time.monotonic() < until:
            time.sleep(0.05)  # the server has still to connect to the store
        calls = [threads.submit(client.retrieve, tokens) for tokens in _prompts()]
        wait(calls, _SETTLE_S)
        yield calls
        client.close()  # its calls end


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
        question, before = bytes(_HASHES * 16 + 30), cpu_s_of(self.pid)
        for _ in range(count):
            start = time.perf_counter()
            self._socket.send(question)
            self._socket.recv(100)
            self.times.append((time.perf_counter() - start) * 1e6)
        return (cpu_s_of(self.pid) - before) / count * 1e6

    def __enter__(self) -> _Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        os.waitpid(self.pid, 0)
