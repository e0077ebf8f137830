"""Every promise about speed and recovery, measured: ``python -m benchmarks --help``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmarks import report
from benchmarks.bars import Lab, run_bars
from kvferry.cli.main import run_command
from kvferry_lab.output import say_facts, wide_console, write_json

__all__ = ["main"]


@click.command(
    epilog="Exit codes: 0 measured, whatever holds; 1 something falls short and --strict is "
    "given; 2 usage.  Example: python -m benchmarks --json build/bench.json"
)
@click.option("--json", "json_file", help="Write the bars to this file; - is stdout.")
@click.option("--quick", is_flag=True, help="Tiny sizes: shows that it works, claims nothing.")
@click.option("--strict", is_flag=True, help="Exit with 1 when a bar falls short.")
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Files lie there, on the disk that is meant.  [default: that for temporary files]",
)
@click.option("--only", multiple=True, help="Groups whose name contains this; may be repeated.")
@click.pass_context
def bars(
    ctx: click.Context,
    /,
    json_file: str | None,
    quick: bool,
    strict: bool,
    directory: Path | None,
    only: tuple[str, ...],
) -> None:
    """Measure every promise about speed and recovery, on servers of its own, and say which hold."""
    groups = report.select(only)
    console = wide_console(to_stderr=json_file == "-")
    lab = Lab(quick, directory)
    facts = report.header(lab)
    say_facts(console, facts)
    measured = run_bars(groups, lab, lambda bar: report.say_bar(console, bar, quick))
    report.say_table(console, measured, quick)
    if json_file:
        if json_file != "-":
            Path(json_file).parent.mkdir(parents=True, exist_ok=True)
        told = [bar.to_dict() for bar in measured]
        write_json(json_file, {**facts, "quick": quick, "bars": told})
    ctx.exit(1 if strict and any(bar.falls_short for bar in measured) else 0)


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    return run_command(bars, argv, "benchmarks")


if __name__ == "__main__":
    sys.exit(main())
