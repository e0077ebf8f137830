"""Requests of a run over long documents: when each began, got its first token, and ended."""

from __future__ import annotations

import importlib
from pathlib import Path

from kvferry_lab.long_doc.run import LongDocRun

__all__ = ["plot_rounds"]

# Told apart by their form, so that no colour is needed.
_POINTS = (("o", "none", "request start"), ("^", "0.6", "first token"), ("s", "0.0", "request end"))


def plot_rounds(run: LongDocRun, folder: Path, caption: str) -> None:
    """Draw warmup_round.png and query_round.png; the caption is the command."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in (("warmup", run.warmup), ("query", run.query)):
        figure, axes = pyplot.subplots(figsize=(10, 5), layout="constrained")
        fine = [record for record in records if record.successful]
        ids = [record.prompt_id for record in fine]
        times = (
            [record.request_start for record in fine],
            [record.request_start + record.ttft for record in fine],
            [record.request_end for record in fine],
        )
        for values, (marker, face, label) in zip(times, _POINTS, strict=True):
            axes.scatter(ids, values, marker=marker, c=face, edgecolors="black", label=label)
        axes.set_xlabel("prompt")
        axes.set_ylabel("time since the beginning, s")
        axes.set_title(f"{name.capitalize()} round")
        axes.grid(alpha=0.3)
        axes.legend()
        figure.text(0.01, -0.03, caption, fontsize="x-small", family="monospace")
        figure.savefig(folder / f"{name}_round.png", dpi=150, bbox_inches="tight")
        pyplot.close(figure)
