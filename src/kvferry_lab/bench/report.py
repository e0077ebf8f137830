"""How rows of `kvferry bench client` are shown: lines, a table, and a plot.

A plot has GB/s over the points of a sweep, or without one the ladder of clients up to the floor:

    redis-py -> pure Python -> native -> bare sockets

The lines have the form and the unit of the published guides, GB of 2^30 bytes, so that theirs can
be laid beside them. Table and JSON count GB of 10^9 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvferry.cli.table import number, table
from kvferry_lab.bench.client_plan import NOTED_TYPES
from kvferry_lab.bench.measure import Row
from kvferry_lab.drawing import drawing

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ladder", "say_rows", "write_plot"]

_MIB = 1 << 20
_GIB = 1 << 30
_UNITS = "GB above: 2^30 bytes, as in the guides; below and in JSON: 10^9"
_NOTED = (*NOTED_TYPES, "redis-py")
_DONE = {"set": ("written", "Wrote"), "get": ("read", "Read")}
_FIELDS = {"size": ("chunk_bytes", "value size, MiB"), "workers": ("connections", "connections")}
_FLOOR = "floor"
_RUNGS = (
    *("single-pool", "multi-pool", "redis-py-async", "redis-py", "glide", "lmcache"),
    *("custom", "pure", "native", _FLOOR),
)
_COLUMNS = (
    *("client", "op", "MiB", "conns", "GB/s", "p50 ms", "p99 ms"),
    *("client s/GB", "server s/GB", "x floor", "CPU x floor", "verified GB"),
)


def say_rows(console: Console, rows: Sequence[Row], calls: bool = False) -> None:
    """One line per row, by client and point, then the table; a row without figure says why.

    Args:
        calls: Also how often the client waited and called its sockets, where it counts that.
    """
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

    console.print("GB = 10^9 bytes; p50 and p99 per batch, to its last byte", highlight=False)
    console.print(table(_COLUMNS, [_cells(row) for row in rows if row.error is None]))
    if any(row.verified_bytes for row in rows) and not any(row.error for row in rows):
        console.print("All tests passed", highlight=False)


def _gains(rows: Sequence[Row]) -> Iterator[str]:
    """The gain of the Unix socket, for each point where both ways were measured."""
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
    return [
        row.client,
        row.op,
        f"{row.chunk_bytes / _MIB:g}",
        str(row.connections),
        *(number(value) for value in (row.gbps, row.p50_ms, row.p99_ms)),
        *(number(value, 3) for value in (row.client_cpu_s_per_gb, row.server_cpu_s_per_gb)),
        number(row.floor_ratio, 3),
        number(row.floor_cpu_ratio),
        number(row.verified_bytes / 1e9),
    ]


def write_plot(file: str, rows: Sequence[Row], sweep: str | None) -> None:
    """Over the points of a sweep a line for each client and operation, and one for its floor
    (dashed); without a sweep the ladder."""
    shown = [row for row in rows if row.gbps is not None]
    with drawing(file) as (axes,):
        if sweep is None:
            _draw_ladder(axes, shown)
        else:
            _draw_lines(axes, shown, *_FIELDS[sweep])
        if shown:
            axes.legend(fontsize="small")


def ladder(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """GB/s by operation and client, slow kinds first; the best floor of an operation last."""
    found: dict[str, dict[str, float]] = {}
    for op in dict.fromkeys(row.op for row in rows):
        of_op = [row for row in rows if row.op == op and row.gbps is not None]
        rungs = {row.client: row.gbps or 0.0 for row in of_op}
        if floors := [row.floor_gbps for row in of_op if row.floor_gbps]:
            rungs[_FLOOR] = max(floors)
        if rungs:
            found[op] = {name: rungs[name] for name in sorted(rungs, key=_rung)}
    return found


def _rung(client: str) -> int:
    return _RUNGS.index(client) if client in _RUNGS else -1


def _draw_ladder(axes: Any, rows: Sequence[Row]) -> None:
    found = ladder(rows)
    names = sorted({name for rungs in found.values() for name in rungs}, key=_rung)
    height = 0.8 / max(1, len(found))
    for index, (op, rungs) in enumerate(found.items()):
        places = [names.index(name) + (index - (len(found) - 1) / 2) * height for name in rungs]
        bars = axes.barh(places, list(rungs.values()), height, label=op)
        axes.bar_label(bars, fmt="%.2f", fontsize="small", padding=2)
    axes.set_yticks(range(len(names)), names)
    sizes = sorted({row.chunk_bytes / _MIB for row in rows})
    axes.set_xlabel(f"GB/s, values of {', '.join(f'{size:g}' for size in sizes)} MiB")


def _draw_lines(axes: Any, rows: Sequence[Row], field: str, label: str) -> None:
    for client, op in dict.fromkeys((row.client, row.op) for row in rows):
        line = [row for row in rows if (row.client, row.op) == (client, op)]
        places = [getattr(row, field) / (_MIB if field == "chunk_bytes" else 1) for row in line]
        drawn = axes.plot(places, [row.gbps for row in line], "o-", label=f"{client} {op}")[0]
        if all(row.floor_gbps for row in line):
            floor = [row.floor_gbps for row in line]
            axes.plot(places, floor, "--", color=drawn.get_color(), label=f"floor {op}", alpha=0.6)
    axes.set_xlabel(label)
    axes.set_ylabel("GB/s")
    axes.set_ylim(bottom=0)
