"""`kvferry roi`: whether a cache of KV pays, for a model, a GPU, a store and requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from kvferry.cli.numbers import Number
from kvferry_lab.output import DRAWING, OutputFile

if TYPE_CHECKING:
    from kvferry_lab.roi.answer import RoiQuestion
    from kvferry_lab.roi.arithmetic import Prefill, Store
    from kvferry_lab.roi.traced import Outcome

__all__ = ["roi"]

_FILE = click.Path(dir_okay=False, path_type=Path)
_ABOVE_0 = Number(0, min_open=True)
_ENGINES = ("preset", "gpu", "prefill_tokens_s", "calibration", "server")
_HITS = ("hit_rate", "rounds", "traces", "replay")
# Options that mean nothing without another, and those that a replay answers by itself.
_NEEDS = {
    **dict.fromkeys(("policy", "capacity", "limit"), "traces"),
    **dict.fromkeys(("server_model", "probe_tokens", "save_calibration"), "server"),
    "utilisation": "gpu",
}
_LIST = "kvferry roi --list has the names of --preset, --gpu and --model"
_REPLAYED = ("prompt_tokens", "keep_hours", "working_set_gb")


def _words(kind: Any, text: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "help": text, **more}


_OPTIONS: dict[str, dict[str, Any]] = {
    "--model": {
        "metavar": "NAME|FILE",
        "help": "A name of --list, a config.json, or its directory.",
    },
    "--kv-value-bytes": _words(click.IntRange(1, 4), "Bytes of one number of KV, e.g. 1 for fp8."),
    "--cut-windows": {"is_flag": True, "help": "Sliding layers keep no more than their window."},
    "--gpu": {"metavar": "NAME", "help": "A name of --list; it reaches half of its peak."},
    "--gpus": _words(click.IntRange(1), "How many GPUs share the model.  [default: 1]"),
    "--utilisation": _words(
        Number(0, 1, min_open=True), "The part of its peak that a GPU reaches."
    ),
    "--prefill-tokens-s": _words(_ABOVE_0, "What the engine was measured to prefill."),
    "--calibration": _words(_FILE, "A file that --save-calibration wrote.", metavar="FILE"),
    "--server": {"metavar": "URL", "help": "Measure the engine at this URL, by OpenAI's API."},
    "--server-model": {"metavar": "NAME", "help": "Its name there.  [default: the first]"},
    "--probe-tokens": {
        "default": "256,1024,4096",
        "show_default": True,
        "help": "Tokens of the prompts that --server is asked.",
    },
    "--save-calibration": _words(_FILE, "Write there what --server measured.", metavar="FILE"),
    "--preset": {"metavar": "NAME", "help": "Assume what a published calculator does."},
    "--store-gbps": _words(_ABOVE_0, "Bandwidth of the store in 10^9 bytes/s.  [default: 2]"),
    "--store-ms": _words(Number(0), "Milliseconds that any load takes.  [default: 1]"),
    "--store-file": _words(
        _FILE, "Read both from JSON of doctor, or what tune wrote.", metavar="FILE"
    ),
    "--prompt-tokens": _words(
        click.IntRange(2, 1 << 27),
        "Tokens of one request's prompt.",
        default=8192,
        show_default=True,
    ),
    "--chunk-tokens": _words(
        click.IntRange(1), "Tokens of a chunk; full ones are kept.  [default: 256, or the file's]"
    ),
    "--hit-rate": _words(Number(0, 1), "Part of the requests that hit.  [default: 0.5]"),
    "--rounds": _words(click.IntRange(1), "N rounds that are alike hit (N-1)/N of the time."),
    "--replay": _words(_FILE, "Take hits from JSON of kvferry trace replay.", metavar="FILE"),
    "--requests-a-day": _words(
        _ABOVE_0, "Requests of all engines in a day.", default=100_000, show_default=True
    ),
    "--keep-hours": _words(_ABOVE_0, "How long the store keeps what misses store.", default=1.0),
    "--working-set-gb": _words(_ABOVE_0, "GB of KV in the store, instead of --keep-hours."),
    "--gpu-price": _words(Number(0), "Price of a GPU for an hour.  [default: 2]"),
    "--ram-price": _words(Number(0), "Price of a GB of memory for a month.", default=5.0),
    "--shard-gb": _words(
        _ABOVE_0, "GB of memory of one store server.", default=64.0, show_default=True
    ),
    "--shard-gbps": _words(_ABOVE_0, "Bandwidth of one store server.  [default: the store's]"),
    "--policy": {
        "metavar": "LIST",
        "help": "Policies to replay --trace with: LRU,ARC.  [default: all]",
    },
    "--capacity": {"metavar": "LIST", "help": "Sizes to replay --trace with: chunks, or 64GB,90%."},
    "--limit": _words(click.IntRange(1), "Replay so many requests of --trace at most."),
    "--json": {"is_flag": True, "help": "One JSON object on standard output."},
    "--plot": _words(
        OutputFile(*DRAWING, path_type=Path), "Draw the answer: PNG or SVG.", metavar="FILE"
    ),
    "--page": _words(
        OutputFile(path_type=Path), "Write a page with sliders: HTML.", metavar="FILE"
    ),
    "--list": {"is_flag": True, "help": "Print the models, GPUs and presets that have names."},
    "--validate": {"is_flag": True, "help": "Recompute published figures instead."},
}
_NAMES = {"--json": "as_json", "--list": "listed", "--plot": "plot_file", "--page": "page_file"}


def roi_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Declare all of them; a handler gets them by name."""
    for option, more in reversed(_OPTIONS.items()):
        name = _NAMES.get(option, option[2:].replace("-", "_"))
        shown = {"show_default": True, **more} if more.get("default") is not None else more
        command = click.option(option, name, **shown)(command)
    text = "Recorded requests; more than once for more."
    trace = click.option("--trace", "traces", multiple=True, type=_FILE, metavar="FILE", help=text)
    return trace(command)


