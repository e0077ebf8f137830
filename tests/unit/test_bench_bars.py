"""Bars: which hold, which do not, and what is said about those."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvferry.errors import UnavailableError, UsageError
from kvferry.lab import bench_bars, bench_bars_report
from kvferry.lab.bench_bars import Bar, Lab, Target, run_bars

AT_LEAST = Target(">=", 0.97, "x floor")
AT_MOST = Target("<=", 3, "RTT")


def test_both_kinds_of_target() -> None:
    assert Bar(name="a", target=AT_LEAST, value=0.97).holds
    assert not Bar(name="a", target=AT_LEAST, value=0.9699).holds
    assert Bar(name="a", target=AT_MOST, value=3.0).holds
    assert not Bar(name="a", target=AT_MOST, value=3.01).holds


def test_what_was_not_measured_falls_short() -> None:
    assert not Bar(name="a", target=AT_MOST, value=None).holds


def test_the_longest_known_reason_is_shown_for_a_shortfall_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_bars, "NOTES", {"GET": "general", "GET 4": "special"})
    assert Bar(name="GET 4 MiB", target=AT_LEAST, value=0.5).why() == "special"
    assert Bar(name="GET 1 MiB", target=AT_LEAST, value=0.5).why() == "general"
    assert Bar(name="GET 4 MiB", target=AT_LEAST, value=1.0).why() == ""
    assert Bar(name="SET 4 MiB", target=AT_LEAST, value=0.5).why() == ""
    assert Bar(name="GET 4 MiB", target=AT_LEAST, value=None, reason="gone").why() == "gone"


def test_a_group_that_fails_is_a_bar_that_falls_short() -> None:
    def broken(lab: Lab) -> Iterator[Bar]:
        """What it would have measured."""
        yield Bar(name="first", target=AT_LEAST, value=1.0)
        raise UnavailableError("the server left")

    said: list[Bar] = []
    first, second = run_bars([broken], Lab(quick=True), said.append)
    assert first.holds
    assert said == [first, second]
    assert (second.name, second.value) == ("What it would have measured", None)
    assert second.to_dict()["reason"] == "UnavailableError: the server left"


def test_groups_are_chosen_by_name() -> None:
    assert [g.__name__ for g in bench_bars_report.select(["distant", "memory"])] == [
        "distant_exists",
        "distant_get",
        "memory_growth",
    ]
    assert bench_bars_report.select([]) == list(bench_bars_report.GROUPS)
    with pytest.raises(UsageError, match="same_connections"):
        bench_bars_report.select(["nothing like it"])
