"""What takes a GPU: blocks of its memory, the time of its steps, and vLLM on it.

What needs a GPU has the mark `gpu`, is run by `make test-gpu`, and skipped where there is none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_lane.install import environment_for

from engines.conftest import PLUGINS, VllmVenv

_MODEL_MAKER = Path(__file__).resolve().parents[2] / "tools" / "engine_lane" / "model_maker.py"


def _blocks(python: Path, *arguments: str) -> str:
    """What the script says."""
    command = [str(python), str(PLUGINS / "cuda_blocks.py"), *arguments]
    environment = environment_for(python) | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_same_code_on_a_cpu_that_plays_the_device(newest_vllm: VllmVenv) -> None:
    assert _blocks(newest_vllm.python, "pretend") == "ok"


@pytest.fixture(scope="module")
def gpu_python() -> Path:
    """An interpreter with a torch that sees a GPU: KVFERRY_GPU_PYTHON, or ours."""
    python = os.environ.get("KVFERRY_GPU_PYTHON") or sys.executable
    ask = [python, "-c", "import torch; print(torch.cuda.is_available())"]
    asked = subprocess.run(ask, capture_output=True, text=True, timeout=120)
    if asked.stdout.strip() != "True":
        why = "sees no GPU" if asked.returncode == 0 else "is not there"
        pytest.skip(f"torch of {python} {why}; KVFERRY_GPU_PYTHON names an interpreter with one")
    return Path(python)


@pytest.mark.gpu
def test_blocks_and_steps_of_a_gpu(gpu_python: Path) -> None:
    assert _blocks(gpu_python) == "ok"


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_a_new_vllm_on_a_gpu_loads_what_another_one_computed(
    gpu_python: Path, tmp_path: Path
) -> None:
    if subprocess.run([gpu_python, "-c", "import vllm"], capture_output=True).returncode:
        pytest.skip(f"{gpu_python} has no vLLM")
    made, figures = tmp_path / "model", tmp_path / "figures.json"
    subprocess.run([gpu_python, "-P", _MODEL_MAKER, "small", made, "1"], check=True, timeout=300)
    command = [
        *(sys.executable, "-m", "kvferry.cli.main", "bench", "engines"),
        *("--python", gpu_python, "--model", made, "--prompt-tokens", 1024, "--rounds", 1),
        *("--block-size", 16, "--chunk-tokens", 64, "--json", figures),
    ]
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    for row in json.loads(figures.read_text())["integrations"]:
        assert not row["error"]
        assert row["wrong_answers"] == 0
        # Every whole chunk; the tier's chunks are the engine's blocks.
        assert row["hit_tokens"] == (0 if row["integration"] == "none" else 1024)
