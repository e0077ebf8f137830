"""Our classes in LMCache's own process: its interpreter runs the tests of inside_*.py."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_lane.install import environment_for

from support.servers import TestServer

HERE = Path(__file__).with_name("lmcache")
TESTS = Path(__file__).parents[1]
LIMIT_S = 900
pytestmark = [pytest.mark.engines, pytest.mark.timeout(LIMIT_S + 60)]


@pytest.fixture
def python(engine_python: Callable[[str], Path]) -> Path:
    return engine_python("vllm-lmcache")


def inside(python: Path, server: TestServer, *words: str) -> subprocess.CompletedProcess[str]:
    environment = environment_for(python, TESTS) | {
        "KVFERRY_TEST_SERVER": f"{server.host}:{server.port}",
        "KVFERRY_TEST_PID": str(server.pid),
        "LMCACHE_TRACK_USAGE": "false",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [python, *words],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


FILES = {"inside_remote.py": 24, "inside_clients.py": 3, "inside_l2.py": 12}


@pytest.mark.parametrize(("file", "count"), FILES.items())
def test_inside(file: str, count: int, python: Path, store: TestServer) -> None:
    quiet = ["-q", "-p", "no:cacheprovider", "-W", "ignore", "--tb=short", "--noconftest"]
    done = inside(python, store, "-m", "pytest", *quiet, "-c", "/dev/null", file)
    told = done.stdout + done.stderr
    assert done.returncode == 0, told[-4000:]
    assert re.search(rf"\b{count} passed", done.stdout), told[-4000:]


def test_a_question_beside_values_is_sooner_than_theirs(python: Path, store: TestServer) -> None:
    """What the guide says of it; the ratio is tens, and a busy host halves it at most."""
    done = inside(python, store, "inside_clients.py", "3", "4")
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout[done.stdout.index("{\n") :])
    ours, theirs = told["ours"], told["theirs"]
    assert ours["exists_beside_set_s"] < theirs["exists_beside_set_s"], told
    assert ours["exists_1000_s"] < theirs["exists_1000_s"], told
