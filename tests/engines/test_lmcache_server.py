"""vLLM with LMCache's MP server, whose values we bring to a real Valkey."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from engine_lane.install import environment_for

from engines.lmcache.server import LMCacheServer
from kvferry_lab.engines.engine_process import EngineProcess
from support.servers import TestServer

CHUNK = 64  # tokens: two blocks of the engine
PROMPTS = [[(7 * i + 13 * j) % 900 + 10 for i in range(n)] for j, n in enumerate((300, 520))]
CACHED = [256, 512]
CHUNKS = 4 + 8
LIMIT_S = 2400
OWN = {"enable_prefix_caching": False}  # so that all that hits comes from LMCache
pytestmark = [pytest.mark.engines, pytest.mark.timeout(LIMIT_S)]

Opened = Callable[[dict[str, Any]], LMCacheServer]
Run = Callable[..., EngineProcess]


class Venv:
    """For `run_engine`: vLLM beside LMCache."""

    def __init__(self, python: Path) -> None:
        self.version, self.python = "0.32.0", python


@pytest.fixture
def both(engine_python: Callable[[str], Path]) -> Venv:
    return Venv(engine_python("vllm-lmcache"))


@pytest.fixture
def serve(both: Venv) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield lambda adapter: stack.enter_context(
            LMCacheServer(both.python, adapter, environment_for(both.python), CHUNK)
        )


def ours(store: TestServer, kind: str = "native_plugin", **more: Any) -> dict[str, Any]:
    params = {"host": store.host, "port": store.port, "num_workers": 4, **more}
    name = "KvferryClient" if kind == "native_plugin" else "KvferryL2Adapter"
    return {
        "type": kind,
        "module_path": "kvferry.integrations.lmcache",
        "class_name": name,
        "adapter_params": params,
    }


def until_stored(store: TestServer, count: int) -> None:
    limit = time.monotonic() + 60
    while store.cli("DBSIZE") < count:
        assert time.monotonic() < limit, f"{store.cli('DBSIZE')} of {count} keys"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["native_plugin", "plugin"])
def test_cold_warm_and_migration(
    kind: str,
    both: Venv,
    model: Callable[[str], Path],
    store: TestServer,
    serve: Opened,
    run_engine: Run,
) -> None:
    server = serve(ours(store, kind))
    engine = run_engine(both, model("tiny"), server.transfer, **OWN)
    cold = engine.generate(PROMPTS)
    assert cold.cached == [0, 0]
    until_stored(store, CHUNKS)
    names = {key.decode().rpartition("@")[0] for key in store.cli("KEYS", "*")}
    assert names == {f"{model('tiny')}@01000100@0"}  # as LMCache's own client names them
    server.clear()
    warm = engine.generate(PROMPTS)
    assert warm.cached == CACHED
    assert warm.tokens == cold.tokens
    engine.close()
    server.close()
    # LMCache's own adapter, in new processes, on what ours has written.
    theirs = serve({"type": "resp", "host": store.host, "port": store.port, "num_workers": 2})
    other = run_engine(both, model("tiny"), theirs.transfer, **OWN)
    read = other.generate(PROMPTS)
    assert read.cached == CACHED
    assert read.tokens == cold.tokens


def test_ours_reads_what_lmcache_wrote(
    both: Venv, model: Callable[[str], Path], store: TestServer, serve: Opened, run_engine: Run
) -> None:
    theirs = serve({"type": "resp", "host": store.host, "port": store.port, "num_workers": 2})
    engine = run_engine(both, model("tiny"), theirs.transfer, **OWN)
    cold = engine.generate(PROMPTS)
    until_stored(store, CHUNKS)
    engine.close()
    theirs.close()
    engine = run_engine(both, model("tiny"), serve(ours(store)).transfer, **OWN)
    warm = engine.generate(PROMPTS)
    assert warm.cached == CACHED
    assert warm.tokens == cold.tokens


def test_damaged_and_lost_values(
    both: Venv, model: Callable[[str], Path], store: TestServer, serve: Opened, run_engine: Run
) -> None:
    server = serve(ours(store, verify=True, timeout_s=5))
    engine = run_engine(both, model("tiny"), server.transfer, **OWN)
    cold = engine.generate(PROMPTS)
    until_stored(store, CHUNKS)

    def again() -> Any:
        server.clear()
        return engine.generate(PROMPTS)

    assert again().cached == CACHED
    for key in store.cli("KEYS", "*"):
        store.cli("SETRANGE", key, 5000, b"\xff" * 4000)
    damaged = again()
    assert damaged.tokens == cold.tokens
    assert damaged.cached == [0, 0]
    store.kill()
    lost = again()
    assert lost.tokens == cold.tokens
    assert lost.cached == [0, 0]
    store.restart()
    until = time.monotonic() + 60
    while again().cached != CACHED:  # stored again by one run, found by the next
        assert time.monotonic() < until, server.log[-3000:]
