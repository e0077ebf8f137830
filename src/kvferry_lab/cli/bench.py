"""`kvferry bench` and its commands: figures that were earned.

    client              clients of Redis and Valkey against a server
    codec               what `remote_serde` saves, and what it costs
    engines             what a cache is worth to a real vLLM
    memtier_benchmark, redis-benchmark
                        those programs' loads, by them or by kvferry-load

Every byte that is counted was also checked, but for the loads of other programs, which check none.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvferry.cli.numbers import Number
from kvferry_lab.output import DRAWING, OutputFile

if TYPE_CHECKING:
    from rich.console import Console

    from kvferry.config import ClientConfig
    from kvferry_lab.bench.standard_loads import LoadRow

__all__ = ["bench"]

_COMPARED = (
    *("native", "pure", "redis-py", "redis-py-async"),
    *("memtier", "redis-benchmark", "glide", "lmcache"),
)
_KINDS = (*_COMPARED, "single-pool", "multi-pool", "custom")
_PATH = click.Path(exists=True, path_type=Path)
_INTEGRATIONS = "none,tier,connector,mp"
_COUNT = click.IntRange(1)
_EXIT_CODES = "Exit codes: 0 measured, 1 the program or the server failed, 2 usage.  "


@click.group(epilog="Example: kvferry bench client --store embedded --compare all")
def bench() -> None:
    """Measure clients against a server, with verified bytes."""


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
    from kvferry_lab.bench.server_probe import open_probe
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


@click.command(
    epilog="Exit codes: 0 measured, 2 usage.  Example: kvferry bench codec --file kv.bin"
)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="KV of an engine as bytes.  [default: KV of a small transformer]",
)
@click.option(
    "--tokens",
    type=click.IntRange(1, 1 << 20),
    default=4096,
    show_default=True,
    help="Tokens whose KV is computed.",
)
@click.option(
    "--repeat", type=click.IntRange(1), default=5, show_default=True, help="Rounds; medians count."
)
@click.option(
    "--json", "json_file", type=OutputFile(), help="Write the rows to this file; - is stdout."
)
def codec(file: Path | None, tokens: int, repeat: int, json_file: str | None) -> None:
    """Encode and decode KV by each codec, in one thread, and compare every byte.

    Of fp8, which loses something, it says what that does to the model's predictions.
    """
    from kvferry.connectors.serde import CODECS, FP8
    from kvferry_lab.bench.codec import content_of, figures, measure, measure_loss, say
    from kvferry_lab.output import write_json

    content, what = content_of(file, tokens)
    names = [name for name in CODECS if name != "naive"]
    loss = None
    if file is None:  # whose numbers are bf16
        names.append(FP8)
        loss = measure_loss(tokens)
    rows = [measure(name, content, repeat) for name in names]
    if json_file != "-":
        say(rows, what, loss)
    if json_file:
        write_json(json_file, figures(rows, what, loss))


@click.command(
    epilog="Exit codes: 0 all measured, 1 one has no figures or wrong answers, 2 usage.  "
    "Example: kvferry bench engines --python venv/bin/python --model MODEL --json engines.json"
)
@click.option("--python", type=_PATH, required=True, help="Interpreter of vLLM's environment.")
@click.option("--model", type=_PATH, required=True, help="Folder of the model.")
@click.option(
    "--integrations", default=_INTEGRATIONS, show_default=True, help="Which ones, in this order."
)
@click.option(
    "--rival-python", type=_PATH, help="The interpreter of vLLM with LMCache, to compare it too."
)
@click.option("--store", type=_PATH, help="Server program.  [default: the wheel's Valkey]")
@click.option(
    "--prompt-tokens", type=int, default=4096, show_default=True, help="Length of a prompt."
)
@click.option("--prompts", type=int, default=2, show_default=True, help="Prompts in a round.")
@click.option(
    "--answer-tokens", type=int, default=16, show_default=True, help="Length of an answer."
)
@click.option("--rounds", type=int, default=2, show_default=True, help="How often all is repeated.")
@click.option("--chunk-tokens", type=int, default=256, show_default=True, help="Tokens of a chunk.")
@click.option(
    "--block-size", type=int, default=128, show_default=True, help="The block size of vLLM."
)
@click.option(
    "--memory-gb",
    type=Number(0, min_open=True),
    default=0.5,
    show_default=True,
    help="Host memory of a cache.",
)
@click.option("--dtype", default="bfloat16", show_default=True, help="The type of vLLM's numbers.")
@click.option("--threads", type=int, help="Threads of the engine.  [default: all cores]")
@click.option(
    "--one-process",
    is_flag=True,
    help="Run the engine core in vLLM's process, which starts sooner.",
)
@click.option(
    "--tier-spec", default="", help="Class of the tier's spec, in the place of vLLM's: MODULE:NAME."
)
@click.option("--module-path", "paths", multiple=True, type=_PATH, help="Where that module is.")
@click.option(
    "--serve-bench", is_flag=True, help="Also run `vllm bench serve` with prefix_repetition."
)
@click.option(
    "--broken-store", is_flag=True, help="Also measure what a dead or silent store costs."
)
@click.option(
    "--json", "json_file", type=OutputFile(), help="Write the figures to this file; - is stdout."
)
@click.option(
    "--plot",
    "plot_file",
    type=OutputFile(*DRAWING),
    help="Draw times to the first token into this file.",
)
@click.pass_context
def engines(ctx: click.Context, /, json_file: str | None, plot_file: str | None, **o: Any) -> None:
    """Start vLLM again and again, without a cache and with each of our integrations, and compare.

    kvferry has to be installed in vLLM's environment. The store is started for the run.
    """
    from rich.console import Console

    from kvferry.base.host import usable_cores
    from kvferry.embedded.program import find_server
    from kvferry_lab.bench.plot import check_plot
    from kvferry_lab.engines import report
    from kvferry_lab.engines.bench import EnginePlan, run
    from kvferry_lab.engines.broken import run_broken, say_broken_rows
    from kvferry_lab.engines.engine_process import versions_of
    from kvferry_lab.engines.serve import run_serve_bench, say_serve_rows
    from kvferry_lab.output import write_json

    if plot_file:
        check_plot()
    integrations = o["integrations"].split(",")
    if o["rival_python"] and "lmcache" not in integrations:
        integrations.append("lmcache")
    module, _, spec = o["tier_spec"].rpartition(":")
    python = o["python"].absolute()
    plan = EnginePlan(
        python=python,
        model=o["model"].absolute(),
        environment=_environment(python, o["paths"]),
        store=find_server(o["store"]),
        integrations=integrations,
        rival_python=o["rival_python"] and o["rival_python"].absolute(),
        rival_environment=_environment(o["rival_python"] or python, o["paths"]),
        **{name: o[name] for name in ("prompt_tokens", "prompts", "answer_tokens", "rounds")},
        **{
            name: o[name]
            for name in ("chunk_tokens", "block_size", "memory_gb", "dtype", "one_process")
        },
        threads=o["threads"] or usable_cores(),
        tier_spec=(spec, module or None) if spec else None,
    )
    unknown = set(integrations) - {"none", "tier", "connector", "mp", "lmcache"}
    if unknown or ("lmcache" in integrations and not plan.rival_python):
        raise click.UsageError(
            f"no such integration, or no --rival-python for it: {sorted(unknown)}"
        )
    to_stderr = json_file == "-"
    wide = None if os.isatty(2 if to_stderr else 1) else 120  # a pipe has no width of its own
    console = Console(stderr=to_stderr, width=wide)
    facts = report.header(plan, versions_of(plan.python, plan.rival_python))
    report.say_header(console, facts)
    rows = run(plan, lambda text: console.print(text, highlight=False, markup=False))
    report.say_rows(console, rows)
    if o["serve_bench"]:
        served = run_serve_bench(plan, lambda text: console.print(text, highlight=False))
        say_serve_rows(console, served)
        facts["serve_bench"] = served
    if o["broken_store"]:
        broken = run_broken(plan, lambda text: console.print(text, highlight=False))
        say_broken_rows(console, broken)
        facts["broken_store"] = broken
    if json_file:
        write_json(json_file, {"run": facts, "integrations": [row.to_dict() for row in rows]})
    if plot_file:
        report.write_plot(plot_file, rows)
    ctx.exit(1 if any(row.error or row.wrong_answers for row in rows) else 0)


def _environment(python: Path, paths: tuple[Path, ...]) -> dict[str, str]:
    """Ours, plus where modules of the command line are."""
    known = [str(path.absolute()) for path in paths] + [os.environ.get("PYTHONPATH", "")]
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, known))
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return environment


@click.command(
    "memtier_benchmark",
    epilog=f"{_EXIT_CODES}Example: kvferry bench memtier_benchmark --ratio=1:0 -n allkeys "
    "--data-size=4194304 --key-minimum=1 --key-maximum=1000 --key-pattern=P:P --pipeline=64 "
    "--clients=10 --threads=1",
)
@click.option(
    "-h", "--host", "-s", "--server", default="localhost", show_default=True, help="The server."
)
@click.option("-p", "--port", type=int, default=6379, show_default=True, help="Its port.")
@click.option("--ratio", default="1:10", show_default=True, help="SETs to GETs.")
@click.option(
    "-n",
    "--requests",
    default="10000",
    show_default=True,
    help="Requests of each client, or allkeys.",
)
@click.option(
    "-c", "--clients", type=_COUNT, default=50, show_default=True, help="Connections of a thread."
)
@click.option("-t", "--threads", type=_COUNT, default=4, show_default=True, help="Threads.")
@click.option("--pipeline", type=_COUNT, default=1, show_default=True, help="Commands in flight.")
@click.option(
    "-d", "--data-size", type=_COUNT, default=32, show_default=True, help="Bytes of a value."
)
@click.option("--key-prefix", default="memtier-", show_default=True, help="How keys begin.")
@click.option(
    "--key-minimum", type=click.IntRange(0), default=0, show_default=True, help="First key."
)
@click.option(
    "--key-maximum", type=click.IntRange(0), default=10_000_000, show_default=True, help="Last key."
)
@click.option(
    "--key-pattern",
    default="R:R",
    show_default=True,
    help="How SETs and GETs choose keys: R, S, G, P or Z each.",
)
@click.option("--hide-histogram", is_flag=True, help="Show no histogram; none is shown anyway.")
@click.option(
    "--json", "json_file", type=OutputFile(), help="Write the rows to this file; - is stdout."
)
def memtier_benchmark(json_file: str | None, hide_histogram: bool, **o: Any) -> None:
    """memtier_benchmark's load, by that program or, where it is absent, by kvferry-load.

    Its own options, as far as they are listed here. Keys stay in the server, as with the original.
    """
    from kvferry.config import ClientConfig
    from kvferry_lab.bench.standard_loads import LoadPlan, memtier_load

    sets, gets = (int(part) for part in _matched("--ratio", r"(\d+):(\d+)", o["ratio"]))
    (requests,) = _matched("--requests", r"(allkeys|[1-9]\d*)", o["requests"])
    pattern = "".join(_matched("--key-pattern", r"([RSGPZ]):([RSGPZ])", o["key_pattern"]))
    if not sets + gets:
        raise click.UsageError("--ratio 0:0 asks for nothing")
    if "P" in pattern and pattern != "PP":
        raise click.UsageError("--key-pattern P is for SETs and GETs alike")
    if o["key_minimum"] > o["key_maximum"]:
        raise click.UsageError("--key-minimum is above --key-maximum")
    load = LoadPlan(
        sets=sets,
        gets=gets,
        requests=None if requests == "allkeys" else int(requests),
        clients=o["clients"],
        threads=o["threads"],
        pipeline=o["pipeline"],
        size_bytes=o["data_size"],
        key_minimum=o["key_minimum"],
        key_maximum=o["key_maximum"],
        pattern=pattern,
        prefix=o["key_prefix"],
    )
    config = ClientConfig.from_env(host=o["host"], port=o["port"])
    _say(*memtier_load(config, load), json_file)


@click.command(
    "redis-benchmark",
    epilog=f"{_EXIT_CODES}Example: kvferry bench redis-benchmark -n 1000 -r 1000 -d 33554432 "
    "-t set -P 1 -c 100",
)
@click.option("-h", "host", default="127.0.0.1", show_default=True, help="Server.")
@click.option("-p", "port", type=int, default=6379, show_default=True, help="Its port.")
@click.option("-c", "clients", type=_COUNT, default=50, show_default=True, help="Connections.")
@click.option(
    "-n", "requests", type=_COUNT, default=100_000, show_default=True, help="Commands, in all."
)
@click.option("-r", "keys", type=_COUNT, help="Random keys of so many.  [default: one key]")
@click.option(
    "-d", "size_bytes", type=_COUNT, default=3, show_default=True, help="Bytes of a value."
)
@click.option(
    "-P", "pipeline", type=_COUNT, default=1, show_default=True, help="Commands in flight."
)
@click.option(
    "-t", "tests", default="set,get", show_default=True, help="Which of set and get, with a comma."
)
@click.option(
    "--json", "json_file", type=OutputFile(), help="Write the rows to this file; - is stdout."
)
def redis_benchmark(json_file: str | None, **o: Any) -> None:
    """redis-benchmark's load, by that program or, where it is absent, by kvferry-load.

    Its own options, as far as they are listed here. Keys stay in the server, as with the original.
    """
    from kvferry.config import ClientConfig
    from kvferry_lab.bench.standard_loads import LoadPlan, redis_load

    tests = o["tests"].lower().split(",")
    if not set(tests) <= {"set", "get"}:
        raise click.UsageError("-t knows set and get")
    load = LoadPlan(
        sets=int("set" in tests),
        gets=int("get" in tests),
        requests=o["requests"],
        clients=o["clients"],
        threads=1,
        pipeline=o["pipeline"],
        size_bytes=o["size_bytes"],
        key_maximum=(o["keys"] or 1) - 1,
        prefix="key:" if o["keys"] else "key:__rand_int__",
        digits=12 if o["keys"] else 0,
    )
    config = ClientConfig.from_env(host=o["host"], port=o["port"])
    _say(*redis_load(config, load), json_file)


def _matched(name: str, pattern: str, text: str) -> tuple[str | Any, ...]:
    match = re.fullmatch(pattern, text)
    if match is None:
        raise click.UsageError(f"{name} cannot be {text!r}")
    return match.groups()


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


for command in (codec, engines, memtier_benchmark, redis_benchmark):
    bench.add_command(command)
