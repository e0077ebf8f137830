"""`kvferry trace`: what a cache would make of recorded requests."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from kvferry_lab.cli.options import option, options_of
from kvferry_lab.output import DRAWING, OutputFile

if TYPE_CHECKING:
    from kvferry_lab.trace.format import Trace, TraceOptions
    from kvferry_lab.trace.replay import Replayer

__all__ = ["capacities_of_text", "policies_of_text", "progress_bar", "trace"]

_ORDERS = {"leaf-first": (True,), "plain": (False,), "both": (True, False)}
_UNITS = {"MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_FILE = click.Path(dir_okay=False, path_type=Path)
_CAPACITY_MAX = 1 << 31
_CHUNK_TOKENS = 256

Progress = Callable[[int], object]


@click.group(epilog="Example: kvferry trace replay conversation_trace.jsonl --plot hits.png")
def trace() -> None:
    """Replay recorded requests through the index and the policies of the engine."""


@dataclass(frozen=True, kw_only=True)
class _Replay:
    """What is replayed, with which caches, and where points go."""

    preset: Literal["published"] | None = option(
        None, "Replay the documents of kvferry lab long-doc-qa with that preset."
    )
    policy: str | None = option(
        None, "Policies to replay with, e.g. LRU,ARC.  [default: all]", metavar="LIST"
    )
    capacity: str | None = option(
        None,
        "Sizes to replay with: chunks, MB, GB, TB (2^20, 2^30, 2^40 bytes), or a part of what the "
        "trace needs, e.g. 1000,64GB,90%.  [default: five parts]",
        metavar="LIST",
    )
    bytes_per_token: int = option(
        131072, "KV of one token; the default is that of an 8B model with GQA in 16 bits.", least=1
    )
    order: str = option("leaf-first", "What leaves.", kind=click.Choice(list(_ORDERS)))
    block_tokens: int | None = option(
        None, "Tokens of a block of the file, where unusual.", least=1
    )
    chunk_tokens: int | None = option(
        None, "Tokens of a chunk of the cache: several blocks.", least=1
    )
    limit: int | None = option(None, "Replay so many requests at most.", least=1)
    users: int = option(40, "Sessions at a time, in agentic traces.", least=1)
    warm: float = option(0.5, "Part of the system prompt that sessions share.", least=0, most=1)
    as_json: bool = option(False, "One JSON object on standard output.", "--json")
    csv_file: Path | None = option(
        None, "Write a line for each point.", "--csv", kind=OutputFile(path_type=Path)
    )
    plot_file: Path | None = option(
        None,
        "Draw hit rate over capacity: PNG or SVG.",
        "--plot",
        kind=OutputFile(*DRAWING, path_type=Path),
    )


@trace.command(
    epilog="Exit codes: 0 replayed, 1 a chunk was wrong or missing or the store failed, 2 usage "
    "or no trace, 130 interrupted.  Example: kvferry trace replay "
    "conversation_trace.jsonl --policy LRU,ARC --capacity 1000,5000,1024GB --csv hits.csv"
)
@click.argument("files", nargs=-1, type=_FILE, metavar="FILE...")
@options_of(_Replay)
@click.option(
    "--store", metavar="URL", help="Also move and verify bytes here; 'embedded' starts a store."
)
def replay(ctx: click.Context, /, o: _Replay, files: Sequence[Path], store: str | None) -> None:
    """Replay traces and print what each policy hits with each capacity.

    FILE is a trace of Mooncake or Qwen-Bailian (JSON lines with hash_ids), sessions of coding
    agents (kv-cache-tester) or prompts as text (lmcache-agent-trace); plain or gzip. A usable hit
    is a chunk in an unbroken run from the beginning of its request.
    """
    from kvferry.cli.table import console
    from kvferry_lab.drawing import check_plot
    from kvferry_lab.trace import report
    from kvferry_lab.trace.format import TraceOptions, load_trace
    from kvferry_lab.trace.replay import Replay

    if o.plot_file:
        check_plot()
    policies = policies_of_text(o.policy)
    if not (files or o.preset):
        raise click.UsageError("name a FILE of recorded requests, or a --preset")
    names = ("block_tokens", "chunk_tokens", "limit", "users", "warm")
    options = TraceOptions(**{name: getattr(o, name) for name in names})
    with ExitStack() as stack:
        bar = stack.enter_context(progress_bar())
        traces = [_documents(o.preset, options)] if o.preset else []
        for file in files:
            bar.begin(f"reading {file.name}", None)
            read = load_trace(file, options, bar.at)
            twin = any(read.name == other.name for other in traces)
            traces.append(replace(read, name=str(file)) if twin else read)
        sizes = [trace.chunk_tokens * o.bytes_per_token for trace in traces]
        wanted = [
            capacities_of_text(o.capacity, size, trace)
            for trace, size in zip(traces, sizes, strict=True)
        ]
        plan = Replay(
            traces=traces,
            policies=policies,
            capacities=wanted,
            leaf_first=_ORDERS[o.order],
            chunk_bytes=sizes,
        )
        replayer: Replayer | None = None
        if store is not None:
            largest = max(max(many) * size for many, size in zip(wanted, sizes, strict=True))
            replayer = stack.enter_context(_replayer(store, largest))
        del store  # it may carry a password, and error reporters show variables
        bar.begin("replaying", plan.requests)
        points = list(plan.run(bar.advance, replayer))
    if o.csv_file:
        report.write_points(o.csv_file, points)
    if o.plot_file:
        report.write_plot(o.plot_file, points)
    if o.as_json:
        click.echo(report.as_json(traces, points))
    else:
        report.say(console(), traces, points)


def _documents(preset: str, options: TraceOptions) -> Trace:
    """What `kvferry lab long-doc-qa` asks for: its rounds, one request after the other.

    A document shares nothing with another one. Its last token is always computed, so it has the
    full chunks of the tokens before that one.
    """
    from kvferry import _native
    from kvferry_lab.long_doc.run import PRESETS, LongDocPlan
    from kvferry_lab.trace.format import Trace

    settings: dict[str, Any] = dict(PRESETS[preset])
    plan = LongDocPlan(**settings)
    chunk_tokens = options.chunk_tokens or _CHUNK_TOKENS
    each = (plan.document_length - 1) // chunk_tokens
    orders = [list(range(plan.num_documents)), *plan.query_rounds]
    asked = [document for order in orders for document in order]
    hashes = [
        _native.hash_chunks(array("I", range(one * each, (one + 1) * each)), 1, b"")
        for one in range(plan.num_documents)
    ]
    return Trace.of(preset, "documents", chunk_tokens, (hashes[one] for one in asked))


def policies_of_text(text: str | None) -> list[str]:
    """The policies of a list with commas; None: all.

    Raises:
        UsageError: One of them is unknown; it is told before the work.
    """
    from kvferry.config.cache import CACHE
    from kvferry_lab.trace.replay import POLICIES, new_cache

    spelled = CACHE.known["eviction_policy"].spelled
    policies = [spelled(word) for word in (_words(text) if text else POLICIES)]
    for policy in policies:
        new_cache(policy, 1, True)
    return policies


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def capacities_of_text(text: str | None, chunk_bytes: int, trace: Trace) -> list[int]:
    """Chunks for each word of a list; of sizes so many as fit. None: parts of the trace."""
    from kvferry_lab.trace.replay import capacities_of

    if not text:
        return capacities_of(trace)
    found = []
    for word in _words(text):
        unit = _UNITS.get(word[-2:].upper())
        try:
            if word.endswith("%"):
                chunks = int(float(word[:-1]) * trace.distinct / 100)
            else:
                chunks = int(float(word[:-2]) * unit // chunk_bytes) if unit else int(word)
        except (ValueError, OverflowError):
            raise click.BadParameter(
                f"{word!r} is neither chunks, a size like 64GB, nor a part like 90%"
            ) from None
        if not 1 <= chunks <= _CAPACITY_MAX:
            raise click.BadParameter(f"{word!r} is {chunks} chunks; use 1 to {_CAPACITY_MAX}")
        found.append(chunks)
    if not found:
        raise click.BadParameter(f"{text!r} names no capacity")
    return sorted(set(found))


@contextmanager
def _replayer(store: str, largest_bytes: int) -> Iterator[Replayer]:
    """A replay against a store: the named one, or our own with room enough."""
    try:
        from kvferry_lab.trace.store_replay import replay_over_store
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise click.ClickException("--store needs NumPy: pip install 'kvferry[numpy]'") from None
    from kvferry.client.sync import RedisClient
    from kvferry.config import ClientConfig
    from kvferry.embedded.store import embedded_store

    click.echo(f"the store will hold up to {largest_bytes / (1 << 30):.2f} GB", err=True)
    with ExitStack() as stack:
        if store == "embedded":
            room_mb = int(largest_bytes * 1.25) // (1 << 20) + 512
            own = stack.enter_context(embedded_store(maxmemory_mb=room_mb, policy="noeviction"))
            config = ClientConfig.from_url(own.url, environ={})
        else:
            config = ClientConfig.from_url(store)
        client = stack.enter_context(RedisClient.from_config(config))

        yield partial(replay_over_store, client)


class _Bar:
    """A progress bar on standard error; silent where that is no terminal."""

    def __init__(self, progress: Any) -> None:
        self._progress, self._task = progress, progress.add_task("", total=None)

    def begin(self, text: str, total: int | None) -> None:
        self._progress.reset(self._task, description=text, total=total)

    def at(self, done: int) -> None:
        self._progress.update(self._task, completed=done)

    def advance(self, done: int) -> None:
        self._progress.advance(self._task, done)


@contextmanager
def progress_bar() -> Iterator[_Bar]:
    """A bar that says what is done now."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from kvferry.cli.table import console

    err = console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        yield _Bar(progress)
