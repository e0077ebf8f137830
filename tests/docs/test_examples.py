"""Every file in examples/ runs, and says that what it loaded is what it stored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAYS = {
    "asyncio_batch.py": [
        "usable: 12 of 16 - then: MISS",
        "equal: True - loop ran meanwhile: True",
    ],
    "custom_connector.py": [
        "stored: True",
        "found: ['OK', 'MISS'] - equal: True",
        "damaged: CORRUPT",
        "afterwards: MISS",
    ],
    "cache_numpy.py": ["stored: 6 chunks", "<Retrieved 96 tokens (96 from redis)>", "equal: True"],
    "cache_torch.py": ["<Retrieved 96 tokens (96 from redis)>", "equal: True"],
    "numpy_pool.py": [
        "loaded: 3 of 3 chunks of 1048576 bytes",
        "equal: True",
        "free pages: 6",
    ],
    "shared_cache.py": [
        "stored: 6 chunks",
        "<Retrieved 96 tokens (96 from l1)>",
        "equal: True",
        "through the socket: names only",
    ],
    "transformers_prefix.py": [
        "known: 0 of 200 tokens",
        "known: 192 of 200 tokens",
        "equal: True",
    ],
    "quickstart.py": ["found: True - equal: True", "another key: False"],
}


def test_every_example_is_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example(name: str) -> None:
    for needed in ("torch", "transformers"):
        if needed in name:
            pytest.importorskip(needed)
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name],
        capture_output=True,
        text=True,
        timeout=280,  # before pytest's, which would not tell what was said
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == SAYS[name]
    assert done.stderr == ""
