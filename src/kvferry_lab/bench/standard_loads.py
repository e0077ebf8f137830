"""The loads of memtier_benchmark and redis-benchmark, by their own options.

The program itself makes the load where it is on PATH; elsewhere kvferry-load does, a thread for
each connection. What is stored and read is theirs: a program of others checks no byte of it, and
kvferry-load the form of every reply. Keys stay in the server, as with the originals.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvferry.base.errors import UnavailableError, UsageError
from kvferry.config import ClientConfig
from kvferry_lab.bench.programs import run_load
from kvferry_lab.bench.server_probe import ServerProbe

__all__ = [
    "LoadPlan",
    "LoadRow",
    "call_program",
    "memtier_load",
    "memtier_stats",
    "program_address",
    "redis_load",
]

_TRIES = 3
_LATENCIES_MS = {"p50_ms": "p50.00", "p99_ms": "p99.00"}


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """What is asked for.

    Attributes:
        sets, gets: So many SETs, then so many GETs, and again.
        requests: Of each connection; None is all keys of the range, as memtier counts them.
        connections: All together; memtier has `threads` with as many each.
        pattern: Of the keys of SETs and GETs: two letters of R, S, G, P (and Z: memtier alone).
        digits: To which the numbers in keys are padded.
    """

    sets: int = 1
    gets: int = 10
    requests: int | None = 10_000
    clients: int = 50
    threads: int = 4
    pipeline: int = 1
    size_bytes: int = 32
    key_minimum: int = 0
    key_maximum: int = 10_000_000
    pattern: str = "RR"
    prefix: str = "memtier-"
    digits: int = 0

    @property
    def connections(self) -> int:
        """Of all threads."""
        return self.clients * self.threads

    @property
    def each(self) -> int:
        """Requests of one connection."""
        if self.requests is not None:
            return self.requests
        span = self.key_maximum - self.key_minimum
        return span // self.connections + 1 if self.pattern == "PP" else max(1, span)


@dataclass(frozen=True, kw_only=True)
class LoadRow:
    """One kind of command. GB are 10^9 bytes of payload; what was missed has none.

    redis-benchmark does not say what it received: there it is the size that was asked for.
    """

    op: str
    program: str
    ops_per_s: float
    gbps: float
    misses: float  # share of the commands
    p50_ms: float
    p99_ms: float


def memtier_load(config: ClientConfig, load: LoadPlan) -> tuple[list[LoadRow], str]:
    """Make the load; returns the rows, and why it was not memtier_benchmark that made it.

    Raises:
        UnavailableError: The program failed; the text holds its last words.
        UsageError: That pattern is memtier's alone.
    """
    program, why = _find("memtier_benchmark", config)
    if program is None:
        if "Z" in load.pattern:
            raise UsageError(f"--key-pattern Z needs the original: {why}")
        return _own_load(config, load, load.each * load.connections), why
    stats = memtier_stats(
        [
            *(program, *program_address(config, "-s", "-S"), "--hide-histogram"),
            *(f"--ratio={load.sets}:{load.gets}", f"--requests={load.each}"),
            *(f"--clients={load.clients}", f"--threads={load.threads}"),
            *(f"--pipeline={load.pipeline}", f"--data-size={load.size_bytes}"),
            # Its default is 0, which it does not take as a word.
            *([f"--key-minimum={load.key_minimum}"] if load.key_minimum else []),
            f"--key-maximum={load.key_maximum}",
            *(f"--key-pattern={':'.join(load.pattern)}", f"--key-prefix={load.prefix}"),
        ]
    )
    rows = []
    for op, kind in (("set", "Sets"), ("get", "Gets")):
        found = stats[kind]
        if not found["Count"]:
            continue
        rate = found["Ops/sec"]
        misses = found["Misses/sec"] / rate if op == "get" and rate else 0.0
        times = {name: found["Percentile Latencies"][of] for name, of in _LATENCIES_MS.items()}
        gbps = rate * load.size_bytes / 1e9
        if op == "get":  # values have the size that they were stored with
            gbps = found.get("KB/sec RX", found["KB/sec"]) * 1024 / 1e9
        rows.append(
            LoadRow(
                op=op,
                program="memtier_benchmark",
                ops_per_s=rate,
                gbps=gbps,
                misses=misses,
                **times,
            )
        )
    return rows, why


def memtier_stats(command: list[str]) -> dict[str, Any]:
    """What memtier_benchmark counted, by kind of command.

    Now and then it takes the time of a thread from nowhere, and reports a rate of 0: then it is
    run again.

    Raises:
        UnavailableError: It failed; the text holds its last words.
    """
    with tempfile.TemporaryDirectory(prefix="kvferry-") as directory:
        report = Path(directory, "memtier.json")
        for _ in range(_TRIES):
            call_program([*command, f"--json-out-file={report}"])
            stats: dict[str, Any] = json.loads(report.read_text())["ALL STATS"]
            if stats["Totals"]["Ops/sec"]:
                return stats
    raise UnavailableError("memtier_benchmark gave no figure")


def redis_load(config: ClientConfig, load: LoadPlan) -> tuple[list[LoadRow], str]:
    """The same as redis-benchmark makes it: all SETs, then all GETs, of `requests` together."""
    program, why = _find("redis-benchmark", config)
    total = load.requests or 1
    ops = [op for op, share in (("set", load.sets), ("get", load.gets)) if share]
    if program is None:
        rows = []
        for op in ops:
            alone = {"set": (1, 0), "get": (0, 1)}[op]
            rows += _own_load(config, load, total, alone)
        return rows, why
    random = ["-r", str(load.key_maximum + 1)] if load.digits else []
    said = call_program(
        [
            *(program, *program_address(config, "-h", "-s"), "--csv", "-t", ",".join(ops), *random),
            *("-n", str(total), "-c", str(load.connections)),
            *("-P", str(load.pipeline), "-d", str(load.size_bytes)),
        ]
    )
    lines = [line for line in said.splitlines() if line.startswith('"')]
    rows = []
    for line in csv.DictReader(lines):
        rate, times = float(line["rps"]), [float(line[f"p{n}_latency_ms"]) for n in (50, 99)]
        if not math.isfinite(rate):
            raise UsageError("redis-benchmark counts milliseconds, and it took less: ask for more")
        rows.append(
            LoadRow(
                op=line["test"].lower(),
                program="redis-benchmark",
                ops_per_s=rate,
                gbps=rate * load.size_bytes / 1e9,
                misses=0.0,
                p50_ms=times[0],
                p99_ms=times[1],
            )
        )
    return rows, why


def _own_load(
    config: ClientConfig, load: LoadPlan, requests: int, ratio: tuple[int, int] | None = None
) -> list[LoadRow]:
    sets, gets = ratio or (load.sets, load.gets)
    numbers = {
        "requests": requests,
        "connections": min(load.connections, requests),
        "pipeline": load.pipeline,
        "sets": sets,
        "gets": gets,
        "size-bytes": load.size_bytes,
        "key-minimum": load.key_minimum,
        "key-maximum": load.key_maximum,
        "key-digits": load.digits,
    }
    found = run_load(config, numbers, load.pattern, load.prefix)
    rows = []
    for op in ("set", "get"):
        tally = found[op]
        if count := tally["count"]:
            rows.append(
                LoadRow(
                    op=op,
                    program="kvferry-load",
                    ops_per_s=count / found["wall_s"],
                    gbps=tally["bytes"] / found["wall_s"] / 1e9,
                    misses=tally["misses"] / count,
                    p50_ms=tally["p50_ms"],
                    p99_ms=tally["p99_ms"],
                )
            )
    return rows


def _find(program: str, config: ClientConfig) -> tuple[str | None, str]:
    """The program, or why ours has to do.

    Raises:
        UnavailableError: The server cannot be reached.
    """
    if config.password is not None:
        return None, f"{program} would show the password on its command line"
    ServerProbe(config).close()  # for redis-benchmark tries an address where nobody is for ever
    found = shutil.which(program)
    return found, "" if found else f"{program} is not on PATH"


def program_address(config: ClientConfig, host: str, path: str) -> list[str]:
    if config.unix_path is not None:
        return [path, config.unix_path]
    return [host, config.host, "-p", str(config.port)]


def call_program(command: list[str], data: bytes = b"") -> str:
    """Run a program of others; what it wrote.

    Raises:
        UnavailableError: It failed; the text holds its last words.
    """
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).decode(errors="replace").strip()[-300:]
        raise UnavailableError(f"{Path(command[0]).name} failed: {words}")
    return done.stdout.decode(errors="replace")
