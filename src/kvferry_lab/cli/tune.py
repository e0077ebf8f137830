"""`kvferry tune`: the best settings for a server, measured and written to a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvferry.cli.numbers import Number

if TYPE_CHECKING:
    from kvferry.config import ClientConfig
    from kvferry_lab.tune.points import Grid, TuneResult

__all__ = ["tune"]

_MIB = 1 << 20
_PLAIN = ("budget_s", "full", "get_weight", "allow_eviction", "seed")  # as they are in Tune


def _count(word: str) -> int:
    if not 1 <= int(word) <= 1024:
        raise ValueError
    return int(word)


def _mib(word: str) -> int:
    size_bytes = int(float(word) * _MIB)
    if not 4096 <= size_bytes <= 512 * _MIB:
        raise ValueError
    return size_bytes


def _list(read: Callable[[str], Any]) -> Callable[..., tuple[Any, ...]]:
    """Reads numbers with commas between them."""

    def values(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[Any, ...]:
        try:
            return tuple(read(word.strip()) for word in text.split(",")) if text else ()
        except (ValueError, OverflowError):
            raise click.BadParameter(f"{text!r} is no list like 1,2,4", ctx, param) from None

    return values


@click.command(
    epilog="Exit codes: 0 measured (and written), 1 failed: nothing was written, 2 usage, "
    "130 interrupted: nothing was written.  "
    "Example: kvferry tune redis://cache-1:6379 --config kvferry.yaml"
)
@click.argument("url", required=False)
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="What to read and write.  [default: KVFERRY_CONFIG_FILE]",
)
@click.option("--dry-run", is_flag=True, help="Write nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.option(
    "--budget-s", type=Number(1), default=60.0, show_default=True, help="Most seconds of it."
)
@click.option("--full", is_flag=True, help="Then try the whole grid and compare: minutes.")
@click.option(
    "--mib",
    type=click.IntRange(1, 4096),
    default=64,
    show_default=True,
    help="MiB that a measurement moves.",
)
@click.option(
    "--get-weight",
    type=Number(0.01, 100),
    default=2.0,
    show_default=True,
    help="Bytes read for each byte written.",
)
@click.option("--allow-eviction", is_flag=True, help="Go on where the server has to evict keys.")
@click.option(
    "--connections", callback=_list(_count), help="Numbers of connections to try, e.g. 4,8,16."
)
@click.option("--workers", callback=_list(_count), help="Numbers of I/O threads to try.")
@click.option("--chunks", callback=_list(_mib), help="Sizes of values to try, in MiB.")
@click.option("--seed", type=int, default=0, help="Seed of the order of measurements.")
def tune(url: str | None, file: Path | None, dry_run: bool, as_json: bool, **options: Any) -> None:
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

    file = find_config_file(file)
    if file is None and not dry_run:
        raise click.UsageError(
            f"name the file to write with --config or {FILE_VARIABLE}, or add --dry-run"
        )
    config = _server(url, file)
    del url  # it may carry a password, and error reporters show variables
    run = Tune(
        config=config,
        grid=_grid(options),
        size_bytes=options["mib"] * _MIB,
        **{name: options[name] for name in _PLAIN},
    )
    result = run.run(lambda text: click.echo(text, err=True))
    if file is not None and not dry_run:
        save_client_settings(file, result.client, others={"tuned": result.tuned})
    written = None if dry_run else file
    if as_json:
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


def _grid(options: dict[str, Any]) -> Grid:
    from kvferry_lab.tune.points import Grid

    axes = {
        "connections": options["connections"],
        "workers": options["workers"],
        "chunk_bytes": options["chunks"],
    }
    return Grid(**{axis: values for axis, values in axes.items() if values})


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
