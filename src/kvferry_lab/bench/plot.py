"""Figures as PNG or SVG: GB/s over the points of a sweep, or the ladder of clients up to the floor.

redis-py -> pure Python -> native -> bare sockets
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from kvferry.base.errors import UsageError
from kvferry_lab.bench.measure import Row

__all__ = ["check_plot", "ladder", "write_plot"]

_MIB = 1 << 20
_FIELDS = {"size": ("chunk_bytes", "value size, MiB"), "workers": ("connections", "connections")}
_FLOOR = "floor"
_RUNGS = (
    *("single-pool", "multi-pool", "redis-py-async", "redis-py", "glide", "lmcache"),
    *("redis-benchmark", "memtier", "custom", "pure", "native", _FLOOR),
)


def check_plot() -> None:
    """Fail before the work when a plot cannot be made after it."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'kvferry[plot]'") from error


def write_plot(file: str, rows: Sequence[Row], sweep: str | None) -> None:
    """Over the points of a sweep a line for each client and operation, and one for its floor
    (dashed); without a sweep the ladder."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text that can be searched
        figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        shown = [row for row in rows if row.gbps is not None]
        if sweep is None:
            _draw_ladder(axes, shown)
        else:
            _draw_lines(axes, shown, *_FIELDS[sweep])
        if shown:
            axes.legend(fontsize="small")
        figure.savefig(file, dpi=150)
        pyplot.close(figure)


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
    axes.grid(axis="x", alpha=0.3)


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
    axes.grid(alpha=0.3)
