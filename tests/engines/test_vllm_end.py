"""How a `vllm serve` ends: what waits for the store is written, where vLLM gives the time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.conftest import VllmVenv, prompt
from engines.integrations import CHUNK, INTEGRATIONS
from engines.stored import frames
from kvferry_lab.engines.vllm_server import EngineServer
from support.proxy import FaultProxy
from support.servers import TestServer
from support.stamps import until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

CHUNKS = 16
TOKENS = CHUNK * CHUNKS + 5
CHUNK_BYTES = 128 << 10  # of the model "tiny" in float32
QUEUE_S = 1.5  # what writing all of it takes; a worker has four seconds


@pytest.mark.parametrize("everybody", [False, True], ids=["server", "terminal"])
def test_what_waits_for_the_store_is_written_at_the_end(
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    serve_engine: Callable[..., EngineServer],
    store: TestServer,
    tmp_path: Path,
    everybody: bool,
) -> None:
    """SIGINT of a supervisor goes to the server, that of a terminal to all its processes."""
    with (
        FaultProxy(store.host, store.port) as proxy,
        INTEGRATIONS["connector"].behind(proxy.url, tmp_path, newest_vllm.version) as transfer,
    ):
        server = serve_engine(newest_vllm, model("tiny"), transfer, "--shutdown-timeout", "60")
        proxy.up.bandwidth_bytes_per_s = int(CHUNKS * CHUNK_BYTES / QUEUE_S)
        server.complete(prompt(TOKENS, 1), 1)
        assert len(frames(store)) < CHUNKS, "there is nothing left to write"
        (os.killpg if everybody else os.kill)(server.pid, signal.SIGINT)
        until(lambda: server.ended, 60)
        # In a terminal the worker may outlive those who started it.
        until(lambda: len(frames(store)) == CHUNKS, 30)
        assert "were not saved before the end" not in server.log
