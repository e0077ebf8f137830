"""`kvferry roi`: answers for people and programs, files, and one sentence for what is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvferry.cli.main import main

MOONCAKE = (
    Path(__file__).resolve().parents[1] / "data" / "traces" / "mooncake_conversation.jsonl.gz"
)
CASE = ("--model", "llama-3.1-8b", "--gpu", "h100", "--store-gbps", "5")


def run(*words: object) -> int:
    return main(["roi", *map(str, words)])


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert run(*words, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_an_answer_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*CASE, "--rounds", 3) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for text in (
        "131,072 bytes of KV",
        "break-even",
        "crossover",
        "66.7 % of them hits",
        "It pays",
    ):
        assert text in " ".join(out.split())


def test_an_answer_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, *CASE, "--prompt-tokens", 10_000, "--working-set-gb", 100)
    answer = found["answer"]
    assert answer["bytes_per_token"] == 131_072
    assert answer["at"]["kv_bytes"] == 1_310_720_000
    assert answer["bill"]["ram_bytes"] == pytest.approx(125e9)
    assert found["day"]["hit_rate"] == 0.5
    assert found["outcomes"] == []
    slow = told(capsys, *CASE[:4], "--store-gbps", 0.278)["answer"]
    assert not slow["sooner"]
    assert slow["at"]["break_even_bytes_s"] > 2e9


def test_a_store_that_cannot_carry_the_day_does_not_pay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*CASE, "--requests-a-day", 10_000_000, "--gpu-price", 1e6) == 0
    assert "It does not pay with this store: a day needs" in capsys.readouterr().out
    assert not told(capsys, *CASE, "--requests-a-day", 10_000_000)["answer"]["carried"]
    assert run(*CASE, "--requests-a-day", 1e8, "--trace", MOONCAKE, "--policy", "LRU") == 0
    out = capsys.readouterr().out
    assert "a day, but not with this store: on average" in out
    assert "like it are enough" in out
    assert "In money it pays" not in out


def test_a_trace_a_model_a_gpu_and_a_store_in_one_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (*CASE, "--trace", MOONCAKE, "--policy", "lru,arc", "--capacity", "64GB,256GB")
    assert run(*words) == 0
    out = capsys.readouterr().out
    assert "2,000 requests" in out
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows if row[:1] in (["LRU"], ["ARC"])] == ["LRU", "LRU", "ARC", "ARC"]
    found = told(capsys, *words)
    assert found["answer"] is None
    assert found["case"]["chunk_tokens"] == 512
    none, *others = found["outcomes"]
    best = max(others, key=lambda row: row["day"]["saved_money"])
    assert found["day"]["hit_rate"] == best["hit_rate"], "what the page begins with"
    assert found["day"]["prompt_tokens"] == round(best["tokens"] / 2000)
    larger = told(capsys, *words, "--chunk-tokens", 1024)
    assert larger["case"]["chunk_tokens"] == 1024
    assert none["policy"] == ""
    assert len(others) == 4
    for row in others:
        assert set(row["ttft_s"]) == {"50", "90", "99"}
        assert row["ttft_mean_s"] < none["ttft_mean_s"]
        assert row["day"]["gpu_s_after"] < none["day"]["gpu_s_after"]


def test_a_trace_says_whether_it_pays_in_time_and_in_money(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--trace", MOONCAKE, "--policy", "LRU", "--capacity", "256GB,4TB")
    assert run(*CASE, *words) == 0
    out = capsys.readouterr().out
    assert "loaded: the part of all tokens that is sooner loaded than computed" in out
    assert "In time it pays: LRU with 4,398 GB of KV has the first token after" in out
    assert "In money it does not pay" in out
    none, *_, best = told(capsys, *CASE, *words)["outcomes"]
    assert f"{best['ttft_mean_s']:.3f} s on average instead of {none['ttft_mean_s']:.3f} s" in out
    assert run(*CASE, *words, "--ram-price", 0) == 0
    out = capsys.readouterr().out
    assert "In money it pays: LRU with 4,398 GB of KV saves" in out


def test_a_store_that_is_too_slow_for_a_trace_is_told_what_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (*CASE[:4], "--store-gbps", 0.2, "--trace", MOONCAKE, "--policy", "LRU")
    assert run(*words) == 0
    out = capsys.readouterr().out
    assert "In time it does not pay" in out
    found = told(capsys, *words)["outcomes"][-1]
    said = re.search(r"A prompt of ([0-9,]+) tokens is sooner loaded from ([0-9.]+) GB/s on", out)
    assert said is not None
    assert int(said[1].replace(",", "")) == round(found["tokens"] / found["requests"])
    faster = float(said[2]) + 0.01  # rounded to two digits
    length = said[1].replace(",", "")
    at = told(capsys, *CASE[:4], "--store-gbps", faster, "--prompt-tokens", length)["answer"]
    slower = told(capsys, *CASE[:4], "--store-gbps", faster - 0.1, "--prompt-tokens", length)
    assert at["sooner"]
    assert not slower["answer"]["sooner"]


def test_a_file_of_lengths_says_what_to_ask_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nx,100,1\nx,4000,2\nx,9000,2\n")
    assert run(*CASE, "--trace", file) == 2
    said = capsys.readouterr().err
    assert "holds lengths only" in said
    assert "kvferry roi --prompt-tokens 4000 --hit-rate R" in said, "the median, and no hits"


def test_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    page, png, svg = (tmp_path / name for name in ("roi.html", "roi.png", "roi.svg"))
    assert run(*CASE, "--page", page, "--plot", png) == 0
    assert f"written to {page}" in capsys.readouterr().err
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "llama-3.1-8b" in page.read_text()
    words = ("--trace", MOONCAKE, "--policy", "LRU", "--capacity", "500,5000")
    assert run(*CASE, *words, "--plot", svg) == 0
    text = svg.read_text()
    assert "mean time to first token, s" in text
    assert "KV in the store, GB" in text


def test_published_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--validate") == 0
    out = capsys.readouterr().out
    assert " 0 not, " in out
    assert "held out" in out
    assert run("--validate", "--json") == 0
    checks = json.loads(capsys.readouterr().out)
    assert {check["group"] for check in checks} >= {"blocks", "GLM-5.2-FP8", "round trips"}


def test_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    out = capsys.readouterr().out
    for name in ("llama-3.1-8b", "h200", "tensormesh-70b"):
        assert name in out


def test_the_presets_price_counts_unless_one_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "llama-3.1-70b", "--preset", "tensormesh-70b")
    found = told(capsys, *words)
    assert found["case"]["prefill"]["gpus"] == 8
    assert found["prices"]["gpu_hour"] == 2.0
    assert told(capsys, *words, "--gpu-price", 3)["prices"]["gpu_hour"] == 3.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name one engine of --preset, --gpu"),
        ((), "kvferry roi --list has the names of --preset, --gpu and --model"),
        (("--gpu", "h100"), "name a --model"),
        (("--model", "gpt-9", "--gpu", "h100"), "gpt-9 is neither"),
        (("--model", "qwen3-8b", "--gpu", "h1000"), "known are"),
        ((*CASE, "--preset", "tensormesh-8b"), "name one engine of --preset, --gpu"),
        (
            (*CASE, "--rounds", 3, "--hit-rate", 0.5),
            "name one rate of hits of --hit-rate, --rounds",
        ),
        ((*CASE, "--policy", "LRU"), "--policy is for --trace"),
        ((*CASE, "--hit-rate", 1.5), "1.5"),
        ((*CASE, "--probe-tokens", "1,2"), "--probe-tokens is for --server"),
        (("--model", "qwen3-8b", "--prefill-tokens-s", 9, "--utilisation", 1), "is for --gpu"),
        ((*CASE, "--trace", MOONCAKE, "--prompt-tokens", 9), "--trace says it already"),
        ((*CASE, "--replay", "f"), "--replay is gone: give --trace"),
        ((*CASE, "--trace", MOONCAKE, "--policy", "BEST"), "BEST"),
        ((*CASE, "--trace", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        ((*CASE[:4], "--store-file", "nowhere"), "nowhere cannot be read"),
        (("--model", "qwen3-8b", "--server", "http://127.0.0.1:9", "--probe-tokens", "a"), "list"),
    ],
)
def test_what_cannot_be_right_is_one_sentence(
    words: tuple[object, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err
