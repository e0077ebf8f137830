"""Bars of GB/s and CPU per GB against the floor of bare sockets, and of the pure client."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from statistics import median

from benchmarks.bars import Bar, Lab, Target
from kvferry.base.errors import CorruptError
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import CONNECTIONS_DEFAULT, ClientConfig
from kvferry_lab.bench.adapters import BenchClient, open_redis_py
from kvferry_lab.bench.clients import config_url, open_client
from kvferry_lab.bench.data import Chunks, fill
from kvferry_lab.bench.intervals import in_turn
from kvferry_lab.bench.measure import Floor, Row, against, floors, measure
from kvferry_lab.bench.programs import figures_of_module

__all__ = ["get_redis", "get_valkey", "pure_client", "rate", "ratio", "set_redis", "set_valkey"]

_MIB = 1 << 20
_SIZES_MIB = (0.25, 0.5, 1, 4, 8)
_BATCH_BYTES = 128 * _MIB
_BATCH_MIN, _BATCH_MAX = 32, 256
_OF_FLOOR = Target(">=", 1.0, "x floor")
_CPU = Target("<=", 1.05, "x floor CPU")
_OF_BEST_FLOOR = Target(">=", 0.97, "x the best floor")
_PURE = Target(">=", 8.0, "x redis-py")
_KEY, _WARM_UP = "kvferry-single-get", 4


def get_valkey(lab: Lab) -> Iterator[Bar]:
    """GET of 0.25 to 8 MiB from Valkey 9, each number of connections, in pairs with the floor."""
    yield from _values(lab, "Valkey 9", "get")


def set_valkey(lab: Lab) -> Iterator[Bar]:
    """SET of 0.25 to 8 MiB to Valkey 9, each number of connections, in pairs with the floor."""
    yield from _values(lab, "Valkey 9", "set")


def get_redis(lab: Lab) -> Iterator[Bar]:
    """GET of 0.25 to 8 MiB from Redis 7, each number of connections, in pairs with the floor."""
    yield from _values(lab, "Redis 7", "get")


def set_redis(lab: Lab) -> Iterator[Bar]:
    """SET of 0.25 to 8 MiB to Redis 7, each number of connections, in pairs with the floor."""
    yield from _values(lab, "Redis 7", "set")


def _values(lab: Lab, server: str, op: str) -> Iterator[Bar]:
    sizes = (0.5, 4) if lab.quick else _SIZES_MIB
    for mib in sizes if server in lab.servers() else ():
        size_bytes = lab.size_bytes(mib)
        most = _BATCH_MIN if lab.quick else _BATCH_MAX
        count = min(max(_BATCH_BYTES // size_bytes, _BATCH_MIN), most)
        yield from _size(lab, server, op, Chunks(size_bytes, count, count), lab.label(mib))


def _size(lab: Lab, server: str, op: str, chunks: Chunks, label: str) -> Iterator[Bar]:
    counts = sorted({*lab.connections, CONNECTIONS_DEFAULT})
    pooled = [Floor(count, []) for count in counts]
    openings: list[list[Row]] = []
    for _ in range(lab.openings):
        with (
            lab.probed(server, 3 * chunks.batch * chunks.size_bytes) as (config, probe),
            floors(config, op, chunks.size_bytes, chunks.batch, counts) as found,
            ExitStack() as stack,
        ):
            clients: list[BenchClient] = []
            for connections in counts:  # the last ones are those of default settings
                given = connections if connections != CONNECTIONS_DEFAULT else None
                clients.append(open_client("native", config, given))
                stack.callback(clients[-1].close)
            if op == "get":
                fill(chunks, probe)
            rounds = lab.pairs // lab.openings
            openings.append(measure(op, clients, chunks, probe, floor=found, rounds=rounds))
        for floor, more in zip(pooled, found, strict=True):
            floor.add(more)
    rows = [_pooled(found) for found in zip(*openings, strict=True)]
    for row, floor in zip(rows, pooled, strict=True):
        name = f"{op.upper()} {label}, {row.connections} conn, {server}"
        beside = against(row, [floor])
        yield ratio(name, _OF_FLOOR, beside)
        yield _cpu(f"CPU: {name}", beside)
    default = against(rows[-1], pooled)
    yield ratio(f"{op.upper()} {label}, default settings, {server}", _OF_BEST_FLOOR, default)


def _pooled(rows: Sequence[Row]) -> Row:
    """The rounds of several openings as those of one."""
    error = next((row.error for row in rows if row.error is not None), None)
    if error is not None:
        return replace(rows[0], gbps=None, error=error)
    rates = [rate for row in rows for rate in row.rates]
    costs = [cost for row in rows for cost in row.costs]
    return replace(
        rows[0],
        rates=rates,
        costs=costs,
        gbps=median(rates),
        gbps_min=min(rates),
        gbps_max=max(rates),
        client_cpu_s_per_gb=median(costs),
    )


def pure_client(lab: Lab) -> Iterator[Bar]:
    """The pure Python client's GET against redis-py, one connection, a process for each."""
    with lab.server("Valkey 9") as config:
        url, count = config_url(config), lab.count(32)
        for mib in (4, 8):
            size_bytes = lab.size_bytes(mib)
            pure, redis_py = in_turn(
                lab.rounds,
                partial(figures_of_module, __name__, "pure", url, size_bytes, count),
                partial(figures_of_module, __name__, "redis-py", url, size_bytes, count),
                warm_ups=0,
            )
            yield Bar.of_pairs(
                f"pure client: GET {lab.label(mib)}, 1 conn, Valkey 9",
                _PURE,
                *(pure, redis_py),
                f"{median(pure):.2f} GB/s; redis-py {median(redis_py):.2f} GB/s",
            )


