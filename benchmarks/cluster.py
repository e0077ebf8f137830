"""Bars of clusters on this machine: speed, the loss of a primary, and nodes with nothing to do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.bars import Bar, Lab, Target
from benchmarks.caller import RepeatedCaller
from benchmarks.lab_cluster import LabCluster
from benchmarks.latency import native_client
from benchmarks.throughput import ratio
from kvferry.base.errors import CorruptError
from kvferry_lab.bench.clients import open_client
from kvferry_lab.bench.data import Chunks
from kvferry_lab.bench.intervals import in_turn
from kvferry_lab.bench.measure import floors, measure
from kvferry_lab.bench.server_probe import ClusterProbe

__all__ = ["cluster_failover", "cluster_shards", "idle_nodes"]

_SHARDS = 3
_NODES, _FEW_NODES = 64, 2
_VALUE = b"value"
_VISITS = Target("<=", 1.05, "x")
_IDLE_CPU = Target("<=", 1.10, "x")
_GET = Target(">=", 0.97, "x floor")
_SET = Target(">=", 0.0, "x floor, for information")
_SOON = Target("<=", 2.0, "s")
_NONE_LOST = Target("<=", 0.0, "keys of other shards")
_FLOOR_DIGITS = 10  # kvferry-floor makes its keys: a prefix and so many digits
_CALL_LIMIT_S = 0.5


def cluster_shards(lab: Lab) -> Iterator[Bar]:
    """4 MiB over three shards, against the floor with the same keys on the same shards."""
    count = 2 * lab.batch
    chunks = Chunks(lab.size_bytes(4), count, count)
    prefix = chunks.keys[0].rpartition(":")[0] + ":"
    chunks.keys = [f"{prefix}{index:0{_FLOOR_DIGITS}d}" for index in range(count)]
    for server in lab.servers():
        with (
            LabCluster(lab.binary(server), shards=_SHARDS) as cluster,
            ClusterProbe(cluster.config) as probe,
        ):
            for each in lab.connections:
                with closing(open_client("native", cluster.config, each)) as client:
                    for op, target in (("set", _SET), ("get", _GET)):
                        total = (client.connections,)
                        with floors(
                            cluster.config,
                            op,
                            chunks.size_bytes,
                            count,
                            total,
                            shared_prefix=prefix,
                        ) as found:
                            (row,) = measure(
                                op, [client], chunks, probe, floor=found, rounds=lab.rounds
                            )
                        name = f"cluster: {op.upper()} {count} x {lab.label(4)}"
                        yield ratio(
                            f"{name}, {_SHARDS} shards, {each} conn each, {server}", target, row
                        )


def cluster_failover(lab: Lab) -> Iterator[Bar]:
    """Primaries of a cluster are killed, one after the other, and their replicas promoted."""
    chunks = Chunks(lab.size_bytes(1), 8 * _SHARDS, 8 * _SHARDS)
    for server in lab.servers():
        with LabCluster(lab.binary(server), shards=_SHARDS, replicas=1) as cluster:
            config = cluster.config.replace(timeout_s=_CALL_LIMIT_S)
            with (
                closing(native_client(config)) as client,
                RepeatedCaller(client, chunks, _CALL_LIMIT_S) as caller,
            ):
                losses = range(1 if lab.quick else _SHARDS)
                found = [_lose_primary(cluster, shard, chunks, caller) for shard in losses]
        yield Bar(
            name=f"failover: first OK of the lost shard after its promotion, {server}",
            target=_SOON,
            value=max(recovered_s for recovered_s, _ in found),
            detail=f"the slowest of {len(found)}",
        )
        late_ms = max(call.late_s for call in caller.calls) * 1e3
        yield Bar(
            name=f"failover: other shards without an answer, {server}",
            target=_NONE_LOST,
            value=sum(lost for _, lost in found),
            detail=f"{len(caller.calls)} calls, the latest {late_ms:+.0f} ms from its deadline",
        )


def idle_nodes(lab: Lab) -> Iterator[Bar]:
    """Value after value at one node, with one I/O thread, in a cluster of many and of few."""
    sizes = (4, 2) if lab.quick else (_NODES, _FEW_NODES)
    count = lab.count(500)
    with ExitStack() as stack:
        clients = []
        for nodes in sizes:
            cluster = stack.enter_context(LabCluster(lab.binary("Valkey 9"), shards=nodes))
            config = cluster.config.replace(connections=1, workers=1)
            clients.append(stack.enter_context(closing(native_client(config))))
            clients[-1].set("one", _VALUE)
        many, few = in_turn(lab.pairs, *(partial(_one_by_one, client, count) for client in clients))
    name = f"one node of {sizes[0]} over one of {sizes[1]}"
    for what, target in (("visits", _VISITS), ("cpu_us", _IDLE_CPU)):
        mine, other = ([getattr(turn, what) for turn in each] for each in (many, few))
        yield Bar.of_pairs(
            f"{name}: {'connections looked at' if what == 'visits' else 'CPU'} for a GET",
            target,
            *(mine, other),
            f"{statistics.median(mine):.2f}; {statistics.median(other):.2f}"
            + (" us" if what == "cpu_us" else ""),
        )


@dataclass(frozen=True)
class _Turn:
    """What a value cost."""

    visits: float  # of I/O threads to connections
    cpu_us: float  # of the whole process


def _one_by_one(client: Any, count: int) -> _Turn:
    target = bytearray(len(_VALUE))
    visits, cpu_s = client.stats()["visits"], time.process_time()
    for _ in range(count):
        client.get("one", target)
    cpu_s = time.process_time() - cpu_s
    if target != _VALUE:
        raise CorruptError("a value came back wrong")
    return _Turn((client.stats()["visits"] - visits) / count, cpu_s / count * 1e6)


def _lose_primary(
    cluster: LabCluster, shard: int, chunks: Chunks, caller: RepeatedCaller
) -> tuple[float, int]:
    """Seconds from the promotion to the first OK; how many reads of other shards went wrong."""
    primary = cluster.shards[shard][0]
    with ClusterProbe(cluster.config) as probe:
        owners = [probe.shard_of(key)[1] for key in chunks.keys]
    theirs = [index for index, port in enumerate(owners) if port == primary.port]
    others = [index for index, port in enumerate(owners) if port != primary.port]
    caller.wait_for("all keys", lambda call: call.read_all, time.perf_counter())
    cluster.wait_until_copied(shard)
    first = len(caller.calls)
    primary.kill()
    promoted_s = cluster.wait_until_promoted(shard)
    back = caller.wait_for(
        "the lost shard",
        lambda call: call.unserved(theirs) < len(theirs) and call.verb == "get",
        promoted_s,
    )
    reads = [call for call in caller.calls[first:] if call.verb == "get"]
    return back.ended_s - promoted_s, sum(call.unserved(others) for call in reads)
