"""Bars of time: round trips that are paid once per batch, and probes beside large writes.

Distance is made by kvferry-delay, which delays each request and takes no bandwidth away.
"""

from __future__ import annotations

import select
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from benchmarks.bars import Bar, Lab, Target
from kvferry.config import ClientConfig
from kvferry.errors import CorruptError, DeadlineExceeded
from kvferry.lab.bench.adapters import load
from kvferry.lab.bench.data import Chunks
from kvferry.lab.bench.programs import DelayProcess, FloorProcess
from kvferry.lab.bench.server import ServerProbe, fill

__all__ = ["distant_exists", "distant_get", "exists_beside_set", "native_client"]

_EXISTS_KEYS = 1000
_BLOCK_KEYS = 100
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
    """1,000 EXISTS over a distance, eight connections."""
    for rtt_ms in (1.0, 5.0):
        with lab.server() as config, ServerProbe(config) as probe:
            keys = [f"exists:{index}" for index in range(_EXISTS_KEYS)]
            for key in keys[::2]:
                probe.set(key, b"x")
            with (
                DelayProcess(config, rtt_ms=rtt_ms) as proxy,
                closing(native_client(_behind(config, proxy), 8)) as client,
            ):

                def look(client: Any = client, keys: list[str] = keys) -> None:
                    result = client.batch_exists(keys)
                    if result.statuses.count(0) != len(keys) // 2:
                        raise CorruptError("EXISTS is wrong about what exists")

                look()
                wall_s = statistics.median(_timed(look) for _ in range(lab.count(9)))
        yield Bar(
            name=f"1,000 EXISTS, 8 conn, +{rtt_ms:g} ms RTT",
            target=Target("<=", 3.0, "RTT"),
            value=wall_s * 1e3 / rtt_ms,
            detail=f"{wall_s * 1e3:.2f} ms",
        )


def distant_get(lab: Lab) -> Iterator[Bar]:
    """64 GETs of 1 MiB over a distance, against one command in flight per connection."""
    size_bytes = lab.size_bytes(1)
    chunks = Chunks(size_bytes, 64, 64)
    batch = chunks.batches()[0]
    with (
        lab.probed("Valkey 9", 2 * 64 * size_bytes) as (config, probe),
        DelayProcess(config, rtt_ms=_FAR_RTT_MS) as proxy,
        closing(native_client(_behind(config, proxy), 4)) as client,
        FloorProcess(
            _behind(config, proxy), op="get", size_bytes=size_bytes, connections=4, ops=64
        ) as floor,
    ):
        fill(chunks, probe)
        ours, one_in_flight = [], []
        for number in range(lab.rounds + 1):
            chunks.poison()
            wall_s = _timed(lambda: client.batch_get(chunks.keys, chunks.targets))
            chunks.verify(batch, chunks.targets)
            floor_s = floor.round()["wall_s"]
            if number:
                ours.append(wall_s)
                one_in_flight.append(floor_s)
    mine, other = statistics.median(ours), statistics.median(one_in_flight)
    yield Bar(
        name=f"64 GETs of {lab.label(1)}, 4 conn, +{_FAR_RTT_MS:g} ms RTT",
        target=Target(">=", 4.0, "x one command in flight"),
        value=other / mine,
        detail=f"{mine * 1e3:.1f} ms; one in flight {other * 1e3:.1f} ms",
    )


def exists_beside_set(lab: Lab) -> Iterator[Bar]:
    """EXISTS of one key while a batch of large SETs runs."""
    chunks = Chunks(lab.size_bytes(4), _BLOCK_KEYS, _BLOCK_KEYS)
    batch = chunks.batches()[0]
    waits: list[float] = []
    with (
        lab.probed("Valkey 9", 2 * _BLOCK_KEYS * chunks.size_bytes) as (config, probe),
        closing(native_client(config)) as client,
    ):
        probe.set("probe", b"x")
        for _ in range(lab.count(20)):
            chunks.next_write(batch)
            wanted = client.submit_batch_set(chunks.keys, chunks.sources)
            result = None
            while result is None:
                looking = client.submit_batch_exists(["probe"])
                start = time.perf_counter()
                done: dict[int, Any] = {}
                while looking not in done:
                    if not select.select([client.event_fd()], [], [], _WAIT_S)[0]:
                        raise DeadlineExceeded("a batch did not complete")
                    done.update(client.drain_completions())
                waits.append(time.perf_counter() - start)
                result = done.get(wanted)
            result.raise_for_errors()
            last = len(chunks.keys) - 1
            chunks.verify_one(batch, last, probe.get(chunks.keys[last]))
    waits.sort()
    p99_ms = waits[int((len(waits) - 1) * 0.99)] * 1e3
    yield Bar(
        name=f"EXISTS p99 beside SET of {_BLOCK_KEYS} x {lab.label(4)}",
        target=Target("<=", 5.0, "ms"),
        value=p99_ms,
        detail=f"{len(waits)} probes, p50 {statistics.median(waits) * 1e3:.2f} ms",
    )


def _behind(config: ClientConfig, proxy: DelayProcess) -> ClientConfig:
    return config.replace(host="127.0.0.1", port=proxy.port, unix_path=None)


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
