"""Figures as PNG or SVG: times to the first token, the bandwidth that breaks even, and policies.

They are read without colours too: each line has its own dashes and marks. The command stands below.
"""

from __future__ import annotations

import importlib
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from kvferry_lab.roi.answer import RULE_BYTES_S, RoiAnswer, RoiQuestion
from kvferry_lab.roi.traced import Outcome

__all__ = ["write_plot"]

_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_MARKS = ("o", "s", "^", "D", "v", "x")
_GREYS = ("black", "0.35", "0.55")


def write_plot(
    file: Path, question: RoiQuestion, found: RoiAnswer, rows: Sequence[Outcome], command: str
) -> None:
    """With outcomes of a replay their times and their money, else the curves of one case."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    draw: tuple[Callable[[Any], None], Callable[[Any], None]]
    if rows:
        draw = (lambda axes: _times(axes, rows), lambda axes: _nets(axes, rows))
    else:
        draw = (
            lambda axes: _curves(axes, question, found),
            lambda axes: _even(axes, question, found),
        )
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text that can be searched
        figure, both = pyplot.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
        for axes, draw_one in zip(both, draw, strict=True):
            draw_one(axes)
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small")
        figure.supxlabel("\n".join(textwrap.wrap(command, 150)), fontsize="x-small")
        figure.savefig(file, dpi=150)
        pyplot.close(figure)


def _styles() -> Iterator[dict[str, Any]]:
    for mark, dash, grey in zip(cycle(_MARKS), cycle(_DASHES), cycle(_GREYS), strict=False):
        yield {"marker": mark, "linestyle": dash, "color": grey, "markersize": 4}


def _lengths(axes: Any, found: RoiAnswer) -> None:
    """The axis of the prompt."""
    axes.set_xscale("log", base=2)
    axes.set_xticks([row.tokens for row in found.curve])
    names = [f"{row.tokens >> 10}K" if row.tokens >= 1024 else row.tokens for row in found.curve]
    axes.set_xticklabels(names)
    axes.set_xlabel("prompt, tokens (K: 1,024)")


def _curves(axes: Any, question: RoiQuestion, found: RoiAnswer) -> None:
    store = question.case.store.bytes_s / 1e9
    tokens, styles = [row.tokens for row in found.curve], _styles()
    axes.plot(tokens, [row.compute_s for row in found.curve], label="computed", **next(styles))
    hits = [row.hit_s for row in found.curve]
    axes.plot(tokens, hits, label=f"a hit, {store:g} GB/s", **next(styles))
    axes.plot(tokens, [row.load_s for row in found.curve], label="its load alone", **next(styles))
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
    styles = _styles()
    axes.plot(
        [row.tokens for row in shown],
        [row.break_even_bytes_s / 1e9 for row in shown],
        label="as quick as computing",
        **next(styles),
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
    for (label, line), style in zip(_lines(rows), _styles(), strict=False):
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
    for (label, line), style in zip(_lines(rows), _styles(), strict=False):
        places = [row.capacity_bytes / 1e9 for row in line]
        axes.plot(places, [row.day.saved_money for row in line], label=label, **style)
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("KV in the store, GB")
    axes.set_ylabel("money saved a day, less the memory")
