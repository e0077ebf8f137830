"""`kvferry bench client`: which measurements to make, point by point of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from kvferry.config import ClientConfig
from kvferry.lab.bench_adapters import BenchClient, NotMeasured
from kvferry.lab.bench_clients import open_client
from kvferry.lab.bench_concurrent import measure_concurrent
from kvferry.lab.bench_data import Chunks
from kvferry.lab.bench_measure import Row, floors, measure
from kvferry.lab.bench_probe import open_probe
from kvferry.lab.bench_server import ServerProbe, fill

__all__ = ["ClientBench"]

_MIB = 1 << 20
_SWEEP_MIB = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_SWEEP_WORKERS = (1, 2, 4, 8)
_SWEEP_CHUNKS_MIN = 4
_SWEEP_CHUNKS_FACTOR_MAX = 8


@dataclass(kw_only=True)
class ClientBench:
    """One call of `kvferry bench client`.

    Attributes:
        kinds: Of CLIENT_TYPES; with `compare`, those that are not installed are left out.
        ops: Of "set", "get", "exists", in the order to run; `concurrent` runs them at once too.
        connections: None leaves the choice to each client.
        sweep: None, "size" (the total of bytes stays about the same) or "workers".
        skipped: Filled by run(): why a client was left out.
    """

    config: ClientConfig
    kinds: Sequence[str]
    ops: Sequence[str]
    size_mib: float
    chunks: int
    batch: int | None = None
    connections: int | None = None
    concurrent: bool = False
    rounds: int = 5
    sweep: str | None = None
    compare: bool = False
    with_floor: bool = True
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def bytes_max(self) -> int:
        """What the server must hold at most: our keys, the floor's, and room for overwrites."""
        points = ((int(size * _MIB), chunks) for size, chunks, _ in self._points())
        return max(3 * size * chunks for size, chunks in points)

    def run(self, say: Callable[[str], None]) -> list[Row]:
        """Measure everything; `say` gets a word about what is being done."""
        rows: list[Row] = []
        with open_probe(self.config) as probe:
            server = probe.facts()["server"]
            for size_mib, count, connections in self._points():
                say(f"{count} x {size_mib:g} MiB, {connections or 'default'} connections")
                chunks = Chunks(int(size_mib * _MIB), count, min(self.batch or count, count))
                try:
                    rows += self._point(chunks, connections, probe)
                finally:
                    probe.delete(chunks.keys)
        for row in rows:
            row.server = server
        return rows

    def _points(self) -> Iterator[tuple[float, int, int | None]]:
        """Size in MiB, number of chunks, connections."""
        if self.sweep == "size":
            most = self.chunks * _SWEEP_CHUNKS_FACTOR_MAX
            for size_mib in _SWEEP_MIB:
                count = round(self.chunks * self.size_mib / size_mib)
                yield size_mib, min(max(count, _SWEEP_CHUNKS_MIN), most), self.connections
        elif self.sweep == "workers":
            for connections in _SWEEP_WORKERS:
                yield self.size_mib, self.chunks, connections
        else:
            yield self.size_mib, self.chunks, self.connections

    def _point(self, chunks: Chunks, connections: int | None, probe: ServerProbe) -> list[Row]:
        rows = []
        with ExitStack() as stack:
            clients = list(self._open(stack, connections))
            if "set" not in self.ops:
                fill(chunks, probe)
            for op in self.ops:
                rows += self._op(op, clients, chunks, probe)
        if self.concurrent:
            for kind in self.kinds:
                if kind not in self.skipped and kind != "memtier":
                    connect = partial(open_client, kind, self.config, connections)
                    rows += measure_concurrent(connect, chunks, probe, self.rounds)
        return rows

    def _op(
        self, op: str, clients: Sequence[BenchClient], chunks: Chunks, probe: ServerProbe
    ) -> list[Row]:
        counts = sorted({client.connections for client in clients})
        if op == "exists" or not self.with_floor:
            counts = []
        if op == "exists":
            clients = [client for client in clients if client.name != "memtier"]
        batch = min(chunks.batch, len(chunks.keys))
        with floors(self.config, op, chunks.size_bytes, batch, counts) as found:
            return measure(op, clients, chunks, probe, floor=found, rounds=self.rounds)

    def _open(self, stack: ExitStack, connections: int | None) -> Iterator[BenchClient]:
        for kind in self.kinds:
            try:
                client = open_client(kind, self.config, connections)
            except NotMeasured as error:
                if not self.compare:
                    raise
                self.skipped[kind] = str(error)
                continue
            stack.callback(client.close)
            yield client
