"""How figures are shown: lines and a table for people, one JSON object per row.

The lines have the form and the unit of the published guides, GB of 2^30 bytes, so that theirs can
be laid beside them. Table and JSON count GB of 10^9 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvferry_lab.bench.clients import NOTED_TYPES
from kvferry_lab.bench.measure import Row
from kvferry_lab.output import command_line, machine_facts, machine_line, package_versions

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["header", "say_header", "say_rows"]

_MIB = 1 << 20
_GIB = 1 << 30
_UNITS = "GB above: 2^30 bytes, as in the guides; below and in JSON: 10^9"
_NOTED = (*NOTED_TYPES, "redis-py")
_DONE = {"set": ("written", "Wrote"), "get": ("read", "Read")}
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
    return {
        "command": command_line(),
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


def say_rows(console: Console, rows: Sequence[Row], calls: bool = False) -> None:
    """One line per row, by client and point, then the table; a row without figure says why.

    Args:
        calls: Also how often the client waited and called its sockets, where it counts that.
    """
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
            if row.gbps is not None and row.client in _NOTED:
                console.print(_noted(row), highlight=False, markup=False, soft_wrap=True)
            if calls and row.wake_ups is not None:
                console.print(_calls(row), highlight=False, markup=False, soft_wrap=True)
    if any(row.gbps is not None for row in rows):
        console.print(_UNITS, highlight=False, markup=False)

    for line in _gains(rows):
        console.print(line, highlight=False)

    table = Table(*_COLUMNS, title="GB = 10^9 bytes; p50 and p99 per batch, to its last byte")
    for row in rows:
        if row.error is None:
            table.add_row(*_cells(row))
    console.print(table)
    if any(row.verified_bytes for row in rows) and not any(row.error for row in rows):
        console.print("All tests passed", highlight=False)


def _gains(rows: Sequence[Row]) -> Iterator[str]:
    """What the Unix socket brings, for each point where both ways were measured."""
    for row in rows:
        if row.client != "native-unix" or not row.gbps:
            continue
        size_bytes = row.chunk_bytes
        over_tcp = [
            other
            for other in rows
            if (other.op, other.chunk_bytes) == (row.op, size_bytes) and other is not row
        ]
        best = max(over_tcp, key=lambda other: other.gbps or 0.0, default=None)
        if best is not None and best.gbps:
            yield (
                f"Unix socket, {row.op.upper()} of {size_bytes / _MIB:g} MiB: "
                f"{row.gbps / best.gbps:.2f} x the best over TCP ({best.client})"
            )


def _line(row: Row) -> str:
    kind, _, op = row.op.rpartition("-")
    what = f"{(kind or 'batch').capitalize()} {op.upper()}"
    if row.error is not None:
        return f"{what}: no figure for {row.client}: {row.error}"
    if row.hits is not None:
        return f"{what}: {row.ops_per_s:.0f} ops/s ({row.hits}/{row.keys} hits)"
    done, _ = _DONE[op]
    return f"{what}: {_gib_s(row):.2f} GB/s  ({_gib(row):.3g} GB {done})"


def _noted(row: Row) -> str:
    """As the first notes' scripts have it."""
    _, done = _DONE[row.op.rpartition("-")[2]]
    gib, gib_s = _gib(row), _gib_s(row)
    return f"{done} {gib:.4g} GB in {gib / gib_s:.3g} seconds, which is: {gib_s:.3g} GB/s"


def _calls(row: Row) -> str:
    return (
        f"Calls a value, {row.op.upper()}: {row.wake_ups:.2f} wake-ups, "
        f"{row.receives:.2f} receives, {row.sends:.2f} sends"
    )


def _gib(row: Row) -> float:
    return row.keys * row.chunk_bytes / _GIB


def _gib_s(row: Row) -> float:
    return (row.gbps or 0.0) * 1e9 / _GIB


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
