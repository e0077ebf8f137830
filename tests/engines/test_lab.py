"""The lab's load tests against a real vLLM, and vLLM's own load test against `serve-demo`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_lane.install import environment_for

from engines.conftest import VllmVenv
from engines.integrations import CHUNK, INTEGRATIONS
from kvferry.cli.main import main
from kvferry_lab.engines.engine_process import quiet_environment
from kvferry_lab.engines.vllm_server import EngineServer
from support.serve_demo import DemoServer
from support.servers import TestServer

# Every request asks the cache, and its answer says what that had.
OPTIONS = ("--no-enable-prefix-caching", "--enable-prompt-tokens-details")
LENGTH = 1000


@pytest.mark.engines
@pytest.mark.timeout(900)
def test_long_documents_and_tokens_against_vllm(
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    serve_engine: Callable[..., EngineServer],
    store: TestServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (
        INTEGRATIONS["connector"].behind(store.url, tmp_path, newest_vllm.version) as transfer,
        serve_engine(newest_vllm, model("tiny"), transfer, *OPTIONS) as engine,
    ):
        words: tuple[object, ...] = (
            *("--base-url", f"{engine.url}/v1", "--num-documents", 2, "--rounds", 3, "--json"),
            *("--document-length", LENGTH, "--output-len", 8, "--chunk-tokens", CHUNK),
            *("--completions", "--results-dir", tmp_path, "--max-inflight-requests", 1),
        )
        assert main(["lab", "long-doc-qa", *map(str, words)]) == 0
        said = json.loads(capsys.readouterr().out)
        asked = said["hits"]["asked"] / 6
        assert asked == pytest.approx(LENGTH, abs=5)
        full = (asked - 1) // CHUNK * CHUNK / asked
        assert said["hits"]["rate"] >= 0.998 * 2 / 3 * full
        monkeypatch.setenv("OPENAI_API_BASE", f"{engine.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        words = (
            *("--model", "model", "--max-num-completed-requests", 4, "--results-dir", tmp_path),
            *("--mean-input-tokens", 200, "--stddev-input-tokens", 20, "--mean-output-tokens", 8),
            *("--stddev-output-tokens", 2, "--num-concurrent-requests", 2),
            *("--additional-sampling-params", '{"ignore_eos": true}'),
        )
        assert main(["lab", "tokens", *map(str, words)]) == 0
        (file,) = tmp_path.glob("*_summary.json")
        found = json.loads(file.read_text())
        assert found["results_num_completed_requests"] == 4
        assert found["results_number_input_tokens_mean"] == pytest.approx(200, abs=60)


@pytest.mark.engines
@pytest.mark.timeout(600)
def test_the_load_test_of_vllm_against_serve_demo(
    newest_vllm: VllmVenv, model: Callable[..., Path], tmp_path: Path
) -> None:
    arguments = ("--bytes-per-token", "2048", "--prefill-tokens-per-s", "40000")
    with DemoServer(tmp_path / "demo", *arguments, config={"chunk_size": 64}) as server:
        words = [
            *(str(newest_vllm.python.with_name("vllm")), "bench", "serve", "--backend", "openai"),
            *("--base-url", server.url, "--model", "kvferry-demo", "--seed", "1"),
            *("--tokenizer", str(model("tiny")), "--dataset-name", "random", "--ignore-eos"),
            *("--random-input-len", "50", "--random-output-len", "10", "--num-prompts", "4"),
            *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json"),
        ]
        environment = quiet_environment(environment_for(newest_vllm.python), one_process=False)
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads((tmp_path / "result.json").read_text())
        assert found["completed"] == 4
        assert found["total_output_tokens"] == 40
        assert found["mean_ttft_ms"] > 0
