"""Fixtures for tests on real engines, which other tests of this folder share.

engines are installed by tools/engine_lane into build/engines or KVFERRY_ENGINES_DIR: by
`make test-engines` on demand, and by `make engine` what the other tests here use where it is there.

vllm_version     "0.32.0", "0.22.1": one after the other; the second in the long suite only
vllm             the interpreter of that version's environment (VllmVenv: .python, .version)
newest_vllm      the same for 0.32.0 alone
engine_python    engine_python("vllm-lmcache"): the interpreter of any recipe, or a skip
model            model("tiny"), model("small"), model("mla"), model("tiny", seed=2): a folder with
                 config, tokenizer and random weights of std >= 0.05, made once
integration             each of integrations.INTEGRATIONS with a cache, one after the other
run_engine       run_engine(vllm, model("tiny"), transfer, one_process=True, **settings) opens
                 an EngineProcess (kvferry_lab.engines.engine_process), closed after the test
serve_engine     serve_engine(vllm, model("tiny"), transfer, "--option"): an EngineServer
open_engine      run_engine with an ExitStack first, which decides when the engine is closed
plain            plain(vllm): an engine without cache, of the model "tiny", open for the session
store            a Valkey of the test's own, empty, to kill, pause and fill

Marks: `engines` is the long suite (`make test-engines`); without it a test is part of
`make test-full` and has to be short. KVFERRY_ENGINES=0 skips all of them. An engine that is not
there, say because the package index is out of reach, is a skip that says why.

Engines compute in float32 here, so that tokens do not depend on how requests were batched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from engine_lane.install import InstallError, environment_for, home, install
from engine_lane.models import model as make_model

from engines.integrations import INTEGRATIONS, Integration
from kvferry_lab.engines.engine_process import EngineProcess
from kvferry_lab.engines.vllm_server import EngineServer
from support.servers import TestServer, start_server

NEWEST, OLDEST = "0.32.0", "0.22.1"
PLUGINS = Path(__file__).with_name("plugins")  # modules for the engine's process
SETTINGS = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 4096,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "block_size": 32,  # the smallest that 0.32.0 has on a CPU
    "num_gpu_blocks_override": 512,
    "enable_prefix_caching": True,
    "disable_log_stats": False,
    "seed": 0,
}


_on_demand = False  # whether an engine that is not there is installed


def pytest_configure(config: pytest.Config) -> None:
    global _on_demand
    _on_demand = "engines" in config.option.markexpr


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))  # the first one may install an engine


def prompt(tokens: int, seed: int, shared: int = 0) -> list[int]:
    """Token ids; the first `shared` are those of every other seed."""
    common = Random("shared").choices(range(300, 2000), k=shared)
    return common + Random(seed).choices(range(300, 2000), k=tokens - shared)


@dataclass(frozen=True)
class VllmVenv:
    """One vLLM."""

    version: str
    python: Path


@cache
def _installed(name: str) -> Path | str:
    """The interpreter, or why there is none."""
    if os.environ.get("KVFERRY_ENGINES") == "0":
        return "KVFERRY_ENGINES=0 turns tests on real engines off"
    if not (_on_demand or (home() / name).exists()):
        return f"{name} is not in {home()}: `make engine` installs the newest vLLM"
    try:
        return install(name)
    except InstallError as error:
        return f"{name} is not installed: {error}"


def _python_of(name: str) -> Path:
    found = _installed(name)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def engine_python() -> Callable[[str], Path]:
    return _python_of


@pytest.fixture(
    params=[pytest.param(NEWEST), pytest.param(OLDEST, marks=pytest.mark.engines)], scope="session"
)
def vllm_version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def vllm(vllm_version: str) -> VllmVenv:
    return VllmVenv(vllm_version, _python_of(f"vllm-{vllm_version}"))


@pytest.fixture(scope="session")
def newest_vllm() -> VllmVenv:
    return VllmVenv(NEWEST, _python_of(f"vllm-{NEWEST}"))


@pytest.fixture(params=[name for name in INTEGRATIONS if name != "none"], scope="session")
def integration(request: pytest.FixtureRequest) -> Integration:
    return INTEGRATIONS[request.param]


@pytest.fixture(scope="session")
def model() -> Callable[..., Path]:
    def made(name: str, seed: int = 1) -> Path:
        _python_of(f"vllm-{NEWEST}")
        return make_model(name, seed)

    return made


def _variables(vllm: VllmVenv) -> dict[str, str]:
    variables = environment_for(vllm.python, PLUGINS)
    variables["VLLM_CACHE_ROOT"] = str(home() / "cache")
    if vllm.version == OLDEST:  # else blocks have other hashes in each process
        variables["PYTHONHASHSEED"] = "7"
    return variables


def _opened(
    stack: ExitStack,
    vllm: VllmVenv,
    model: Path,
    transfer: dict[str, Any] | None = None,
    *,
    one_process: bool = True,
    environment: dict[str, str] | None = None,
    **settings: Any,
) -> EngineProcess:
    """An engine that is closed with `stack`.

    Args:
        vllm, model: A VllmVenv and a folder.
        transfer: `kv_transfer_config`, or None.
        one_process: The engine core in the process itself, which is quicker.
        environment: Further variables.
        settings: Of `vllm.LLM`, instead of those of SETTINGS.
    """
    variables = _variables(vllm) | (environment or {})
    engine = {**SETTINGS, "model": str(model), **settings}
    if transfer:
        engine["kv_transfer_config"] = transfer
    process = EngineProcess(vllm.python, engine, variables, one_process=one_process)
    stack.callback(process.close)
    return process


@pytest.fixture
def run_engine() -> Iterator[Callable[..., EngineProcess]]:
    with ExitStack() as stack:
        yield partial(_opened, stack)


@pytest.fixture
def serve_engine() -> Iterator[Callable[..., EngineServer]]:
    with ExitStack() as stack:

        def served(
            vllm: VllmVenv, model: Path, transfer: dict[str, Any] | None = None, *more: str
        ) -> EngineServer:
            options = {name: value for name, value in SETTINGS.items() if value is not False}
            arguments = [str(model)]
            for name, value in options.items():
                arguments += [
                    f"--{name.replace('_', '-')}",
                    *([] if value is True else [str(value)]),
                ]
            if transfer:
                arguments += ["--kv-transfer-config", json.dumps(transfer)]
            arguments += more
            server = EngineServer(vllm.python.with_name("vllm"), arguments, _variables(vllm))
            return stack.enter_context(server)

        yield served


@pytest.fixture(scope="session")
def open_engine() -> Callable[..., EngineProcess]:
    return _opened


@pytest.fixture(scope="session")
def plain(model: Callable[..., Path]) -> Iterator[Callable[..., EngineProcess]]:
    with ExitStack() as stack:

        @cache
        def opened(vllm: VllmVenv) -> EngineProcess:
            return _opened(stack, vllm, model("tiny"))

        yield opened


@pytest.fixture
def store() -> Iterator[TestServer]:
    with start_server("valkey") as server:
        yield server
