"""Which failures are asked again, and which are never."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import stolen

TESTS = Path(__file__).parents[1]
CONFTEST = """
from pathlib import Path
import pytest
pytest_plugins = ["support.summary", "support.stolen"]
@pytest.fixture
def leaking():
    yield
    assert False, "a leak"
def pytest_configure():
    from support import stolen
    stolen.STAT, stolen.DELAY_S = Path("stat"), {delay_s}
"""
# Each attempt takes a quarter of a second; then its line of /proc/stat is what the test says.
CASE = """
import time
from pathlib import Path
from support.stamps import WrongBytes
def test_case({fixtures}):
    tries = Path("tries")
    tries.write_text(tries.read_text() + "x")
    time.sleep(0.25)
    Path("stat").write_text("cpu 1 2 3 4 5 6 7 %d 0 0")
    if Path("wait").exists() and tries.read_text() == "xx":
        Path("stat").write_text("cpu 1 2 3 4 5 6 7 50 0 0")
        time.sleep(30)
    {check}
"""
PASSES_AT = "assert len(tries.read_text()) >= {}"


def run(
    directory: Path,
    *options: str,
    jiffies: str,
    passes_at: int = 9,
    delay_s: float = 0.01,
    folder: str = "faults",
    check: str = PASSES_AT,
    fixtures: str = "",
) -> tuple[int, str, int]:
    """Exit status, output, and how often it was tried."""
    (directory / "conftest.py").write_text(CONFTEST.format(delay_s=delay_s))
    case = CASE.format(check=check.format(passes_at), fixtures=fixtures)
    case = case.replace('%d 0 0"', f'%d 0 0" % ({jiffies})')
    (directory / folder).mkdir()
    (directory / folder / "test_case.py").write_text(case)
    (directory / "stat").write_text("cpu 1 2 3 4 5 6 7 0 0 0\ncpu0 1 2 3 4 5 6 7 0 0 0\n")
    (directory / "tries").write_text("")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir=.",
            "-c/dev/null",
            *options,
        ],
        cwd=directory,
        env={"PYTHONPATH": str(TESTS), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stdout, len((directory / "tries").read_text())


def test_what_failed_without_its_processors_is_run_again(tmp_path: Path) -> None:
    status, output, tries = run(tmp_path, jiffies="50 * len(tries.read_text())", passes_at=2)
    assert (status, tries) == (0, 2), output
    assert re.search(r"test_case: 0\.50 s stolen in \d\.\d\d s", output), output
    assert "AssertionError: assert 1 >= 2" in output


def test_the_time_between_two_attempts_is_nobodys(tmp_path: Path) -> None:
    """The limit of a test does not run while the next attempt is waited for."""
    jiffies = "50 * len(tries.read_text())"
    status, output, tries = run(tmp_path, "--timeout=5", jiffies=jiffies, passes_at=2, delay_s=5.0)
    assert (status, tries) == (0, 2), output


def test_each_attempt_has_the_limit_of_a_test(tmp_path: Path) -> None:
    """The second one had none."""
    (tmp_path / "wait").touch()
    jiffies = "50 * len(tries.read_text())"
    status, output, tries = run(tmp_path, "--timeout=4", jiffies=jiffies, passes_at=9)
    assert (status, tries) == (1, 2), output
    assert "Timeout" in output


@pytest.mark.parametrize(
    "case",
    [
        {"check": 'raise WrongBytes("k: another key")'},
        {"fixtures": "leaking", "passes_at": 1},
        {"fixtures": "leaking"},
        {"folder": "unit"},
        {"folder": "chaos"},
    ],
    ids=["wrong bytes", "a leak", "a leak beside a failure", "unit", "chaos"],
)
def test_what_no_time_explains_is_not(tmp_path: Path, case: dict[str, Any]) -> None:
    status, output, tries = run(tmp_path, jiffies="50 * len(tries.read_text())", **case)
    assert (status, tries) == (1, 1), output


def test_what_passes_is_not_mentioned(tmp_path: Path) -> None:
    status, output, tries = run(tmp_path, jiffies="50", passes_at=1)
    assert (status, tries) == (0, 1), output
    assert "stolen" not in output


def test_what_failed_on_our_own_processors_is_not(tmp_path: Path) -> None:
    status, output, tries = run(tmp_path, jiffies="1", passes_at=2)  # 10 ms of 250
    assert (status, tries) == (1, 1), output


def test_what_fails_each_time_has_failed(tmp_path: Path) -> None:
    status, output, tries = run(tmp_path, jiffies="50 * len(tries.read_text())", passes_at=9)
    assert (status, tries) == (1, 1 + stolen.RERUNS), output


def test_a_theft_in_an_earlier_attempt_does_not_count_again(tmp_path: Path) -> None:
    status, output, tries = run(tmp_path, jiffies="50", passes_at=9)
    assert (status, tries) == (1, 2), output


@pytest.mark.parametrize(
    ("line", "seconds"),
    [("cpu 1 2 3 4 5 6 7 250 0 0\n", 2.5), ("cpu 1 2 3 4\n", 0.0)],
    ids=["counted", "not counted"],
)
def test_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, seconds: float
) -> None:
    (tmp_path / "stat").write_text(line)
    monkeypatch.setattr(stolen, "STAT", tmp_path / "stat")
    monkeypatch.setattr(stolen, "_SECONDS", 0.01)
    assert stolen.stolen_s() == seconds
