"""`import kvferry` stays light: it loads no heavy module and costs at most 100 ms of CPU."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numpy", "rich", "click", "matplotlib", "kvferry._native")
CPU_LIMIT_S = 0.1


def run(code: str) -> str:
    """Run code in an interpreter of its own; return what it prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_import_loads_nothing_heavy() -> None:
    assert run(f"import sys, kvferry; print([m for m in {HEAVY!r} if m in sys.modules])") == "[]"


def test_import_is_quick() -> None:
    code = "import time; t = time.process_time(); import kvferry; print(time.process_time() - t)"
    cost_s = min(float(run(code)) for _ in range(3))  # the machine may be busy; the least counts
    assert cost_s < CPU_LIMIT_S
