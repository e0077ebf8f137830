"""Answers as people get them: tables and a verdict, JSON, a plot, and an HTML page with sliders.

Tables are of one case, or of the policies and sizes of a trace. Plots are PNG or SVG: times to the
first token, the bandwidth that breaks even, and policies; they are read without colours too, for
each line has its own dashes and marks, and the command stands below. The page needs no network and
no other file.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.cli.table import facts, table
from kvferry_lab.drawing import drawing, styles
from kvferry_lab.output import command_line
from kvferry_lab.roi.answer import RULE_BYTES_S, Length, RoiAnswer, RoiQuestion, finite
from kvferry_lab.roi.money import BILLED, DAY_S, Prices
from kvferry_lab.roi.traced import Outcome
from kvferry_lab.roi.validate import Check

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "as_json",
    "question_data",
    "say",
    "say_checks",
    "say_outcomes",
    "write_page",
    "write_plot",
]

_GIB = 1 << 30
_CURVE = ("tokens", "KV GB", "compute s", "load s", "hit TTFT s", "times sooner", "even GB/s")
SHOWN = (50, 99)  # percentiles; all of them are in the JSON
_COLUMNS = (
    *("policy", "KV GB", "hit %", "loaded"),
    *(f"p{part} s" for part in SHOWN),
    *("GPU h", "RAM", "net"),
)
_LEGEND = (
    "hit %: the part of all tokens that the store had. loaded: the part of all tokens that is "
    "sooner loaded than computed. p50, p99: time to the first token. RAM: money for memory. net: "
    "what is left of the GPU time that is saved."
)
_AS_GOOD = 1.01  # a smaller store that is so much slower at most is as good
_HERE = Path(__file__).parent


def say(console: Console, question: RoiQuestion, found: RoiAnswer) -> None:
    """One case."""
    say_case(console, question)
    at, day, bill = found.at, question.day, found.bill
    console.print(table(_CURVE, [_curve_cells(row) for row in found.curve]), "")
    console.print(
        facts(
            [
                (
                    f"{at.tokens:,} tokens",
                    f"{at.kv_bytes / 1e9:.3g} GB of KV ({at.kv_bytes / _GIB:.3g} GiB): computed "
                    f"in {_time(at.compute_s)}, {at.kept_tokens:,} of them loaded in "
                    f"{_time(at.load_s)}; first token after {_time(at.hit_s)} on a hit",
                ),
                ("break-even", _break_even(at)),
                ("crossover", _crossover(found.crossover_tokens)),
                (
                    "a day",
                    f"{day.requests:,.0f} requests, {100 * day.hit_rate:.1f} % of them hits: "
                    f"{bill.gpu_s_before / 3600:,.1f} GPU-hours for prompts become "
                    f"{bill.gpu_s_after / 3600:,.1f} ({bill.gpus_freed:.2f} GPUs freed)",
                ),
                ("money", _money(question.prices, found)),
                ("store", _need(question, found)),
            ]
        ),
        "",
    )
    console.print(_verdict(found), soft_wrap=True)


def say_case(console: Console, question: RoiQuestion) -> None:
    """The facts that the answer rests on."""
    case, model = question.case, question.model
    console.print(
        facts(
            [
                ("command", command_line()),
                (
                    "model",
                    f"{model.name}: {case.kv.whole_bytes + case.kv.window_bytes:,.0f} bytes of KV "
                    f"per token ({_layers(question)}, {model.kv_values:,} numbers of "
                    f"{model.value_bytes} bytes in each)",
                ),
                (
                    "engine",
                    f"{case.prefill.a_s * 1e3:.3g} ms + {case.prefill.c_s_per_token * 1e6:.4g} us "
                    f"n + {case.prefill.d_s_per_token2 * 1e12:.4g} ps n^2 ({case.prefill.source})",
                ),
                (
                    "store",
                    f"{case.store.bytes_s / 1e9:.4g} GB/s, {case.store.fixed_s * 1e3:.3g} ms a "
                    f"load ({case.store.source})",
                ),
                (
                    "assumed",
                    f"full chunks of {case.chunk_tokens} tokens; requests do not wait for each "
                    "other; loading does not overlap computing; GPUs compute others meanwhile",
                ),
            ]
        ),
        "",
    )


def _layers(question: RoiQuestion) -> str:
    model, kv = question.model, question.case.kv
    if not model.sliding_layers:
        return f"{model.kv_layers} layers"
    kept = "of which only that is kept" if kv.window_bytes else "kept whole all the same"
    window = f"of {model.window_tokens:,} tokens" if model.window_tokens else "somewhere"
    return f"{model.kv_layers} layers, {model.sliding_layers} with a window {window}, {kept}"


def _curve_cells(row: Length) -> list[str]:
    return [
        f"{row.tokens:,}",
        f"{row.kv_bytes / 1e9:,.3g}",
        f"{row.compute_s:.3g}",
        f"{row.load_s:.3g}",
        f"{row.hit_s:.3g}",
        f"{row.compute_s / row.hit_s:.2f}",
        _gbps(row.break_even_bytes_s),
    ]


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _gbps(bytes_s: float) -> str:
    return f"{bytes_s / 1e9:.2f}" if math.isfinite(bytes_s) else "never"


def _break_even(at: Length) -> str:
    if math.isinf(at.break_even_bytes_s):
        return "no bandwidth is enough: a load's fixed part takes longer than computing"
    times = at.break_even_bytes_s / RULE_BYTES_S
    return (
        f"{_gbps(at.break_even_bytes_s)} GB/s at this length: {times:.2g} times the rule of "
        f"{RULE_BYTES_S / 1e9:g} GB/s"
    )


def _crossover(tokens: float) -> str:
    if math.isinf(tokens):
        return "none: computing is sooner at every length"
    if tokens == 0:
        return "none: loading is sooner at every length"
    return f"prefixes above {tokens:,.0f} tokens are loaded sooner than computed"


def _money(prices: Prices, found: RoiAnswer) -> str:
    bill = found.bill
    text = (
        f"{bill.gpu_money_saved:,.2f} a day saved at {prices.gpu_hour:g} per GPU-hour, "
        f"{bill.ram_money:,.2f} for {bill.ram_bytes / 1e9:,.0f} GB at {prices.ram_gb_month:g} per "
        f"GB and month: {bill.saved_money:+,.2f} a day"
    )
    if math.isinf(bill.payback_days):
        return f"{text}; the memory is never paid back"
    return f"{text}; a month of memory is paid back in {bill.payback_days:,.1f} days"


def _need(question: RoiQuestion, found: RoiAnswer) -> str:
    need, bill = found.need, found.bill
    servers = "server" if need.shards == 1 else "servers"
    text = (
        f"{need.shards} {servers} with maxmemory {need.memory_bytes / 1e9:,.1f} GB each: "
        f"{question.day.stored_bytes / 1e9:,.1f} GB of KV, billed {BILLED:g} times "
        f"({need.for_memory} of {question.shard_bytes / 1e9:g} GB hold it"
    )
    if need.for_bandwidth is not None:
        text += f", {need.for_bandwidth} of {question.shard_bytes_s / 1e9:g} GB/s carry it"
    return (
        f"{text}); on average {bill.read_bytes_s / 1e9:.3g} GB/s are read and "
        f"{bill.written_bytes_s / 1e9:.3g} GB/s written"
    )


def _verdict(found: RoiAnswer) -> str:
    at = found.at
    if not found.sooner:
        return (
            f"It does not pay: at {at.tokens:,} tokens computing is sooner "
            f"({_time(at.compute_s)}) than loading ({_time(at.hit_s)})."
        )
    if not found.carried:
        return (
            f"It does not pay with this store: a day needs "
            f"{found.bill.traffic_bytes_s / 1e9:.3g} GB/s on average, and it gives "
            f"{found.store_bytes_s / 1e9:.3g}. See how many servers do."
        )
    sooner = f"a hit has its first token {at.compute_s / at.hit_s:.1f} times sooner"
    if found.earns:
        return f"It pays: {sooner}, and {found.bill.saved_money:,.2f} a day are saved."
    cost = f"{-found.bill.saved_money:,.2f}"
    return f"It pays in time, not in money: {sooner}, and that costs {cost} a day."


def say_checks(console: Console, checks: Sequence[Check]) -> None:
    """Predicted, published, error, a table for each group; below it what the rows rest on."""
    columns = ("", "predicted", "published", "error", "bar", "", "")
    for group in dict.fromkeys(check.group for check in checks):
        some = [check for check in checks if check.group == group]
        notes = dict.fromkeys(check.note for check in some)
        marks = {note: chr(ord("a") + index) for index, note in enumerate(notes)}
        console.print(group, style="bold")
        console.print(table(columns, [_check_cells(check, marks[check.note]) for check in some]))
        for note, mark in marks.items():
            console.print(f"{mark}: {note}")
        console.print("")
    failed = sum(check.passed is False for check in checks)
    open_ones = sum(check.passed is None for check in checks)
    console.print(
        f"{len(checks)} figures: {len(checks) - failed - open_ones} as published, {failed} not, "
        f"{open_ones} shown with no bar",
        soft_wrap=True,
    )


def _check_cells(check: Check, mark: str) -> list[str]:
    published = check.published
    return [
        f"{check.what}, {check.unit}",
        _digits(check.predicted),
        " to ".join(map(_digits, published))
        if isinstance(published, tuple)
        else _digits(published),
        "-" if check.error is None else f"{100 * check.error:+.1f} %",
        "-" if check.bar is None else f"{100 * check.bar:g} %",
        {True: "ok", False: "NOT", None: "-"}[check.passed],
        mark,
    ]


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def as_json(question: RoiQuestion, found: RoiAnswer | None, rows: Sequence[Outcome]) -> str:
    """The command, what it rests on, and the answers; fields are in docs/guides/roi.md."""
    model, case = question.model, question.case
    shown: dict[str, Any] = {
        "command": command_line(),
        "model": asdict(model),
        "case": asdict(case),
        "day": asdict(question.day),
        "prices": asdict(question.prices),
        "answer": found.to_dict() if found is not None else None,
        "outcomes": [asdict(row) for row in rows],
    }
    return json.dumps(finite(shown), indent=1)


def say_outcomes(console: Console, question: RoiQuestion, rows: Sequence[Outcome]) -> None:
    """A table for each trace, and what it means."""
    say_case(console, question)
    for trace in dict.fromkeys(row.trace for row in rows):
        some = [row for row in rows if row.trace == trace]
        first = some[0]
        console.print(
            f"{trace}: {first.requests:,} requests, {first.tokens:,} tokens, "
            f"{_mean_tokens(first):,} each. GPU-hours and money are of a day "
            f"with {question.day.requests:,.0f} such requests",
            soft_wrap=True,
        )
        console.print(table(_COLUMNS, [_cells(row) for row in some]))
        for text in (
            *(_LEGEND, ""),
            f"In time {_in_time(question, some)}",
            f"In money {_in_money(question, some)}\n",
        ):
            console.print(text, soft_wrap=True)


def _cells(row: Outcome) -> list[str]:
    day = row.day
    return [
        row.policy or "no store",
        f"{row.capacity_bytes / 1e9:,.0f}",
        f"{100 * row.hit_rate:.1f}",
        f"{100 * row.loaded_rate:.1f}",
        *(f"{row.ttft_s[part]:.3f}" if part in row.ttft_s else "-" for part in SHOWN),
        f"{day.gpu_s_after / 3600:,.1f}",
        f"{day.ram_money:,.0f}",
        f"{day.saved_money:+,.0f}",
    ]


def _in_time(question: RoiQuestion, rows: Sequence[Outcome]) -> str:
    case, stored = question.case, [row for row in rows if row.policy]
    least = min(row.ttft_mean_s for row in stored)
    good = [row for row in stored if row.ttft_mean_s <= _AS_GOOD * least]
    best = min(good, key=lambda row: row.capacity_bytes)
    if not best.loaded_rate:
        text = "it does not pay: what the store has is computed sooner than it is loaded."
    else:
        none = [row.ttft_mean_s for row in rows if not row.policy]
        before_s = none[0] if none else case.prefill.compute_s(_mean_tokens(best))
        text = (
            f"it pays: {_named(best)} has the first token after {best.ttft_mean_s:.3f} s on "
            f"average instead of {before_s:.3f} s."
        )
    if best.loaded_rate < best.hit_rate / 2:
        text += f" {_even_sentence(question, _mean_tokens(best))}"
    return text


def _even_sentence(question: RoiQuestion, tokens: int) -> str:
    needed = question.case.break_even_bytes_s(tokens)
    if math.isinf(needed):
        return f"No store is quick enough for a prompt of {tokens:,} tokens."
    given = question.case.store.bytes_s / 1e9
    return (
        f"A prompt of {tokens:,} tokens is sooner loaded from {needed / 1e9:.2f} GB/s on; this "
        f"store has {given:.3g}."
    )


def _in_money(question: RoiQuestion, rows: Sequence[Outcome]) -> str:
    best = max(rows, key=lambda row: row.day.saved_money)
    if not best.policy or best.day.saved_money <= 0:
        return "it does not pay: with each policy and size memory costs more than is saved."
    saved, moved = f"{best.day.saved_money:,.2f} a day", best.day.traffic_bytes_s
    freed = (best.day.gpu_s_before - best.day.gpu_s_after) / DAY_S
    given = question.case.store.bytes_s
    if moved > given:
        return (
            f"{_named(best)} would save {saved}, but not with this store: on average "
            f"{moved / 1e9:.3g} GB/s are moved, and it has {given / 1e9:.3g}. "
            f"{math.ceil(moved / given)} like it are enough."
        )
    return f"it pays: {_named(best)} saves {saved} and frees {freed:.2f} GPUs."


def _named(row: Outcome) -> str:
    return f"{row.policy} with {row.capacity_bytes / 1e9:,.0f} GB of KV"


def _mean_tokens(row: Outcome) -> int:
    return round(row.tokens / max(1, row.requests))


def write_plot(
    file: Path, question: RoiQuestion, found: RoiAnswer, rows: Sequence[Outcome]
) -> None:
    """With outcomes of a replay their times and their money, else the curves of one case."""
    with drawing(file, 1, 2, size=(11, 4.8), caption=command_line()) as (left, right):
        if rows:
            _times(left, rows)
            _nets(right, rows)
        else:
            _curves(left, question, found)
            _even(right, question, found)
        for axes in (left, right):
            axes.legend(fontsize="small")


def _lengths(axes: Any, found: RoiAnswer) -> None:
    """The axis of the prompt."""
    axes.set_xscale("log", base=2)
    axes.set_xticks([row.tokens for row in found.curve])
    names = [f"{row.tokens >> 10}K" if row.tokens >= 1024 else row.tokens for row in found.curve]
    axes.set_xticklabels(names)
    axes.set_xlabel("prompt, tokens (K: 1,024)")


def _curves(axes: Any, question: RoiQuestion, found: RoiAnswer) -> None:
    store = question.case.store.bytes_s / 1e9
    tokens, style = [row.tokens for row in found.curve], styles()
    axes.plot(tokens, [row.compute_s for row in found.curve], label="computed", **next(style))
    hits = [row.hit_s for row in found.curve]
    axes.plot(tokens, hits, label=f"a hit, {store:g} GB/s", **next(style))
    axes.plot(tokens, [row.load_s for row in found.curve], label="its load alone", **next(style))
    if tokens[0] < found.crossover_tokens < tokens[-1]:
        axes.axvline(found.crossover_tokens, color="0.6", linewidth=0.8)
        axes.annotate(
            f" crossover, {found.crossover_tokens:,.0f}",
            (found.crossover_tokens, max(hits)),
            fontsize="small",
        )
    _lengths(axes, found)
    axes.set_yscale("log")
    axes.set_ylabel("time to first token, s")
    axes.set_title(f"{question.model.name}", fontsize="medium")


def _even(axes: Any, question: RoiQuestion, found: RoiAnswer) -> None:
    shown = [row for row in found.curve if math.isfinite(row.break_even_bytes_s)]
    style = styles()
    axes.plot(
        [row.tokens for row in shown],
        [row.break_even_bytes_s / 1e9 for row in shown],
        label="as quick as computing",
        **next(style),
    )
    store = question.case.store.bytes_s / 1e9
    axes.axhline(store, color="0.35", linestyle="--", label=f"this store, {store:g} GB/s")
    rule = RULE_BYTES_S / 1e9
    axes.axhline(rule, color="0.55", linestyle=":", label=f"rule of thumb, {rule:g} GB/s")
    _lengths(axes, found)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("bandwidth of the store, GB/s")
    axes.set_title("break-even", fontsize="medium")


def _lines(rows: Sequence[Outcome]) -> Iterator[tuple[str, list[Outcome]]]:
    many = len({row.trace for row in rows}) > 1
    for trace, policy in dict.fromkeys((row.trace, row.policy) for row in rows if row.policy):
        line = [row for row in rows if (row.trace, row.policy) == (trace, policy)]
        label = f"{policy}, {Path(trace).name}" if many else policy
        yield label, sorted(line, key=lambda row: row.capacity_bytes)


def _times(axes: Any, rows: Sequence[Outcome]) -> None:
    for (label, line), style in zip(_lines(rows), styles(), strict=False):
        places = [row.capacity_bytes / 1e9 for row in line]
        axes.plot(places, [row.ttft_mean_s for row in line], label=label, **style)
    for row in rows:
        if not row.policy:
            axes.axhline(row.ttft_mean_s, color="0.6", label="no store")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("KV in the store, GB")
    axes.set_ylabel("mean time to first token, s")


def _nets(axes: Any, rows: Sequence[Outcome]) -> None:
    for (label, line), style in zip(_lines(rows), styles(), strict=False):
        places = [row.capacity_bytes / 1e9 for row in line]
        axes.plot(places, [row.day.saved_money for row in line], label=label, **style)
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("KV in the store, GB")
    axes.set_ylabel("money saved a day, less the memory")


def question_data(question: RoiQuestion) -> dict[str, Any]:
    """The input of the page's arithmetic."""
    return {
        "case": asdict(question.case),
        "day": asdict(question.day),
        "prices": asdict(question.prices),
    }


def write_page(file: Path, question: RoiQuestion, command: str) -> None:
    """Write the page."""
    title = (
        f"{question.model.name}; {question.case.prefill.source}; store: "
        f"{question.case.store.source}. Move a slider, or type."
    )
    # A name of a model may hold anything, and this is a script in a page.
    data = json.dumps(question_data(question)).replace("<", "\\u003c")
    parts = {
        "<!--TITLE-->": html.escape(title),
        "<!--COMMAND-->": html.escape(command),
        "/*ARITHMETIC*/": _read("arithmetic.js"),
        "/*PAGE*/": _read("page.js").replace('"use strict";\n', ""),
        "/*QUESTION*/": data,
    }
    text = _read("page.html")
    for mark, part in parts.items():
        before, _, after = text.partition(mark)
        text = before + part + after
    file.write_text(text, encoding="utf-8")


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
