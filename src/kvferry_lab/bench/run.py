"""`kvferry bench client`: which measurements to make, point by point of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import BenchClient, NotMeasured
from kvferry_lab.bench.client_plan import NOTED_TYPES, ClientPlan
from kvferry_lab.bench.clients import open_client
from kvferry_lab.bench.data import Chunks, fill
from kvferry_lab.bench.measure import Row, floors, measure, measure_concurrent
from kvferry_lab.bench.programs import ProgramError, find_program
from kvferry_lab.bench.server_probe import ServerProbe, open_probe
from kvferry_lab.servers.same_host import Ways, ways_to

__all__ = ["ClientBench", "bytes_max"]

_MIB = 1 << 20
_SWEEP_MIB = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_SWEEP_WORKERS = (1, 2, 4, 8, 16)
_SWEEP_CHUNKS_MIN = 4
_SWEEP_CHUNKS_FACTOR_MAX = 8
_OVER_UNIX = "native-unix"


def bytes_max(plan: ClientPlan) -> int:
    """What the server must hold at most: our keys and the floor's; and all of it again in buffers
    of connections, on its way in or out."""
    return 4 * max(int(size_mib * _MIB) * chunks for size_mib, chunks, _ in _points(plan))


class ClientBench:
    """One run of `kvferry bench client`.

    Of a server on this host the native client is measured over both ways, TCP and the server's Unix
    socket if it can be had ("native-unix"); all others over TCP, or as `config` says.

    Attributes:
        skipped: Filled by `run`: why a client, or the floor, was left out.
    """

    def __init__(self, config: ClientConfig, plan: ClientPlan) -> None:
        self._config, self._plan = config, plan
        self._ways = Ways(config)
        self._with_floor = plan.floor
        self.skipped: dict[str, str] = {}

    def run(self, say: Callable[[str], None]) -> list[Row]:
        """Measure everything; `say` gets a word about what is being done."""
        rows: list[Row] = []
        plan = self._plan
        if plan.floor:
            try:
                find_program("floor")
            except ProgramError as error:
                self._with_floor = False
                self.skipped["floor"] = str(error)
        if "native" in plan.kinds and self._config.topology == "standalone":
            self._ways = ways_to(self._config)
        one_at_a_time = not plan.concurrent and set(plan.kinds) <= set(NOTED_TYPES)
        with open_probe(self._config) as probe:
            server = probe.facts()["server"]
            for size_mib, count, connections in _points(plan):
                say(f"{count} x {size_mib:g} MiB, {connections or 'default'} connections")
                batch = plan.batch or (1 if one_at_a_time else count)
                chunks = Chunks(int(size_mib * _MIB), count, min(batch, count))
                try:
                    rows += self._point(chunks, connections, probe)
                finally:
                    probe.delete(chunks.keys)
        for row in rows:
            row.server = server
        return rows

    def _point(self, chunks: Chunks, connections: int | None, probe: ServerProbe) -> list[Row]:
        rows = []
        with ExitStack() as stack:
            clients = list(self._open(stack, connections, chunks.batch))
            if "set" not in self._plan.ops:
                fill(chunks, probe)
            for op in self._plan.ops:
                rows += self._op(op, clients, chunks, probe)
        if self._plan.concurrent and len(self._plan.ops) > 1:
            for client in clients:
                connect = partial(self._connect, client.name, connections, chunks.batch)
                ops = self._plan.ops
                rows += measure_concurrent(connect, chunks, probe, self._plan.repeat, ops)
        return rows

    def _op(
        self, op: str, clients: Sequence[BenchClient], chunks: Chunks, probe: ServerProbe
    ) -> list[Row]:
        has_floor = op != "exists" and self._with_floor
        counts = sorted({c.connections for c in clients if c.name != _OVER_UNIX and has_floor})
        there = sorted({c.connections for c in clients if c.name == _OVER_UNIX and has_floor})
        batch = min(chunks.batch, len(chunks.keys))
        size_bytes, unix = chunks.size_bytes, self._ways.unix or self._config
        with (
            floors(self._ways.tcp, op, size_bytes, batch, counts) as found,
            floors(unix, op, size_bytes, batch, there, only=_OVER_UNIX) as beside,
        ):
            both = [*found, *beside]
            return measure(op, clients, chunks, probe, floor=both, rounds=self._plan.repeat)

    def _connect(self, kind: str, connections: int | None, batch: int) -> BenchClient:
        if kind in NOTED_TYPES:  # they would not use more than there are keys
            connections = min(connections or NOTED_TYPES[kind], batch)
        return open_client(kind, self._ways.tcp, connections)

    def _open(self, stack: ExitStack, connections: int | None, batch: int) -> Iterator[BenchClient]:
        for kind in self._plan.kinds:
            try:
                client = self._connect(kind, connections, batch)
            except NotMeasured as error:
                if not self._plan.compare:
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


def _points(plan: ClientPlan) -> Iterator[tuple[float, int, int | None]]:
    """Size in MiB, number of chunks, connections. Over sizes the total of bytes stays the same."""
    if plan.sweep == "size":
        most = plan.num_chunks * _SWEEP_CHUNKS_FACTOR_MAX
        for size_mib in _SWEEP_MIB:
            count = round(plan.num_chunks * plan.size_mb / size_mib)
            yield size_mib, min(max(count, _SWEEP_CHUNKS_MIN), most), plan.num_workers
    elif plan.sweep == "workers":
        for connections in _SWEEP_WORKERS:
            yield plan.size_mb, plan.num_chunks, connections
    else:
        yield plan.size_mb, plan.num_chunks, plan.num_workers
