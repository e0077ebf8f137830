"""vLLM and a cache server: engines share its memory, and do without it when it is away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.conftest import VllmVenv, prompt
from engines.integrations import CHUNK, connector
from kvferry_lab.engines.engine_process import EngineProcess
from support.cache_server import CacheServerProcess
from support.servers import TestServer
from support.stamps import until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

CHUNKS = 20
TOKENS = CHUNK * CHUNKS + 5
INSIDE = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
NEVER = {"KVFERRY_RECOMPUTE": "never"}  # so small a model computes what is there sooner, perhaps


def transfer(server: CacheServerProcess, **settings: Any) -> dict[str, Any]:
    """The kv_transfer_config of an engine on this server."""
    chosen = {"mp.host": server.endpoint, "chunk_size": CHUNK, "lookup_timeout_s": 1, **settings}
    extra = {f"kvferry.{name}": value for name, value in chosen.items()}
    return connector("KvferryMPConnector", extra)


def test_engines_share_what_one_of_them_computed(
    vllm: VllmVenv,
    model: Callable[..., Path],
    run_engine: Callable[..., EngineProcess],
    store: TestServer,
    tmp_path: Path,
) -> None:
    first, second = prompt(TOKENS, 1), prompt(TOKENS, 2)
    below = ("--l2-adapter", json.dumps({"type": "resp", "url": store.url}))
    with CacheServerProcess(tmp_path, *below, mib=64, **NEVER) as server:
        plain = run_engine(vllm, model("tiny"))
        expected = [plain.generate([asked], 12).tokens[0] for asked in (first, second)]
        plain.close()

        one = run_engine(vllm, model("tiny"), transfer(server), environment=INSIDE)
        cold = one.generate([first], 12)
        assert (cold.cached, cold.tokens) == ([0], expected[:1])
        assert one.call("kv_inside:settled", saved=CHUNKS) == CHUNKS
        one.forget()
        warm = one.generate([first], 12)
        assert (warm.cached, warm.tokens) == ([CHUNK * CHUNKS], expected[:1])

        other = run_engine(vllm, model("tiny"), transfer(server), environment=INSIDE)
        shared = other.generate([first], 12)
        assert (shared.cached, shared.tokens) == ([CHUNK * CHUNKS], expected[:1])
        other.generate([second], 12)
        assert other.call("kv_inside:settled", saved=CHUNKS) == CHUNKS
        back = one.generate([second], 12)
        assert (back.cached, back.tokens) == ([CHUNK * CHUNKS], expected[1:])

        # Hashes and page numbers went over the socket, and no KV.
        told = one.call("kv_inside:stats")
        sent = told["cache"]["socket_bytes_sent"] + told["cache"]["socket_bytes_received"]
        assert told["loaded_bytes"] == told["cache"]["bytes_retrieved"] > 1 << 20
        assert told["cache"]["bytes_stored"] == told["saved_bytes"] > 1 << 20
        assert sent < 1 << 18

        stranger = run_engine(vllm, model("tiny", seed=2), transfer(server))
        assert stranger.generate([first], 12).cached == [0]
        for engine in (one, other, stranger):
            engine.close()
        assert server.stop() == 0

    # Another server with nothing in memory brings it from the store before it is promised.
    (tmp_path / "again").mkdir()
    with CacheServerProcess(tmp_path / "again", *below, mib=64, **NEVER) as server:
        late = run_engine(vllm, model("tiny"), transfer(server), environment=INSIDE)
        fetched = late.generate([first], 12)
        assert (fetched.cached, fetched.tokens) == ([CHUNK * CHUNKS], expected[:1])
        assert late.call("kv_inside:stats").get("failed_chunks", 0) == 0
        late.close()


def test_a_server_that_is_away_dies_and_comes_back(
    vllm: VllmVenv,
    model: Callable[..., Path],
    run_engine: Callable[..., EngineProcess],
    tmp_path: Path,
) -> None:
    asked = prompt(TOKENS, 3)
    server = CacheServerProcess(tmp_path, mib=64)
    engine = run_engine(vllm, model("tiny"), transfer(server), environment=INSIDE)
    alone = engine.generate([asked], 12)
    assert alone.cached == [0]
    engine.forget()
    with server:
        until(lambda: bool(engine.call("kv_inside:stats")["cache"]["available"]), 30)
        assert engine.generate([asked], 12).tokens == alone.tokens
        saved = engine.call("kv_inside:settled", saved=CHUNKS)
        assert saved == CHUNKS
        engine.forget()

        engine.call("kv_inside:kill_at_load", pid=server.pid)
        killed = engine.generate([asked], 12)
        assert killed.tokens == alone.tokens
        told = engine.call("kv_inside:stats")
        assert told["failed_chunks"] == CHUNKS
        assert server.process is not None
        assert server.process.wait(10) != 0

        engine.forget()
        away = engine.generate([asked], 12)
        assert (away.cached, away.tokens) == ([0], alone.tokens)
        engine.forget()
        server.start()
        until(lambda: bool(engine.call("kv_inside:stats")["cache"]["available"]), 30)
        assert engine.generate([asked], 12).cached == [0]
        assert engine.call("kv_inside:settled", saved=saved + CHUNKS) >= saved + CHUNKS
        engine.forget()
        again = engine.generate([asked], 12)
        assert (again.cached, again.tokens) == ([CHUNK * CHUNKS], alone.tokens)
        engine.close()
