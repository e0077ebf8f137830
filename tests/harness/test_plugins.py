"""Our plugins of pytest: leaks are blamed on who left them, workers are heard, children can be
interrupted; and which tests `make test` leaves out."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import parts
from support.programs import pytest_of

TESTS = Path(__file__).parents[1]
TIME_LIMIT_S = 280.0

LEAK = """
import socket
class Ring: pass
def test_leaves_a_socket_open():
    ring = Ring()
    ring.ring, ring.socket = ring, socket.socket()
def test_is_innocent():
    pass
"""
WARNING = """
import warnings
from support.secrets import secret
def test_warns(): warnings.warn(secret("planted"), UserWarning)
"""


def test_a_leak_is_blamed_on_the_test_that_left_it(tmp_path: Path) -> None:
    """It was found when Python happened to collect, in whichever test ran then."""
    code, output = pytest_of(tmp_path, LEAK, "-p", "support.leaks", "-W", "error")
    assert code == 1, output
    assert "ERROR test_it.py::test_leaves_a_socket_open" in output
    assert "test_is_innocent" not in output
    assert "2 passed, 1 error" in output


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_secret_in_a_warning_fails_the_run_of_workers_too(tmp_path: Path, workers: str) -> None:
    plugins = ["-p", "support.summary", "-p", "support.overheard", "-n", workers]
    code, output = pytest_of(tmp_path, WARNING, *plugins)
    assert code == 1, output
    assert output.count("test_warns lets a secret be said") == 1


def test_programs_are_interrupted_where_the_parent_ignores_it() -> None:
    """As under nohup, or in the background of a shell without job control."""
    program = TESTS / "lifecycle" / "test_exit.py"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", f"{program}", "-k", "ctrl_c", "-x"],
            stdout=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    output, _ = run.communicate(timeout=TIME_LIMIT_S)
    assert run.returncode == 0, output


@pytest.mark.parametrize(
    ("name", "fixtures", "other"),
    [
        ("test_a[native-valkey-tcp]", {"connect"}, False),
        ("test_a[pure-valkey-tcp]", {"connect"}, True),
        ("test_a[native-redis7-tcp]", {"connect"}, True),
        ("test_a[native-tls]", {"connect"}, True),
        ("test_a[purely]", {"connect"}, False),
        ("test_a[valkey]", {"server", "valkey", "redis7"}, False),
        ("test_a", {"redis7"}, True),
        ("test_a", {"fresh_cluster"}, True),
    ],
)
def test_what_make_test_tries_of_a_matrix(name: str, fixtures: set[str], other: bool) -> None:
    assert parts.is_of_others(name, fixtures) == other
