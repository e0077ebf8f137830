"""`kvferry lab long-doc-qa` against `kvferry serve-demo`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from kvferry.cli.main import main
from lab.conftest import CHUNK
from support.serve_demo import DemoServer
from support.servers import free_port

LENGTH = 1000
FULL = (LENGTH - 1) // CHUNK * CHUNK


def run(server: DemoServer, tmp_path: Path, *words: object) -> int:
    at = ("--base-url", f"{server.url}/v1", "--results-dir", tmp_path, "--output-len", 4)
    more = ("--chunk-tokens", CHUNK, "--document-length", LENGTH, *words)
    return main(["lab", "long-doc-qa", *map(str, (*at, *more))])


def test_rounds_hit_all_full_chunks_and_every_request_has_a_line(
    server: DemoServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--num-documents", 3, "--rounds", 3, "--completions", "--json", "--visualize")
    assert run(server, tmp_path, *words) == 0
    said = json.loads(capsys.readouterr().out)
    hits = said["hits"]
    assert hits["asked"] == pytest.approx(9 * LENGTH, abs=9 * 2)
    assert hits["rate"] >= 0.998 * 2 / 3 * FULL / LENGTH
    assert (hits["capacity"], hits["order"]) == (0, 0)  # the size comes from /metrics
    with (tmp_path / "query_round.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["document"] for row in rows] == ["0", "1", "2"] * 2
    assert {row["cached_tokens"] for row in rows} == {str(FULL)}
    assert {row["successful"] for row in rows} == {"True"}
    assert [row["prompt_id"] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    for row in rows:
        assert 0 <= float(row["request_start"]) < float(row["ttft_time"])
        assert float(row["ttft_time"]) <= float(row["request_end"])
    assert (tmp_path / "warmup_round.csv").read_text().count("\n") == 4
    for name in ("warmup_round.png", "query_round.png"):
        assert (tmp_path / name).stat().st_size > 10_000


def test_the_known_output_of_a_chat_with_the_names_of_the_newer_tool(
    server: DemoServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        *("--num-documents", 2, "--ldqa-query-per-document", 1, "--ldqa-shuffle-policy", "tile"),
        *("--ldqa-num-inflight-requests", 2, "--ldqa-document-length", 500),
        *("--output", tmp_path / "said.txt"),
    )
    assert run(server, tmp_path, *words) == 0
    out = capsys.readouterr().out
    assert out.startswith("=== BENCHMARK RESULTS ===\nWarmup round mean TTFT: ")
    assert "Query round successful prompt count: 2\n" in out
    assert "Hit rate: " in out
    assert (tmp_path / "said.txt").read_text().count("Response of request") == 4


def test_new_prompts_among_the_repeated_ones_miss(
    server: DemoServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--num-documents", 2, "--rounds", 3, "--hit-miss-ratio", "1:1", "--json")
    assert run(server, tmp_path, *words, "--corpus", __file__) == 0
    with (tmp_path / "query_round.csv").open() as file:
        cached = [int(row["cached_tokens"]) > 0 for row in csv.DictReader(file)]
    assert cached == [True, False, True, False]
    assert json.loads(capsys.readouterr().out)["hits"]["order"] == 0


def test_what_was_expected_and_is_not_so_is_a_failure(
    server: DemoServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--num-documents", 1, "--repeat-count", 1, "--expected-ttft-gain", 1e9)
    assert run(server, tmp_path, *words) == 1
    assert "TTFT gain" in capsys.readouterr().err


def test_requests_that_fail_are_counted_and_say_why(
    server: DemoServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--num-documents", 1, "--repeat-count", 1, "--document-length", 70_000)
    assert run(server, tmp_path, *words) == 1
    out, err = capsys.readouterr()
    assert "Query round successful prompt count: 0" in out
    assert "2 requests failed; the first: This model's maximum context length is" in err


def test_a_server_that_is_not_there_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--port", str(free_port()), "--host", "127.0.0.1", "--results-dir", str(tmp_path)]
    assert main(["lab", "long-doc-qa", *words]) == 1
    assert "/v1/models does not answer: Connection refused\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--hit-miss-ratio", "3"),
        ("--rounds", "3", "--repeat-mode", "interleave"),
        ("--corpus", "nowhere"),
    ],
)
def test_what_cannot_be_is_a_usage_error(words: tuple[str, ...]) -> None:
    assert main(["lab", "long-doc-qa", *words]) == 2
