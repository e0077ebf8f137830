"""`kvferry bench`: figures that were earned. Every byte that is counted was also checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from kvferry.cli.numbers import Number
from kvferry_lab.cli.bench_codec import codec
from kvferry_lab.cli.bench_engines import engines
from kvferry_lab.cli.bench_load import memtier_benchmark, redis_benchmark
from kvferry_lab.output import DRAWING, OutputFile

if TYPE_CHECKING:
    from rich.console import Console

    from kvferry.config import ClientConfig

_COMPARED = (
    *("native", "pure", "redis-py", "redis-py-async"),
    *("memtier", "redis-benchmark", "glide", "lmcache"),
)
_KINDS = (*_COMPARED, "single-pool", "multi-pool", "custom")


@click.group(epilog="Example: kvferry bench client --store embedded --compare all")
def bench() -> None:
    """Measure clients against a server, with verified bytes."""


for command in (codec, engines, memtier_benchmark, redis_benchmark):
    bench.add_command(command)


@bench.command(
    epilog="Exit codes: 0 all measured, 1 a row has no figure, 2 usage.  Example: kvferry bench "
    "client --url redis://localhost:6379 --sweep size --json rows.json --plot size.png"
)
@click.option(
    "--client-type",
    type=click.Choice(_KINDS),
    default="native",
    show_default=True,
    help="Which client.",
)
@click.option(
    "--compare",
    type=click.Choice(["all"]),
    help="Every client that is installed; the last three types are others in disguise.",
)
@click.option("--url", help="Server, cluster or Sentinels; settings in the query.")
@click.option("--host", help="Server, without --url.  [default: localhost]")
@click.option("--port", type=int, help="Its port.  [default: 6379]")
@click.option("--store", type=click.Choice(["embedded"]), help="Start a server for this run.")
@click.option(
    "--size-mb", "--chunk-mb", type=Number(), default=4.0, show_default=True, help="MiB of a value."
)
@click.option(
    "--num-chunks", "--num-keys", type=int, default=64, show_default=True, help="How many keys."
)
@click.option(
    "--batch",
    type=int,
    help="Keys per batch.  [default: all; 1 for the last three types without --concurrent]",
)
@click.option("--num-workers", type=int, help="Connections; by default the client's choice.")
@click.option("--write", is_flag=True, help="Measure SET.")
@click.option("--read", is_flag=True, help="Measure GET.")
@click.option("--exists", is_flag=True, help="Measure EXISTS.  [default: all three]")
@click.option(
    "--concurrent", is_flag=True, help="All keys at once; the chosen operations also together."
)
@click.option(
    "--sweep", type=click.Choice(["size", "workers"]), help="Repeat it over sizes or connections."
)
@click.option("--repeat", type=int, default=5, show_default=True, help="Rounds; medians are shown.")
@click.option(
    "--floor/--no-floor", default=True, show_default=True, help="Compare with bare sockets."
)
@click.option(
    "--calls", is_flag=True, help="Also show waits and socket calls of the native client."
)
@click.option(
    "--json", "json_file", type=OutputFile(), help="Write the rows to this file; - is stdout."
)
@click.option(
    "--plot", "plot_file", type=OutputFile(*DRAWING), help="Draw GB/s into this PNG or SVG file."
)
@click.pass_context
def client(ctx: click.Context, /, json_file: str | None, plot_file: str | None, **o: Any) -> None:
    """Write, read and probe values, and say how near that comes to bare sockets.

    single-pool and multi-pool are redis-py's asyncio client over one pool of connections or
    several, custom is the pure client with a thread for each connection: one command at a time,
    or with --concurrent all at once.

    User and password are taken from KVFERRY_RESP_USERNAME and KVFERRY_RESP_PASSWORD.
    """
    from kvferry_lab.bench import report
    from kvferry_lab.bench.plot import check_plot, write_plot
    from kvferry_lab.bench.run import ClientBench
    from kvferry_lab.bench.server import open_probe
    from kvferry_lab.output import write_json

    if plot_file:
        check_plot()
    if min(o["num_chunks"], o["repeat"], o["batch"] or 1, o["num_workers"] or 1) < 1:
        raise click.UsageError("counts must be at least 1")
    flags = {"set": o["write"], "get": o["read"], "exists": o["exists"]}
    ops = [op for op, given in flags.items() if given]
    plan = ClientBench(
        config=_server(o["url"], o["host"], o["port"]),
        kinds=_COMPARED if o["compare"] else [o["client_type"]],
        ops=ops or list(flags),
        size_mib=o["size_mb"],
        chunks=o["num_chunks"],
        batch=o["batch"],
        connections=o["num_workers"],
        concurrent=o["concurrent"],
        rounds=o["repeat"],
        sweep=o["sweep"],
        compare=bool(o["compare"]),
        with_floor=o["floor"],
    )
    console = console_for(to_stderr=json_file == "-")
    with _store(o["store"], plan.config, plan.bytes_max) as config:
        plan = replace(plan, config=config)
        with open_probe(config) as probe:
            facts = report.header(probe.facts())
        report.say_header(console, facts)
        rows = plan.run(lambda text: console.print(f"running:  {text}", highlight=False))
    for kind, reason in plan.skipped.items():
        console.print(f"skipped:  {kind}: {reason}", highlight=False, markup=False)
    report.say_rows(console, rows, o["calls"])
    if json_file:
        run = {**facts, "skipped": plan.skipped}
        write_json(json_file, [{**asdict(row), "run": run} for row in rows])
    if plot_file:
        write_plot(plot_file, rows, plan.sweep)
    ctx.exit(1 if any(row.error for row in rows) else 0)


def console_for(*, to_stderr: bool) -> Console:
    """Where figures are said: as wide as the terminal, and wide enough in a pipe."""
    from rich.console import Console

    wide = None if os.isatty(2 if to_stderr else 1) else 140  # a pipe has no width of its own
    return Console(stderr=to_stderr, width=wide)


def _server(url: str | None, host: str | None, port: int | None) -> ClientConfig:
    """The server of the command line, with the credentials of the environment."""
    from kvferry.config import ClientConfig

    if url and (host or port):
        raise click.UsageError("--url and --host/--port exclude each other")
    return ClientConfig.from_env(url=url, host=host, port=port)


@contextmanager
def _store(store: str | None, config: ClientConfig, bytes_max: int) -> Iterator[ClientConfig]:
    """The server to measure: the given one, or our own with room for the bytes."""
    if store is None:
        yield config
        return
    from kvferry.embedded.store import embedded_store
    from kvferry_lab.servers.same_host import tcp_config

    with embedded_store(maxmemory_mb=bytes_max // (1 << 20) + 256) as own:
        yield tcp_config(own)
