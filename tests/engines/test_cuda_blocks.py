"""Blocks on a GPU: the same bytes as on a CPU, behind the forward pass.

What needs a GPU has the mark `gpu`, is run by `make test-gpu`, and skipped where there is none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_lane.install import environment_for

from engines.conftest import PLUGINS, VllmVenv

_WITH_TORCH = "import torch; print(torch.cuda.is_available())"


def _run(python: Path, *arguments: str) -> str:
    """What the script says."""
    command = [str(python), str(PLUGINS / "cuda_blocks.py"), *arguments]
    environment = environment_for(python) | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_same_code_on_a_cpu_that_plays_the_device(newest_vllm: VllmVenv) -> None:
    assert _run(newest_vllm.python, "pretend") == "ok"


def _python() -> str:
    """An interpreter with a torch that sees a GPU: KVFERRY_GPU_PYTHON, or ours."""
    return os.environ.get("KVFERRY_GPU_PYTHON") or sys.executable


@pytest.mark.gpu
def test_blocks_of_a_gpu() -> None:
    python = _python()
    asked = subprocess.run([python, "-c", _WITH_TORCH], capture_output=True, text=True, timeout=120)
    if asked.stdout.strip() != "True":
        why = "sees no GPU" if asked.returncode == 0 else "is not there"
        pytest.skip(f"torch of {python} {why}; KVFERRY_GPU_PYTHON names an interpreter with one")
    assert _run(Path(python)) == "ok"
