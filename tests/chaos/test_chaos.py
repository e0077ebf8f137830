"""Short chaos runs, each in a process of its own; `make soak` runs them for as long as one likes.

The seed is the same in each run, or that of KVFERRY_CHAOS_SEED; `make soak` tries others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.stages import STAGES, lacks

NATIVE_S, PURE_S = 10, 5  # 60 s in all
LIMIT_S = 240.0  # servers start, calls end, peace is made: on a machine with other work
TESTS = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.timeout(LIMIT_S + 30)


def run_chaos(stage: str, seconds: float, *more: str) -> None:
    if reason := lacks(stage):
        pytest.skip(reason)
    seed = os.environ.get("KVFERRY_CHAOS_SEED", "1")
    words = [f"--stage={stage}", f"--seconds={seconds}", f"--seed={seed}", *more]
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-m", "chaos", *words],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    assert not run.stderr


@pytest.mark.parametrize(
    "stage", [pytest.param(one, marks=[pytest.mark.full] * (one != "tcp")) for one in STAGES]
)
def test_chaos(stage: str) -> None:
    run_chaos(stage, NATIVE_S)


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.full)])
def test_chaos_of_instances_that_share(seconds: float) -> None:
    run_chaos("peers", seconds)


@pytest.mark.full
@pytest.mark.parametrize("stage", ["tcp", "tls"])
def test_chaos_of_the_pure_client(stage: str) -> None:
    run_chaos(stage, PURE_S, "--pure")
