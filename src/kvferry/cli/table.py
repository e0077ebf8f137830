"""Tables and fact sheets for people: tidy without colour, in a pipe, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["console", "facts", "number", "table"]


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Names on the left, what there is to say about them on the right, long lines folded."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold", min_width=11)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(Text(name), Text(text))
    return grid


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = True) -> Table:
    """A head, a line, and rows; the first column to the left, and if `right` the others not."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        result.add_column(Text(column), justify="right" if right and index else "left")
    for row in rows:
        result.add_row(*(Text(cell) for cell in row))
    return result


def number(value: float | None, digits: int = 2) -> str:
    """A fixed number of decimals, and a dash where nothing was measured."""
    return "-" if value is None else f"{value:,.{digits}f}"


def console(*, stderr: bool = False) -> Console:
    """A console for facts and tables: no guessing of what is a number, a path or an emoji."""
    return Console(stderr=stderr, highlight=False, emoji=False, markup=False)
