"""`kvferry bench memtier_benchmark` and `kvferry bench redis-benchmark`: those programs' loads."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kvferry_lab.output import OutputFile

if TYPE_CHECKING:
    from kvferry_lab.bench.load import LoadRow

__all__ = ["memtier_benchmark", "redis_benchmark"]

_COUNT = click.IntRange(1)
_EXIT_CODES = "Exit codes: 0 measured, 1 the program or the server failed, 2 usage.  "


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
    from kvferry_lab.bench.load import LoadPlan, memtier_load

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
    from kvferry_lab.bench.load import LoadPlan, redis_load

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
