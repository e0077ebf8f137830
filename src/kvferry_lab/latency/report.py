"""The files of a run: JSON, CSV, and a Markdown page with the tables, the set-up and the plot."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvferry.cli.table import number
from kvferry.http.csv_tables import cell
from kvferry_lab.latency.cell_figures import LatencyRow, Slope, series_of, slopes
from kvferry_lab.latency.distance import FarStore
from kvferry_lab.latency.experiment import LatencyPlan

__all__ = [
    "COLUMNS",
    "LatencyReport",
    "extra_lines",
    "markdown",
    "named",
    "slope_lines",
    "table_lines",
]

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


@dataclass(frozen=True, kw_only=True)
class LatencyReport:
    """All that is known of a run.

    Attributes:
        command: The command line.
        machine: For people; see `kvferry_lab.machine`.
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

    @classmethod
    def of(
        cls,
        plan: LatencyPlan,
        rows: list[LatencyRow],
        far: FarStore | None,
        *,
        command: str,
        machine: str,
        stopped: str,
    ) -> LatencyReport:
        """With what the link says of itself."""
        link = "somebody else's"
        if far is not None:
            speed = "" if far.gbps is None else f", {far.gbps:.2f} GB/s without a distance"
            link = f"{far.kind}{speed}"
        store = "a store" if far is None else far.store
        return cls(
            plan=plan,
            rows=rows,
            command=command,
            machine=machine,
            link=link,
            store=store,
            stopped=stopped,
        )

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
        with (folder / "latency.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(LatencyRow)])
            writer.writeheader()
            for row in rows:
                writer.writerow({name: cell(value) for name, value in row.items()})
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
    """What is known besides."""
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
