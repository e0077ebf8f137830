"""Bars of time: round trips that are paid once per batch, and probes beside large writes.

Distance is made by kvferry-delay, which delays each request and takes no bandwidth away.
"""

from __future__ import annotations

import select
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain, cycle
from typing import Any

from benchmarks.bars import Bar, Lab, Target
from kvferry.base.errors import CorruptError, DeadlineExceeded
from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import load
from kvferry_lab.bench.data import Chunks, fill
from kvferry_lab.bench.intervals import Interval, in_turn, percentile
from kvferry_lab.bench.programs import DelayProcess
from kvferry_lab.bench.server_probe import ServerProbe

__all__ = ["distant_exists", "distant_get", "exists_beside_set", "native_client"]

_EXISTS_KEYS = 1000
_EXISTS_MS = {0.0: 1.0, 1.0: 3.0, 5.0: 7.0}  # by distance: what they may take
_GETS = 64
_BLOCK_KEYS = 100
_PROBES = 2000
_BATCHES_MAX = 500
_FAR_RTT_MS = 5.0
_WAIT_S = 60.0


def native_client(config: ClientConfig, connections: int | None = None) -> Any:
    """The native client over a server.

    Raises:
        UsageError: The extension is not built.
    """
    load("kvferry._native", "kvferry")
    sync = load("kvferry.client.sync", "kvferry")
    return sync.RedisClient.from_config(
        config.replace(connections=connections or config.connections)
    )


def distant_exists(lab: Lab) -> Iterator[Bar]:
    """1,000 EXISTS beside the server and over distances, eight connections."""
    keys = [f"exists:{index}" for index in range(_EXISTS_KEYS)]
    for rtt_ms, limit_ms in _EXISTS_MS.items():
        with lab.server() as config, ServerProbe(config) as probe, ExitStack() as stack:
            for key in keys[::2]:
                probe.set(key, b"x")
            if rtt_ms:
                proxy = stack.enter_context(DelayProcess(config, rtt_ms=rtt_ms))
                config = _behind(config, proxy)
            client = stack.enter_context(closing(native_client(config, 8)))

            def look(client: Any = client) -> None:
                result = client.batch_exists(keys)
                if result.statuses.count(0) != len(keys) // 2:
                    raise CorruptError("EXISTS is wrong about what exists")

            look()
            wall_ms = [_timed(look) * 1e3 for _ in range(lab.count(100))]
        yield Bar.of_median(
            f"1,000 EXISTS, 8 conn, +{rtt_ms:g} ms RTT",
            Target("<=", limit_ms, "ms"),
            wall_ms,
            f"{len(wall_ms)} batches, the slowest {max(wall_ms):.2f} ms",
        )


def distant_get(lab: Lab) -> Iterator[Bar]:
    """64 GETs of 1 MiB over a distance: what they take beside one round trip, in pairs with what
    they take through the same proxy without delay."""
    chunks = Chunks(lab.size_bytes(1), _GETS, _GETS)
    with (
        lab.probed("Valkey 9", 2 * _GETS * chunks.size_bytes) as (config, probe),
        DelayProcess(config, rtt_ms=0.0) as beside,
        DelayProcess(config, rtt_ms=_FAR_RTT_MS) as away,
        closing(native_client(_behind(config, beside), 4)) as near,
        closing(native_client(_behind(config, away), 4)) as far,
    ):
        fill(chunks, probe)

        def read(client: Any) -> float:
            get = partial(client.batch_get, chunks.keys, chunks.targets)
            get()  # an idle way begins slowly
            chunks.poison()
            wall_s = _timed(get)
            chunks.verify(chunks.batches()[0], chunks.targets)
            return wall_s

        near_s, far_s = in_turn(lab.pairs, lambda: read(near), lambda: read(far))
    yield Bar.of_pairs(
        f"{_GETS} GETs of {lab.label(1)}, 4 conn, +{_FAR_RTT_MS:g} ms RTT, less one RTT",
        Target("<=", 1.2, "x without delay"),
        *([wall_s - _FAR_RTT_MS / 1e3 for wall_s in far_s], near_s),
        f"{statistics.median(far_s) * 1e3:.1f} ms; without delay "
        f"{statistics.median(near_s) * 1e3:.1f} ms",
    )


def exists_beside_set(lab: Lab) -> Iterator[Bar]:
    """EXISTS of one key while a batch of large SETs runs, in turn with one over a bare socket."""
    chunks = Chunks(lab.size_bytes(4), _BLOCK_KEYS, _BLOCK_KEYS)
    batch = chunks.batches()[0]
    ours: list[list[float]] = []
    bare: list[list[float]] = []
    with (
        lab.probed("Valkey 9", 2 * _BLOCK_KEYS * chunks.size_bytes) as (config, probe),
        closing(native_client(config)) as client,
        ServerProbe(config) as other,
    ):
        probe.set("probe", b"x")
        while (sum(map(len, ours)) < lab.count(_PROBES) or len(ours) < lab.pairs) and len(
            ours
        ) < _BATCHES_MAX:
            chunks.next_write(batch)
            waits = _probe_beside(client, other, chunks)
            if all(waits):  # a batch that is over at once says nothing
                ours.append(waits[0])
                bare.append(waits[1])
            last = len(chunks.keys) - 1
            chunks.verify_one(batch, last, probe.get(chunks.keys[last]))
    found = Interval.of_ratio(ours, bare, _p99)
    mine, theirs = (list(chain.from_iterable(runs)) for runs in (ours, bare))
    yield Bar(
        name=f"EXISTS p99 beside SET of {_BLOCK_KEYS} x {lab.label(4)}",
        target=Target("<=", 1.3, "x a bare socket's"),
        value=found.middle,
        interval=found,
        detail=f"{_p99(mine) * 1e3:.2f} ms, p50 {statistics.median(mine) * 1e3:.2f}; bare "
        f"{_p99(theirs) * 1e3:.2f}, p50 {statistics.median(theirs) * 1e3:.2f}; {len(mine)} and "
        f"{len(theirs)} probes in {len(ours)} batches",
    )


def _probe_beside(
    client: Any, other: ServerProbe, chunks: Chunks
) -> tuple[list[float], list[float]]:
    """Seconds of each EXISTS while all is written: of the client's, and over another socket.

    What ends behind the SETs had the end of its wait for itself, and is left out.
    """
    wanted = client.submit_batch_set(chunks.keys, chunks.sources)
    done: dict[int, Any] = {}

    def own() -> None:
        looking = client.submit_batch_exists(["probe"])
        while looking not in done:
            if not select.select([client.event_fd()], [], [], _WAIT_S)[0]:
                raise DeadlineExceeded("a batch did not complete")
            done.update(client.drain_completions())
        done.pop(looking).raise_for_errors()

    def bare() -> None:
        other.command("EXISTS", "probe")
        done.update(client.drain_completions())

    waits: tuple[list[float], list[float]] = ([], [])
    for into, look in cycle(zip(waits, (own, bare), strict=True)):
        wall_s = _timed(look)
        if wanted in done:
            done[wanted].raise_for_errors()
            return waits
        into.append(wall_s)
    raise AssertionError  # a cycle has no end


def _p99(values: Sequence[float]) -> float:
    return percentile(values, 99)


def _behind(config: ClientConfig, proxy: DelayProcess) -> ClientConfig:
    return config.replace(host="127.0.0.1", port=proxy.port, unix_path=None)


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
