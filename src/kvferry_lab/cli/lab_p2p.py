"""`kvferry lab p2p`: what a second instance saves by reading the memory of the first."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from kvferry.cli.numbers import Number

__all__ = ["p2p"]


@click.command(
    epilog="Exit codes: 0 done, 1 a request failed, 2 usage.  "
    "Example: kvferry lab p2p --scale 0.2 --prefill-tokens-per-s 20000"
)
@click.option(
    "--scale",
    type=Number(0, 1, min_open=True),
    default=0.2,
    show_default=True,
    help="Part of the 50 documents; their length stays.",
)
@click.option(
    "--output-len",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Tokens of an answer.",
)
@click.option(
    "--max-inflight-requests",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Requests at a time.",
)
@click.option(
    "--prefill-tokens-per-s",
    type=Number(0, min_open=True),
    default=20_000.0,
    show_default=True,
    help="The pace of the GPU.",
)
@click.option(
    "--bytes-per-token",
    type=click.IntRange(1),
    default=8192,
    show_default=True,
    help="Size of KV; 131072 is Llama-3.1-8B's.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.pass_context
def p2p(ctx: click.Context, /, as_json: bool, **options: Any) -> None:
    """Ask two instances for the same long documents, one after the other.

    A controller and both are started. What the second one need not compute comes from the memory of
    the first.
    """
    from kvferry.cli.table import console, table
    from kvferry_lab.p2p import PUBLISHED, P2PPlan, run_p2p

    plan = P2PPlan(**options)
    rows = run_p2p(plan, lambda text: click.echo(text, err=True))
    if as_json:
        click.echo(json.dumps({"plan": asdict(plan), "rounds": [asdict(row) for row in rows]}))
    else:
        base_ttft, base_s = PUBLISHED["first", "warm-up"]
        columns = ("Instance", "Round", "Prompts", "Mean TTFT", "Time", "of first", "published")
        cells = []
        for row in rows:
            ttft_s, took_s = PUBLISHED[row.instance, row.round]
            cells.append(
                (
                    row.instance,
                    row.round,
                    f"{row.successful} of {row.prompts}",
                    f"{row.ttft_s:.3f} s",
                    f"{row.time_s:.3f} s",
                    f"{row.ttft_ratio:.2f}, {row.time_ratio:.2f}",
                    f"{ttft_s / base_ttft:.2f}, {took_s / base_s:.2f}",
                )
            )
        console().print(table(columns, cells))
        click.echo("The last two columns: mean TTFT and time as parts of the first warm-up.")
    ctx.exit(1 if any(row.successful < row.prompts for row in rows) else 0)
