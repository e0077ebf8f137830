"""`kvferry roi`: whether a cache of KV pays, for a model, a GPU, a store and requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from kvferry_lab.cli.roi_options import check_options, roi_options

if TYPE_CHECKING:
    from kvferry_lab.roi.answer import RoiQuestion
    from kvferry_lab.roi.arithmetic import Prefill, Store
    from kvferry_lab.roi.traced import Outcome

__all__ = ["roi"]

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
    from kvferry_lab.roi.replayed import replayed

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
        from kvferry_lab.roi.plot import write_plot

        write_plot(o["plot_file"], question, found, rows, command_line())
    if o["page_file"]:
        from kvferry_lab.roi.page import write_page

        write_page(o["page_file"], question, command_line())
    if o["as_json"]:
        click.echo(report.as_json(question, None if rows else found, rows))
    elif rows:
        from kvferry_lab.roi.traced_report import say_outcomes

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
    from kvferry_lab.trace.format import load_trace
    from kvferry_lab.trace.replay import POLICIES, capacities_of, new_cache
    from kvferry_lab.trace.sequenced import TraceOptions

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
