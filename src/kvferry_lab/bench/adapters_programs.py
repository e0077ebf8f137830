"""Clients under test that are programs of others: memtier_benchmark and redis-benchmark.

They make, count and time commands of their own, on keys of their own. What they read cannot be
seen from here, so their rows have 0 verified bytes: they say what the program counted, and only
where it missed nothing.
"""

from __future__ import annotations

import csv
import math
import resource
import shutil
from collections.abc import Sequence

from kvferry.base.errors import CorruptError, UnavailableError, UsageError
from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import NotInstalled, NotMeasured
from kvferry_lab.bench.data import Value
from kvferry_lab.bench.server_probe import ServerProbe
from kvferry_lab.bench.standard_loads import call_program, memtier_stats, program_address

__all__ = ["MemtierClient", "RedisBenchmarkClient"]

_TIMES_MAX = 1 << 20


class _ProgramClient:
    """What both have in common.

    `wall_s` is the program's own account of the last batch, which it ran `times` over.
    """

    name: str
    program: str
    counts_itself = True

    def __init__(self, config: ClientConfig, connections: int) -> None:
        found = shutil.which(self.program)
        if found is None:
            raise NotInstalled(f"{self.program} is not on PATH; see its project's page")
        if config.password is not None:
            raise NotMeasured(f"{self.program} takes a password on its command line; it gets none")
        self.connections = connections
        self.wall_s: float | None = None
        self.times: float = 1
        self._path = found
        self._config = config
        self._keys: set[str] = set()  # that were written

    def exists_batch(self, keys: Sequence[str]) -> int:
        raise UsageError(f"{self.name} is not measured with EXISTS")

    def cpu_s(self) -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def close(self) -> None:
        """Remove its keys; nothing else is left between batches."""
        with ServerProbe(self._config) as probe:
            probe.delete(sorted(self._keys))


class MemtierClient(_ProgramClient):
    """memtier_benchmark; `connections` are threads with one connection each."""

    name = "memtier"
    program = "memtier_benchmark"

    def set_batch(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        self._run("1:0", keys, len(values[0]), "Sets")

    def get_batch(self, keys: Sequence[str], targets: Sequence[Value]) -> Sequence[Value | None]:
        size_bytes = len(targets[0])
        if f"{_prefix(keys)}memtier-1" not in self._keys:
            self._run("1:0", keys, size_bytes, "Sets")
        self._run("0:1", keys, size_bytes, "Gets")
        return []

    def _run(self, ratio: str, keys: Sequence[str], size_bytes: int, kind: str) -> None:
        threads, each = _shares(len(keys), self.connections)
        prefix = f"{_prefix(keys)}memtier-"
        self._keys.update(f"{prefix}{number}" for number in range(1, len(keys) + 1))
        where = program_address(self._config, "-s", "-S")
        stats = memtier_stats(
            [
                *(self._path, *where, "-c", "1", "-t", str(threads), "--hide-histogram"),
                f"--ratio={ratio}",
                f"--data-size={size_bytes}",
                f"--requests={each}",
                "--key-pattern=P:P",
                "--key-minimum=1",
                f"--key-maximum={len(keys)}",
                f"--key-prefix={prefix}",
            ]
        )[kind]
        if stats.get("Misses/sec"):
            raise CorruptError("memtier did not find every key")
        self.times = threads * each / len(keys)
        self.wall_s = len(keys) / stats["Ops/sec"]


class RedisBenchmarkClient(_ProgramClient):
    """redis-benchmark, on random keys of a set of as many as the batch has.

    It counts milliseconds, so a batch that takes less is repeated.
    """

    name = "redis-benchmark"
    program = "redis-benchmark"

    def set_batch(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        self._keys.update(_random_keys(keys))
        self._run(["-x", "SET"], keys, b"x" * len(values[0]))  # it would end at a zero byte

    def get_batch(self, keys: Sequence[str], targets: Sequence[Value]) -> Sequence[Value | None]:
        own = _random_keys(keys)
        with ServerProbe(self._config) as probe:
            # Its own SETs leave out keys by chance, and it does not say when it misses one.
            missing = [key for key in own if probe.command("STRLEN", key) != len(targets[0])]
            for key in missing:
                probe.set(key, b"x" * len(targets[0]))
        self._keys.update(own)
        self._run(["GET"], keys)
        return []

    def _run(self, verb: Sequence[str], keys: Sequence[str], data: bytes = b"") -> None:
        where = program_address(self._config, "-h", "-s")
        options, command = verb[:-1], verb[-1]
        times = 1
        while times <= _TIMES_MAX:
            count = str(times * len(keys))
            said = call_program(
                [
                    *(self._path, *where),
                    *("-c", str(self.connections), "-n", count, "-r", str(len(keys)), "--csv"),
                    *(*options, command, f"{_prefix(keys)}rb-__rand_int__"),
                ],
                data,
            )
            rows = list(csv.DictReader(said.splitlines()))
            rate = float(rows[-1]["rps"]) if rows else 0.0
            if math.isfinite(rate) and rate > 0:
                self.times, self.wall_s = times, len(keys) / rate
                return
            times *= 4
        raise UnavailableError(f"{self.program} gave no figure")


def _prefix(keys: Sequence[str]) -> str:
    return f"{keys[0].rpartition(':')[0]}:"


def _random_keys(keys: Sequence[str]) -> list[str]:
    return [f"{_prefix(keys)}rb-{index:012d}" for index in range(len(keys))]


def _shares(keys: int, connections: int) -> tuple[int, int]:
    """Threads, and requests of each, so that each has keys of its own in memtier's pattern P."""
    for threads in range(min(keys, connections), 1, -1):
        each = (keys - 1) // threads + 1
        if (threads - 1) * each < keys:
            return threads, each
    return 1, keys
