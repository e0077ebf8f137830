"""What a trace comes to, for people: policies and sizes, and whether it pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvferry.cli.table import table
from kvferry_lab.roi.answer import RoiQuestion
from kvferry_lab.roi.money import DAY_S
from kvferry_lab.roi.report import say_case
from kvferry_lab.roi.traced import Outcome

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["say_outcomes"]

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
        text += f" {_break_even(question, _mean_tokens(best))}"
    return text


def _break_even(question: RoiQuestion, tokens: int) -> str:
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
