"""Transformers with the prefix cache: the same tokens and the same logits, or a miss."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from engine_lane.install import environment_for

from support.cache_server import CacheServerProcess
from support.line_process import LineProcess
from support.servers import TestServer, wait_for

DRIVER = Path(__file__).with_name("plugins") / "transformers_driver.py"
TESTS = Path(__file__).resolve().parents[1]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "transformers_prefix.py"
RECIPE = "vllm-0.32.0"  # brings Transformers along
FRAME_BYTES = 64
CHUNK, TOKENS, KNOWN = 32, 300, 288  # of 300 tokens, nine whole chunks

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def _opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


_drivers: dict[tuple[ExitStack, str], LineProcess] = {}


@pytest.fixture
def run(
    _opened: ExitStack,
    engine_python: Callable[[str], Path],
    model: Callable[..., Path],
    store: TestServer,
) -> Run:
    """run("warm", dtype="bfloat16"): one command of the driver, with a model of its own.

    `process` names the process that does it; all tests share "a".
    """

    def told(
        do: str, *, recipe: str = RECIPE, process: str = "a", seed: int = 1, **more: Any
    ) -> Any:
        key = (_opened, f"{recipe} {process}")
        if key not in _drivers:
            python = engine_python(recipe)
            environment = environment_for(python, TESTS)
            environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
            _drivers[key] = _opened.enter_context(LineProcess([python, DRIVER], environment))
        return _drivers[key](do, model=str(model("tiny", seed=seed)), url=store.url, **more)

    return told


def chunks(store: TestServer) -> list[bytes]:
    return sorted(key for key in store.cli("KEYS", "kvf:*") if key.count(b":") == 2)


def test_another_process_answers_the_same(run: Run, store: TestServer) -> None:
    cold = run("save")
    assert (cold["known"], cold["chunks"], cold["again"], cold["kept"]) == (0, 9, 0, True)
    assert len(chunks(store)) == 9
    warm = run("warm", process="b")
    assert (warm["known"], warm["difference"]) == (KNOWN, 0.0)
    assert warm["tokens"] == cold["tokens"] == run("plain")["tokens"]


@pytest.mark.engines
def test_bfloat16_and_what_it_does_not_share(run: Run) -> None:
    run("save")
    cold = run("save", dtype="bfloat16")
    assert cold["known"] == 0
    warm = run("warm", dtype="bfloat16")
    assert (warm["known"], warm["difference"]) == (KNOWN, 0.0)
    assert warm["tokens"] == cold["tokens"] == run("plain", dtype="bfloat16")["tokens"]


@pytest.mark.engines
def test_what_is_another_model_is_a_miss(run: Run) -> None:
    run("save")
    assert run("warm", seed=2)["known"] == 0
    assert run("warm", change="one weight")["known"] == 0
    assert run("warm", chunk_size=64)["known"] == 0
    assert run("warm")["known"] == KNOWN


@pytest.mark.engines
def test_zeros_in_good_order_change_the_answer(run: Run) -> None:
    told = run("zeroed")
    assert told["known"] == KNOWN
    assert told["difference"] > 0.05
    assert told["tokens"] != run("plain")["tokens"]


@pytest.mark.engines
def test_damage_is_computed_again(run: Run, store: TestServer) -> None:
    cold = run("save")
    for name in chunks(store):
        value = store.cli("GET", name)
        store.cli("SETRANGE", name, FRAME_BYTES + 40, bytes([value[FRAME_BYTES + 40] ^ 64]))
    warm = run("warm")
    assert (warm["known"], warm["difference"]) == (0, 0.0)
    assert warm["tokens"] == cold["tokens"]
    assert run("save")["chunks"] == 9  # what was damaged is gone, and stored anew

    def whole() -> bool:  # a deletion may still have been on its way
        return bool(run("save")["kept"]) and run("warm")["known"] == KNOWN

    wait_for("all of it is there again", whole, 60)


@pytest.mark.engines
def test_prompts_that_go_on_and_prompts_of_whole_chunks(run: Run) -> None:
    run("save")
    told = run("longer")
    assert told == {"known": KNOWN, "then": 576, "chunks": 10, "equal": True}
    # At least one token is left to compute.
    assert run("exactly") == {"1": 0, "31": 0, "32": 0, "33": 32, "64": 32, "65": 64}


@pytest.mark.engines
def test_a_store_that_is_away_is_a_miss(run: Run, store: TestServer) -> None:
    plain = run("plain")
    store.kill()
    told = run("save")
    assert (told["known"], told["tokens"]) == (0, plain["tokens"])


@pytest.mark.engines
def test_through_a_cache_server(run: Run, tmp_path: Path) -> None:
    with CacheServerProcess(tmp_path, mib=64) as server:
        cold = run("save", server=server.endpoint)
        assert (cold["known"], cold["chunks"]) == (0, 9)
        warm = run("warm", server=server.endpoint, process="b")
    assert (warm["known"], warm["difference"]) == (KNOWN, 0.0)
    assert warm["tokens"] == cold["tokens"]
    assert run("warm", server=server.endpoint)["known"] == 0  # it is gone


@pytest.mark.engines
def test_what_cannot_be_is_refused_in_one_sentence(run: Run) -> None:
    said = run("refusals")
    assert said.pop("fine") == ""
    wanted = {
        "batch": "one sequence at a time",
        "padding": "without its padding",
        "batch in the cache": "one sequence at a time",
        "static": "StaticCache is no DynamicCache",
        "other tokens": "loaded for other tokens",
        "half": "float16 and not",
        "sliding": "DynamicSlidingWindowLayer",
        "dynamic": "depends on what follows it",
        "adapter": "lora=",
    }
    assert said.keys() == wanted.keys()
    for what, words in wanted.items():
        assert words in said[what], what
        assert "\n" not in said[what]


@pytest.mark.engines
def test_an_older_environment_shares_with_a_newer_one(run: Run) -> None:
    cold = run("save", recipe="vllm-0.22.1")
    assert cold["known"] == 0
    warm = run("warm", recipe="vllm-0.22.1")
    assert (warm["known"], warm["difference"]) == (KNOWN, 0.0)
    assert warm["tokens"] == cold["tokens"]


@pytest.mark.engines
def test_the_example(engine_python: Callable[[str], Path]) -> None:
    from kvferry.embedded.program import find_server

    python = engine_python(RECIPE)
    environment = {**environment_for(python), "KVFERRY_SERVER_BINARY": str(find_server().path)}
    done = subprocess.run(
        [python, EXAMPLE], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "known: 0 of 200 tokens",
        "known: 192 of 200 tokens",
        "equal: True",
    ]
