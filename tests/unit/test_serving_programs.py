"""Programs that serve until a signal."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = "import os, {0}; print(len(os.listdir('/proc/self/task')))"


@pytest.mark.parametrize(
    "module",
    ["kvferry.server.server", "kvferry.sharing.node", "kvferry.sharing.controller.run"],
)
def test_nothing_that_is_imported_starts_threads_before_signals_are_blocked(module: str) -> None:
    """NumPy's threads took SIGTERM, and the server ended without keeping its state."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT.format(module)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"
