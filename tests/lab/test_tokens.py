"""`kvferry lab tokens` against `kvferry serve-demo`: llmperf's flags, environment and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvferry.cli.main import main
from support.serve_demo import DemoServer
from support.servers import free_port

# Of a published result of llmperf: github.com/ray-project/llmperf, benchmarks/results.
SPREAD = [
    "inter_token_latency_s",
    "ttft_s",
    "end_to_end_latency_s",
    "request_output_throughput_token_per_s",
    "number_input_tokens",
    "number_output_tokens",
]
EACH = [
    *(f"quantiles_p{part}" for part in (25, 50, 75, 90, 95, 99)),
    *("mean", "min", "max", "stddev"),
]
SUMMARY = [
    *("version", "name", "model", "mean_input_tokens", "stddev_input_tokens"),
    *("mean_output_tokens", "stddev_output_tokens", "num_concurrent_requests"),
    *(f"results_{key}_{each}" for key in SPREAD for each in EACH),
    "results_num_requests_started",
    "results_error_rate",
    "results_number_errors",
    "results_error_code_frequency",
    "results_mean_output_throughput_token_per_s",
    "results_num_completed_requests",
    "results_num_completed_requests_per_min",
    "timestamp",
]
INDIVIDUAL = [
    *("error_code", "error_msg", "inter_token_latency_s", "ttft_s", "end_to_end_latency_s"),
    *("request_output_throughput_token_per_s", "number_total_tokens", "number_output_tokens"),
    "number_input_tokens",
]
FEW = (
    *("--mean-input-tokens", 400, "--stddev-input-tokens", 50, "--mean-output-tokens", 8),
    *("--stddev-output-tokens", 2, "--max-num-completed-requests", 6),
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_BASE", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def run(*words: object) -> int:
    return main(["lab", "tokens", *map(str, words)])


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    stem = "kvferry-demo_400_8"
    found = (folder / f"{stem}_{kind}.json" for kind in ("summary", "individual_responses"))
    summary, individual = (json.loads(path.read_text()) for path in found)
    return summary, individual


def test_both_files_have_the_fields_of_llmperf(
    server: DemoServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_BASE", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    words = (
        *("--model", "kvferry-demo", *FEW, "--num-concurrent-requests", 3, "--timeout", 60),
        *("--results-dir", "results", "--metadata", "name=mine,run=1", "--llm-api", "openai"),
        *("--additional-sampling-params", '{"temperature": 0}'),
    )
    assert run(*words) == 0
    out = capsys.readouterr().out
    assert "Number Of Completed Requests: 6" in out
    assert "    p50 = " in out
    summary, individual = read(Path("results"))
    assert set(summary) == {*SUMMARY, "additional_sampling_params_temperature", "run"}
    assert summary["name"] == "mine"  # as llmperf's metadata would
    assert [list(one) for one in individual] == [INDIVIDUAL] * 6
    assert summary["results_num_completed_requests"] == 6
    assert summary["results_error_code_frequency"] == "{}"
    texts = {name for name, value in summary.items() if isinstance(value, str)}
    tokens = {f"results_number_{way}_tokens_{end}" for way in ("input", "output") for end in EACH}
    assert texts & tokens == {name for name in tokens if name.endswith(("_min", "_max"))}
    for one in individual:
        assert one["error_code"] is None
        assert one["number_total_tokens"] == (
            one["number_input_tokens"] + one["number_output_tokens"]
        )
        assert 0 < one["ttft_s"] <= one["end_to_end_latency_s"]
        each = one["number_output_tokens"]
        assert one["inter_token_latency_s"] * each <= one["end_to_end_latency_s"]
        assert 150 <= one["number_input_tokens"] <= 650


def test_without_more_the_fields_are_exactly_those_and_lengths_repeat(
    server: DemoServer,
) -> None:
    Path(".env").write_text(f"export OPENAI_API_BASE='{server.url}/v1'\nOPENAI_API_KEY=none\nX=1\n")
    lengths = []
    for folder in ("first", "second"):
        assert run("--model", "kvferry-demo", *FEW, "--results-dir", folder) == 0
        summary, individual = read(Path(folder))
        assert list(summary) == SUMMARY
        lengths.append(sorted(one["number_input_tokens"] for one in individual))
    assert lengths[0] == lengths[1]


def test_failed_requests_are_counted_by_their_code(
    server: DemoServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_BASE", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    most = ("--mean-output-tokens", 65_400, "--stddev-output-tokens", 0)
    words = ("--model", "kvferry-demo", *FEW, *most, "--max-num-completed-requests", 2)
    assert run(*words, "--results-dir", "r") == 1
    (individual,) = Path("r").glob("*_individual_responses.json")
    (summary,) = Path("r").glob("*_summary.json")
    assert [one["error_code"] for one in json.loads(individual.read_text())] == [400, 400]
    said = json.loads(summary.read_text())
    assert (said["results_error_rate"], said["results_error_code_frequency"]) == (1.0, "{400: 2}")
    assert said["results_ttft_s_mean"] is None
    assert "maximum context length" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--model", "m", "--llm-api", "litellm"),
        ("--model", "m", "--additional-sampling-params", "[]"),
        ("--model", "m", "--metadata", "x"),
        ("--model", "m"),  # nobody says which server
    ],
)
def test_what_cannot_be_is_a_usage_error(words: tuple[str, ...]) -> None:
    assert run(*words) == 2


def test_a_server_that_is_not_there_is_said_without_the_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_BASE", f"http://127.0.0.1:{free_port()}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody")
    assert run("--model", "m") == 1
    err = capsys.readouterr().err
    assert "Connection refused" in err
    assert "sk-of-somebody" not in err
