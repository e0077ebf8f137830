"""The files of a run: JSON, CSV, a plot, and a Markdown page with tables, set-up and plot.

The plot has six panels over the round trip, read without colours too; the command stands below.
Five are those that were published, of the shortest prompts, misses, one at a time, beside the
published rows and those of another run. The sixth has hits of the longest prompts.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvferry.cli.table import number
from kvferry_lab.drawing import drawing, styles
from kvferry_lab.latency.cell_figures import LatencyRow, Slope, series_of, slopes
from kvferry_lab.latency.experiment import LatencyPlan
from kvferry_lab.output import write_csv

__all__ = ["LatencyReport", "markdown", "named", "slope_lines", "table_lines", "write_plot"]

# Heading, field, decimals: the published order.
COLUMNS = (
    ("RTT (ms)", "rtt_ms", 0),
    ("TTFT p50 (s)", "ttft_p50_s", 4),
    ("E2E p50 (s)", "e2e_p50_s", 4),
    ("Throughput Mean (tok/s)", "tokens_s_mean", 2),
    ("Overall Output Throughput (tok/s)", "tokens_s_overall", 2),
    ("Inter-token Mean (s)", "inter_token_s", 5),
    ("Completed per Min", "completed_per_min", 2),
)
_EXTRA = (
    ("RTT (ms)", "rtt_ms", 0),
    ("TTFT min (s)", "ttft_min_s", 4),
    ("TTFT p99 (s)", "ttft_p99_s", 4),
    ("Inter-token after the first (s)", "inter_token_after_first_s", 5),
    ("Waits", "waits", 1),
    ("Wait for the cache (s)", "cache_wait_s", 4),
    ("Hits", "hit_share", 2),
    ("MB to the store", "up_bytes", 2),
    ("MB from it", "down_bytes", 2),
    ("Requests", "requests", 0),
    ("Failed", "failed", 0),
)
_LINEAR_MS = 50
# Title, unit, field of rows, scale.
_PANELS = (
    ("time to first token, p50", "ms", "ttft_p50_s", 1e3),
    ("end to end, p50", "s", "e2e_p50_s", 1.0),
    ("inter-token mean, hollow: after the first", "ms", "inter_token_s", 1e3),
    ("tokens/s of a request, mean", "tokens/s", "tokens_s_mean", 1.0),
    ("completed requests", "1/min", "completed_per_min", 1.0),
)


@dataclass(frozen=True, kw_only=True)
class LatencyReport:
    """All that is known of a run.

    Attributes:
        command: The command line.
        machine: For people; see `kvferry_lab.output`.
        link: What the distance is made of, for people.
        store: The store behind it, likewise.
        stopped: Why it ended before its last cell; empty: it did not.
    """

    plan: LatencyPlan
    rows: list[LatencyRow]
    command: str
    machine: str
    link: str
    store: str
    stopped: str = ""

    def write(self, folder: Path) -> None:
        """latency.json, latency.csv and README.md."""
        folder.mkdir(parents=True, exist_ok=True)
        plan = {name: value for name, value in asdict(self.plan).items() if name != "key"}
        facts = {"command": self.command, "machine": self.machine, "link": self.link}
        rows = [asdict(row) for row in self.rows]
        found: dict[str, Any] = {**facts, "store": self.store, "plan": plan, "rows": rows}
        found["stopped"] = self.stopped
        found["slopes"] = [asdict(slope) for slope in slopes(self.rows)]
        (folder / "latency.json").write_text(json.dumps(found, indent=1) + "\n")
        write_csv(folder / "latency.csv", [field.name for field in fields(LatencyRow)], rows)
        (folder / "README.md").write_text(markdown(self))


def markdown(report: LatencyReport) -> str:
    """The page."""
    lines = ["# The distance to a store", "", "```", report.command, "```", "", report.machine, ""]
    if report.stopped:
        lines += [f"It ended before its last cell: {report.stopped}", ""]
    lines += [*_diagram(report), "", "![Six panels over the round trip](output.png)", ""]
    lines += [*slope_lines(slopes(report.rows)), ""]
    for series, rows in series_of(report.rows).items():
        lines += [f"## {named(series)}", "", *table_lines(rows), "", *extra_lines(rows), ""]
    return "\n".join(lines)


def named(series: tuple[str, str, int, int]) -> str:
    """A series, for people."""
    client, workload, tokens, many = series
    return f"{client}, {workload}, {tokens:,} tokens, {many} at a time"


def table_lines(rows: Sequence[LatencyRow]) -> list[str]:
    """The table that was published, in Markdown."""
    return _table(COLUMNS, rows)


def extra_lines(rows: Sequence[LatencyRow]) -> list[str]:
    """A table of the other figures."""
    return _table(_EXTRA, rows)


def slope_lines(found: Sequence[Slope]) -> list[str]:
    """Waits and slopes of all series."""
    lines = [
        "| Series | Waits, counted | TTFT min, RTT | TTFT p50, RTT |",
        "|---|---:|---:|---:|",
    ]
    for slope in found:
        waits = number(slope.waits, 1)
        lines.append(
            f"| {named(slope.series)} | {waits} | {slope.least:.2f} | {slope.median:.2f} |"
        )
    return lines


def _table(columns: Sequence[tuple[str, str, int]], rows: Sequence[LatencyRow]) -> list[str]:
    lines = [f"| {' | '.join(name for name, *_ in columns)} |", "|---:" * len(columns) + "|"]
    for row in rows:
        cells = [_cell(getattr(row, field), field, digits) for _, field, digits in columns]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cell(value: float | None, field: str, digits: int) -> str:
    if value is not None and field.endswith("_bytes"):
        value /= 1e6
    if value is not None and field == "rtt_ms":
        return f"{value:g}"
    return number(value, digits).replace(",", "")


def _diagram(report: LatencyReport) -> Iterator[str]:
    """The set-up as it was."""
    plan = report.plan
    many = " and ".join(map(str, plan.concurrency))
    server = "an OpenAI-compatible server"
    if plan.base_url is None:
        server = (
            f"serve-demo<br/>prompts {plan.prefill_tokens_per_s:,.0f} tokens/s"
            f"<br/>KV {plan.bytes_per_token:,} bytes a token"
        )
    far = ", ".join(f"{rtt:g}" for rtt in plan.rtt_ms)
    yield "```mermaid"
    yield "flowchart LR"
    yield f'  lab["kvferry lab latency<br/>{many} at a time"] -->|"OpenAI API"| server["{server}"]'
    yield f'  server <-->|"TCP"| link["link: {report.link}<br/>RTT {far} ms, half each way"]'
    yield f'  link <-->|"TCP"| store["{report.store}"]'
    yield "```"


Line = tuple[str, list[LatencyRow]]
Styles = dict[str, dict[str, Any]]


def write_plot(
    file: Path,
    report: LatencyReport,
    published: Sequence[LatencyRow],
    baseline: Sequence[LatencyRow],
) -> None:
    """Draw a run, the published rows, and those of another run."""
    misses = _lines(report.rows, "", "miss", min) + _lines(published, "", "miss", min)
    misses += _lines(baseline, "baseline ", "miss", min)
    hits = _lines(report.rows, "", "hit", max) + _lines(baseline, "baseline ", "hit", max)
    names = dict.fromkeys(name for name, _ in misses + hits)
    of_lines = dict(zip(names, styles(), strict=False))
    with drawing(file, 2, 3, size=(15, 8.4), caption=report.command) as axes:
        for one, (title, unit, field, scale) in zip(axes, _PANELS, strict=False):
            _draw(one, misses, of_lines, field, scale)
            one.set_title(title, fontsize="medium")
            one.set_ylabel(unit)
        _draw_hits(axes[5], hits, of_lines)
        for one in axes:
            _distances(one, [row for _, line in misses + hits for row in line])
        for one, lines in ((axes[0], misses), (axes[5], hits)):
            if lines:
                one.legend(fontsize="small", title=_about(lines), title_fontsize="small")


def _lines(rows: Sequence[LatencyRow], prefix: str, workload: str, choose: Any) -> list[Line]:
    """The series of a workload with the least concurrency and the shortest or longest prompts."""
    rows = [row for row in rows if row.workload == workload]
    if not rows:
        return []
    tokens, many = choose(row.prompt_tokens for row in rows), min(row.concurrency for row in rows)
    kept = [row for row in rows if (row.prompt_tokens, row.concurrency) == (tokens, many)]
    found = series_of(kept)
    order = dict.fromkeys(row.series for row in kept)
    return [(prefix + series[0], found[series]) for series in order]


def _about(lines: Sequence[Line]) -> str:
    """The workload that all lines of a panel share."""
    first = lines[0][1][0]
    kind = {"hit": "hits", "miss": "misses"}[first.workload]
    return f"{kind} of {first.prompt_tokens:,} tokens, {first.concurrency} at a time"


def _draw(axes: Any, lines: Sequence[Line], of_lines: Styles, field: str, scale: float) -> None:
    for label, rows in lines:
        style = of_lines[label]
        _line(axes, rows, field, scale, label=label, **style)
        if field == "inter_token_s":
            hollow = {**style, "markerfacecolor": "white", "linewidth": 0.8}
            _line(axes, rows, "inter_token_after_first_s", scale, **hollow)
    if field.endswith("_s"):
        _logarithmic(axes)
    else:
        axes.set_ylim(bottom=0)


def _draw_hits(axes: Any, lines: Sequence[Line], of_lines: Styles) -> None:
    """The median, from the least to the 99th percentile."""
    for label, rows in lines:
        there = [row for row in rows if row.ttft_p50_s is not None]
        middle = [1e3 * (row.ttft_p50_s or 0) for row in there]
        below = [mid - 1e3 * (row.ttft_min_s or 0) for mid, row in zip(middle, there, strict=True)]
        above = [1e3 * (row.ttft_p99_s or 0) - mid for mid, row in zip(middle, there, strict=True)]
        places = [row.rtt_ms for row in there]
        spread = [[max(0.0, each) for each in side] for side in (below, above)]
        axes.errorbar(places, middle, spread, label=label, capsize=3, **of_lines[label])
    axes.set_title("hits: time to first token, least, p50 and p99", fontsize="medium")
    axes.set_ylabel("ms")
    if lines:
        _logarithmic(axes)
    else:
        axes.text(0.5, 0.5, "none were asked for", transform=axes.transAxes, ha="center")


def _line(axes: Any, rows: Sequence[LatencyRow], field: str, scale: float, **style: Any) -> None:
    there = [row for row in rows if getattr(row, field) is not None]
    values = [getattr(row, field) * scale for row in there]
    axes.plot([row.rtt_ms for row in there], values, **style)


def _logarithmic(axes: Any) -> None:
    ticker = importlib.import_module("matplotlib.ticker")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())


def _distances(axes: Any, rows: Sequence[LatencyRow]) -> None:
    """The axis below: even up to 50 ms, in decades behind."""
    axes.set_xscale("symlog", linthresh=_LINEAR_MS, linscale=2)
    ticks = sorted({row.rtt_ms for row in rows})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlim(-3, 1.2 * max([_LINEAR_MS, *ticks]))
    axes.set_xlabel("round trip, ms")
