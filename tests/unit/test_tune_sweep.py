"""The sweeps of `kvferry tune` on simulated servers: it finds the best point, also through noise.

The simulated servers differ in what their speed depends on; the clock is simulated as well, so that
a slow point costs time. Each is tried with many seeds: one lucky run proves nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kvferry.base.errors import CorruptError, UnavailableError
from kvferry_lab.tune.points import AXES, Grid, TunePoint, TuneSample
from kvferry_lab.tune.sweep import Sweep

MIB = 1 << 20
GRID = Grid()
SEEDS = range(24)

Speed = Callable[[TunePoint], float]


def near(p: TunePoint) -> float:
    """Four streams at most; values of 2 MiB suit the server best."""
    streams = min(p.connections, 4)
    speed = {1: 0.55, 2: 0.9, 4: 1.0}[streams] * (0.6 + 0.4 * min(p.workers, streams) / streams)
    return 5 * speed / (1 + 0.15 * abs(math.log2(p.chunk_bytes / (2 * MIB))))


def far(p: TunePoint) -> float:
    """5 ms away, 0.6 GB/s for a connection, 1.5 GB/s for a worker."""
    rate = min(0.6 * p.connections, 1.5 * p.workers, 6.0)
    return rate * (1.0 if p.chunk_bytes >= MIB else 0.8)


def ridge(p: TunePoint) -> float:
    """The values of all connections together should be 16 MiB: two axes that depend."""
    steps = math.log2(p.chunk_bytes * p.connections / (16 * MIB))
    return 4 / (1 + 0.25 * steps * steps) * (0.7 + 0.3 * min(p.workers, 4) / 4)


def many(p: TunePoint) -> float:
    """The more connections and workers, the better."""
    speed = 8 * (1 - math.exp(-p.connections / 12)) * (1 - math.exp(-p.workers / 2))
    return speed / (1 + 0.05 * abs(math.log2(p.chunk_bytes / MIB)))


def few(p: TunePoint) -> float:
    """One core for everything: one connection is best."""
    return 3 / (1 + 0.1 * math.log2(p.connections) + 0.1 * math.log2(p.workers))


@dataclass
class Machine:
    """A server, a network and a clock that are all simulated.

    Attributes:
        noise: Deviation of the logarithm of each rate. One turn in twenty is far slower besides.
        drift: How much of its speed the machine loses and regains, within minutes.
    """

    speed: Speed
    seed: int = 0
    noise: float = 0.0
    drift: float = 0.0
    size_bytes: int = 64 * MIB
    overhead_s: float = 0.06
    now_s: float = 0.0
    measured: list[TunePoint] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def turn(self, point: TunePoint) -> TuneSample:
        self.measured.append(point)
        sample = TuneSample(get_gbps=self._rate(point), set_gbps=0.6 * self._rate(point))
        spent = self.size_bytes / 1e9 * (1 / sample.get_gbps + 1 / sample.set_gbps)
        self.now_s += spent + self.overhead_s
        return sample

    def _rate(self, point: TunePoint) -> float:
        drift = 1 + self.drift * math.sin(self.now_s / 7 + self.seed)
        hiccup = 0.5 if self.noise and self._rng.random() < 0.05 else 1.0
        return self.speed(point) * drift * hiccup * math.exp(self._rng.gauss(0, self.noise))

    def sweep(self) -> Sweep:
        return Sweep(GRID, self.turn, lambda s: s.mix_gbps(2), lambda: self.now_s, seed=self.seed)


def reached(speed: Speed, found: TunePoint) -> float:
    """The speed of a point over that of the best of the grid; no noise in this."""
    return speed(found) / max(map(speed, GRID.points()))


@pytest.mark.parametrize("speed", [near, far, ridge, many, few])
def test_without_noise_the_best_is_found(speed: Speed) -> None:
    machine = Machine(speed)
    assert reached(speed, machine.sweep().search(TunePoint(), 60)) >= 0.97
    assert reached(speed, TunePoint()) < 0.9, "the defaults would do, so this proves nothing"


@pytest.mark.parametrize("speed", [near, far, ridge, many, few])
@pytest.mark.parametrize("noise", [0.02, 0.08])
def test_through_noise_and_drift_it_comes_within_a_twentieth(speed: Speed, noise: float) -> None:
    machines = [Machine(speed, seed, noise, drift=0.15) for seed in SEEDS]
    ratios = [reached(speed, machine.sweep().search(TunePoint(), 60)) for machine in machines]
    assert sum(ratio >= 0.95 for ratio in ratios) >= len(ratios) * 11 / 12, ratios
    assert min(ratios) > 0.85
    assert max(machine.now_s for machine in machines) < 62, "the budget is 60 s"


@pytest.mark.parametrize("size_mib", [64, 4096])
def test_a_slow_server_gets_fewer_turns_and_not_more_time(size_mib: int) -> None:
    machine = Machine(far, size_bytes=size_mib * MIB)
    found = machine.sweep().search(TunePoint(), 60)
    longest_s = 2.7 * machine.size_bytes / 1e9 / far(TunePoint(1, 1, MIB // 2))
    assert machine.now_s < 60 + 3 * longest_s
    assert far(found) >= far(TunePoint())


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_where_all_is_equal_the_defaults_stay(noise: float) -> None:
    for seed in SEEDS:
        found = Machine(lambda point: 3.0, seed, noise).sweep().search(TunePoint(), 60)
        changed = [axis for axis in AXES if getattr(found, axis) != getattr(TunePoint(), axis)]
        if found.workers == found.connections:  # where those go, workers must
            changed.remove("workers")
        assert len(changed) <= (1 if noise else 0), found


def test_the_full_sweep_measures_every_point_and_finds_the_best() -> None:
    for seed in SEEDS:
        machine = Machine(ridge, seed, noise=0.05, drift=0.1)
        found = machine.sweep().full(TunePoint())
        assert reached(ridge, found) >= 0.95
        assert set(machine.measured) == set(GRID.points())


def test_two_points_in_turn_show_small_differences_through_drift() -> None:
    for seed in SEEDS:
        machine = Machine(few, seed, noise=0.02, drift=0.3)
        one, other = TunePoint(1, 1), TunePoint(2, 1)
        entry, reference = machine.sweep().against(one, other, 10)
        assert entry.ratio == pytest.approx(few(one) / few(other), rel=0.06)
        assert len(reference.samples) == 2 * len(entry.samples)
        same, _ = machine.sweep().against(one, one, 10)
        assert same.ratio == pytest.approx(1, abs=0.06)


def test_a_point_that_cannot_be_measured_is_left_out_with_its_reason() -> None:
    def speed(point: TunePoint) -> float:
        if point.connections > 8:
            raise UnavailableError("max number of clients reached")
        return many(point)

    sweep = Machine(speed).sweep()
    found = sweep.search(TunePoint(), 60)
    assert many(found) >= 0.95 * max(many(p) for p in GRID.points() if p.connections <= 8)
    assert {point.connections for point in sweep.failed} == {16, 32}
    assert set(sweep.failed.values()) == {"max number of clients reached"}


@pytest.mark.parametrize(
    ("error", "where"),
    [(CorruptError("wrong from byte 7 on"), 16), (UnavailableError("gone"), 8)],
    ids=["a wrong byte anywhere", "the reference fails"],
)
def test_what_ends_a_sweep(error: Exception, where: int) -> None:
    def speed(point: TunePoint) -> float:
        if point.connections == where:
            raise error
        return many(point)

    with pytest.raises(type(error), match=str(error)):
        Machine(speed).sweep().search(TunePoint(), 60)


def test_the_best_few_are_measured_again() -> None:
    points = GRID.plane(TunePoint(), "connections", "chunk_bytes")
    machine = Machine(ridge)
    compared = machine.sweep().compare(TunePoint(), points, 60)
    turns = {point: machine.measured.count(point) for point in points}
    assert turns[min(points, key=ridge)] == 1
    best = max(compared, key=lambda one: one.ratio)
    assert len(best.ratios) == turns[best.point] >= 5
    assert ridge(best.point) == max(map(ridge, points))
    for one in compared:
        assert one.ratio == pytest.approx(ridge(one.point) / ridge(TunePoint()))
