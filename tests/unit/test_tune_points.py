"""The grid of `kvferry tune`, what a measurement is worth, and which servers have room for one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvferry.base.errors import CapacityError, UsageError
from kvferry_lab.tune.points import Grid, TunePoint, TuneSample
from kvferry_lab.tune.run import check_room

MIB = 1 << 20
GRID = Grid()


def test_the_mix_counts_bytes_and_not_calls() -> None:
    sample = TuneSample(get_gbps=4.0, set_gbps=1.0)
    assert sample.mix_gbps(2) == pytest.approx(3 / (2 / 4 + 1 / 1))
    assert TuneSample(3.0, 3.0).mix_gbps(7) == pytest.approx(3.0)


def test_grid_holds_each_point_once() -> None:
    points = GRID.points()
    assert len(points) == len(set(points)) == (1 + 2 + 3 + 4 + 4 + 4) * 4
    assert all(point.workers <= point.connections for point in points)
    assert all(GRID.at(point) == point for point in points)
    assert TunePoint() in points


def test_a_point_off_the_grid_moves_onto_it() -> None:
    small = Grid(connections=(2, 4), workers=(3,), chunk_bytes=(MIB,))
    assert small.at(TunePoint()) == TunePoint(4, 3, MIB)
    assert small.at(TunePoint(1, 1)) == TunePoint(2, 2, MIB)
    assert small.points() == [TunePoint(2, 2, MIB), TunePoint(4, 3, MIB)]
    assert small.plane(TunePoint(2, 2, MIB), "connections") == [
        TunePoint(2, 2, MIB),
        TunePoint(4, 3, MIB),
    ]
    with pytest.raises(UsageError, match="workers"):
        replace(small, workers=())
    with pytest.raises(UsageError, match="each once"):
        replace(small, connections=(2, 2))


def memory(
    maxmemory: int, used: int = 0, policy: str = "noeviction", host: int = 0
) -> dict[str, str]:
    return {
        "maxmemory": str(maxmemory),
        "used_memory": str(used),
        "maxmemory_policy": policy,
        "total_system_memory": str(host),
    }


@pytest.mark.parametrize(
    ("info", "allow", "advice"),
    [
        ({}, False, None),
        (memory(0, host=0), False, None),
        (memory(0, host=1000), False, None),
        (memory(0, used=900, host=1000), False, "memory of its host"),
        (memory(200), False, None),
        (memory(199), False, "maxmemory"),
        (memory(1000, used=900), False, "give it more"),
        (memory(1000, used=900), True, "give it more"),
        (memory(1000, used=900, policy="allkeys-lru"), False, "--allow-eviction"),
        (memory(1000, used=900, policy="allkeys-lru"), True, None),
        (memory(100, used=0, policy="allkeys-lru"), True, "give it more"),
    ],
)
def test_a_server_without_room_is_refused(
    info: dict[str, str], allow: bool, advice: str | None
) -> None:
    if advice is None:
        check_room(info, 100, allow)
        return
    with pytest.raises(CapacityError, match=advice):
        check_room(info, 100, allow)
