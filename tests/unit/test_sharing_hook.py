"""A cache that shares comes from `kvferry`; from `kvferry.cache` alone it is refused in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from {module} import TieredCache
from kvferry import Identity, KVLayout
from kvferry.errors import ConfigError

layout = KVLayout(layers=1, kv_heads=1, head_dim=8, chunk_size=16)
try:
    TieredCache(
        Identity(model="m", layout=layout), max_local_cpu_size=0.01, remote_kv_sources=("10.0.0.1",)
    ).close()
    print("open")
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "said"),
    [("kvferry", "open"), ("kvferry.cache", "need kvferry.TieredCache")],
)
def test_a_cache_that_shares_comes_from_kvferry(module: str, said: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert said in done.stdout
