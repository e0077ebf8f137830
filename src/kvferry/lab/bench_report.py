"""How figures are shown: lines and a table for people, one JSON object per row, a plot."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.errors import UsageError
from kvferry.lab.bench_measure import Row
from kvferry.lab.machine import machine_facts, machine_line, package_versions

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["check_plot", "header", "say_header", "say_rows", "write_json", "write_plot"]

_MIB = 1 << 20
_COLUMNS = (
    "client",
    "op",
    "MiB",
    "conns",
    "GB/s",
    "p50 ms",
    "p99 ms",
    "client s/GB",
    "server s/GB",
    "x floor",
    "CPU x floor",
    "verified GB",
)


def header(server: dict[str, str]) -> dict[str, Any]:
    """What every result begins with: command, machine, versions, server."""
    command = re.sub(r"://[^@/\s]*@", "://***@", shlex.join(["kvferry", *sys.argv[1:]]))
    return {
        "command": command,
        "machine": machine_facts(),
        "versions": package_versions(),
        "server": server,
    }


def say_header(console: Console, facts: dict[str, Any]) -> None:
    """The header for people."""
    settings = ", ".join(f"{name} {value!r}" for name, value in facts["server"].items())
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    for name, text in (
        ("command", facts["command"]),
        ("machine", machine_line(facts["machine"])),
        ("versions", versions),
        ("server", settings),
    ):
        console.print(f"{name + ':':<10}{text}", highlight=False, markup=False, soft_wrap=True)


def say_rows(console: Console, rows: Sequence[Row]) -> None:
    """One line per row, by client and point, then the table; a row without figure says why."""
    from rich.table import Table

    points: dict[str, list[Row]] = {}
    for row in rows:
        point = f"{row.client}, {row.chunk_bytes / _MIB:g} MiB, {row.connections} connections"
        points.setdefault(point, []).append(row)
    for point, some in points.items():
        if len(points) > 1:
            console.print(point, highlight=False, markup=False)
        for row in some:
            console.print(_line(row), highlight=False, markup=False, soft_wrap=True)

    table = Table(*_COLUMNS, title="GB = 10^9 bytes; p50 and p99 per batch, to its last byte")
    for row in rows:
        if row.error is None:
            table.add_row(*_cells(row))
    console.print(table)


def write_json(target: str, facts: dict[str, Any], rows: Sequence[Row]) -> None:
    """A list with one object for each row, the header as its ``run``; "-" is stdout."""
    text = json.dumps([{**row.to_dict(), "run": facts} for row in rows], indent=1) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text)


def check_plot() -> None:
    """Fail before the work when a plot cannot be made after it."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'kvferry[plot]'") from error


def write_plot(file: str, rows: Sequence[Row], x: str) -> None:
    """GB/s of each client and operation, and of its floor (dashed), over a field of the rows."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    shown = [row for row in rows if row.gbps is not None]
    for client, op in dict.fromkeys((row.client, row.op) for row in shown):
        line = [row for row in shown if (row.client, row.op) == (client, op)]
        places = [getattr(row, x) / (_MIB if x == "chunk_bytes" else 1) for row in line]
        drawn = axes.plot(places, [row.gbps for row in line], "o-", label=f"{client} {op}")[0]
        if all(row.floor_gbps for row in line):
            floor = [row.floor_gbps for row in line]
            axes.plot(places, floor, "--", color=drawn.get_color(), label=f"floor {op}", alpha=0.6)
    axes.set_xlabel("value size, MiB" if x == "chunk_bytes" else "connections")
    axes.set_ylabel("GB/s")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _line(row: Row) -> str:
    kind, _, op = row.op.rpartition("-")
    what = f"{(kind or 'batch').capitalize()} {op.upper()}"
    if row.error is not None:
        return f"{what}: no figure for {row.client}: {row.error}"
    if row.hits is not None:
        return f"{what}: {row.ops_per_s:.0f} ops/s ({row.hits}/{row.keys} hits)"
    return f"{what}: {row.gbps:.2f} GB/s"


def _cells(row: Row) -> list[str]:
    def number(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    return [
        row.client,
        row.op,
        f"{row.chunk_bytes / _MIB:g}",
        str(row.connections),
        number(row.gbps, 2),
        number(row.p50_ms, 2),
        number(row.p99_ms, 2),
        number(row.client_cpu_s_per_gb, 3),
        number(row.server_cpu_s_per_gb, 3),
        number(row.floor_ratio, 3),
        number(row.floor_cpu_ratio, 2),
        f"{row.verified_bytes / 1e9:.2f}",
    ]
