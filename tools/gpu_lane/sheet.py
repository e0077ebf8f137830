"""What a part of the report found: printed and saved row by row, so that a cut loses only the rest.

sheet = Sheet(folder, "client", limit_s=90.0)
sheet.row("GET 4 MiB, Valkey", gbps=10.2, floor_ratio=0.98)
if sheet.is_over(): ...
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

__all__ = ["Figure", "Sheet", "spread"]

Figure = float | int | str | None


class Sheet:
    """The rows of one part, in FOLDER/PART.jsonl and on stdout.

    Args:
        folder: Where results go.
        part: Its name.
        limit_s: After so many seconds `is_over` is true: a part begins nothing more then.
    """

    def __init__(self, folder: Path, part: str, limit_s: float) -> None:
        self._began = time.monotonic()
        self._limit_s = limit_s
        self._path = folder / f"{part}.jsonl"
        self._part = part

    def row(self, what: str, **figures: Figure) -> None:
        """One line of figures."""
        shown = ", ".join(f"{name} {_show(value)}" for name, value in figures.items())
        print(f"[{self.passed_s():6.1f} s] {self._part}: {what}: {shown}", flush=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"part": self._part, "what": what, **figures}) + "\n")

    def passed_s(self) -> float:
        """Seconds since the part began."""
        return time.monotonic() - self._began

    def is_over(self, needed_s: float = 0.0) -> bool:
        """Whether what takes so long does not fit any more."""
        return self.passed_s() + needed_s > self._limit_s


def spread(name: str, values: Sequence[float], scale: float = 1.0) -> dict[str, Figure]:
    """Median, least and most of values as figures of a row; nothing without values."""
    if not values:
        return {}
    scaled = sorted(value * scale for value in values)
    return {name: median(scaled), f"{name}_least": scaled[0], f"{name}_most": scaled[-1]}


def _show(value: Figure) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
