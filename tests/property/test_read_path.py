"""The read path decides as it did: the table of decision 0012, and ten thousand random cases.

Whatever a request asked, waited, loaded, left, was charged and was predicted is told in words by
`support.read_path`, and a digest of them is pinned. A test that fails prints a case that decides
something else; `support.read_path_pins` says how to see it as it was.

The clock of a replay is that of all threads of its process, and what they load counts. So each
replay has a process of its own: caches of other tests may have left threads in this one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.read_path import on_clock, replay
from support.read_path_cases import random_case
from support.read_path_pins import BLOCK, CASES, block_line

STEP = 1000  # cases of one test
TESTS = Path(__file__).parents[1]


def changed(*which: str) -> str:
    """What is not as it was, in words."""
    command = [sys.executable, "-m", "support.read_path_pins", "--check", *which]
    done = subprocess.run(
        command, cwd=TESTS, capture_output=True, text=True, timeout=250, check=False
    )
    return done.stdout + done.stderr


def test_the_table_of_decision_0012_is_as_it_was() -> None:
    if said := changed("table"):
        pytest.fail(said)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.full] if first else [])
        for first in range(0, CASES, STEP)
    ],
)
def test_random_cases_are_decided_as_they_were(first: int) -> None:
    if said := changed(str(first), str(STEP)):
        pytest.fail(said)


def test_what_a_random_case_is_does_not_depend_on_those_before_it() -> None:
    with on_clock() as clock:
        alone = replay(random_case(BLOCK - 1), clock).lines
        block_line(0, clock)
        assert replay(random_case(BLOCK - 1), clock).lines == alone
