"""How replays are shown: a table for people, JSON and CSV for programs, a plot over capacity."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.cli.table import facts, table
from kvferry_lab.drawing import drawing
from kvferry_lab.output import command_line, machine_facts, machine_line, write_csv
from kvferry_lab.trace.format import Trace
from kvferry_lab.trace.replay import ReplayPoint

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["as_json", "say", "write_plot", "write_points"]

_COLUMNS = ("policy", "order", "chunks", "GB", "usable %", "any %", "of possible", "evictions")


def _run() -> dict[str, Any]:
    return {"command": command_line(), "machine": machine_facts()}


def say(console: Console, traces: Sequence[Trace], points: Sequence[ReplayPoint]) -> None:
    """The facts of a replay, and a table for each trace."""
    run = _run()
    console.print(
        facts([("command", run["command"]), ("machine", machine_line(run["machine"]))]), ""
    )
    for trace in traces:
        rows = [point for point in points if point.trace == trace.name]
        console.print(
            f"{trace.name} ({trace.form}): {len(trace.requests):,} requests, "
            f"{trace.chunks:,} chunks of {trace.chunk_tokens} tokens, {trace.distinct:,} "
            f"different; a cache without limits hits "
            f"{_percent(trace.prefix_hits_max, trace.chunks)} %",
            soft_wrap=True,
        )
        console.print(table(_COLUMNS, [_cells(row) for row in rows]), "")
    verified = sum(point.verified_bytes for point in points)
    if verified:
        console.print(f"{verified / 1e9:.3f} GB were loaded from the store, every byte as stored")


def _cells(point: ReplayPoint) -> list[str]:
    return [
        point.policy,
        point.order,
        f"{point.capacity_chunks:,}",
        f"{point.capacity_gb:,.1f}",
        _percent(point.prefix_hits, point.chunks),
        _percent(point.block_hits, point.chunks),
        f"{_percent(point.prefix_hits, point.prefix_hits_max)} %",
        f"{point.evictions:,}",
    ]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"


def as_json(traces: Sequence[Trace], points: Sequence[ReplayPoint]) -> str:
    """The command and the machine, what the traces are, and a row for each point."""
    shown = [
        {
            "name": trace.name,
            "format": trace.form,
            "chunk_tokens": trace.chunk_tokens,
            "requests": len(trace.requests),
            "chunks": trace.chunks,
            "distinct": trace.distinct,
        }
        for trace in traces
    ]
    rows = [point.to_dict() for point in points]
    return json.dumps({"run": _run(), "traces": shown, "points": rows}, indent=1)


def write_points(file: Path, points: Sequence[ReplayPoint]) -> None:
    """One line for each point, after a head."""
    rows = [point.to_dict() for point in points]
    write_csv(file, list(rows[0]) if rows else [], rows)


def write_plot(file: Path, points: Sequence[ReplayPoint]) -> None:
    """Usable-prefix hit rate over capacity, a line for each policy, one drawing for each trace."""
    traces = list(dict.fromkeys(point.trace for point in points))
    with drawing(file, len(traces), size=(7, 4.2 * len(traces))) as panels:
        for trace, axes in zip(traces, panels, strict=True):
            _draw(axes, trace, [point for point in points if point.trace == trace])


def _draw(axes: Any, trace: str, rows: Sequence[ReplayPoint]) -> None:
    for policy, order in dict.fromkeys((point.policy, point.order) for point in rows):
        line = sorted(
            (row for row in rows if (row.policy, row.order) == (policy, order)),
            key=lambda row: row.capacity_chunks,
        )
        style = "o-" if order == "leaf-first" else "x--"
        label = policy if order == "leaf-first" else f"{policy} ({order})"
        places = [row.capacity_chunks for row in line]
        axes.plot(places, [100 * row.prefix_hit_rate for row in line], style, label=label)
    axes.axhline(100 * rows[0].infinite_hit_rate, color="grey", linestyle=":", label="no limit")
    axes.set_xscale("log")
    axes.set_xlabel(f"capacity, chunks of {rows[0].chunk_tokens} tokens")
    axes.set_ylabel("usable-prefix hit rate, %")
    axes.set_ylim(bottom=0)
    axes.set_title(trace, fontsize="medium")
    axes.legend(fontsize="small")
