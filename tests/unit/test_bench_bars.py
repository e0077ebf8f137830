"""Bars: which hold, which do not, and what is said about those."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import bars, report, rival
from benchmarks.bars import Bar, Lab, Target, run_bars
from kvferry.base.errors import UnavailableError, UsageError
from kvferry_lab.bench.intervals import Interval

AT_LEAST = Target(">=", 0.97, "x floor")
AT_MOST = Target("<=", 3, "RTT")


def test_both_kinds_of_target() -> None:
    assert Bar(name="a", target=AT_LEAST, value=0.97).holds
    assert not Bar(name="a", target=AT_LEAST, value=0.9699).holds
    assert Bar(name="a", target=AT_MOST, value=3.0).holds
    assert not Bar(name="a", target=AT_MOST, value=3.01).holds


def test_what_was_not_measured_falls_short() -> None:
    assert not Bar(name="a", target=AT_MOST, value=None).holds


def test_what_was_skipped_neither_holds_nor_falls_short() -> None:
    skipped = Bar(name="a", target=AT_MOST, value=None, skipped=True, reason="no TLS here")
    assert not skipped.holds
    assert not skipped.falls_short
    assert Bar(name="a", target=AT_MOST, value=None).falls_short
    assert Bar(name="a", target=AT_MOST, value=4).falls_short
    assert not Bar(name="a", target=AT_MOST, value=3).falls_short
    shown = Console(record=True, width=200, file=io.StringIO())
    report.say_bar(shown, skipped, quick=False)
    held = Bar(name="b", target=AT_MOST, value=1.0)
    report.say_table(shown, [skipped, held], quick=False)
    said = shown.export_text()
    assert "skipped     a: not measured (no TLS here)" in said
    assert "1 of 1 bars hold, 1 skipped" in said


def test_the_longest_known_reason_is_shown_for_a_shortfall_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bars, "NOTES", {"GET": "general", "GET 4": "special"})
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
    assert [g.__name__ for g in report.select(["distant", "memory"])] == [
        "distant_exists",
        "distant_get",
        "engine_memory",
    ]
    assert report.select([]) == list(report.GROUPS)
    with pytest.raises(UsageError, match="get_valkey"):
        report.select(["nothing like it"])


def test_an_interval_decides_whether_a_bar_falls_short() -> None:
    def bar(target: Target, low: float, value: float, high: float) -> Bar:
        return Bar(name="a", target=target, value=value, interval=Interval(value, low, high))

    for target, far, near in ((AT_LEAST, 0.8, 0.96), (AT_MOST, 4.0, 3.1)):
        beyond = 0.98 if target is AT_LEAST else 2.9
        short = bar(target, min(far, near), near, max(far, near))
        assert (short.holds, short.undecided, short.falls_short) == (False, False, True)
        open_ = bar(target, min(far, beyond), near, max(far, beyond))
        assert (open_.holds, open_.undecided, open_.falls_short) == (False, True, False)
        held = bar(target, min(far, beyond), beyond, max(far, beyond))
        assert (held.holds, held.undecided, held.falls_short) == (True, False, False)
    shown = Console(record=True, width=200, file=io.StringIO())
    report.say_table(shown, [open_, short, held], quick=False)
    said = shown.export_text()
    assert "1 of 3 bars hold, 1 undecided" in said
    assert "3.1 (2.9 to 4) RTT" in said


def test_without_lmcache_its_bars_are_skipped_and_say_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVFERRY_ENGINES_DIR", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (bar,) = run_bars([rival.rival_client], Lab(quick=True))
    assert bar.skipped
    assert "engine_lane vllm-lmcache" in bar.why()