def _single_get_gbps(kind: str, url: str, size_bytes: int, count: int) -> float:
    """GB/s of the median of `count` GETs of one value, in a process where nothing else ran.

    How fast redis-py reads large values depends on what its process's malloc has learned: it is
    several times faster once large NumPy arrays were freed, or while an older value is kept. So a
    value is dropped before the next, as a loader does. Every GET is compared, outside the clock.
    """
    config = ClientConfig.from_url(url, environ={})
    value, target = os.urandom(size_bytes), bytearray(size_bytes)
    pure = PureRedisClient.from_config(config)
    pure.set(_KEY, value)
    peer = open_redis_py(config) if kind == "redis-py" else None
    times = []
    try:
        for _ in range(_WARM_UP + count):
            target[0] ^= 0xFF
            start = time.perf_counter()
            got = peer.get(_KEY) if peer is not None else pure.get(_KEY, target)
            times.append(time.perf_counter() - start)
            if (got if peer is not None else target) != value:
                raise CorruptError(f"{kind} read a wrong byte")
            del got
    finally:
        pure.delete(_KEY)
        pure.close()
    return size_bytes / 1e9 / median(times[_WARM_UP:])


def rate(row: Row) -> str:
    """GB/s of a row, and those of its slowest and its fastest round."""
    if row.gbps is None:
        return "no figure"
    return f"{row.gbps:.2f} GB/s ({row.gbps_min:.2f} to {row.gbps_max:.2f})"


def ratio(name: str, target: Target, row: Row) -> Bar:
    """A row against its floor."""
    detail = rate(row)
    if row.floor_gbps is not None:
        detail += f"; floor {row.floor_gbps:.2f} GB/s ({row.floor})"
    return Bar(
        name=name,
        target=target,
        value=row.floor_ratio,
        interval=row.floor_interval,
        detail=detail,
        reason=row.error or "",
    )


def _cpu(name: str, row: Row) -> Bar:
    detail = ""
    if row.client_cpu_s_per_gb is not None and row.floor_cpu_s_per_gb is not None:
        detail = f"{row.client_cpu_s_per_gb:.3f} s/GB; floor {row.floor_cpu_s_per_gb:.3f} s/GB"
    return Bar(
        name=name,
        target=_CPU,
        value=row.floor_cpu_ratio,
        interval=row.floor_cpu_interval,
        detail=detail,
        reason=row.error or "",
    )


if __name__ == "__main__":
    print(_single_get_gbps(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
