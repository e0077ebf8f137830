"""Drawings as PNG or SVG: what all plots have in common. They are read without colours, too."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from kvferry.base.errors import UsageError

__all__ = ["check_plot", "drawing", "styles"]

_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_MARKS = ("o", "s", "^", "D", "v", "x")
_GREYS = ("black", "0.35", "0.55")


def check_plot() -> None:
    """Fail before the work when a plot cannot be made after it."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'kvferry[plot]'") from error


@contextmanager
def drawing(
    file: str | Path,
    rows: int = 1,
    columns: int = 1,
    *,
    size: tuple[float, float] = (7, 4.5),
    caption: str = "",
) -> Iterator[list[Any]]:
    """The axes of a drawing, row by row; it is saved at the end of the block.

    Args:
        size: Width and height of all of it, in inches.
        caption: Stands below, e.g. the command line.
    """
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text that can be searched
        figure, panels = pyplot.subplots(
            rows, columns, figsize=size, layout="constrained", squeeze=False
        )
        for axes in panels.flat:
            axes.grid(alpha=0.3)
        yield list(panels.flat)
        if caption:
            wrapped = textwrap.wrap(caption, round(13 * size[0]))
            figure.supxlabel("\n".join(wrapped), fontsize="small")
        figure.savefig(file, dpi=150)
        pyplot.close(figure)


def styles() -> Iterator[dict[str, Any]]:
    """Of lines, one after the other, each with its own mark and dashes."""
    for mark, dash, grey in zip(cycle(_MARKS), cycle(_DASHES), cycle(_GREYS), strict=False):
        yield {"marker": mark, "linestyle": dash, "color": grey, "markersize": 5}
