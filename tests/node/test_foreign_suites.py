"""The lists of what is left out of the suites of others, and how their output is read."""

from __future__ import annotations

import pytest

from foreign_suites import resp, valkey
from foreign_suites.outcome import Outcome, Skips

PRINTED = """\
\x1b[0mTesting unit/scan
[ok]: one (3 ms)
[skip]: left out
[ignore]: two: Tag: needs:debug denied
[err]: three in tests/unit/scan.tcl
Expected '1' to equal or match '2'
[1/1 done]: unit/scan (0 seconds)
*** [err]: three in tests/unit/scan.tcl
[err]: three in tests/unit/scan.tcl
"""


@pytest.mark.parametrize("name", ["valkey.yaml", "resp.yaml"])
def test_every_entry_has_a_reason(name: str) -> None:
    skips = Skips.read(name)
    assert all(len(reason.split()) > 1 and names for reason, names in skips.reasons.items())
    assert len(set(skips.entries())) == len(skips.entries())


def test_the_output_of_valkeys_tests_is_read() -> None:
    skips = Skips({"a reason": ["left out", "/gone"]})
    outcome = Outcome("valkey", "scan", skips, output=PRINTED)
    valkey.read(outcome)
    assert (outcome.passed, outcome.skipped) == (1, ["left out"])
    assert outcome.failed == {"three": "Expected '1' to equal or match '2'"}
    assert skips.unused(outcome.skipped) == ["/gone"]


def test_a_unit_that_breaks_off_has_failed() -> None:
    outcome = Outcome("valkey", "scan", Skips({}), output="[ok]: one (3 ms)\nno server\n")
    valkey.read(outcome)
    assert "did not come to its end" in outcome.failed["scan"]


def test_the_output_of_resp_compatibility_is_read() -> None:
    said = "test: one passed\ntest: two failed\nFailedTest(name='two', reason=expected: 1)\n"
    outcome = Outcome("resp-compatibility", "cts.json", Skips({}), output=said)
    resp.read(outcome)
    assert (outcome.passed, outcome.failed) == (1, {"two": "expected: 1"})