def check_options(ctx: click.Context, o: dict[str, Any]) -> None:
    """One engine, at most one rate of hits, and nothing without effect.

    Raises:
        click.UsageError: Something does not fit.
    """
    _one_of(o, "engine", _ENGINES)
    _one_of(o, "rate of hits", _HITS, needed=False)
    _fitting(ctx, o)


def _one_of(o: dict[str, Any], what: str, names: Sequence[str], needed: bool = True) -> None:
    given = [name for name in names if o[name] not in (None, ())]
    if len(given) > 1 or (needed and not given):
        text = f"name one {what} of {', '.join(map(_option, given or names))}"
        raise click.UsageError(text if given else f"{text}; {_LIST}")


def _fitting(ctx: click.Context, o: dict[str, Any]) -> None:
    """Nothing that was given is without effect."""
    typed = {name for name in o if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    for name, needed in _NEEDS.items():
        if name in typed and not o[needed]:
            raise click.UsageError(f"{_option(name)} is for {_option(needed)}")
    for given in ("traces", "replay"):
        wrong = [name for name in _REPLAYED if name in typed and o[given]]
        if wrong:
            raise click.UsageError(f"{_option(given)} says it already: no {_option(wrong[0])}")
    if o["replay"] and o["chunk_tokens"]:
        raise click.UsageError("--replay says it already: no --chunk-tokens")


def _option(name: str) -> str:
    return "--trace" if name == "traces" else "--" + name.replace("_", "-")


_HIT_RATE, _CHUNK_TOKENS = 0.5, 256


@click.command(
    epilog="Exit codes: 0 answered, 1 a published figure is missed (--validate), or the engine "
    "cannot be measured, 2 usage.  Example: kvferry roi --model llama-3.1-8b --gpu h100 "
    "--store-gbps 5 --trace conversation_trace.jsonl"
)
@roi_options
@click.pass_context
def roi(ctx: click.Context, /, **o: Any) -> None:
    """Say whether loading KV from a store pays, in time and in money.

    An engine is one of --gpu, --server, --calibration, --prefill-tokens-s and --preset; hits are
    one of --trace, --replay, --rounds and --hit-rate. GB are 10^9 bytes, but for --capacity, where
    they are 2^30 as in kvferry trace replay.
    """
    if o["listed"]:
        return _list()
    if o["validate"]:
        ctx.exit(_validate(o["as_json"]))
    check_options(ctx, o)
    from kvferry.cli.table import console
    from kvferry_lab.bench.plot import check_plot
    from kvferry_lab.output import command_line
    from kvferry_lab.roi import report
    from kvferry_lab.roi.answer import answer
    from kvferry_lab.roi.traced import replayed

    if o["plot_file"]:
        check_plot()
    question = _question(o)
    rows: list[Outcome] = []
    if o["traces"]:
        question, rows = _traced(question, o)
    elif o["replay"]:
        rows = list(replayed(o["replay"], question.case, o["requests_a_day"], question.prices))
    question = _typical(question, rows)
    found = answer(question)
    if o["plot_file"]:
        from kvferry_lab.roi.report import write_plot

        write_plot(o["plot_file"], question, found, rows, command_line())
    if o["page_file"]:
        from kvferry_lab.roi.report import write_page

        write_page(o["page_file"], question, command_line())
    if o["as_json"]:
        click.echo(report.as_json(question, None if rows else found, rows))
    elif rows:
        from kvferry_lab.roi.report import say_outcomes

        say_outcomes(console(), question, rows)
    else:
        report.say(console(), question, found)
    for file in (o["plot_file"], o["page_file"]):
        if file:
            click.echo(f"written to {file}", err=True)
    return None


def _question(o: dict[str, Any]) -> RoiQuestion:
    """The case and the day that were asked for."""
    from kvferry_lab.roi.answer import RoiQuestion
    from kvferry_lab.roi.arithmetic import Case, Kv
    from kvferry_lab.roi.models import find_model
    from kvferry_lab.roi.money import Day, Prices
    from kvferry_lab.roi.rates import PRESETS
    from kvferry_lab.roi.validate import rounds_hit_rate

    if not o["model"]:
        raise click.UsageError("name a --model: one of --list, or a config.json")
    model = find_model(o["model"], o["kv_value_bytes"])
    store = _store(o)
    case = Case(
        kv=Kv.of(model, cut_windows=o["cut_windows"]),
        prefill=_prefill(o, model),
        store=store,
        chunk_tokens=o["chunk_tokens"] or _CHUNK_TOKENS,
    )
    hit_rate = rounds_hit_rate(o["rounds"]) if o["rounds"] else o["hit_rate"]
    hit_rate = _HIT_RATE if hit_rate is None else hit_rate
    size = case.kv.prompt_bytes(case.kept_tokens(o["prompt_tokens"]))
    misses = o["requests_a_day"] * (1 - hit_rate) / 24 * o["keep_hours"]
    stored = o["working_set_gb"] * 1e9 if o["working_set_gb"] else max(1.0, misses) * size
    preset = PRESETS.get(o["preset"]) if o["preset"] else None
    price = o["gpu_price"] if o["gpu_price"] is not None else (preset.gpu_hour if preset else 2.0)
    return RoiQuestion(
        model=model,
        case=case,
        day=Day(
            requests=o["requests_a_day"],
            prompt_tokens=o["prompt_tokens"],
            hit_rate=hit_rate,
            stored_bytes=stored,
        ),
        prices=Prices(gpu_hour=price, ram_gb_month=o["ram_price"]),
        shard_bytes=o["shard_gb"] * 1e9,
        shard_bytes_s=o["shard_gbps"] * 1e9 if o["shard_gbps"] else store.bytes_s,
    )


def _store(o: dict[str, Any]) -> Store:
    from kvferry_lab.roi.arithmetic import Store
    from kvferry_lab.roi.rates import read_store

    gbps, fixed_ms = o["store_gbps"], o["store_ms"]
    if o["store_file"]:
        found = read_store(o["store_file"])
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


def _prefill(o: dict[str, Any], model: Any) -> Prefill:
    from kvferry_lab.doctor.prefill import UTILISATION
    from kvferry_lab.roi import rates
    from kvferry_lab.roi.arithmetic import Prefill

    gpus = o["gpus"] or 1
    if o["calibration"]:
        return rates.calibrated(o["calibration"], gpus)
    if o["server"]:
        return _measured(o, gpus)
    if o["prefill_tokens_s"]:
        return Prefill(
            a_s=0.0,
            c_s_per_token=1 / o["prefill_tokens_s"],
            d_s_per_token2=0.0,
            gpus=gpus,
            source="given",
        )
    if o["preset"]:
        return rates.of_preset(o["preset"], o["gpus"])
    used = o["utilisation"] or UTILISATION
    return rates.roofline(model, o["gpu"], gpus, utilisation=used)


def _measured(o: dict[str, Any], gpus: int) -> Prefill:
    from kvferry_lab.roi.engine_probe import PrefillProbe, write_calibration

    try:
        lengths = [int(word) for word in o["probe_tokens"].split(",")]
    except ValueError:
        raise click.BadParameter(f"--probe-tokens {o['probe_tokens']} is no list") from None
    probe = PrefillProbe(base_url=o["server"], model=o["server_model"])
    samples = probe.run(lengths, lambda text: click.echo(text, err=True))
    found = probe.fit(samples, gpus)
    if o["save_calibration"]:
        write_calibration(o["save_calibration"], found, samples)
    return found


def _traced(question: RoiQuestion, o: dict[str, Any]) -> tuple[RoiQuestion, list[Outcome]]:
    from kvferry.config.setting import policy_name
    from kvferry_lab.cli.trace import capacities_of_text, progress_bar, words_of
    from kvferry_lab.roi.traced import outcomes
    from kvferry_lab.trace.format import TraceOptions, load_trace
    from kvferry_lab.trace.replay import POLICIES, capacities_of, new_cache

    words = words_of(o["policy"]) if o["policy"] else POLICIES
    policies = [policy_name(word) or word for word in words]
    for policy in policies:
        new_cache(policy, 1, True)  # an unknown one is told before the work
    options = TraceOptions(limit=o["limit"], chunk_tokens=o["chunk_tokens"])
    rows: list[Outcome] = []
    with progress_bar() as bar:
        for file in o["traces"]:
            bar.begin(f"reading {file.name}", None)
            trace = load_trace(file, options, bar.at)
            question = replace(
                question, case=replace(question.case, chunk_tokens=trace.chunk_tokens)
            )
            chunk_bytes = int(question.case.kv.prompt_bytes(1) * trace.chunk_tokens)
            sizes = (
                capacities_of_text(o["capacity"], chunk_bytes, trace)
                if o["capacity"]
                else capacities_of(trace)
            )
            bar.begin("replaying", len(trace.requests) * len(sizes) * len(policies))
            found = outcomes(
                trace,
                question.case,
                policies=policies,
                capacities=sizes,
                requests_a_day=o["requests_a_day"],
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
