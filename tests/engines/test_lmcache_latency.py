"""LMCache's own Redis connector behind the link of `kvferry lab latency`: what we compare with.

Its engine has no connector for vLLM on a CPU, so its storage backend is asked here as that asks it:
what is there, one chunk after the other, then all of it. What waits is counted on the wire.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_lane.install import environment_for

from kvferry.config import ClientConfig
from kvferry_lab.latency.distance import proxied
from kvferry_lab.latency.experiment import read_commands, sequential_waits
from kvferry_lab.servers.lab_server import free_port
from support.servers import TestServer

HERE, TESTS = Path(__file__).with_name("lmcache"), Path(__file__).parents[1]
CHUNKS, RTT_S, LIMIT_S = 15, 0.1, 300


@pytest.mark.engines
@pytest.mark.timeout(LIMIT_S + 60)
def test_lmcache_waits_as_the_client_in_turn_does(
    engine_python: Callable[[str], Path], store: TestServer, tmp_path: Path
) -> None:
    python, port = engine_python("vllm-lmcache"), free_port()
    with proxied(ClientConfig.from_url(store.url), port, tmp_path) as far:
        far.set_rtt(1e3 * RTT_S)
        done = subprocess.run(
            [python, "inside_latency.py", str(CHUNKS)],
            cwd=HERE,
            env=environment_for(python, TESTS)
            | {
                "KVFERRY_TEST_SERVER": f"127.0.0.1:{port}",
                "KVFERRY_TEST_PID": str(store.pid),
                "LMCACHE_TRACK_USAGE": "false",
                "OMP_NUM_THREADS": "1",
            },
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        far.bytes_passed()
        commands = read_commands(far.log)
    told = json.loads(done.stdout[done.stdout.index('{"miss"') :].splitlines()[0])
    waits = {
        name: sequential_waits(commands, one["began"], one["ended"], RTT_S)
        for name, one in told.items()
    }
    times = {name: round(one["ended"] - one["began"], 3) for name, one in told.items()}
    print(f"LMCache, {CHUNKS} chunks at {1e3 * RTT_S:g} ms: waits {waits}, seconds {times}")
    assert (told["miss"]["chunks"], told["hit"]["chunks"]) == (0, CHUNKS)
    assert waits["miss"] == 1
    assert (waits["hit"] or 0) >= CHUNKS + 2
