"""What `kvferry tune` found, as settings, as a section of the configuration file, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from kvferry import __version__
from kvferry_lab.machine import machine_facts
from kvferry_lab.tune.points import STRIPE_BYTES, TunePoint, TuneSample

__all__ = ["TuneResult"]


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """What was found.

    Attributes:
        before: The settings until now, or the nearest point of the grid.
        ratio: The rate of the best over that of `before`: median of alternating turns.
        sample, before_sample: Medians of the same turns.
        sweep_best: The best point of the full sweep, where there was one.
        sweep_ratio: The rate that the search reached without it, over that of `sweep_best`.
    """

    best: TunePoint
    before: TunePoint
    ratio: float
    sample: TuneSample
    before_sample: TuneSample
    get_weight: float
    server: str
    address: str
    round_trip_s: float
    turns: int
    verified_bytes: int
    elapsed_s: float
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    failed: Mapping[TunePoint, str] = field(default_factory=dict)
    sweep_best: TunePoint | None = None
    sweep_ratio: float | None = None

    @property
    def client(self) -> dict[str, Any]:
        """Settings for the `client` section of the configuration file."""
        return dict(self.best.client)

    @property
    def tuned(self) -> dict[str, Any]:
        """The `tuned` section: what no client reads, and what the figures must be read with."""
        section = {
            "date": self.date,
            "kvferry": __version__,
            "machine": machine_facts(),
            "server": self.server,
            "address": self.address,
            "round_trip_ms": round(self.round_trip_s * 1e3, 3),
            "chunk_bytes": self.best.chunk_bytes,
            "stripe_bytes": STRIPE_BYTES,
            "get_gbps": round(self.sample.get_gbps, 3),
            "set_gbps": round(self.sample.set_gbps, 3),
            "get_weight": self.get_weight,
            "times_before": round(self.ratio, 3),
        }
        if self.sweep_ratio is not None:
            section["times_full_sweep"] = round(self.sweep_ratio, 3)
        return section

    def as_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "client": self.client,
            "tuned": self.tuned,
            "before": {**asdict(self.before), **asdict(self.before_sample)},
            "sweep_best": None if self.sweep_best is None else asdict(self.sweep_best),
            "failed": [{**asdict(point), "error": text} for point, text in self.failed.items()],
            "turns": self.turns,
            "verified_bytes": self.verified_bytes,
            "elapsed_s": round(self.elapsed_s, 3),
        }
