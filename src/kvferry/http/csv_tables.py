"""Tables in CSV that a spreadsheet reads as what they are: no formulas, no control characters."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["as_csv", "cell"]


_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # of full width, too


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table with its heads; what is a list or has parts is one text."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(map(cell, rows[0] if rows else ()))
    for row in rows:
        writer.writerow(map(cell, row.values()))
    return text.getvalue()


def cell(value: Any) -> Any:
    """A value of a table; what has parts is one text."""
    if isinstance(value, Mapping):
        value = " ".join(f"{name}={one}" for name, one in value.items())
    elif isinstance(value, list | tuple):
        value = " ".join(cell(one) if isinstance(one, str) else str(one) for one in value)
    if not isinstance(value, str):
        return value
    text = value if value.isprintable() else "".join(c if c.isprintable() else "?" for c in value)
    # What a spreadsheet would take for a formula, spaces in front or not.
    return f"'{text}" if text.lstrip()[:1] in _FORMULA and text.strip() else text
