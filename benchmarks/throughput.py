"""Bars of GB/s and CPU per GB, against the floor of bare sockets and against other clients."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from benchmarks.bars import Bar, Lab, Target
from kvferry.config import ClientConfig
from kvferry.lab.bench.adapters import BenchClient, NotMeasured
from kvferry.lab.bench.clients import config_url, open_client
from kvferry.lab.bench.data import Chunks
from kvferry.lab.bench.measure import Row, floors, measure
from kvferry.lab.bench.server import ServerProbe

__all__ = [
    *("OTHERS", "ahead", "chosen_settings", "pure_client"),
    *("ratio", "same_connections", "small_chunks"),
]

OTHERS = ("redis-py", "redis-py-async", "glide", "lmcache", "memtier")
_OF_FLOOR = Target(">=", 0.97, "x floor")
_SMALL = Target(">=", 1.0, "x floor")
_CPU = Target("<=", 1.10, "x floor CPU")
_AHEAD = Target(">=", 1.0, "x the best other client")
_PURE = Target(">=", 8.0, "x redis-py")


def same_connections(lab: Lab) -> Iterator[Bar]:
    """4 MiB, each number of connections, with the floor and every other client."""
    for server in lab.servers():
        size_bytes = lab.size_bytes(4)
        with lab.probed(server, 3 * lab.batch * size_bytes) as (config, probe):
            for connections in lab.connections:
                for op, rows in _rows(lab, config, probe, size_bytes, connections, OTHERS):
                    name = f"{op.upper()} {lab.label(4)}, {connections} conn, {server}"
                    native, *others = rows
                    yield ratio(name, _OF_FLOOR, native)
                    yield ahead(f"ahead: {name}", _AHEAD, native, others)
                    yield _cpu(f"CPU: {name}", native)


def chosen_settings(lab: Lab) -> Iterator[Bar]:
    """4 MiB with the client's own settings, against the best floor at any connections."""
    size_bytes = lab.size_bytes(4)
    for server in lab.servers():
        with lab.probed(server, 3 * lab.batch * size_bytes) as (config, probe):
            for op, rows in _rows(lab, config, probe, size_bytes, None, ()):
                name = f"{op.upper()} {lab.label(4)}, default settings, {server}"
                yield ratio(name, _OF_FLOOR, rows[0])


def small_chunks(lab: Lab) -> Iterator[Bar]:
    """0.5 MiB and 1 MiB, four connections."""
    for server in lab.servers():
        for mib in (0.5, 1):
            size_bytes = lab.size_bytes(mib)
            with lab.probed(server, 3 * lab.batch * size_bytes) as (config, probe):
                for op, rows in _rows(lab, config, probe, size_bytes, 4, ()):
                    name = f"{op.upper()} {lab.label(mib)}, 4 conn, {server}"
                    yield ratio(name, _SMALL, rows[0])


def pure_client(lab: Lab) -> Iterator[Bar]:
    """The pure Python client's GET against redis-py, one connection, a process for each."""
    with lab.server("Valkey 9") as config:
        for mib in (4, 8):
            size_bytes = lab.size_bytes(mib)
            rates: dict[str, list[float]] = {"pure": [], "redis-py": []}
            reason = ""
            for _ in range(lab.rounds):
                for kind, found in rates.items():
                    command = [sys.executable, "-m", "benchmarks.single_get_process", kind]
                    command += [config_url(config), str(size_bytes), str(lab.count(32))]
                    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
                    if run.returncode != 0:
                        reason = run.stderr.strip().splitlines()[-1]
                    else:
                        found.append(float(run.stdout))
            pure, redis_py = (statistics.median(found or [0.0]) for found in rates.values())
            yield Bar(
                name=f"pure client: GET {lab.label(mib)}, 1 conn, Valkey 9",
                target=_PURE,
                value=pure / redis_py if redis_py and not reason else None,
                detail=f"{pure:.2f} GB/s; redis-py {redis_py:.2f} GB/s",
                reason=reason,
            )


def _rows(
    lab: Lab,
    config: ClientConfig,
    probe: ServerProbe,
    size_bytes: int,
    connections: int | None,
    others: Sequence[str],
) -> Iterator[tuple[str, list[Row]]]:
    """SET, then GET: the rows of the native client and of the others that are installed."""
    counts = lab.connections if connections is None else (connections,)
    chunks = Chunks(size_bytes, lab.batch, lab.batch)
    with ExitStack() as stack:
        clients = [_open(stack, "native", config, connections)]
        for kind in others:
            try:
                clients.append(_open(stack, kind, config, connections))
            except NotMeasured:
                continue
        for op in ("set", "get"):
            with floors(config, op, size_bytes, lab.batch, counts) as found:
                yield (
                    op,
                    measure(
                        op,
                        clients,
                        chunks,
                        probe,
                        floor=found,
                        rounds=lab.rounds,
                        best_of_all=connections is None,
                    ),
                )
    probe.delete(chunks.keys)


def _open(
    stack: ExitStack, kind: str, config: ClientConfig, connections: int | None
) -> BenchClient:
    client = open_client(kind, config, connections)
    stack.callback(client.close)
    return client


def _rate(row: Row) -> str:
    if row.gbps is None:
        return "no figure"
    return f"{row.gbps:.2f} GB/s ({row.gbps_min:.2f} to {row.gbps_max:.2f})"


def ratio(name: str, target: Target, row: Row) -> Bar:
    """A row against its floor."""
    detail = _rate(row)
    if row.floor_gbps is not None:
        detail += f"; floor {row.floor_gbps:.2f} GB/s ({row.floor})"
    return Bar(
        name=name, target=target, value=row.floor_ratio, detail=detail, reason=row.error or ""
    )


def _cpu(name: str, row: Row) -> Bar:
    detail = ""
    if row.client_cpu_s_per_gb is not None and row.floor_cpu_s_per_gb is not None:
        detail = f"{row.client_cpu_s_per_gb:.3f} s/GB; floor {row.floor_cpu_s_per_gb:.3f} s/GB"
    return Bar(
        name=name, target=_CPU, value=row.floor_cpu_ratio, detail=detail, reason=row.error or ""
    )


def ahead(name: str, target: Target, native: Row, others: Sequence[Row]) -> Bar:
    """A row against the best of others."""
    measured = [row for row in others if row.gbps is not None]
    best = max(measured, key=lambda row: row.gbps or 0.0, default=None)
    value = None
    if native.gbps is not None and best is not None and best.gbps is not None:
        value = native.gbps / best.gbps
    return Bar(
        name=name,
        target=target,
        value=value,
        detail=f"{_rate(native)}; {best.client} {_rate(best)}" if best else "",
        reason=native.error or ("" if best else "no other client is installed"),
    )
