"""`kvferry tune`: the best settings for a server, measured and written to a file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvferry_lab.cli.options import option, options_of

if TYPE_CHECKING:
    from kvferry.config import ClientConfig
    from kvferry_lab.tune.points import TuneResult

__all__ = ["tune"]

_MIB = 1 << 20


def _count(word: str) -> int:
    if not 1 <= int(word) <= 1024:
        raise ValueError
    return int(word)


def _mib(word: str) -> int:
    size_bytes = int(float(word) * _MIB)
    if not 4096 <= size_bytes <= 512 * _MIB:
        raise ValueError
    return size_bytes


@dataclass(frozen=True, kw_only=True)
class _Search:
    """What to try, and for how long."""

    file: Path | None = option(
        None,
        "What to read and write.  [default: KVFERRY_CONFIG_FILE]",
        "--config",
        kind=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
    )
    dry_run: bool = option(False, "Write nothing.")
    as_json: bool = option(False, "One JSON object on standard output.", "--json")
    budget_s: float = option(60.0, "Most seconds of it.", least=1)
    full: bool = option(False, "Then try the whole grid and compare: minutes.")
    mib: int = option(64, "MiB that a measurement moves.", least=1, most=4096)
    get_weight: float = option(2.0, "Bytes read for each byte written.", least=0.01, most=100)
    allow_eviction: bool = option(False, "Go on where the server has to evict keys.")
    connections: tuple[int, ...] = option(
        (), "Numbers of connections to try, e.g. 4,8,16.", kind=_count
    )
    workers: tuple[int, ...] = option((), "Numbers of I/O threads to try.", kind=_count)
    chunks: tuple[int, ...] = option((), "Sizes of values to try, in MiB.", kind=_mib)
    seed: int = option(0, "Seed of the order of measurements.")


@click.command(
    epilog="Exit codes: 0 measured (and written), 1 failed: nothing was written, 2 usage, "
    "130 interrupted: nothing was written.  "
    "Example: kvferry tune redis://cache-1:6379 --config kvferry.yaml"
)
@click.argument("url", required=False)
@options_of(_Search)
def tune(ctx: click.Context, /, o: _Search, url: str | None) -> None:
    """Find the fastest settings for a server and write them to the configuration file.

    The server is URL, or that of the file or of the environment. Measured are connections, workers
    and the size of values; every byte is verified. Run it where the client will run, on a
    machine that does nothing else.
    """
    try:
        from kvferry_lab.tune.run import Tune
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise click.ClickException("tuning needs NumPy: pip install 'kvferry[numpy]'") from None
    from kvferry.config import save_client_settings
    from kvferry.config.file import FILE_VARIABLE, find_config_file
    from kvferry_lab.tune.points import Grid

    file = find_config_file(o.file)
    if file is None and not o.dry_run:
        raise click.UsageError(
            f"name the file to write with --config or {FILE_VARIABLE}, or add --dry-run"
        )
    config = _server(url, file)
    del url  # it may carry a password, and error reporters show variables
    axes: dict[str, Any] = {
        "connections": o.connections,
        "workers": o.workers,
        "chunk_bytes": o.chunks,
    }
    run = Tune(
        config=config,
        grid=Grid(**{axis: values for axis, values in axes.items() if values}),
        size_bytes=o.mib * _MIB,
        budget_s=o.budget_s,
        full=o.full,
        get_weight=o.get_weight,
        allow_eviction=o.allow_eviction,
        seed=o.seed,
    )
    result = run.run(lambda text: click.echo(text, err=True))
    if file is not None and not o.dry_run:
        save_client_settings(file, result.client, others={"tuned": result.tuned})
    written = None if o.dry_run else file
    if o.as_json:
        click.echo(json.dumps({**result.as_json(), "written": written and str(written)}))
    else:
        _print(result, written)


def _server(url: str | None, file: Path | None) -> ClientConfig:
    """The settings until now; a file that is not there yet has none."""
    from kvferry.config import load_client_config
    from kvferry.config.file import FILE_VARIABLE

    environ = {name: value for name, value in os.environ.items() if name != FILE_VARIABLE}
    is_there = file is not None and file.exists()
    return load_client_config(file if is_there else None, environ=environ, url=url)


def _print(result: TuneResult, written: Path | None) -> None:
    from kvferry.cli.table import console, facts, number
    from kvferry_lab.output import machine_facts, machine_line

    out, sample, weight = console(), result.sample, result.get_weight
    rows: list[tuple[str, str]] = [
        ("machine", machine_line(machine_facts())),
        (
            "server",
            f"{result.server} at {result.address}, round trip {result.round_trip_s * 1e3:.2f} ms",
        ),
        ("best", str(result.best)),
        (
            "measured",
            f"GET {number(sample.get_gbps)}, SET {number(sample.set_gbps)}, both as {weight:g}:1 "
            f"{number(sample.mix_gbps(weight))} GB/s",
        ),
        ("until now", f"{result.before}; the best is {result.ratio:.2f} times as fast"),
    ]
    if result.sweep_ratio is not None:
        rows.append(
            (
                "full sweep",
                f"{result.sweep_best}; the search reached {result.sweep_ratio:.3f} of it",
            )
        )
    rows.append(
        (
            "effort",
            f"{result.turns} turns in {result.elapsed_s:.0f} s, "
            f"{result.verified_bytes / 1e9:.1f} GB verified",
        )
    )
    out.print(facts(rows), "")
    for point, reason in result.failed.items():
        out.print(f"left out: {point}: {reason}", soft_wrap=True)
    out.print("nothing was written" if written is None else f"written to {written}", soft_wrap=True)
