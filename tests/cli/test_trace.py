"""`kvferry trace replay`: rates for people and programs, files, stores, exit codes, Ctrl-C."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry.cli.main import main
from kvferry_lab.trace.format import load_trace
from kvferry_lab.trace.replay import replay
from support.config import SECRET

DATA = Path(__file__).resolve().parents[1] / "data" / "traces"
MOONCAKE = DATA / "mooncake_conversation.jsonl.gz"
TEXT = DATA / "lmcache_agent.jsonl.gz"


def run(*words: object) -> int:
    return main(["trace", "replay", *map(str, words)])


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(MOONCAKE, "--policy", "lru", "--capacity", "500,64GB") == 0
    out, err = capsys.readouterr()
    assert err == ""
    trace = load_trace(MOONCAKE)
    assert f"2,000 requests, {trace.chunks:,} chunks of 512 tokens" in out
    point = replay(trace, "LRU", 500)
    rate, evictions = f"{100 * point.prefix_hit_rate:.1f}", f"{point.evictions:,}"
    rows = [line.split() for line in out.splitlines()]
    small = next(row for row in rows if row[:3] == ["LRU", "leaf-first", "500"])
    assert (small[4], small[-1]) == (rate, evictions)
    assert [row[2:4] for row in rows if "1,024" in row] == [["1,024", "64.0"]]
    assert "a cache without limits hits" in out


def test_json_csv_and_plot_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    table, plot = tmp_path / "hits.csv", tmp_path / "hits.png"
    words = ("--policy", "LRU,FIFO", "--order", "both", "--capacity", "20,60")
    assert run(TEXT, MOONCAKE, *words, "--json", "--csv", table, "--plot", plot) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [trace["format"] for trace in shown["traces"]] == ["text", "mooncake"]
    assert shown["run"]["machine"]["cores"] > 0
    points = shown["points"]
    assert len(points) == 2 * 2 * 2 * 2
    assert {point["order"] for point in points} == {"leaf-first", "plain"}
    for point in points:
        assert 0 <= point["prefix_hit_rate"] <= point["block_hit_rate"] <= 1
        assert point["prefix_hit_rate"] <= point["infinite_hit_rate"]
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["prefix_hits"] for row in rows] == [str(point["prefix_hits"]) for point in points]
    assert list(rows[0]) == list(points[0])
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_long_documents_with_a_store_a_tenth_too_small(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--preset", "published", "--capacity", "90%,100%", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    (trace,) = shown["traces"]
    chunks = 39_999 // 256  # of a document: the last token is always computed
    assert (trace["requests"], trace["chunks"]) == (3 * 40, 3 * 40 * chunks)
    small = {
        point["policy"]: point["prefix_hits"] / point["prefix_hits_max"]
        for point in shown["points"]
        if point["capacity_chunks"] == 36 * chunks
    }
    assert small["LRU"] == 0
    assert max(small.values()) >= 0.45
    fits = [point for point in shown["points"] if point["capacity_chunks"] == 40 * chunks]
    assert len(fits) == len(small) == 6
    assert all(point["prefix_hits"] == 2 * 40 * chunks for point in fits)


def test_the_long_documents_move_through_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("numpy")
    words = ("--policy", "W-TinyLFU", "--capacity", "90%", "--bytes-per-token", "16")
    assert run("--preset", "published", *words, "--store", "embedded", "--json") == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert point["verified_bytes"] == point["prefix_hits"] * 256 * 16 > 0


def test_a_part_of_what_a_trace_needs_is_a_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TEXT, "--policy", "LRU", "--capacity", "50%", "--json") == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert point["capacity_chunks"] == load_trace(TEXT).distinct // 2


def test_capacities_are_chosen_where_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TEXT, "--policy", "LRU", "--json") == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert points[-1]["prefix_hit_rate"] == points[-1]["infinite_hit_rate"]
    assert len(points) > 1


def test_files_of_the_same_name_stay_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / TEXT.name
    copy.write_bytes(TEXT.read_bytes())
    assert run(TEXT, copy, "--policy", "LRU", "--capacity", "50", "--json") == 0
    names = {point["trace"] for point in json.loads(capsys.readouterr().out)["points"]}
    assert names == {TEXT.name, str(copy)}


def test_bytes_of_a_store_are_verified(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("numpy")
    words = ("--policy", "LRU", "--capacity", "30", "--bytes-per-token", "64")
    assert run(TEXT, *words, "--store", "embedded", "--limit", "20", "--json") == 0
    out, err = capsys.readouterr()
    (point,) = json.loads(out)["points"]
    assert point["verified_bytes"] == point["prefix_hits"] * 256 * 64 > 0
    assert "the store will hold up to 0.00 GB" in err


def test_a_store_that_is_not_there_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")
    url = f"redis://:{SECRET}@127.0.0.1:1?timeout_s=0.5"
    words = ["--policy", "LRU", "--capacity", "30", "--bytes-per-token", "64", "--store", url]
    monkeypatch.setattr(sys, "argv", ["kvferry", "trace", "replay", str(TEXT), *words])
    assert main() == 1
    assert SECRET not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "MRU"], "no eviction policy 'MRU'"),
        (["--capacity", "many"], "'many' is neither chunks, a size like 64GB, nor a part like 90%"),
        (["--capacity", "0%"], "'0%' is 0 chunks"),
        (["--capacity", "nan%"], "neither chunks, a size"),
        (["--capacity", "0"], "'0' is 0 chunks"),
        (["--capacity", "1MB"], "'1MB' is 0 chunks"),
        (["--capacity", "1e999GB"], "neither chunks, a size"),
        (["--capacity", ","], "names no capacity"),
        (["--order", "random"], "random"),
        (["--limit", "0"], "limit"),
        (["--chunk-tokens", "100", "--block-tokens", "64"], "no multiple"),
    ],
)
def test_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    extra = [] if "--policy" in words else ["--policy", "LRU"]
    assert run(MOONCAKE, *extra, *words) == 2
    assert said in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_files_that_are_no_traces_are_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = tmp_path / "azure.csv"
    lengths.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,4808,10\n")
    assert run(lengths, "--policy", "LRU") == 2
    assert "holds lengths only" in capsys.readouterr().err
    assert run(tmp_path / "missing", "--policy", "LRU") == 2
    assert run() == 2


def test_ctrl_c_ends_it_with_130() -> None:
    pytest.importorskip("numpy")
    command = [sys.executable, "-m", "kvferry.cli.main", "trace", "replay", str(MOONCAKE)]
    many = ["--policy", ",".join(["LRU"] * 200), "--capacity", "500", "--bytes-per-token", "64"]
    process = subprocess.Popen(
        [*command, *many, "--store", "embedded"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        assert "the store will hold" in process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does on Ctrl-C
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 130
    assert (out, err.strip()) == ("", "kvferry: interrupted")
