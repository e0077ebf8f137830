"""The loads of memtier_benchmark and redis-benchmark, by their own options.

The program itself makes the load where it is on PATH; elsewhere kvferry-load does, a thread for
each connection. What is stored and read is theirs: a program of others checks no byte of it, and
kvferry-load the form of every reply. Keys stay in the server, as with the originals.
"""

from __future__ import annotations

import csv
import json
import math
import re
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
from kvferry_lab.cli.options import option

__all__ = ["LoadPlan", "LoadRow", "RedisLoadPlan", "memtier_load", "redis_load"]

_TRIES = 3
_LATENCIES_MS = {"p50_ms": "p50.00", "p99_ms": "p99.00"}


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """What is asked for, as memtier_benchmark is asked.

    Attributes:
        digits: To which the numbers in keys are padded; 0: not at all.
    """

    host: str = option("localhost", "The server.", "-h", "--host", "-s", "--server")
    port: int = option(6379, "Its port.", "-p", "--port")
    ratio: str = option("1:10", "SETs to GETs.")
    requests: str = option("10000", "Requests of each client, or allkeys.", "-n", "--requests")
    clients: int = option(50, "Connections of a thread.", "-c", "--clients", least=1)
    threads: int = option(4, "Threads.", "-t", "--threads", least=1)
    pipeline: int = option(1, "Commands in flight.", least=1)
    data_size: int = option(32, "Bytes of a value.", "-d", "--data-size", least=1)
    key_prefix: str = option("memtier-", "How keys begin.")
    key_minimum: int = option(0, "First key.", least=0)
    key_maximum: int = option(10_000_000, "Last key.", least=0)
    key_pattern: str = option("R:R", "How SETs and GETs choose keys: R, S, G, P or Z each.")
    hide_histogram: bool = option(False, "Show no histogram; none is shown anyway.")
    digits: int = 0

    def __post_init__(self) -> None:
        for name, pattern, text in (
            ("--ratio", r"\d+:\d+", self.ratio),
            ("--requests", r"allkeys|[1-9]\d*", self.requests),
            ("--key-pattern", r"[RSGPZ]:[RSGPZ]", self.key_pattern),
        ):
            if not re.fullmatch(pattern, text):
                raise UsageError(f"{name} cannot be {text!r}")
        if not sum(self.shares):
            raise UsageError(f"--ratio {self.ratio} asks for nothing")
        if "P" in self.key_pattern and self.key_pattern != "P:P":
            raise UsageError("--key-pattern P is for SETs and GETs alike")
        if self.key_minimum > self.key_maximum:
            raise UsageError("--key-minimum is above --key-maximum")

    @property
    def shares(self) -> tuple[int, int]:
        """So many SETs, then so many GETs, and again."""
        sets, gets = map(int, self.ratio.split(":"))
        return sets, gets

    @property
    def connections(self) -> int:
        """Of all threads."""
        return self.clients * self.threads

    @property
    def each(self) -> int:
        """Requests of one connection; all keys are counted as memtier counts them."""
        if self.requests != "allkeys":
            return int(self.requests)
        span = self.key_maximum - self.key_minimum
        return span // self.connections + 1 if self.key_pattern == "P:P" else max(1, span)

    @property
    def config(self) -> ClientConfig:
        """The server, with the credentials of the environment."""
        return ClientConfig.from_env(host=self.host, port=self.port)


@dataclass(frozen=True, kw_only=True)
class RedisLoadPlan:
    """What is asked for, as redis-benchmark is asked."""

    host: str = option("127.0.0.1", "Server.", "-h")
    port: int = option(6379, "Its port.", "-p")
    clients: int = option(50, "Connections.", "-c", least=1)
    requests: int = option(100_000, "Commands, in all.", "-n", least=1)
    keys: int | None = option(None, "Random keys of so many.  [default: one key]", "-r", least=1)
    size_bytes: int = option(3, "Bytes of a value.", "-d", least=1)
    pipeline: int = option(1, "Commands in flight.", "-P", least=1)
    tests: str = option("set,get", "Which of set and get, with a comma.", "-t")

    @property
    def ops(self) -> list[str]:
        """The operations, one after the other."""
        asked = self.tests.lower().split(",")
        if not set(asked) <= {"set", "get"}:
            raise UsageError("-t knows set and get")
        return [op for op in ("set", "get") if op in asked]

    def load(self, op: str) -> LoadPlan:
        """One of the operations, as memtier would be asked for it."""
        return LoadPlan(
            host=self.host,
            port=self.port,
            ratio={"set": "1:0", "get": "0:1"}[op],
            clients=self.clients,
            threads=1,
            pipeline=self.pipeline,
            data_size=self.size_bytes,
            key_maximum=(self.keys or 1) - 1,
            key_prefix="key:" if self.keys else "key:__rand_int__",
            digits=12 if self.keys else 0,
        )


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


