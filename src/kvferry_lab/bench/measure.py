"""Interleaved rounds: floor, client, client, floor, client, ... over the same server.

One round of an operation runs every floor once and every client once, those of the same connections
side by side and every other round backwards, so that what else the machine does hits all of them
alike. Figures are medians over the rounds, after one round that is thrown away; a ratio is the
median of the rounds' ratios, with its interval. Only the calls into the client are inside the clock
and the CPU meters; stamping, poisoning and verification of every byte are outside. A client that
serves a wrong byte loses its row and keeps its error.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from kvferry.base.errors import CorruptError, KVFerryError
from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import BenchClient, FerryClient
from kvferry_lab.bench.data import WARM_BYTES, Chunks, fill
from kvferry_lab.bench.intervals import Interval, percentile, ratios
from kvferry_lab.bench.programs import FloorProcess
from kvferry_lab.bench.server_probe import ServerProbe, open_probe, server_of

__all__ = ["Floor", "Row", "against", "floors", "measure", "measure_concurrent"]

_CALLS = ("wake_ups", "receives", "sends")
_SAMPLE_KEYS = 4  # of each written batch, read back through another connection


@dataclass(kw_only=True)
class Row:
    """One client, one operation. GB are 10^9 bytes; percentiles are per batch, to its last byte."""

    client: str
    op: str
    chunk_bytes: int
    connections: int
    batch: int
    rounds: int
    server: str = ""
    gbps: float | None = None
    gbps_min: float | None = None
    gbps_max: float | None = None
    ops_per_s: float | None = None
    hits: int | None = None
    keys: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    client_cpu_s_per_gb: float | None = None
    server_cpu_s_per_gb: float | None = None
    floor_gbps: float | None = None
    floor_cpu_s_per_gb: float | None = None
    floor_ratio: float | None = None
    floor_cpu_ratio: float | None = None
    floor_interval: Interval | None = None  # of floor_ratio
    floor_cpu_interval: Interval | None = None
    floor: str | None = None  # which of the floors was the best
    # Per value: waits of the I/O threads, and calls of the socket. Of the native client alone.
    wake_ups: float | None = None
    receives: float | None = None
    sends: float | None = None
    verified_bytes: int = 0
    # Of each round: GB/s, and CPU of the client in s/GB.
    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    error: str | None = None


@dataclass
class Floor:
    """The floor with one number of connections, in its variants: with and without MSG_WAITALL, or
    with TLS and with and without OpenSSL's read-ahead. `only`: the client that it is compared
    with, where that goes another way than the others."""

    connections: int
    programs: list[FloorProcess]
    only: str | None = None
    gbps: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def round(self) -> None:
        """Run each variant once."""
        for program in self.programs:
            variant = program.variant
            figures = program.round()
            self.gbps.setdefault(variant, []).append(figures["gbps"])
            self.cpu.setdefault(variant, []).append(figures["cpu_s_per_gb"])

    def forget(self) -> None:
        """Drop what was measured so far: it was the warm-up."""
        self.gbps.clear()
        self.cpu.clear()

    def add(self, more: Floor) -> None:
        """Take in what another floor of as many connections measured."""
        for mine, others in ((self.gbps, more.gbps), (self.cpu, more.cpu)):
            for variant, figures in others.items():
                mine.setdefault(variant, []).extend(figures)

    def fastest(self) -> tuple[str, list[float]]:
        """The variant with the highest median of GB/s: what it is, and the figure of each round."""
        variant = max(self.gbps, key=lambda name: statistics.median(self.gbps[name]))
        return f"{variant}, {self.connections} connections", self.gbps[variant]

    def cheapest(self) -> list[float]:
        """CPU in s/GB, round by round, of the variant with the lowest median."""
        return min(self.cpu.values(), key=statistics.median)


@contextmanager
def floors(
    config: ClientConfig,
    op: str,
    size_bytes: int,
    batch: int,
    connections: Sequence[int],
    *,
    shared_prefix: str | None = None,
    only: str | None = None,
) -> Iterator[list[Floor]]:
    """One Floor per number of connections, connected; their keys are removed at the end.

    Args:
        only: See `Floor`.
        shared_prefix: Use keys that begin so and are the caller's; GET finds them there.
    """
    config = server_of(config)
    options = [{"read_ahead": on} if config.tls else {"waitall": on} for on in (False, True)]
    with ExitStack() as stack:
        found = []
        keys: set[str] = set()
        for count in connections:
            programs = [
                stack.enter_context(
                    FloorProcess(
                        config,
                        op=op,
                        size_bytes=size_bytes,
                        connections=count,
                        ops=batch,
                        rewarm=min(batch, -(-WARM_BYTES // size_bytes)),
                        prefix=shared_prefix or "kvferry-floor:",
                        existing=shared_prefix is not None and op == "get",
                        **option,
                    )
                )
                for option in options
            ]
            keys.update(programs[0].keys)
            found.append(Floor(count, programs, only))
        try:
            yield found
        finally:
            if shared_prefix is None:
                with open_probe(config) as probe:
                    probe.delete(sorted(keys))


def measure(
    op: str,
    clients: Sequence[BenchClient],
    chunks: Chunks,
    probe: ServerProbe,
    *,
    floor: Sequence[Floor] = (),
    rounds: int = 5,
    warm_ups: int = 1,
    best_of_all: bool = False,
) -> list[Row]:
    """Measure one operation of every client; one row each, in their order.

    Args:
        op: "set", "get" or "exists".
        floor: Floors to run in the same rounds; a row is compared with the best of those that
            have its number of connections, or with `best_of_all`.
        warm_ups: Rounds before those that count.
    """
    runs = [_Run(op, client, chunks, probe) for client in clients]
    turns: list[Floor | _Run] = sorted([*floor, *runs], key=lambda turn: turn.connections)
    for number in range(-warm_ups, rounds):
        # Where a floor writes the same keys, it begins, and clients have the last word.
        forwards = number < 0 or (rounds - number) % 2
        for turn in turns if forwards else reversed(turns):
            turn.round()
            if number < 0:
                turn.forget()
    return [run.row(floor, rounds, best_of_all) for run in runs]


def measure_concurrent(
    connect: Callable[[], BenchClient],
    chunks: Chunks,
    probe: ServerProbe,
    rounds: int,
    ops: Sequence[str] = ("set", "get", "exists"),
) -> list[Row]:
    """Operations of one kind of client at the same time, each over its own instance.

    What a cache server sees: a prefix is stored while another is loaded and a third is looked up.
    GB/s of each are over its own time, while the others ran. The CPU cannot be told apart, so these
    rows have none, and there is no floor for a mix.

    Args:
        ops: Two of the three, or all.
    """
    written = Chunks(chunks.size_bytes, len(chunks.keys), chunks.batch)
    with ExitStack() as stack:
        stack.callback(probe.delete, written.keys)
        fill(chunks, probe)
        pool = stack.enter_context(ThreadPoolExecutor(len(ops)))
        runs = []
        for op in ops:
            client = stack.enter_context(closing(connect()))
            runs.append(_Run(op, client, written if op == "set" else chunks, None))
        for number in range(-1, rounds):
            list(pool.map(_Run.round, runs))
            for run in runs if number < 0 else ():
                run.forget()
        rows = [run.row((), rounds, False) for run in runs]
    return [
        replace(row, op=f"concurrent-{row.op}", client_cpu_s_per_gb=None, costs=[]) for row in rows
    ]


class _Run:
    """The rounds of one client; without a probe the server and what it stored are not looked at."""

    def __init__(
        self, op: str, client: BenchClient, chunks: Chunks, probe: ServerProbe | None
    ) -> None:
        self._op, self._client, self._chunks, self._probe = op, client, chunks, probe
        self.connections = client.connections
        self._verified = 0
        self._hits = 0
        self._error: str | None = None
        self._walls: list[list[float]] = []  # per round, per batch
        self._cpu: list[float] = []  # per round
        self._server_cpu: list[float] = []
        self._calls: list[dict[str, int]] = []

    def round(self) -> None:
        """All batches once. After an error there are no more."""
        if self._error is not None:
            return
        walls: list[float] = []
        self._cpu.append(0.0)
        self._server_cpu.append(0.0)
        self._calls.append(dict.fromkeys(_CALLS, 0))
        try:
            for batch in self._chunks.batches():
                walls.append(self._batch(batch))
        except (KVFerryError, OSError) as error:
            self._error = f"{type(error).__name__}: {error}"
        except Exception as error:  # of a foreign client
            self._error = f"{self._client.name} failed: {type(error).__name__}: {error}"
        self._walls.append(walls)

    def forget(self) -> None:
        for figures in (self._walls, self._cpu, self._server_cpu, self._calls):
            figures.clear()

    def _batch(self, batch: range) -> float:
        chunks, client = self._chunks, self._client
        keys = [chunks.keys[index] for index in batch]
        if client.counts_itself:
            call = client.set_batch if self._op == "set" else client.get_batch
            buffers = chunks.sources if self._op == "set" else chunks.targets
            _, wall_s = self._timed(lambda: call(keys, buffers[: len(batch)]))
        elif self._op == "set":
            chunks.next_write(batch)
            sources = chunks.sources[: len(batch)]
            if warm := self._rewarm_keys(batch):
                client.set_batch(keys[:warm], sources[:warm])
            _, wall_s = self._timed(lambda: client.set_batch(keys, sources))
            self._verify_sample(batch)
        elif self._op == "get":
            chunks.expect(batch)
            targets = chunks.targets[: len(batch)]
            chunks.poison()
            warm = self._rewarm_keys(batch)
            warm_values = client.get_batch(keys[:warm], chunks.warm_targets[:warm]) if warm else ()
            values, wall_s = self._timed(lambda: client.get_batch(keys, targets))
            self._verified += chunks.verify(batch, values)
            chunks.verify(batch[:warm], warm_values)
        else:
            hits, wall_s = self._timed(lambda: client.exists_batch(keys))
            self._hits = hits
            if hits != len(batch):
                raise CorruptError(
                    f"{len(batch) - hits} of {len(batch)} keys are said not to exist"
                )
        return wall_s

    def _rewarm_keys(self, batch: range) -> int:
        """The keys to run uncounted before a batch: only the first of a turn needs it."""
        if batch.start:
            return 0
        return min(len(batch), len(self._chunks.warm_targets))

    def _timed(self, call: Callable[[], Any]) -> tuple[Any, float]:
        server_before = self._server_cpu_s()
        gc.collect()
        gc.disable()
        calls = self._counted()
        try:
            cpu = self._client.cpu_s()
            start = time.perf_counter()
            value = call()
            wall_s = time.perf_counter() - start
            self._cpu[-1] += self._client.cpu_s() - cpu
        finally:
            gc.enable()
        for name, count in self._counted().items():
            self._calls[-1][name] += count - calls[name]
        server_after = self._server_cpu_s()
        if server_before is not None and server_after is not None:
            self._server_cpu[-1] += server_after - server_before
        return value, wall_s if self._client.wall_s is None else self._client.wall_s

    def _server_cpu_s(self) -> float | None:
        return None if self._probe is None else self._probe.cpu_s()

    def _counted(self) -> dict[str, int]:
        """The client's counters of its calls so far; nothing where it has none."""
        if not isinstance(self._client, FerryClient):
            return {}
        stats = self._client.client.stats()
        return {name: stats[name] for name in _CALLS if name in stats}

    def _verify_sample(self, batch: range) -> None:
        """Read some of the keys just written, spread over the batch, without the client."""
        if self._probe is None:
            return
        step = max(1, len(batch) // _SAMPLE_KEYS)
        for index in range(batch.start, batch.stop, step):
            value = self._probe.get(self._chunks.keys[index])
            self._verified += self._chunks.verify_one(batch, index, value)

    def row(self, floor: Sequence[Floor], rounds: int, best_of_all: bool) -> Row:
        chunks, client = self._chunks, self._client
        row = Row(
            client=client.name,
            op=self._op,
            chunk_bytes=chunks.size_bytes,
            connections=client.connections,
            batch=chunks.batch,
            rounds=rounds,
            keys=len(chunks.keys),
            error=self._error,
        )
        if self._error is not None:
            return row
        row.verified_bytes = self._verified
        per_batch = [wall for walls in self._walls for wall in walls]
        row.p50_ms = statistics.median(per_batch) * 1e3
        row.p99_ms = percentile(per_batch, 99) * 1e3
        wall_s = [sum(walls) for walls in self._walls]
        row.ops_per_s = len(chunks.keys) / statistics.median(wall_s)
        if any(any(calls.values()) for calls in self._calls):
            row.wake_ups, row.receives, row.sends = (
                statistics.median(calls[name] for calls in self._calls) / len(chunks.keys)
                for name in _CALLS
            )
        if self._op == "exists":
            row.hits = sum(len(batch) for batch in chunks.batches())
            return row
        gigabytes = len(chunks.keys) * chunks.size_bytes / 1e9
        row.rates = [gigabytes / wall for wall in wall_s]
        row.costs = [cpu_s / gigabytes for cpu_s in self._cpu]
        row.gbps = statistics.median(row.rates)
        row.gbps_min, row.gbps_max = min(row.rates), max(row.rates)
        row.client_cpu_s_per_gb = statistics.median(row.costs)
        row.server_cpu_s_per_gb = statistics.median(self._server_cpu) / gigabytes or None
        own = [one for one in floor if one.only == client.name]
        floor = own or [one for one in floor if one.only is None]
        if not best_of_all:
            floor = [one for one in floor if one.connections == row.connections]
        return against(row, floor)


def against(row: Row, floor: Sequence[Floor]) -> Row:
    """The same row beside the fastest of these floors, and for CPU beside the cheapest."""
    if not floor or row.gbps is None:
        return row
    name, rates = max((one.fastest() for one in floor), key=lambda one: statistics.median(one[1]))
    costs = min((one.cheapest() for one in floor), key=statistics.median)
    speed = Interval.of_median(ratios(row.rates, rates))
    cost = Interval.of_median(ratios(row.costs, costs))
    return replace(
        row,
        floor=name,
        floor_gbps=statistics.median(rates),
        floor_cpu_s_per_gb=statistics.median(costs),
        floor_ratio=speed.middle,
        floor_cpu_ratio=cost.middle,
        floor_interval=speed,
        floor_cpu_interval=cost,
    )
