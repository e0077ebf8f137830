"""Bars of the cache server: what a chunk costs, and what its end costs."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.bars import Bar, Lab, Target
from benchmarks.cache_server import cache_server
from benchmarks.prompt import PromptKV
from kvferry.base.errors import CorruptError
from kvferry.cache import Hashes
from kvferry.chunks.identity import Identity
from kvferry.chunks.layout import KVLayout
from kvferry.server import Client
from kvferry_lab.bench.intervals import in_turn

__all__ = ["server_copies", "server_end"]

_OF_MEMCPY = Target(">=", 0.90, "x memcpy")
_SOCKET = Target("<=", 0.001, "of the payload")
_GO_ON = Target("<=", 50.0, "ms")
_RECOVER = Target("<=", 2.0, "s")

_CALL_S = 60.0
_BACK_S = 10.0


def server_copies(lab: Lab) -> Iterator[Bar]:
    """Store and retrieve of 1.3 GB through the pool, against memcpy with as many threads."""
    kv = PromptKV(lab)
    threads = min(4, os.cpu_count() or 1)
    with (
        cache_server(2 * kv.pool_gb) as server,  # writers may have three quarters of it
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


def server_end(lab: Lab) -> Iterator[Bar]:
    """The longest call when the server is killed, and how soon there are hits after its restart."""
    layout = KVLayout(layers=2, kv_heads=8, head_dim=128, dtype="float16", chunk_size=16)
    identity = Identity(model=f"benchmark {os.urandom(8).hex()}", layout=layout)
    hashes = Hashes([bytes([n]) * 16 for n in range(16)])
    chunks = [np.full(layout.chunk_bytes, n, np.uint8) for n in range(16)]
    into = [np.empty(layout.chunk_bytes, np.uint8) for _ in range(16)]
    longest, back = [], []
    with cache_server(0.1) as server, Client(identity, server.url) as client:
        for _ in range(max(1, lab.rounds // 2)):
            calls: list[tuple[float, float, int]] = []
            ended = threading.Event()

            def work(calls: list[tuple[float, float, int]], ended: threading.Event) -> None:
                while not ended.is_set():
                    began = time.monotonic()
                    hit = client.retrieve(hashes, into)
                    calls.append((began, time.monotonic(), hit.tokens))
                    for n in range(hit.tokens // 16):
                        if not np.array_equal(into[n], chunks[n]):
                            raise CorruptError("a chunk is wrong")
                    began = time.monotonic()
                    client.store(hashes, chunks)
                    calls.append((began, time.monotonic(), 0))

            with ThreadPoolExecutor(1) as worker:
                done = worker.submit(work, calls, ended)
                time.sleep(0.3)
                killed = time.monotonic()
                server.kill()
                time.sleep(0.3)
                restarted = time.monotonic()
                server.start()
                listens = time.monotonic()
                until = listens + _BACK_S
                while time.monotonic() < until and not (calls[-2][2] or calls[-1][2]):
                    time.sleep(0.005)
                ended.set()
                done.result()
            near = [end - began for began, end, _ in calls if killed - 1 < end < restarted]
            longest.append(max(near) * 1e3)
            hits = [end for began, end, tokens in calls if tokens and began > restarted]
            back.append(hits[0] - listens if hits else _BACK_S)
    yield Bar(
        name="the longest call around a kill of the server",
        target=_GO_ON,
        value=max(longest),
        detail=f"{len(longest)} kills, median {statistics.median(longest):.1f} ms",
    )
    yield Bar(
        name="from the restart of the server to the first hit",
        target=_RECOVER,
        value=max(back),
        detail=f"{len(back)} restarts, median {statistics.median(back):.2f} s",
    )
