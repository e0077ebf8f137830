"""Bars of a server on the same host: what the way over its Unix socket brings, unasked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from benchmarks.bars import Bar, Lab, Target
from benchmarks.latency import native_client
from benchmarks.throughput import rate, ratio
from kvferry.base.errors import KVFerryError
from kvferry.config import CONNECTIONS_DEFAULT
from kvferry_lab.bench.adapters import BenchClient, FerryClient, NotMeasured
from kvferry_lab.bench.clients import open_client
from kvferry_lab.bench.data import Chunks
from kvferry_lab.bench.measure import Row, floors, measure
from kvferry_lab.servers.same_host import await_socket, ways_to

__all__ = ["same_host"]

_OTHERS = ("redis-py", "redis-py-async", "glide", "lmcache")
_AHEAD = Target(">=", 1.4, "x the best client over TCP")
_OF_FLOOR = Target(">=", 1.0, "x floor over the Unix socket")


def same_host(lab: Lab) -> Iterator[Bar]:
    """1 and 4 MiB with default settings and a loopback address."""
    for server in lab.servers():
        for mib in (1, 4):
            yield from _size(lab, server, mib)


def _size(lab: Lab, server: str, mib: int) -> Iterator[Bar]:
    size_bytes = lab.size_bytes(mib)
    chunks = Chunks(size_bytes, lab.batch, lab.batch)
    with lab.probed(server, 3 * lab.batch * size_bytes) as (config, probe), ExitStack() as stack:
        default = config.replace(same_host="auto")
        ways = ways_to(default)
        if ways.unix is None:
            raise KVFerryError(f"the client stays at TCP: {ways.why}")
        client = native_client(default)
        clients: list[BenchClient] = [FerryClient("native", client, CONNECTIONS_DEFAULT)]
        stack.callback(client.close)
        await_socket(client)
        for kind in ("native", *_OTHERS):
            try:
                clients.append(open_client(kind, config))
            except NotMeasured:
                continue
            stack.callback(clients[-1].close)
        for op in ("set", "get"):
            with floors(ways.unix, op, size_bytes, lab.batch, lab.connections) as found:
                native, *others = measure(
                    op, clients, chunks, probe, floor=found, rounds=lab.pairs, best_of_all=True
                )
            name = f"{op.upper()} {lab.label(mib)}, same host, {server}"
            yield _ahead(f"ahead: {name}", native, others)
            yield ratio(name, _OF_FLOOR, native)
        probe.delete(chunks.keys)


def _ahead(name: str, native: Row, others: Sequence[Row]) -> Bar:
    """A row against the best of others."""
    measured = [row for row in others if row.gbps is not None]
    best = max(measured, key=lambda row: row.gbps or 0.0, default=None)
    if native.gbps is None or best is None:
        reason = native.error or "no other client is installed"
        return Bar(name=name, target=_AHEAD, value=None, reason=reason)
    detail = f"{rate(native)}; {best.client} {rate(best)}"
    return Bar.of_pairs(name, _AHEAD, native.rates, best.rates, detail)
