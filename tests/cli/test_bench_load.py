"""memtier_benchmark's and redis-benchmark's own command lines, by them and by kvferry-load."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvferry.cli.main import main
from kvferry_lab.bench.programs import ProgramError, find_program
from support.servers import TestServer

DATA = 40_000
LINE = r"^{}: \d+\.\d\d requests per second, \d+\.\d\d GB/s, p50 [\d.]+ ms, p99 [\d.]+ ms"


@pytest.fixture(params=["original", "kvferry-load"])
def maker(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Sees to it that the named program, or ours, makes the load; says which."""

    def choose(program: str) -> str:
        if request.param == "original":
            if shutil.which(program) is None:
                pytest.skip(f"{program} is not on PATH")
            return program
        try:
            found = find_program("load")
        except ProgramError as error:
            pytest.skip(str(error))
        monkeypatch.setenv("KVFERRY_BIN_DIR", str(Path(found).parent))
        monkeypatch.setenv("PATH", str(tmp_path))
        return "kvferry-load"

    return choose


def run(server: TestServer, capsys: pytest.CaptureFixture[str], *words: str) -> list[Any]:
    assert main(["bench", *words, "-p", str(server.port), "--json", "-"]) == 0
    said = capsys.readouterr()
    rows: list[Any] = json.loads(said.out)
    for row in rows:
        assert re.search(LINE.format(row["op"].upper()), said.err, re.MULTILINE), said.err
        assert row["gbps"] == pytest.approx(
            row["ops_per_s"] * (1 - row["misses"]) * DATA / 1e9, rel=0.02, abs=1e-2
        )
    return rows


def test_memtier_writes_all_keys_then_reads_then_both(
    start: Callable[..., TestServer],
    maker: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = start("valkey")
    program = maker("memtier_benchmark")
    size = f"--data-size={DATA}"
    name, keys = "memtier_benchmark", ("--key-minimum=1", "--key-maximum=57", "--hide-histogram")
    (row,) = run(
        server, capsys, name, "--ratio=1:0", "-n", "allkeys", size, *keys, "--key-pattern=P:P",
        "--pipeline=8", "--clients=5", "--threads=1",
    )  # fmt: skip
    assert (row["op"], row["program"], row["misses"]) == ("set", program, 0)
    stored = {f"memtier-{number}" for number in range(1, 58)}
    assert {key.decode() for key in server.cli("KEYS", "*")} == stored
    assert {server.cli("STRLEN", key) for key in stored} == {DATA}

    before = int(server.info("stats")["keyspace_hits"])
    (row,) = run(
        server, capsys, name, "--ratio=0:1", "-n", "10", *keys, "--key-pattern=R:R",
        "--clients=3", "--threads=2", "-h", "localhost",
    )  # fmt: skip
    assert (row["op"], row["program"], row["misses"]) == ("get", program, 0)
    assert int(server.info("stats")["keyspace_hits"]) - before == 60

    rows = run(
        server, capsys, name, "--ratio=1:1", "-n", "10", size, *keys, "--key-pattern=G:S",
        "--pipeline=4", "-c", "2", "-t", "2",
    )  # fmt: skip
    assert [row["op"] for row in rows] == ["set", "get"]
    assert rows[0]["ops_per_s"] == pytest.approx(rows[1]["ops_per_s"], rel=1e-3)
    assert server.cli("DBSIZE") == 57, "no key out of the range"


def test_what_memtier_misses_has_no_bytes(
    start: Callable[..., TestServer],
    maker: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = start("valkey")
    maker("memtier_benchmark")
    (row,) = run(
        server, capsys, "memtier_benchmark", "--ratio=0:1", "-n", "10", f"--data-size={DATA}",
        "--clients=2", "--threads=1",
    )  # fmt: skip
    assert (row["op"], row["misses"]) == ("get", pytest.approx(1, rel=1e-3))


def test_redis_benchmark(
    start: Callable[..., TestServer],
    maker: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = start("valkey")
    program = maker("redis-benchmark")
    size = ("-d", str(DATA), "-P", "2", "-c", "10")
    rows = run(server, capsys, "redis-benchmark", "-n", "600", "-r", "20", *size, "-t", "set,get")
    assert [(row["op"], row["program"]) for row in rows] == [("set", program), ("get", program)]
    keys = {key.decode() for key in server.cli("KEYS", "*")}
    assert keys <= {f"key:{number:012d}" for number in range(20)}
    assert {server.cli("STRLEN", key) for key in keys} == {DATA}
    server.cli("FLUSHALL")
    (row,) = run(server, capsys, "redis-benchmark", "-n", "300", *size, "-t", "set")
    assert row["op"] == "set"
    assert server.cli("DBSIZE") == 1, "without -r there is one key"


def test_a_password_stays_off_command_lines(
    start: Callable[..., TestServer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        find_program("load")
    except ProgramError as error:
        pytest.skip(str(error))
    server = start("valkey", password="very-secret")
    monkeypatch.setenv("KVFERRY_RESP_PASSWORD", "very-secret")
    rows = run(server, capsys, "redis-benchmark", "-n", "20", "-d", str(DATA), "-t", "set")
    assert rows[0]["program"] == "kvferry-load"
    monkeypatch.setenv("KVFERRY_RESP_PASSWORD", "wrong")
    assert main(["bench", "redis-benchmark", "-n", "20", "-p", str(server.port)]) == 1
    assert "WRONGPASS" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["memtier_benchmark", "--ratio", "0:0"],
        ["memtier_benchmark", "--ratio", "one"],
        ["memtier_benchmark", "--key-pattern", "P:R"],
        ["memtier_benchmark", "--key-minimum", "2", "--key-maximum", "1"],
        ["memtier_benchmark", "-n", "0"],
        ["redis-benchmark", "-t", "lpush"],
    ],
)
def test_usage(words: list[str]) -> None:
    assert main(["bench", *words]) == 2
