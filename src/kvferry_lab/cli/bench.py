"""`kvferry bench` and its commands: figures that were earned.

    client              clients of Redis and Valkey against a server
    codec               what `remote_serde` saves, and what it costs
    engines             what a cache is worth to a real vLLM
    memtier_benchmark, redis-benchmark
                        those programs' loads, by them or by kvferry-load

Every byte that is counted was also checked, but for the loads of other programs, which check none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvferry_lab.bench.client_plan import ClientPlan
from kvferry_lab.bench.standard_loads import LoadPlan, RedisLoadPlan
from kvferry_lab.cli.options import option, options_of
from kvferry_lab.engines.bench import EnginePlan
from kvferry_lab.output import DRAWING, OutputFile

if TYPE_CHECKING:
    from kvferry.config import ClientConfig
    from kvferry_lab.bench.standard_loads import LoadRow

__all__ = ["bench"]

_EXIT_CODES = "Exit codes: 0 measured, 1 the program or the server failed, 2 usage.  "


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Where rows of figures go."""

    json_file: str | None = option(
        None, "Write the rows to this file; - is stdout.", "--json", kind=OutputFile()
    )


@dataclass(frozen=True, kw_only=True)
class _Drawn(_Rows):
    """The same, and where they are drawn."""

    plot_file: str | None = option(
        None, "Draw GB/s into this PNG or SVG file.", "--plot", kind=OutputFile(*DRAWING)
    )


@click.group(epilog="Example: kvferry bench client --store embedded --compare all")
def bench() -> None:
    """Measure clients against a server, with verified bytes."""


@bench.command(
    epilog="Exit codes: 0 all measured, 1 a row has no figure, 2 usage.  Example: kvferry bench "
    "client --url redis://localhost:6379 --sweep size --json rows.json --plot size.png"
)
@options_of(ClientPlan, _Drawn)
def client(ctx: click.Context, /, plan: ClientPlan, to: _Drawn) -> None:
    """Write, read and probe values, and say how near that comes to bare sockets.

    single-pool and multi-pool are redis-py's asyncio client over one pool of connections or
    several, custom is the pure client with a thread for each connection: one command at a time,
    or with --concurrent all at once.

    User and password are taken from KVFERRY_RESP_USERNAME and KVFERRY_RESP_PASSWORD.
    """
    from kvferry.config import ClientConfig
    from kvferry_lab.bench import report
    from kvferry_lab.bench.run import ClientBench, bytes_max
    from kvferry_lab.bench.server_probe import open_probe
    from kvferry_lab.drawing import check_plot
    from kvferry_lab.output import run_facts, say_facts, wide_console, write_json

    if to.plot_file:
        check_plot()
    console = wide_console(to_stderr=to.json_file == "-")
    config = ClientConfig.from_env(url=plan.url, host=plan.host, port=plan.port)
    with _store(plan.store, config, bytes_max(plan)) as config:
        with open_probe(config) as probe:
            facts = run_facts(server=probe.facts())
        say_facts(console, facts)
        run = ClientBench(config, plan)
        rows = run.run(lambda text: console.print(f"running:  {text}", highlight=False))
    for kind, reason in run.skipped.items():
        console.print(f"skipped:  {kind}: {reason}", highlight=False, markup=False)
    report.say_rows(console, rows, plan.calls)
    if to.json_file:
        whole = {**facts, "skipped": run.skipped}
        write_json(to.json_file, [{**asdict(row), "run": whole} for row in rows])
    if to.plot_file:
        report.write_plot(to.plot_file, rows, plan.sweep)
    ctx.exit(1 if any(row.error for row in rows) else 0)


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


@dataclass(frozen=True, kw_only=True)
class _CodecPlan(_Rows):
    """What to encode."""

    file: Path | None = option(
        None, "KV of an engine as bytes.  [default: KV of a small transformer]"
    )
    tokens: int = option(4096, "Tokens whose KV is computed.", least=1, most=1 << 20)
    repeat: int = option(5, "Rounds; medians count.", least=1)


@bench.command(
    epilog="Exit codes: 0 measured, 2 usage.  Example: kvferry bench codec --file kv.bin"
)
@options_of(_CodecPlan)
def codec(ctx: click.Context, /, plan: _CodecPlan) -> None:
    """Encode and decode KV by each codec, in one thread, and compare every byte.

    Of fp8, which loses something, it says what that does to the model's predictions.
    """
    from kvferry.connectors.serde import CODECS, FP8
    from kvferry_lab.bench.codec import content_of, figures, measure, measure_loss, say
    from kvferry_lab.output import write_json

    content, what = content_of(plan.file, plan.tokens)
    names = [name for name in CODECS if name != "naive"]
    loss = None
    if plan.file is None:  # whose numbers are bf16
        names.append(FP8)
        loss = measure_loss(plan.tokens)
    rows = [measure(name, content, plan.repeat) for name in names]
    if plan.json_file != "-":
        say(rows, what, loss)
    if plan.json_file:
        write_json(plan.json_file, figures(rows, what, loss))


