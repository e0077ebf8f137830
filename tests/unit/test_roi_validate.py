"""`kvferry roi --validate`: the published figures come out, and come from their set-ups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvferry_lab.roi import validate as module
from kvferry_lab.roi.validate import TABLES, Check, rounds_hit_rate, validate


def test_nothing_that_is_promised_is_missed() -> None:
    checks = validate()
    assert [check for check in checks if check.passed is False] == []
    assert sum(check.passed is True for check in checks) > 50


def test_the_bars() -> None:
    tables = {table.name for table in TABLES}
    held = [check for check in validate() if check.note == "held out" and check.group in tables]
    computes = [check for check in held if check.what.startswith("compute")]
    loads = [check for check in held if check.what.startswith("load")]
    assert len(computes) == len(loads) == 4
    assert all(abs(check.error or 0) <= 0.02 for check in computes)
    assert all(abs(check.error or 0) <= 0.10 for check in loads)
    crossings = {check.group: check for check in validate() if check.what == "crossover"}
    assert len(crossings) == 3
    assert all(check.passed for check in crossings.values())
    assert 8_000 < crossings["GLM-5.2-FP8"].predicted < 9_000


def test_a_row_that_is_held_out_says_nothing_about_its_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {check.what: check for check in validate() if check.group == TABLES[0].name}
    wrong = replace(TABLES[0], compute_ms=(78, 500, 510, 1173, 1988))
    monkeypatch.setattr(module, "TABLES", (wrong, TABLES[1]))
    after = {check.what: check for check in validate() if check.group == TABLES[0].name}
    changed = "compute 8,192 tokens"
    assert after[changed].predicted == before[changed].predicted
    assert after[changed].passed is False, "a figure that does not fit is found"


def test_a_row_that_is_fitted_moves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(TABLES[0], compute_ms=(78, 250, 700, 1173, 1988))
    monkeypatch.setattr(module, "TABLES", (wrong, TABLES[1]))
    after = {check.what: check for check in validate() if check.group == TABLES[0].name}
    assert after["compute 8,192 tokens"].passed is False


def test_ranges_and_rows_without_a_bar() -> None:
    check = Check(
        group="", what="", unit="", predicted=5, published=(1, 4), bar=None, note=""
    )  # fmt: skip
    assert (check.passed, check.error) == (False, None)
    assert replace(check, predicted=4.0).passed
    assert replace(check, published=4.0).passed is None
    assert replace(check, published=4.0, bar=0.1).to_dict()["error"] == pytest.approx(0.25)


def test_the_shape_of_the_curve_over_the_size_of_a_value() -> None:
    found = {check.what: check.predicted for check in validate() if check.group == "RESP values"}
    for name in ("SET", "GET"):
        assert found[f"{name} of 1 MB"] < found[f"{name} of 4 MB"]
    assert found["GET of 8 MB"] < found["GET of 1 MB"] / 2
    assert found["SET of 8 MB"] > found["SET of 1 MB"]


def test_rounds() -> None:
    assert rounds_hit_rate(3) == pytest.approx(2 / 3)
    assert rounds_hit_rate(1) == 0
