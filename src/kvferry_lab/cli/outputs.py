"""The type of options that name a file to be written: it is tried before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvferry.base.process import cannot_write

__all__ = ["DRAWING", "OutputFile"]


class OutputFile(click.Path):
    """A path where a file can be written; - is stdout.

    Args:
        suffixes: How its name has to end; empty: as it likes.
        path_type: Of its values; None: text.
    """

    def __init__(self, *suffixes: str, path_type: type[Path] | None = None) -> None:
        super().__init__(path_type=path_type)
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As `click.ParamType.convert` says."""
        path = Path(value)
        if self._suffixes and path.suffix.lower() not in self._suffixes:
            self.fail(f"{str(value)!r} does not end in {' or '.join(self._suffixes)}.", param, ctx)
        if str(value) != "-" and (reason := cannot_write(path)):
            self.fail(f"{str(value)!r} cannot be written: {reason}.", param, ctx)
        return super().convert(value, param, ctx)


DRAWING = (".png", ".svg")
