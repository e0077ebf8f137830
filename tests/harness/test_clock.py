"""The clock of upper bounds: usual on an idle machine, slow on a full one, and never still."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kvferry.testing import clock


@pytest.mark.parametrize(("waited_us", "counted_s"), [(0, 10.0), (5_000_000, 5.5), (10**7, 1.0)])
def test_waiting_for_a_processor_counts_a_tenth(
    waited_us: int, counted_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "cpu"
    monkeypatch.setattr(clock, "_PRESSURE", said)
    told = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 total=9\n"
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said.write_text(told.format(123))
    before = clock.now_s()
    now += 10.0
    said.write_text(told.format(123 + waited_us))
    assert clock.now_s() - before == pytest.approx(counted_s)


def test_where_nobody_counts_it_is_a_usual_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_PRESSURE", tmp_path / "none")
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    assert clock.now_s() == 7.0
