"""`kvferry lab latency`: what the distance to a store costs an inference server."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from kvferry.base.errors import UsageError
from kvferry.cli.numbers import Number

__all__ = ["latency"]

_QUICK: dict[str, Any] = {
    "rtt_ms": (0.0, 50.0),
    "workloads": ("miss", "hit"),
    "prompt_tokens": (128, 2048),
    "concurrency": (1,),
    "requests": 3,
    "output_tokens": 8,
}


def _list(kind: Any, name: str) -> Any:
    """A callback that reads a list with commas; None stays."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
        if text is None:
            return None
        try:
            return tuple(kind(word) for word in text.split(","))
        except ValueError:
            raise click.BadParameter(f"{text!r} is no list of {name}, e.g. 0,10,50") from None

    return read


def _times(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 60_000:
        raise ValueError(text)
    return value


def _whole(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


@click.command(
    epilog="Exit codes: 0 done, 1 a request failed, 2 usage.  "
    "Example: kvferry lab latency --quick --results-dir result"
)
@click.option(
    "--rtt-ms", metavar="MS,...", callback=_list(_times, "times"), help="Round-trip times to try."
)
@click.option(
    "--clients",
    metavar="NAME,...",
    callback=_list(str, "names"),
    help="How the store is asked; see above.",
)
@click.option(
    "--workloads", metavar="NAME,...", callback=_list(str, "names"), help="Which; see above."
)
@click.option(
    "--prompt-tokens", metavar="N,...", callback=_list(_whole, "numbers"), help="Lengths."
)
@click.option(
    "--concurrency", metavar="N,...", callback=_list(_whole, "numbers"), help="Requests at a time."
)
@click.option("--requests", type=click.IntRange(1), help="Requests of a cell.  [default: 10]")
@click.option("--output-tokens", type=click.IntRange(1), help="Tokens of an answer.  [default: 64]")
@click.option("--scale", type=Number(0, min_open=True), help="Make this part of the requests.")
@click.option("--quick", is_flag=True, help="A small run of less than a minute; other options win.")
@click.option(
    "--link",
    type=click.Choice(["auto", "tun", "proxy"]),
    default="auto",
    show_default=True,
    help="How the distance is made; auto: tun as root, else proxy.",
)
@click.option(
    "--prefill-tokens-per-s", type=Number(1), help="The pace of prompts.  [default: 10000]"
)
@click.option("--decode-tokens-per-s", type=Number(1), help="The pace of answers.  [default: 250]")
@click.option("--bytes-per-token", type=click.IntRange(1), help="Size of KV.  [default: 2048]")
@click.option("--base-url", help="Ask this server instead, e.g. http://localhost:8000/v1.")
@click.option("--store", "store_url", help="The store of that server: delay it here.")
@click.option(
    "--listen", "listen_port", type=click.IntRange(1, 65535), help="The port of that delay."
)
@click.option(
    "--wait-s",
    type=Number(0),
    help="Give that server so many seconds to start: some look for their store then.  [default: 0]",
)
@click.option(
    "--baseline", type=click.Path(path_type=Path), help="Compare with latency.json of another run."
)
@click.option(
    "--results-dir",
    type=click.Path(path_type=Path),
    default=Path("result"),
    help="The folder of figures.",
)
@click.option("--plot/--no-plot", default=True, show_default=True, help="Draw output.png.")
@click.pass_context
def latency(ctx: click.Context, /, **o: Any) -> None:
    """Put a store at several distances and measure what requests wait for it.

    Clients: ours, ours-without-view (no presence view), in-turn (an EXISTS for each chunk in turn,
    then GETs). Workloads: miss (new prompts), hit (stored ones), mixed (two hits to a miss). By
    default all of 0, 10, 20, 30, 40, 50, 1000 ms, 128, 4096, 40960 tokens, 1 and 8 at a time.

    OPENAI_API_KEY is sent to the server at --base-url.
    """
    from kvferry_lab.bench.plot import check_plot
    from kvferry_lab.latency.cell_figures import published, read_rows, series_of, slopes
    from kvferry_lab.latency.report import named, slope_lines, table_lines
    from kvferry_lab.latency.run import run_latency

    baseline = read_rows(o["baseline"]) if o["baseline"] else []
    if o["plot"]:
        check_plot()
    plan = _plan(o)
    command = shlex.join(["kvferry", *sys.argv[1:]])
    report = run_latency(
        plan,
        link=o["link"],
        store_url=o["store_url"],
        listen_port=o["listen_port"],
        command=command,
        say=lambda text: click.echo(text, err=True),
    )
    folder: Path = o["results_dir"]
    report.write(folder)
    if o["plot"]:
        from kvferry_lab.latency.report import write_plot

        write_plot(folder / "output.png", report, published(), baseline)
    for rows in series_of([*report.rows, *published()]).values():
        click.echo(f"{named(rows[0].series)}\n")
        click.echo("\n".join(table_lines(rows)) + "\n")
    click.echo("\n".join(slope_lines(slopes(report.rows))))
    click.echo(f"wrote {folder}", err=True)
    if report.stopped:
        click.echo(f"kvferry: ended before its last cell: {report.stopped}", err=True)
    ctx.exit(1 if report.stopped or any(row.failed for row in report.rows) else 0)


def _plan(o: dict[str, Any]) -> Any:
    from dataclasses import fields

    from kvferry_lab.latency.experiment import CLIENTS, WORKLOADS, LatencyPlan

    names = {field.name for field in fields(LatencyPlan)}
    said = {name: o[name] for name in names & o.keys() if o[name] is not None}
    for name, known in (("clients", CLIENTS), ("workloads", WORKLOADS)):
        for one in said.get(name, ()):
            if one not in known:
                raise UsageError(f"--{name}: {one} is none of {', '.join(known)}")
    plan = {**(_QUICK if o["quick"] else {}), **said, "key": os.environ.get("OPENAI_API_KEY", "")}
    if o["scale"] is not None:
        plan["requests"] = max(1, round(o["scale"] * plan.get("requests", LatencyPlan.requests)))
    return LatencyPlan(**plan)
