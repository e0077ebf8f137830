"""Clients of the cache server at the end of a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvferry.server.server import Server
from support.cache_server import running
from support.stamps import until

TESTS = Path(__file__).parents[1]

PROGRAM = """
import sys, threading
from kvferry.server import Client
from support.engines import IDENTITY, blanks, expected, prompt
client = Client(IDENTITY, sys.argv[1])
assert client.wait(40)
tokens = prompt(16 * 64)
chunks = expected(tokens)
def work():
    while True:
        client.store(tokens, chunks)
        client.retrieve(tokens, blanks(64))
for _ in range(int(sys.argv[2])):
    threading.Thread(target=work, daemon=True).start()
print("out", flush=True)
"""


@pytest.mark.parametrize("threads", [0, 3])
def test_exit_while_memory_is_being_mapped_and_copied(threads: int, tmp_path: Path) -> None:
    """Threads in native code do not meet an interpreter that has ended."""

    def all_backed(server: Server) -> bool:
        pool = server.status()["pool"]
        return bool(pool["segments"]) and pool["granted_bytes"] == pool["bytes"]

    with running(tmp_path, mib=256, prefault=True) as server:
        for turn in range(5):
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, server.endpoints[0], str(threads)],
                capture_output=True,
                text=True,
                timeout=200,
                cwd=TESTS,
            )
            errors = [line for line in done.stderr.splitlines() if "ClosedError" not in line]
            assert (done.returncode, done.stdout) == (0, "out\n"), done.stderr
            assert not any("terminate" in line for line in errors), done.stderr
            if turn == 0:
                until(lambda: all_backed(server), 20)  # from now on clients map it eagerly
