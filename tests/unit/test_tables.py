"""Cells of CSV: no text is a formula of a spreadsheet, or has control characters."""

from __future__ import annotations

import csv
import io

import pytest

from kvferry.http.csv_tables import as_csv, cell

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\n@x", "\uff1d1", "=\x00", "-")


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_is_no_formula(text: str) -> None:
    for found in (cell(text), cell([text]), cell((text, "b"))):
        assert found[0] in "'?"
        assert found.isprintable()


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "\x1b[2Ka", "a\x00b", "a\u2028b", "\u202eab"])
def test_a_text_has_no_control_characters(text: str) -> None:
    table = as_csv([{"name": text, text: [text], "b": {text: text}}])
    rows = list(csv.reader(io.StringIO(table)))
    assert len(rows) == 2
    assert all(one.isprintable() for row in rows for one in row)


def test_numbers_and_other_texts_stay_as_they_are() -> None:
    for value in (-1, -1.5, None, True, "a=b", "1-1", "", " ", "é ü"):
        assert cell(value) == value
