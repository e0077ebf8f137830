"""Every promise about speed and recovery, measured: ``python -m benchmarks --help``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks import report
from benchmarks.bars import Lab, run_bars
from kvferry.cli.main import run_command
from kvferry_lab.cli.options import option, options_of
from kvferry_lab.output import say_facts, wide_console, write_json

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class _Bars:
    """Which bars, how much of them, and where they go."""

    json_file: str | None = option(None, "Write the bars to this file; - is stdout.", "--json")
    quick: bool = option(False, "Tiny sizes: shows that it works, claims nothing.")
    strict: bool = option(False, "Exit with 1 when a bar falls short.")
    directory: Path | None = option(
        None, "Files lie there, on the disk that is meant.  [default: that for temporary files]"
    )
    only: tuple[str, ...] = option(
        (), "Groups whose name contains this; may be repeated.", kind=str, multiple=True, like=""
    )


@click.command(
    epilog="Exit codes: 0 measured, whatever holds; 1 something falls short and --strict is "
    "given; 2 usage.  Example: python -m benchmarks --json build/bench.json"
)
@options_of(_Bars)
def bars(ctx: click.Context, /, o: _Bars) -> None:
    """Measure every promise about speed, on servers of its own, and say which hold."""
    groups = report.select(o.only)
    console = wide_console(to_stderr=o.json_file == "-")
    lab = Lab(o.quick, o.directory)
    facts = report.header(lab)
    say_facts(console, facts)
    measured = run_bars(groups, lab, lambda bar: report.say_bar(console, bar, o.quick))
    report.say_table(console, measured, o.quick)
    if o.json_file:
        told = [bar.to_dict() for bar in measured]
        write_json(o.json_file, {**facts, "quick": o.quick, "bars": told})
    ctx.exit(1 if o.strict and any(bar.falls_short for bar in measured) else 0)


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    return run_command(bars, argv, "benchmarks")


if __name__ == "__main__":
    sys.exit(main())
