"""`kvferry lab latency`: what the distance to a store costs an inference server."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click

from kvferry_lab.cli.options import option, options_of, under
from kvferry_lab.latency.experiment import LatencyPlan

__all__ = ["latency"]

_QUICK: dict[str, Any] = {
    "rtt_ms": (0.0, 50.0),
    "workloads": ("miss", "hit"),
    "prompt_tokens": (128, 2048),
    "concurrency": (1,),
    "requests": 3,
    "output_tokens": 8,
}


@dataclass(frozen=True, kw_only=True)
class _Run:
    """How the distance is made, and where figures go."""

    scale: float | None = option(None, "Make this part of the requests.", above=0)
    quick: bool = option(False, "A small run of less than a minute; other options win.")
    link: Literal["auto", "tun", "proxy"] = option(
        "auto", "How the distance is made; auto: tun as root, else proxy."
    )
    store_url: str | None = option(None, "The store of that server: delay it here.", "--store")
    listen_port: int | None = option(
        None, "The port of that delay.", "--listen", least=1, most=65535
    )
    baseline: Path | None = option(None, "Compare with latency.json of another run.")
    results_dir: Path = option(Path("result"), "The folder of figures.")
    plot: bool = option(True, "Draw output.png.")


@click.command(
    epilog="Exit codes: 0 done, 1 a request failed, 2 usage.  "
    "Example: kvferry lab latency --quick --results-dir result"
)
@options_of(LatencyPlan, _Run)
def latency(ctx: click.Context, /, plan: LatencyPlan, o: _Run) -> None:
    """Put a store at several distances and measure what requests wait for it.

    Clients: ours, ours-without-view (no presence view), in-turn (an EXISTS for each chunk in turn,
    then GETs). Workloads: miss (new prompts), hit (stored ones), mixed (two hits to a miss). By
    default all of 0, 10, 20, 30, 40, 50, 1000 ms, 128, 4096, 40960 tokens, 1 and 8 at a time.

    OPENAI_API_KEY is sent to the server at --base-url.
    """
    from kvferry_lab.drawing import check_plot
    from kvferry_lab.latency.cell_figures import published, read_rows, series_of, slopes
    from kvferry_lab.latency.report import named, slope_lines, table_lines, write_plot
    from kvferry_lab.latency.run import run_latency

    baseline = read_rows(o.baseline) if o.baseline else []
    if o.plot:
        check_plot()
    plan = under(ctx, plan, _QUICK if o.quick else {})
    report = run_latency(
        replace(
            plan,
            requests=max(1, round((o.scale or 1) * plan.requests)),
            key=os.environ.get("OPENAI_API_KEY", ""),
        ),
        link=o.link,
        store_url=o.store_url,
        listen_port=o.listen_port,
        say=lambda text: click.echo(text, err=True),
    )
    report.write(o.results_dir)
    if o.plot:
        write_plot(o.results_dir / "output.png", report, published(), baseline)
    for rows in series_of([*report.rows, *published()]).values():
        click.echo(f"{named(rows[0].series)}\n")
        click.echo("\n".join(table_lines(rows)) + "\n")
    click.echo("\n".join(slope_lines(slopes(report.rows))))
    click.echo(f"wrote {o.results_dir}", err=True)
    if report.stopped:
        click.echo(f"kvferry: ended before its last cell: {report.stopped}", err=True)
    ctx.exit(1 if report.stopped or any(row.failed for row in report.rows) else 0)
