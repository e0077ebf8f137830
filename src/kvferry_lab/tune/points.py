"""What `kvferry tune` chooses from, and what it found.

A point is one value per axis, and points lie on a grid. More workers than connections are as many
workers as connections, so such points are one: `Grid.at` and `Grid.points` give each of them once.
A `TuneResult` is the best point as settings, as a section of the configuration file, and as JSON.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from kvferry import __version__
from kvferry.base.errors import UsageError
from kvferry.config import CONNECTIONS_DEFAULT, WORKERS_DEFAULT
from kvferry_lab.output import machine_facts

__all__ = ["AXES", "Grid", "TunePoint", "TuneResult", "TuneSample"]

_MIB = 1 << 20

STRIPE_BYTES = 4 * _MIB  # a constant of the stored format: native/codec/stripe.hpp


@dataclass(frozen=True)
class TunePoint:
    """Settings to measure."""

    connections: int = CONNECTIONS_DEFAULT
    workers: int = WORKERS_DEFAULT
    chunk_bytes: int = STRIPE_BYTES

    @property
    def client(self) -> dict[str, int]:
        """The fields of `ClientConfig` among them."""
        return {"connections": self.connections, "workers": self.workers}

    def __str__(self) -> str:
        size = f"chunks {self.chunk_bytes / _MIB:g} MiB"
        return f"connections {self.connections}, workers {self.workers}, {size}"


AXES = tuple(axis.name for axis in fields(TunePoint))


@dataclass(frozen=True)
class TuneSample:
    """One measurement of a point. Units: GB/s, GB = 10^9 bytes of payload."""

    get_gbps: float
    set_gbps: float

    def mix_gbps(self, get_weight: float) -> float:
        """The rate of a job that reads `get_weight` bytes for each byte that it writes."""
        return (get_weight + 1) / (get_weight / self.get_gbps + 1 / self.set_gbps)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The values of each axis, in ascending order.

    Values above the stripe are not among the chunks: a namespace stores them as stripes anyway.
    """

    connections: Sequence[int] = (1, 2, 4, 8, 16, 32)
    workers: Sequence[int] = (1, 2, 4, 8)
    chunk_bytes: Sequence[int] = field(default=(_MIB // 2, 1 * _MIB, 2 * _MIB, 4 * _MIB))

    def __post_init__(self) -> None:
        for axis in AXES:
            values = self.values(axis)
            if not values or len(set(values)) != len(values):
                raise UsageError(f"{axis}: name at least one value, and each once")

    def values(self, axis: str) -> Sequence[Any]:
        """The values of an axis."""
        found: Sequence[Any] = getattr(self, axis)
        return found

    def points(self) -> list[TunePoint]:
        """All of them."""
        product = itertools.product(*(self.values(axis) for axis in AXES))
        return _distinct(self.at(TunePoint(*values)) for values in product)

    def at(self, point: TunePoint) -> TunePoint:
        """The point of this grid that is the given one, or else the nearest below on each axis."""
        nearest = {
            axis: _nearest(getattr(point, axis), self.values(axis))
            for axis in AXES
            if getattr(point, axis) not in self.values(axis)
        }
        found = replace(point, **nearest)
        return replace(found, workers=min(found.workers, found.connections))

    def plane(self, point: TunePoint, *axes: str) -> list[TunePoint]:
        """The points that differ from this one along these axes only, itself included."""
        product = itertools.product(*(self.values(axis) for axis in axes))
        moved = (replace(point, **dict(zip(axes, values, strict=True))) for values in product)
        return _distinct(self.at(other) for other in moved)


def _nearest(wanted: Any, values: Sequence[Any]) -> Any:
    return max((value for value in values if value <= wanted), default=values[0])


def _distinct(points: Iterable[TunePoint]) -> list[TunePoint]:
    return list(dict.fromkeys(points))


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
