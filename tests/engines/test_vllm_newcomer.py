"""From a clone to a hit in five commands, as the guide has them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_lane.install import environment_for

from engines.conftest import VllmVenv
from kvferry_lab.engines.engine_process import quiet_environment
from support.servers import TestServer

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guides" / "engines.md"
SAYS = re.compile(
    r"(\d+) of (\d+) prompt tokens came from the cache; [\d.]+ s; said (.+)$", re.MULTILINE
)


def commands() -> list[str]:
    section = GUIDE.read_text().split("## A hit in five commands")[1]
    block = re.search(r"```bash\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return block[1].splitlines()


@pytest.mark.engines
@pytest.mark.timeout(900)
def test_the_commands_of_the_guide(
    newest_vllm: VllmVenv, model: Callable[..., Path], store: TestServer
) -> None:
    lines = commands()
    assert len(lines) <= 5
    assert lines[-1] == lines[-2]  # the same again, in another process
    python, *arguments = lines[-1].split()
    assert python == f"build/engines/vllm-{newest_vllm.version}/bin/python"
    assert arguments[-1] == "build/engines/models/tiny"
    environment = quiet_environment(environment_for(newest_vllm.python), one_process=False)
    said = []
    for _ in range(2):
        done = subprocess.run(
            [newest_vllm.python, *arguments[:-1], model("tiny"), store.url],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = SAYS.search(done.stdout)  # between the lines of vLLM
        assert found, done.stdout
        said.append(found.groups())
    (cold, total, first), (warm, _, second) = said
    assert int(cold) == 0
    assert int(total) - 256 < int(warm) < int(total)
    assert first == second
