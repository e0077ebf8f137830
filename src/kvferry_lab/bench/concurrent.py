"""Operations of one kind of client at the same time, each over its own instance.

What a cache server sees: a prefix is stored while another is loaded and a third is looked up. The
CPU cannot be told apart, so these rows have none, and there is no floor for a mix.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from kvferry.base.errors import CorruptError, KVFerryError
from kvferry_lab.bench.adapters import BenchClient
from kvferry_lab.bench.data import Chunks
from kvferry_lab.bench.measure import Row
from kvferry_lab.bench.server_probe import ServerProbe

__all__ = ["measure_concurrent"]

_EXISTS_KEYS = 64
_START_TIMEOUT_S = 60.0


def measure_concurrent(
    connect: Callable[[], BenchClient],
    chunks: Chunks,
    probe: ServerProbe,
    rounds: int,
    ops: Sequence[str] = ("set", "get", "exists"),
) -> list[Row]:
    """One round writes every key once and reads another set of as many keys once, together.

    Args:
        ops: Two of the three, or all.

    Returns rows for those operations, e.g. concurrent-set; GB/s of each is over its own time,
    while the others ran.
    """
    written = Chunks(chunks.size_bytes, len(chunks.keys), chunks.batch)
    with ExitStack() as stack:
        clients = {op: stack.enter_context(closing(connect())) for op in ops}
        reader = clients[ops[-1]]
        stack.callback(probe.delete, written.keys)
        _write(reader, chunks)
        lines: dict[str, list[float]] = {op: [] for op in ops}
        verified = 0
        error = None
        try:
            for number in range(rounds + 1):
                if number == 1:
                    for line in lines.values():
                        line.clear()
                verified += _round(clients, written, chunks, lines)
        except (KVFerryError, OSError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        return [
            _row(op, line, chunks, clients[op], rounds, verified if op == "get" else 0, error)
            for op, line in lines.items()
        ]


def _round(
    clients: Mapping[str, BenchClient],
    written: Chunks,
    read: Chunks,
    lines: dict[str, list[float]],
) -> int:
    """All of them at once; the probes go on until the writes and reads are done."""
    start = threading.Barrier(len(clients))
    done = threading.Event()
    probed = read.keys[: min(_EXISTS_KEYS, len(read.keys))]

    def write() -> int:
        for batch in written.batches():
            written.next_write(batch)
            if batch.start == 0:
                start.wait(_START_TIMEOUT_S)
            begin = time.perf_counter()
            clients["set"].set_batch(_keys(written, batch), written.sources[: len(batch)])
            lines["set"].append(time.perf_counter() - begin)
        return 0

    def load() -> int:
        verified = 0
        for batch in read.batches():
            read.expect(batch)
            read.poison()
            if batch.start == 0:
                start.wait(_START_TIMEOUT_S)
            begin = time.perf_counter()
            values = clients["get"].get_batch(_keys(read, batch), read.targets[: len(batch)])
            lines["get"].append(time.perf_counter() - begin)
            verified += read.verify(batch, values)
        return verified

    def look() -> None:
        start.wait(_START_TIMEOUT_S)
        while True:  # at least once, however soon the others are done
            begin = time.perf_counter()
            if clients["exists"].exists_batch(probed) != len(probed):
                raise CorruptError("a key that exists is said not to")
            lines["exists"].append(time.perf_counter() - begin)
            if done.is_set():
                return

    with ThreadPoolExecutor(len(clients)) as pool:
        looking = pool.submit(look) if "exists" in clients else None
        moves = {"set": write, "get": load}
        moving = [pool.submit(move) for op, move in moves.items() if op in clients]
        try:
            verified = sum(move.result() for move in moving)
        except BaseException:
            start.abort()  # who still waits there would wait for one who failed
            raise
        finally:
            done.set()
        if looking is not None:
            looking.result()
    return verified


def _keys(chunks: Chunks, batch: range) -> list[str]:
    return [chunks.keys[index] for index in batch]


def _write(client: BenchClient, chunks: Chunks) -> None:
    for batch in chunks.batches():
        chunks.next_write(batch)
        client.set_batch(_keys(chunks, batch), chunks.sources[: len(batch)])


def _row(
    op: str,
    line: list[float],
    chunks: Chunks,
    client: BenchClient,
    rounds: int,
    verified: int,
    error: str | None,
) -> Row:
    row = Row(
        client=client.name,
        op=f"concurrent-{op}",
        chunk_bytes=chunks.size_bytes,
        connections=client.connections,
        batch=chunks.batch,
        rounds=rounds,
        keys=len(chunks.keys),
        error=error,
    )
    if error is not None or not line:
        row.error = error or "nothing was measured"
        return row
    ordered = sorted(line)
    row.p50_ms = statistics.median(ordered) * 1e3
    row.p99_ms = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1e3
    row.verified_bytes = verified
    if op == "exists":
        row.keys = row.hits = min(_EXISTS_KEYS, len(chunks.keys))
        row.ops_per_s = row.keys * len(line) / sum(line)
    else:
        row.ops_per_s = len(chunks.keys) * rounds / sum(line)
        row.gbps = len(chunks.keys) * rounds * chunks.size_bytes / sum(line) / 1e9
    return row
