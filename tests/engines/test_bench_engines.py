"""`kvferry bench engines`, in a size that shows that it works and claims nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_lane.install import environment_for

from engines.conftest import PLUGINS, VllmVenv


@pytest.mark.engines
@pytest.mark.timeout(1800)
def test_small(newest_vllm: VllmVenv, model: Callable[..., Path], tmp_path: Path) -> None:
    figures, plot = tmp_path / "figures.json", tmp_path / "figures.png"
    command = [
        *(sys.executable, "-m", "kvferry.cli.main", "bench", "engines"),
        *("--python", newest_vllm.python, "--model", model("tiny"), "--one-process"),
        *("--prompt-tokens", 600, "--prompts", 2, "--rounds", 1, "--dtype", "float32"),
        *("--block-size", 32, "--chunk-tokens", 64, "--threads", 1, "--module-path", PLUGINS),
        *("--tier-spec", "cpu_tiering:CpuTieringSpec", "--json", figures, "--plot", plot),
    ]
    words = [str(word) for word in command]
    environment = environment_for(newest_vllm.python)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["integration"]: row for row in json.loads(figures.read_text())["integrations"]}
    assert list(rows) == ["none", "tier", "connector", "mp"]
    for integration, row in rows.items():
        assert not row["error"]
        assert row["wrong_answers"] == 0
        assert row["ttft_cold_s"] > 0
        if integration == "none":
            assert row["hit_tokens"] == row["loaded_bytes"] == 0
        else:
            assert row["passes"]["memory"][0]["cached"] == [576, 576]
            assert row["hit_tokens"] == 576  # whole chunks, without the last token
            assert row["loaded_bytes"] > 2 * 576 * 4096  # float32: 4 KiB a token
    assert plot.stat().st_size > 10_000
