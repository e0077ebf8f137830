"""How the figures of engines are shown: a table for people, JSON, and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvferry.base.host import usable_cores
from kvferry.cli.table import number, table
from kvferry_lab.drawing import drawing
from kvferry_lab.engines.bench import EnginePlan, EngineRow
from kvferry_lab.engines.engine_process import versions_of
from kvferry_lab.output import run_facts

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["header", "say_rows", "write_plot"]

_COLUMNS = (
    *("integration", "cold", "again", "memory", "warm", "ratio"),
    *("hit tokens", "MB", "wrong"),
)


def header(plan: EnginePlan) -> dict[str, Any]:
    """Command, machine, versions and sizes."""
    store, sizes = plan.server, ("prompt_tokens", "prompts", "rounds", "dtype", "block_size")
    return run_facts(
        {**versions_of(plan.python, plan.rival_python), store.kind: store.version},
        model=plan.model.name,
        layout="one process" if plan.one_process else "processes",
        threads=plan.threads or usable_cores(),
        **{name: getattr(plan, name) for name in (*sizes, "chunk_tokens", "memory_gb")},
    )


def say_rows(console: Console, rows: Sequence[EngineRow]) -> None:
    """The table, and why an integration has no figures."""
    console.print(table(_COLUMNS, [_cells(row) for row in rows]))
    for row in rows:
        if row.error:
            text = f"{row.integration}: {row.error.splitlines()[0]}"
            console.print(text, highlight=False, markup=False)
    console.print(
        "medians over all prompts and rounds; cold, again, memory, warm: seconds to the first "
        "token, computed, from the engine's own cache, from host memory, and in another process "
        "with the KV from the store; ratio: warm/cold; MB = 10^6 bytes of one pass on the wire; "
        "wrong: answers unlike those of an engine that computed as many tokens",
        highlight=False,
    )


def write_plot(file: str, rows: Sequence[EngineRow]) -> None:
    """Two bars each: time to the first token, cold and warm, with every single one as a dot."""
    shown = [row for row in rows if row.cold and row.warm]
    with drawing(file) as (axes,):
        for offset, which in ((-0.2, "cold"), (0.2, "warm")):
            places = [index + offset for index in range(len(shown))]
            bars = axes.bar(places, [row.ttft_s(which) for row in shown], 0.36, label=which)
            axes.bar_label(bars, fmt="%.2f", fontsize="small")
            for place, row in zip(places, shown, strict=True):
                dots = [value for one in getattr(row, which) for value in one.ttft_s]
                axes.plot([place] * len(dots), dots, "k.", markersize=3)
        axes.set_xticks(range(len(shown)), [row.integration for row in shown])
        axes.set_ylabel("time to the first token, s")
        axes.legend()


def _cells(row: EngineRow) -> list[str]:
    cold, warm = row.ttft_s("cold"), row.ttft_s("warm")
    loaded = row.loaded_bytes()
    return [
        row.integration,
        number(cold),
        number(row.ttft_s("again"), 3),
        number(row.ttft_s("memory"), 3),
        number(warm, 3),
        number(warm / cold if cold and warm else None, 3),
        number(row.hit_tokens(), 0),
        number(None if loaded is None else loaded / 1e6, 1),
        str(row.wrong_answers),
    ]
