"""Connectors at the end of a process, with work in flight."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import threading
from kvferry.errors import ClosedError
from kvferry.connectors import Space, load_connector
spec = {{"type": {kind!r}, **{settings!r}}}
store = load_connector(spec, Space("p:", bytes(16), 1 << 20))
keys = [f"k{{n}}" for n in range(64)]
pages = [bytearray(1 << 20) for _ in keys]
def work():
    try:
        while True:
            store.batch_set(keys, pages)
    except ClosedError:  # the exit closes what is open, before daemon threads end
        pass
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
tickets = [store.submit_set(keys, pages) for _ in range(4)]
ids = [store.submit_batch_get(keys, [bytearray(1 << 20) for _ in keys]) for _ in range(2)]
print("out", flush=True)
"""


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_exit_with_work_in_flight(kind: str, tmp_path: Path) -> None:
    settings = {"path": str(tmp_path / "kv")} if kind == "file" else {}
    program = PROGRAM.format(kind=kind, settings=settings)
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", program],
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "")
