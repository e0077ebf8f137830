"""The benchmark of the file connector runs, small."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def test_it_measures_all_ways(tmp_path: Path) -> None:
    small = ["--size-mib", "1", "--count", "8", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.disk_ways", str(tmp_path), *small],
        capture_output=True,
        text=True,
        timeout=200,
    )
    if "Invalid argument" in done.stderr:
        pytest.skip("this file system takes no O_DIRECT")
    assert done.returncode == 0, done.stderr
    ways = re.findall(
        r"^(dd|raw|store|store / better of the others) +(\S+) +(\S+)$", done.stdout, re.M
    )
    assert [way for way, *_ in ways] == ["dd", "raw", "store", "store / better of the others"]
    assert all(float(rate) > 0 for _, *rates in ways for rate in rates)
    assert list(tmp_path.iterdir()) == []