def memtier_load(load: LoadPlan) -> tuple[list[LoadRow], str]:
    """Make the load; returns the rows, and why it was not memtier_benchmark that made it.

    Raises:
        UnavailableError: The program failed; the text holds its last words.
        UsageError: That pattern is memtier's alone.
    """
    config = load.config
    program, why = _find("memtier_benchmark", config)
    if program is None:
        if "Z" in load.key_pattern:
            raise UsageError(f"--key-pattern Z needs the original: {why}")
        return _own_load(config, load, load.each * load.connections), why
    stats = _memtier_stats(
        [
            *(program, "-s", load.host, "-p", str(load.port), "--hide-histogram"),
            *(f"--ratio={load.ratio}", f"--requests={load.each}"),
            *(f"--clients={load.clients}", f"--threads={load.threads}"),
            *(f"--pipeline={load.pipeline}", f"--data-size={load.data_size}"),
            # Its default is 0, which it does not take as a word.
            *([f"--key-minimum={load.key_minimum}"] if load.key_minimum else []),
            f"--key-maximum={load.key_maximum}",
            *(f"--key-pattern={load.key_pattern}", f"--key-prefix={load.key_prefix}"),
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
        gbps = rate * load.data_size / 1e9
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


def _memtier_stats(command: list[str]) -> dict[str, Any]:
    """What memtier_benchmark counted, by kind of command.

    Now and then it takes the time of a thread from nowhere, and reports a rate of 0: then it is
    run again.

    Raises:
        UnavailableError: It failed; the text holds its last words.
    """
    with tempfile.TemporaryDirectory(prefix="kvferry-") as directory:
        report = Path(directory, "memtier.json")
        for _ in range(_TRIES):
            _call_program([*command, f"--json-out-file={report}"])
            stats: dict[str, Any] = json.loads(report.read_text())["ALL STATS"]
            if stats["Totals"]["Ops/sec"]:
                return stats
    raise UnavailableError("memtier_benchmark gave no figure")


def redis_load(plan: RedisLoadPlan) -> tuple[list[LoadRow], str]:
    """The same as redis-benchmark makes it: all SETs, then all GETs."""
    loads = {op: plan.load(op) for op in plan.ops}
    config = ClientConfig.from_env(host=plan.host, port=plan.port)
    program, why = _find("redis-benchmark", config)
    if program is None:
        found = (_own_load(config, load, plan.requests) for load in loads.values())
        return [row for rows in found for row in rows], why
    said = _call_program(
        [
            *(program, "-h", plan.host, "-p", str(plan.port), "--csv", "-t", ",".join(loads)),
            *(["-r", str(plan.keys)] if plan.keys else []),
            *("-n", str(plan.requests), "-c", str(plan.clients)),
            *("-P", str(plan.pipeline), "-d", str(plan.size_bytes)),
        ]
    )
    lines = [line for line in said.splitlines() if line.startswith('"')]
    rows = []
    for line in csv.DictReader(lines):
        rate = float(line["rps"])
        if not math.isfinite(rate):
            raise UsageError("redis-benchmark counts milliseconds, and it took less: ask for more")
        rows.append(
            LoadRow(
                op=line["test"].lower(),
                program="redis-benchmark",
                ops_per_s=rate,
                gbps=rate * plan.size_bytes / 1e9,
                misses=0.0,
                p50_ms=float(line["p50_latency_ms"]),
                p99_ms=float(line["p99_latency_ms"]),
            )
        )
    return rows, why


def _own_load(config: ClientConfig, load: LoadPlan, requests: int) -> list[LoadRow]:
    sets, gets = load.shares
    numbers = {
        "requests": requests,
        "connections": min(load.connections, requests),
        "pipeline": load.pipeline,
        "sets": sets,
        "gets": gets,
        "size-bytes": load.data_size,
        "key-minimum": load.key_minimum,
        "key-maximum": load.key_maximum,
        "key-digits": load.digits,
    }
    found = run_load(config, numbers, load.key_pattern.replace(":", ""), load.key_prefix)
    return [
        LoadRow(
            op=op,
            program="kvferry-load",
            ops_per_s=tally["count"] / found["wall_s"],
            gbps=tally["bytes"] / found["wall_s"] / 1e9,
            misses=tally["misses"] / tally["count"],
            p50_ms=tally["p50_ms"],
            p99_ms=tally["p99_ms"],
        )
        for op in ("set", "get")
        if (tally := found[op])["count"]
    ]


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


def _call_program(command: list[str]) -> str:
    """Run a program of others; what it wrote.

    Raises:
        UnavailableError: It failed; the text holds its last words.
    """
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).decode(errors="replace").strip()[-300:]
        raise UnavailableError(f"{Path(command[0]).name} failed: {words}")
    return done.stdout.decode(errors="replace")
