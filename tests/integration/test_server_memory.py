"""A cache server in a cgroup with less memory than its pool: refused, or alive with a smaller pool.

A real group, where this host lets us make one; what a server sees of other hosts is in
`tests/unit/test_server_preflight.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvferry.server import Client
from support.cache_server import CacheServerProcess
from support.engines import CHUNK, IDENTITY, LAYOUT, expected, prompt
from support.stamps import until

MIB = 1 << 20
LARGE = replace(IDENTITY, layout=replace(LAYOUT, layers=1024))


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of 300 MiB."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":", 2)[2] for line in lines if ":memory:" in line), None)
    top = Path("/sys/fs/cgroup/memory")
    if own is None or not os.access(top, os.W_OK):
        pytest.skip("needs a memory cgroup of version 1 in which groups can be made")
    place = top / own.lstrip("/")
    made = (place if place.is_dir() else top) / f"kvferry-test-{os.getpid()}"
    try:
        made.mkdir()
        (made / "memory.limit_in_bytes").write_text(str(300 * MIB))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made: {error}")
    yield made
    until(lambda: not (made / "cgroup.procs").read_text().strip(), 20)
    made.rmdir()


def test_a_pool_above_the_group_s_limit_is_refused(group: Path) -> None:
    started = subprocess.run(
        [
            *("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"', sys.executable),
            *("-m", "kvferry.cli.main", "server", "--l1-size-gb", "2", "--no-http", "--port", "0"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert started.returncode == 2
    assert "2.00 GB" in started.stderr
    assert "0.29 GB" in started.stderr


def test_a_pool_that_fills_in_a_small_group_ends_there_and_turns_over(
    group: Path, tmp_path: Path
) -> None:
    server = CacheServerProcess(tmp_path, mib=1024)
    with server:
        (group / "cgroup.procs").write_text(str(server.pid))  # before the first page is taken
        with Client(LARGE, server.endpoint, timeout_s=20.0) as client:
            assert client.wait(20)
            kept = [prompt(8 * CHUNK, seed) for seed in range(24)]
            assert sum(8 * LARGE.layout.chunk_bytes for _ in kept) > 300 * MIB
            for tokens in kept:
                client.store(tokens, expected(tokens, LARGE))
            assert server.status()["pool"]["granted_bytes"] < 300 * MIB
            assert client.lookup(kept[-1]).tokens == 8 * CHUNK
            assert "hardly any memory left" in server.log