@dataclass(frozen=True, kw_only=True)
class _EngineOutput:
    """What else is measured, and where figures go."""

    serve_bench: bool = option(False, "Also run `vllm bench serve` with prefix_repetition.")
    broken_store: bool = option(False, "Also measure what a dead or silent store costs.")
    json_file: str | None = option(
        None, "Write the figures to this file; - is stdout.", "--json", kind=OutputFile()
    )
    plot_file: str | None = option(
        None, "Draw times to the first token into this file.", "--plot", kind=OutputFile(*DRAWING)
    )


@bench.command(
    epilog="Exit codes: 0 all measured, 1 one has no figures or wrong answers, 2 usage.  "
    "Example: kvferry bench engines --python venv/bin/python --model MODEL --json engines.json"
)
@options_of(EnginePlan, _EngineOutput)
def engines(ctx: click.Context, /, plan: EnginePlan, to: _EngineOutput) -> None:
    """Start vLLM again and again, without a cache and with each of our integrations, and compare.

    kvferry has to be installed in vLLM's environment. The store is started for the run.
    """
    from kvferry_lab.drawing import check_plot
    from kvferry_lab.engines import report
    from kvferry_lab.engines.bench import run
    from kvferry_lab.engines.broken import run_broken, say_broken_rows
    from kvferry_lab.engines.serve import run_serve_bench, say_serve_rows
    from kvferry_lab.output import say_facts, wide_console, write_json

    if to.plot_file:
        check_plot()
    console = wide_console(to_stderr=to.json_file == "-")

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    facts = report.header(plan)
    say_facts(console, facts)
    rows = run(plan, say)
    report.say_rows(console, rows)
    if to.serve_bench:
        facts["serve_bench"] = run_serve_bench(plan, say)
        say_serve_rows(console, facts["serve_bench"])
    if to.broken_store:
        facts["broken_store"] = run_broken(plan, say)
        say_broken_rows(console, facts["broken_store"])
    if to.json_file:
        write_json(to.json_file, {"run": facts, "integrations": [row.to_dict() for row in rows]})
    if to.plot_file:
        report.write_plot(to.plot_file, rows)
    ctx.exit(1 if any(row.error or row.wrong_answers for row in rows) else 0)


@bench.command(
    "memtier_benchmark",
    epilog=f"{_EXIT_CODES}Example: kvferry bench memtier_benchmark --ratio=1:0 -n allkeys "
    "--data-size=4194304 --key-minimum=1 --key-maximum=1000 --key-pattern=P:P --pipeline=64 "
    "--clients=10 --threads=1",
)
@options_of(LoadPlan, _Rows)
def memtier_benchmark(ctx: click.Context, /, plan: LoadPlan, to: _Rows) -> None:
    """memtier_benchmark's load, by that program or, where it is absent, by kvferry-load.

    Its own options, as far as they are listed here. Keys stay in the server, as with the original.
    """
    from kvferry_lab.bench.standard_loads import memtier_load

    _say(*memtier_load(plan), to.json_file)


@click.command(
    "redis-benchmark",
    epilog=f"{_EXIT_CODES}Example: kvferry bench redis-benchmark -n 1000 -r 1000 -d 33554432 "
    "-t set -P 1 -c 100",
)
@options_of(RedisLoadPlan, _Rows)
def redis_benchmark(ctx: click.Context, /, plan: RedisLoadPlan, to: _Rows) -> None:
    """redis-benchmark's load, by that program or, where it is absent, by kvferry-load.

    Its own options, as far as they are listed here. Keys stay in the server, as with the original.
    """
    from kvferry_lab.bench.standard_loads import redis_load

    _say(*redis_load(plan), to.json_file)


def _say(rows: list[LoadRow], why: str, json_file: str | None) -> None:
    from kvferry_lab.output import write_json

    talk = sys.stderr if json_file == "-" else sys.stdout
    if why:
        click.echo(f"by kvferry-load: {why}", file=talk)
    else:
        click.echo(f"by {rows[0].program}, which checks no byte", file=talk)
    for row in rows:
        missed = f", {row.misses:.1%} misses" if row.misses else ""
        click.echo(
            f"{row.op.upper()}: {row.ops_per_s:.2f} requests per second, {row.gbps:.2f} GB/s, "
            f"p50 {row.p50_ms:.3f} ms, p99 {row.p99_ms:.3f} ms{missed}",
            file=talk,
        )
    if json_file:
        write_json(json_file, [asdict(row) for row in rows])


bench.add_command(redis_benchmark)
