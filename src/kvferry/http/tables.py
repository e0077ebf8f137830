"""Lists of an answer as tables in CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["as_csv"]


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table with its heads; what is a list or has parts is one text."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(rows[0] if rows else ())
    for row in rows:
        writer.writerow([_cell(one) for one in row.values()])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping):
        value = " ".join(f"{name}={one}" for name, one in value.items())
    elif isinstance(value, list | tuple):
        value = " ".join(_cell(one) if isinstance(one, str) else str(one) for one in value)
    # A name that a spreadsheet would take for a formula.
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@" and value else value
