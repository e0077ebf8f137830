"""`kvferry bench client`: which measurements to make, point by point of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import BenchClient, NotMeasured
from kvferry_lab.bench.clients import NOTED_TYPES, open_client
from kvferry_lab.bench.concurrent import measure_concurrent
from kvferry_lab.bench.data import Chunks
from kvferry_lab.bench.measure import Row, floors, measure
from kvferry_lab.bench.programs import ProgramError, find_program
from kvferry_lab.bench.server_probe import ServerProbe, fill, open_probe
from kvferry_lab.servers.same_host import Ways, ways_to

__all__ = ["ClientBench"]

_MIB = 1 << 20
_SWEEP_MIB = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_SWEEP_WORKERS = (1, 2, 4, 8, 16)
_SWEEP_CHUNKS_MIN = 4
_WITH_OWN_KEYS = {"memtier", "redis-benchmark"}
_SWEEP_CHUNKS_FACTOR_MAX = 8
_OVER_UNIX = "native-unix"


@dataclass(kw_only=True)
class ClientBench:
    """One call of `kvferry bench client`.

    Of a server on this host the native client is measured over both ways, TCP and the server's Unix
    socket if it can be had ("native-unix"); all others over TCP, or as `config` says.

    Attributes:
        kinds: Of CLIENT_TYPES; with `compare`, those that are not installed are left out.
        ops: Of "set", "get", "exists", in the order to run.
        batch: Keys per batch; None is all of them, but one for NOTED_TYPES that are not concurrent.
        connections: None leaves the choice to each client.
        concurrent: Several operations also run at the same time.
        sweep: None, "size" (the total of bytes stays about the same) or "workers".
        skipped: Filled by run(): why a client, or the floor, was left out.
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

    def __post_init__(self) -> None:
        self._ways = Ways(self.config)

    @property
    def bytes_max(self) -> int:
        """What the server must hold at most: our keys, the floor's, and those of programs that
        count themselves; and all of it again in buffers of connections, on its way in or out."""
        points = ((int(size * _MIB), chunks) for size, chunks, _ in self._points())
        copies = 2 * (2 + len(_WITH_OWN_KEYS & set(self.kinds)))
        return max(copies * size * chunks for size, chunks in points)

    def run(self, say: Callable[[str], None]) -> list[Row]:
        """Measure everything; `say` gets a word about what is being done."""
        rows: list[Row] = []
        if self.with_floor:
            try:
                find_program("floor")
            except ProgramError as error:
                self.with_floor = False
                self.skipped["floor"] = str(error)
        if "native" in self.kinds and self.config.topology == "standalone":
            self._ways = ways_to(self.config)
        with open_probe(self.config) as probe:
            server = probe.facts()["server"]
            for size_mib, count, connections in self._points():
                say(f"{count} x {size_mib:g} MiB, {connections or 'default'} connections")
                batch = self.batch or (1 if self._one_at_a_time else count)
                chunks = Chunks(int(size_mib * _MIB), count, min(batch, count))
                try:
                    rows += self._point(chunks, connections, probe)
                finally:
                    probe.delete(chunks.keys)
        for row in rows:
            row.server = server
        return rows

    @property
    def _one_at_a_time(self) -> bool:
        return not self.concurrent and set(self.kinds) <= set(NOTED_TYPES)

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
            clients = list(self._open(stack, connections, chunks.batch))
            if "set" not in self.ops:
                fill(chunks, probe)
            for op in self.ops:
                rows += self._op(op, clients, chunks, probe)
            together = [client.name for client in clients if not client.counts_itself]
        if self.concurrent and len(self.ops) > 1:
            for kind in together:
                connect = partial(self._connect, kind, connections, chunks.batch)
                rows += measure_concurrent(connect, chunks, probe, self.rounds, self.ops)
        return rows

    def _op(
        self, op: str, clients: Sequence[BenchClient], chunks: Chunks, probe: ServerProbe
    ) -> list[Row]:
        has_floor = op != "exists" and self.with_floor
        counts = sorted({c.connections for c in clients if c.name != _OVER_UNIX and has_floor})
        there = sorted({c.connections for c in clients if c.name == _OVER_UNIX and has_floor})
        if op == "exists":
            clients = [client for client in clients if not client.counts_itself]
        batch = min(chunks.batch, len(chunks.keys))
        size_bytes, unix = chunks.size_bytes, self._ways.unix or self.config
        with (
            floors(self._ways.tcp, op, size_bytes, batch, counts) as found,
            floors(unix, op, size_bytes, batch, there, only=_OVER_UNIX) as beside,
        ):
            both = [*found, *beside]
            return measure(op, clients, chunks, probe, floor=both, rounds=self.rounds)

    def _connect(self, kind: str, connections: int | None, batch: int) -> BenchClient:
        if kind in NOTED_TYPES:  # they would not use more than there are keys
            connections = min(connections or NOTED_TYPES[kind], batch)
        return open_client(kind, self._ways.tcp, connections)

    def _open(self, stack: ExitStack, connections: int | None, batch: int) -> Iterator[BenchClient]:
        for kind in self.kinds:
            try:
                client = self._connect(kind, connections, batch)
            except NotMeasured as error:
                if not self.compare:
                    raise
                self.skipped[kind] = str(error)
                continue
            stack.callback(client.close)
            yield client
            if kind == "native" and self._ways.unix is not None:
                client = open_client(kind, self._ways.unix, connections)
                client.name = _OVER_UNIX
                stack.callback(client.close)
                yield client
