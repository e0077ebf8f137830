"""Bars of a cluster of three shards on this machine: its speed, and the loss of a primary."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from benchmarks.bars import Bar, Lab, Target
from benchmarks.caller import RepeatedCaller
from benchmarks.lab_cluster import LabCluster
from benchmarks.latency import native_client
from benchmarks.throughput import ratio
from kvferry.lab.bench.clients import open_client
from kvferry.lab.bench.data import Chunks
from kvferry.lab.bench.measure import floors, measure
from kvferry.lab.bench.probe import ClusterProbe

__all__ = ["cluster_failover", "cluster_shards"]

_SHARDS = 3
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
