"""Answers for people: facts, tables and a verdict, with units; and the same as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvferry.cli.table import facts, table
from kvferry_lab.output import command_line
from kvferry_lab.roi.answer import RULE_BYTES_S, Length, RoiAnswer, RoiQuestion, finite
from kvferry_lab.roi.money import BILLED, Prices
from kvferry_lab.roi.traced import Outcome
from kvferry_lab.roi.validate import Check

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["as_json", "say", "say_case", "say_checks"]

_GIB = 1 << 30
_CURVE = ("tokens", "KV GB", "compute s", "load s", "hit TTFT s", "times sooner", "even GB/s")


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
    """What the answer rests on."""
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
