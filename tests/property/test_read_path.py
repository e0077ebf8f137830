"""The read path decides as it did: the table of decision 0012, and ten thousand random cases.

Whatever a request asked, waited, loaded, left, was charged and was predicted is told in words by
`support.read_path`, and a digest of them is pinned. A test that fails prints a case that decides
something else; `support.read_path_pins` says how to see it as it was.
"""

from __future__ import annotations

from itertools import zip_longest

import pytest

from support.read_path import on_clock, replay
from support.read_path_cases import random_case, table
from support.read_path_pins import (
    BLOCK,
    CASES,
    block_line,
    differences,
    pinned,
    table_lines,
    words,
)

STEP = 1000  # cases of one test


def test_the_table_of_decision_0012_is_as_it_was() -> None:
    lines, _ = pinned()
    with on_clock() as clock:
        for was, now in zip_longest(lines, table_lines(clock)):
            if was != now:
                case = dict(table())[(now or was or "").partition(": ")[0]]
                pytest.fail(f"was {was}\nnow {now}\n{words(replay(case, clock))}")


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.full] if first else [])
        for first in range(0, CASES, STEP)
    ],
)
def test_random_cases_are_decided_as_they_were(first: int) -> None:
    _, blocks = pinned()
    with on_clock() as clock:
        for number in range(first, first + STEP, BLOCK):
            changed = differences(blocks[number], block_line(number, clock))
            if changed:
                said = words(replay(random_case(changed[0]), clock))
                pytest.fail(f"cases {changed} decide something else; the first one:\n{said}")


def test_what_a_random_case_is_does_not_depend_on_those_before_it() -> None:
    with on_clock() as clock:
        alone = replay(random_case(BLOCK - 1), clock).lines
        block_line(0, clock)
        assert replay(random_case(BLOCK - 1), clock).lines == alone
