"""`kvferry roi`: whether a cache of KV pays, for a model, a GPU, a store and requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvferry_lab.cli.options import option, options_of, typed
from kvferry_lab.output import DRAWING, OutputFile

if TYPE_CHECKING:
    from kvferry_lab.roi.answer import RoiQuestion
    from kvferry_lab.roi.arithmetic import Prefill, Store
    from kvferry_lab.roi.traced import Outcome

__all__ = ["roi"]

_FILE = click.Path(dir_okay=False, path_type=Path)
_ENGINES = ("preset", "gpu", "prefill_tokens_s", "calibration", "server")
_HITS = ("hit_rate", "rounds", "traces")
# Options that mean nothing without another, and those that a replay answers by itself.
_NEEDS = {
    **dict.fromkeys(("policy", "capacity", "limit"), "traces"),
    **dict.fromkeys(("server_model", "probe_tokens", "save_calibration"), "server"),
    "utilisation": "gpu",
}
_LIST = "kvferry roi --list has the names of --preset, --gpu and --model"
_REPLAYED = ("prompt_tokens", "keep_hours", "working_set_gb")


@dataclass(frozen=True, kw_only=True)
class RoiCase:
    """A model, an engine, a store and requests; and how the answer is shown."""

    model: str | None = option(
        None, "A name of --list, a config.json, or its directory.", metavar="NAME|FILE"
    )
    kv_value_bytes: int | None = option(
        None, "Bytes of one number of KV, e.g. 1 for fp8.", least=1, most=4
    )
    cut_windows: bool = option(False, "Sliding layers keep no more than their window.")
    gpu: str | None = option(None, "A name of --list; it reaches half of its peak.", metavar="NAME")
    gpus: int | None = option(None, "How many GPUs share the model.  [default: 1]", least=1)
    utilisation: float | None = option(
        None, "The part of its peak that a GPU reaches.", above=0, most=1
    )
    prefill_tokens_s: float | None = option(
        None, "What the engine was measured to prefill.", above=0
    )
    calibration: Path | None = option(
        None, "A file that --save-calibration wrote.", kind=_FILE, metavar="FILE"
    )
    server: str | None = option(
        None, "Measure the engine at this URL, by OpenAI's API.", metavar="URL"
    )
    server_model: str | None = option(None, "Its name there.  [default: the first]", metavar="NAME")
    probe_tokens: tuple[int, ...] = option(
        (256, 1024, 4096), "Tokens of the prompts that --server is asked.", show_default=True
    )
    save_calibration: Path | None = option(
        None, "Write there what --server measured.", kind=_FILE, metavar="FILE"
    )
    preset: str | None = option(None, "Assume what a published calculator does.", metavar="NAME")
    store_gbps: float | None = option(
        None, "Bandwidth of the store in 10^9 bytes/s.  [default: 2]", above=0
    )
    store_ms: float | None = option(
        None, "Milliseconds that any load takes.  [default: 1]", least=0
    )
    store_file: Path | None = option(
        None, "Read both from JSON of doctor, or what tune wrote.", kind=_FILE, metavar="FILE"
    )
    prompt_tokens: int = option(8192, "Tokens of one request's prompt.", least=2, most=1 << 27)
    chunk_tokens: int | None = option(
        None, "Tokens of a chunk; full ones are kept.  [default: 256, or the file's]", least=1
    )
    hit_rate: float | None = option(
        None, "Part of the requests that hit.  [default: 0.5]", least=0, most=1
    )
    rounds: int | None = option(None, "N rounds that are alike hit (N-1)/N of the time.", least=1)
    replay: Path | None = option(None, "Give --trace the requests themselves.", hidden=True)
    traces: tuple[Path, ...] = option(
        (),
        "Recorded requests; more than once for more.",
        "--trace",
        kind=_FILE,
        metavar="FILE",
        multiple=True,
        like="",
    )
    requests_a_day: float = option(100_000, "Requests of all engines in a day.", above=0)
    keep_hours: float = option(1.0, "How long the store keeps what misses store.", above=0)
    working_set_gb: float | None = option(
        None, "GB of KV in the store, instead of --keep-hours.", above=0
    )
    gpu_price: float | None = option(None, "Price of a GPU for an hour.  [default: 2]", least=0)
    ram_price: float = option(5.0, "Price of a GB of memory for a month.", least=0)
    shard_gb: float = option(64.0, "GB of memory of one store server.", above=0)
    shard_gbps: float | None = option(
        None, "Bandwidth of one store server.  [default: the store's]", above=0
    )
    policy: str | None = option(
        None, "Policies to replay --trace with: LRU,ARC.  [default: all]", metavar="LIST"
    )
    capacity: str | None = option(
        None, "Sizes to replay --trace with: chunks, or 64GB,90%.", metavar="LIST"
    )
    limit: int | None = option(None, "Replay so many requests of --trace at most.", least=1)
    as_json: bool = option(False, "One JSON object on standard output.", "--json")
    plot_file: Path | None = option(
        None,
        "Draw the answer: PNG or SVG.",
        "--plot",
        kind=OutputFile(*DRAWING, path_type=Path),
        metavar="FILE",
    )
    page_file: Path | None = option(
        None,
        "Write a page with sliders: HTML.",
        "--page",
        kind=OutputFile(path_type=Path),
        metavar="FILE",
    )
    listed: bool = option(False, "Print the models, GPUs and presets that have names.", "--list")
    validate: bool = option(False, "Recompute published figures instead.")


def check_options(ctx: click.Context, o: RoiCase) -> None:
    """One engine, at most one rate of hits, and nothing without effect.

    Raises:
        click.UsageError: Something does not fit.
    """
    for what, names, needed in (("engine", _ENGINES, True), ("rate of hits", _HITS, False)):
        given = [name for name in names if getattr(o, name) not in (None, ())]
        if len(given) > 1 or (needed and not given):
            text = f"name one {what} of {', '.join(map(_option, given or names))}"
            raise click.UsageError(text if given else f"{text}; {_LIST}")
    for name, whose in _NEEDS.items():
        if typed(ctx, name) and not getattr(o, whose):
            raise click.UsageError(f"{_option(name)} is for {_option(whose)}")
    wrong = [name for name in _REPLAYED if typed(ctx, name) and o.traces]
    if wrong:
        raise click.UsageError(f"--trace says it already: no {_option(wrong[0])}")
    if o.replay:
        raise click.UsageError("--replay is gone: give --trace the recorded requests themselves")


def _option(name: str) -> str:
    return "--trace" if name == "traces" else "--" + name.replace("_", "-")


_HIT_RATE, _CHUNK_TOKENS = 0.5, 256


@click.command(
    epilog="Exit codes: 0 answered, 1 a published figure is missed (--validate), or the engine "
    "cannot be measured, 2 usage.  Example: kvferry roi --model llama-3.1-8b --gpu h100 "
    "--store-gbps 5 --trace conversation_trace.jsonl"
)
@options_of(RoiCase)
def roi(ctx: click.Context, /, o: RoiCase) -> None:
    """Say whether loading KV from a store pays, in time and in money.

    An engine is one of --gpu, --server, --calibration, --prefill-tokens-s and --preset; hits are
    one of --trace, --rounds and --hit-rate. GB are 10^9 bytes, but for --capacity, where
    they are 2^30 as in kvferry trace replay.
    """
    if o.listed:
        _list()
        return
    if o.validate:
        ctx.exit(_validate(o.as_json))
    check_options(ctx, o)
    from kvferry.cli.table import console
    from kvferry_lab.drawing import check_plot
    from kvferry_lab.output import command_line
    from kvferry_lab.roi import report
    from kvferry_lab.roi.answer import answer

    if o.plot_file:
        check_plot()
    question = _question(o)
    rows: list[Outcome] = []
    if o.traces:
        question, rows = _traced(question, o)
    question = _typical(question, rows)
    found = answer(question)
    if o.plot_file:
        report.write_plot(o.plot_file, question, found, rows)
    if o.page_file:
        report.write_page(o.page_file, question, command_line())
    if o.as_json:
        click.echo(report.as_json(question, None if rows else found, rows))
    elif rows:
        report.say_outcomes(console(), question, rows)
    else:
        report.say(console(), question, found)
    for file in (o.plot_file, o.page_file):
        if file:
            click.echo(f"written to {file}", err=True)


def _question(o: RoiCase) -> RoiQuestion:
    """The case and the day that were asked for."""
    from kvferry_lab.roi.answer import RoiQuestion
    from kvferry_lab.roi.arithmetic import Case, Kv
    from kvferry_lab.roi.models import find_model
    from kvferry_lab.roi.money import Day, Prices
    from kvferry_lab.roi.rates import PRESETS
    from kvferry_lab.roi.validate import rounds_hit_rate

    if not o.model:
        raise click.UsageError("name a --model: one of --list, or a config.json")
    model = find_model(o.model, o.kv_value_bytes)
    store = _store(o)
    case = Case(
        kv=Kv.of(model, cut_windows=o.cut_windows),
        prefill=_prefill(o, model),
        store=store,
        chunk_tokens=o.chunk_tokens or _CHUNK_TOKENS,
    )
    hit_rate = rounds_hit_rate(o.rounds) if o.rounds else o.hit_rate
    hit_rate = _HIT_RATE if hit_rate is None else hit_rate
    size = case.kv.prompt_bytes(case.kept_tokens(o.prompt_tokens))
    misses = o.requests_a_day * (1 - hit_rate) / 24 * o.keep_hours
    stored = o.working_set_gb * 1e9 if o.working_set_gb else max(1.0, misses) * size
    preset = PRESETS.get(o.preset) if o.preset else None
    price = o.gpu_price if o.gpu_price is not None else (preset.gpu_hour if preset else 2.0)
    return RoiQuestion(
        model=model,
        case=case,
        day=Day(
            requests=o.requests_a_day,
            prompt_tokens=o.prompt_tokens,
            hit_rate=hit_rate,
            stored_bytes=stored,
        ),
        prices=Prices(gpu_hour=price, ram_gb_month=o.ram_price),
        shard_bytes=o.shard_gb * 1e9,
        shard_bytes_s=o.shard_gbps * 1e9 if o.shard_gbps else store.bytes_s,
    )


def _store(o: RoiCase) -> Store:
    from kvferry_lab.roi.arithmetic import Store
    from kvferry_lab.roi.rates import read_store

    gbps, fixed_ms = o.store_gbps, o.store_ms
    if o.store_file:
        found = read_store(o.store_file)
        if gbps is None and fixed_ms is None:
            return found
        return replace(
            found,
            bytes_s=gbps * 1e9 if gbps is not None else found.bytes_s,
            fixed_s=fixed_ms / 1e3 if fixed_ms is not None else found.fixed_s,
            source=f"{found.source}, what was given wins",
        )
    return Store(
        bytes_s=(2.0 if gbps is None else gbps) * 1e9,
        fixed_s=(1.0 if fixed_ms is None else fixed_ms) / 1e3,
        source="given" if gbps is not None else "assumed; kvferry doctor --json measures",
    )


def _prefill(o: RoiCase, model: Any) -> Prefill:
    from kvferry_lab.doctor.prefill import UTILISATION
    from kvferry_lab.roi import rates
    from kvferry_lab.roi.arithmetic import Prefill

    gpus = o.gpus or 1
    if o.calibration:
        return rates.calibrated(o.calibration, gpus)
    if o.server:
        return _measured(o, o.server, gpus)
    if o.prefill_tokens_s:
        return Prefill(
            a_s=0.0,
            c_s_per_token=1 / o.prefill_tokens_s,
            d_s_per_token2=0.0,
            gpus=gpus,
            source="given",
        )
    if o.preset:
        return rates.of_preset(o.preset, o.gpus)
    used = o.utilisation or UTILISATION
    return rates.roofline(model, o.gpu or "", gpus, utilisation=used)


def _measured(o: RoiCase, server: str, gpus: int) -> Prefill:
    from kvferry_lab.roi.engine_probe import PrefillProbe, write_calibration

    probe = PrefillProbe(base_url=server, model=o.server_model)
    samples = probe.run(o.probe_tokens, lambda text: click.echo(text, err=True))
    found = probe.fit(samples, gpus)
    if o.save_calibration:
        write_calibration(o.save_calibration, found, samples)
    return found


def _traced(question: RoiQuestion, o: RoiCase) -> tuple[RoiQuestion, list[Outcome]]:
    from kvferry_lab.cli.trace import capacities_of_text, policies_of_text, progress_bar
    from kvferry_lab.roi.traced import outcomes
    from kvferry_lab.trace.format import TraceOptions, load_trace

    policies = policies_of_text(o.policy)
    options = TraceOptions(limit=o.limit, chunk_tokens=o.chunk_tokens)
    rows: list[Outcome] = []
    with progress_bar() as bar:
        for file in o.traces:
            bar.begin(f"reading {file.name}", None)
            trace = load_trace(file, options, bar.at)
            question = replace(
                question, case=replace(question.case, chunk_tokens=trace.chunk_tokens)
            )
            chunk_bytes = int(question.case.kv.prompt_bytes(1) * trace.chunk_tokens)
            sizes = capacities_of_text(o.capacity, chunk_bytes, trace)
            bar.begin("replaying", len(trace.requests) * len(sizes) * len(policies))
            found = outcomes(
                trace,
                question.case,
                policies=policies,
                capacities=sizes,
                requests_a_day=o.requests_a_day,
                prices=question.prices,
                progress=bar.advance,
            )
            rows += [replace(row, trace=str(file)) for row in found]
    return question, rows


def _typical(question: RoiQuestion, rows: Sequence[Outcome]) -> RoiQuestion:
    """The day of the outcome that saves most: requests of its mean length, and its hits."""
    stored = [row for row in rows if row.policy]
    if not stored:
        return question
    best = max(stored, key=lambda row: row.day.saved_money)
    day = replace(
        question.day,
        prompt_tokens=max(2, round(best.tokens / best.requests)) if best.requests else 2,
        hit_rate=best.hit_rate,
        stored_bytes=best.capacity_bytes,
    )
    case = replace(question.case, chunk_tokens=best.chunk_tokens)
    return replace(question, case=case, day=day)


def _list() -> None:
    from kvferry.cli.table import console, table
    from kvferry_lab.doctor.prefill import GPUS
    from kvferry_lab.roi.models import MODELS, find_model
    from kvferry_lab.roi.rates import PRESETS

    out = console()
    models = [(name, f"{find_model(name).bytes_per_token:,}") for name in MODELS]
    out.print(table(("--model", "KV bytes per token"), models), "")
    gpus = [(name, f"{peak:,}") for name, peak in GPUS.items()]
    out.print(table(("--gpu", "TFLOP/s in 16 bits"), gpus), "")
    presets = [(name, preset.note) for name, preset in PRESETS.items()]
    out.print(table(("--preset", "engine"), presets, right=False))


def _validate(as_json: bool) -> int:
    from kvferry.cli.table import console
    from kvferry_lab.roi.answer import finite
    from kvferry_lab.roi.report import say_checks
    from kvferry_lab.roi.validate import validate

    checks = validate()
    if as_json:
        click.echo(json.dumps(finite([check.to_dict() for check in checks]), indent=1))
    else:
        say_checks(console(), checks)
    return 1 if any(check.passed is False for check in checks) else 0
