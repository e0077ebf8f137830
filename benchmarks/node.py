"""Bars of the node against Valkey and Redis: 4 MiB values of our client, and small commands."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median

from benchmarks.bars import Bar, Lab, Target
from kvferry.base.errors import CorruptError
from kvferry.config import ClientConfig
from kvferry_lab.bench.clients import open_client
from kvferry_lab.bench.data import Chunks, fill
from kvferry_lab.bench.intervals import in_turn
from kvferry_lab.bench.measure import Row, measure
from kvferry_lab.bench.server_probe import ServerProbe
from kvferry_lab.bench.standard_loads import RedisLoadPlan, redis_load
from kvferry_lab.servers.lab_server import NodeProcess

__all__ = ["node_small", "node_values"]

_NODE = "node"
_VALKEY = "Valkey 9"
_CONNECTIONS = (1, 4, 8)
_RATE = Target(">=", 1.0, "x the better of both")
_SET_RATE = Target(">=", 1.5, "x Valkey 9")  # at 4 and 8 connections
_SET_CPU = Target("<=", 0.8, "x the CPU of Valkey 9")
_GET_CPU = Target("<=", 1.0, "x the CPU of Valkey 9")
_SLOWEST = Target("<=", 1.0, "x the better of both")
_SMALL = Target(">=", 0.8, "x the better of both")


def node_values(lab: Lab) -> Iterator[Bar]:
    """SET and GET of 4 MiB at a node, beside Valkey and Redis in the same rounds."""
    size_bytes = lab.size_bytes(4)
    with _servers(lab, 4 * lab.batch * size_bytes) as servers:
        for connections in _CONNECTIONS[: 1 if lab.quick else None]:
            # All at once; and as many at a time as there are connections: how long those take.
            many, few = (
                partial(Chunks, size_bytes, lab.batch, n) for n in (lab.batch, connections)
            )
            for op in ("set", "get"):
                label = f"{op.upper()} {lab.label(4)}, {connections} conn, a node"
                rows = _rounds(lab, servers, op, connections, many)
                rates = {name: _each(of, "gbps") for name, of in rows.items()}
                if op == "set" and connections > 1:
                    yield _bar(label, _SET_RATE, rates, _VALKEY, "GB/s")
                else:
                    yield _bar(label, _RATE, rates, _best(rates, max), "GB/s")
                spent = {name: _each(of, "server_cpu_s_per_gb") for name, of in rows.items()}
                target = _SET_CPU if op == "set" else _GET_CPU
                yield _bar(f"CPU of the server: {label}", target, spent, _VALKEY, "s/GB")
                times = {
                    name: _each(of, "p99_ms")
                    for name, of in _rounds(lab, servers, op, connections, few).items()
                }
                yield _bar(f"slowest: {label}", _SLOWEST, times, _best(times, min), "ms")


def node_small(lab: Lab) -> Iterator[Bar]:
    """Values of 64 bytes at a node, beside Valkey and Redis, by redis-benchmark."""
    there, many = shutil.which("redis-benchmark"), lab.count(20_000)
    with _servers(lab, 0) as servers:
        plans = [
            RedisLoadPlan(host=each.host, port=each.port, clients=8, size_bytes=64, requests=many)
            for each in servers.values()
        ]
        rounds = lab.pairs if there else 0
        found = in_turn(rounds, *(partial(redis_load, plan) for plan in plans), warm_ups=0)
    for op in ("set", "get"):
        name = f"{op.upper()} of 64 bytes, 8 conn, a node by redis-benchmark"
        if not there:
            yield Bar(name=name, target=_SMALL, value=None, skipped=True, reason="not on PATH")
            continue
        rates = {
            server: [row.ops_per_s / 1000 for rows, _ in runs for row in rows if row.op == op]
            for server, runs in zip(servers, found, strict=True)
        }
        yield _bar(name, _SMALL, rates, _best(rates, max), "k/s")


@contextmanager
def _servers(lab: Lab, needs_bytes: int) -> Iterator[dict[str, ClientConfig]]:
    """A node, and each server of the lab, for as long as the block."""
    with ExitStack() as stack:
        found = {_NODE: stack.enter_context(NodeProcess(256e6 + 3 * needs_bytes)).config}
        for name in lab.servers():
            found[name] = stack.enter_context(lab.server(name, needs_bytes))
        yield found


def _rounds(
    lab: Lab,
    servers: Mapping[str, ClientConfig],
    op: str,
    connections: int,
    make: Callable[[], Chunks],
) -> dict[str, list[Row]]:
    """For each server the row of each round; a round is all servers, one after the other."""
    with ExitStack() as stack:
        measured = {}
        for name, config in servers.items():
            client = open_client("native", config, connections)
            stack.callback(client.close)
            chunks, probe = make(), stack.enter_context(ServerProbe(config))
            fill(chunks, probe)
            measured[name] = client, chunks, probe

        def measured_at(name: str) -> Row:
            client, chunks, probe = measured[name]
            [row] = measure(op, [client], chunks, probe, rounds=1, warm_ups=0)
            if row.error:
                raise CorruptError(f"{name}: {row.error}")
            return row

        rows = in_turn(lab.pairs, *(partial(measured_at, name) for name in servers))
        return dict(zip(servers, rows, strict=True))


def _each(rows: Sequence[Row], field: str) -> list[float]:
    """A figure of every round."""
    return [float(getattr(row, field)) for row in rows]


def _best(figures: Mapping[str, Sequence[float]], which: Callable[..., str]) -> str:
    """The server beside the node with the best median."""
    return which((name for name in figures if name != _NODE), key=lambda n: median(figures[n]))


def _bar(
    name: str, target: Target, figures: Mapping[str, Sequence[float]], other: str, unit: str
) -> Bar:
    """The node's figures over those of another server, round by round."""
    said = (f"{server} {median(values):.3g} {unit}" for server, values in figures.items())
    return Bar.of_pairs(name, target, figures[_NODE], figures[other], "; ".join(said))
