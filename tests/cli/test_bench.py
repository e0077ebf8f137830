"""`kvferry bench`: rows with every field, and no figure for bytes that are wrong."""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from benchmarks.__main__ import main as measure
from benchmarks.report import GROUPS
from kvferry.cli.main import main
from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import ThreadedClient, redis_arguments
from kvferry_lab.bench.client_plan import NOTED_TYPES
from kvferry_lab.bench.clients import CLIENT_TYPES
from kvferry_lab.bench.data import Value
from kvferry_lab.bench.programs import ProgramError, find_program
from support.cluster import Cluster
from support.proxy import FaultProxy
from support.sentinel import SentinelGroup
from support.servers import TestServer

FIELDS = [
    *("client", "op", "chunk_bytes", "connections", "server"),
    *("gbps", "p50_ms", "p99_ms", "client_cpu_s_per_gb", "server_cpu_s_per_gb"),
    *("floor_ratio", "floor_cpu_ratio", "verified_bytes"),
]
LINES = {
    "set": r"^Batch SET: \d+\.\d\d GB/s  \(0\.00146 GB written\)$",
    "get": r"^Batch GET: \d+\.\d\d GB/s  \(0\.00146 GB read\)$",
    "exists": r"^Batch EXISTS: \d+ ops/s \(6/6 hits\)$",
}
SMALL = ["--size-mb", "0.25", "--num-chunks", "6", "--repeat", "2"]
MOVED = {"memtier": "memtier_benchmark", "redis-benchmark": "redis-benchmark"}
COMPARED = [kind for kind in CLIENT_TYPES if kind not in NOTED_TYPES]
NATIVE = importlib.util.find_spec("kvferry._native") is not None


def installed() -> list[str]:
    """The kinds of client that can be measured here."""
    modules = {"native": "kvferry._native", "glide": "glide_sync", "lmcache": "lmcache"}
    return [k for k in COMPARED if importlib.util.find_spec(modules.get(k, "redis"))]


@pytest.fixture
def _built() -> None:
    try:
        find_program("floor")
    except ProgramError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("_built")
@pytest.mark.parametrize("kind", installed())
def test_rows_have_every_field(
    valkey: TestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    file = tmp_path / "rows.json"
    where = ["--host", valkey.host, "--port", str(valkey.port), "--num-workers", "2"]
    options = ["--client-type", kind, "--batch", "4", "--json", str(file)]
    assert main(["bench", "client", *where, *options, *SMALL]) == 0
    out = capsys.readouterr().out
    for op, pattern in LINES.items():
        assert re.search(pattern, out, re.MULTILINE), (op, out)
    assert [line.partition(":")[0] for line in out.splitlines()[:4]] == [
        "command",
        "machine",
        "versions",
        "server",
    ]
    measured = json.loads(file.read_text())
    ways = [kind, "native-unix"] if kind == "native" else [kind]  # this host has both
    ops = ("set", "get", "exists")
    assert {(row["client"], row["op"]) for row in measured} == {(w, o) for w in ways for o in ops}
    assert ("Unix socket, GET of 0.25 MiB: " in out) == (kind == "native")
    rows = {row["op"]: row for row in measured if row["client"] == ways[-1]}
    run = rows["set"]["run"]
    assert run["machine"]["cores"] >= 1
    assert {"io-threads", "maxmemory", "maxmemory-policy", "save", "allocator"} <= set(
        run["server"]
    )
    assert list(rows) == ["set", "get", "exists"]
    for row in rows.values():
        assert set(FIELDS) <= set(row)
        assert (row["chunk_bytes"], row["error"]) == (1 << 18, None)
        assert row["server"] == f"valkey {valkey.version}"
        assert row["p50_ms"] <= row["p99_ms"]
    for op in ("set", "get"):
        assert all(rows[op][name] > 0 for name in FIELDS[5:]), rows[op]
        rates, costs = rows[op]["rates"], rows[op]["costs"]
        assert statistics.median(rates) == rows[op]["gbps"]
        assert statistics.median(costs) == rows[op]["client_cpu_s_per_gb"]
        for name in ("floor", "floor_cpu"):  # of two pairs, whose median is their mean
            found = rows[op][f"{name}_interval"]
            assert found["low"] <= rows[op][f"{name}_ratio"] <= found["high"]
            assert sum((found["low"], found["high"])) / 2 == rows[op][f"{name}_ratio"]
    assert rows["get"]["verified_bytes"] == 3 * 6 << 18, "every byte of every round, warm-up too"
    assert valkey.cli("DBSIZE") == 0, "nothing is left behind"


@pytest.mark.usefixtures("_built")
def test_rows_over_tls(
    tls_server: TestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tls_server.tls is not None
    ca_file = tls_server.tls.client_settings["tls_ca_file"]
    url = f"{tls_server.tls_url}?tls_ca_file={ca_file}&connections=2"
    wire = int(tls_server.info("stats")["total_net_output_bytes"])
    measured, rows = _compared(url, tmp_path)
    assert {"pure", "redis-py", "redis-py-async"} <= measured
    assert not measured & {"glide", "lmcache"}, "they are measured without TLS only"
    assert all(row["connections"] == 2 for row in rows if row["client"] == "native")
    assert int(tls_server.info("stats")["total_net_output_bytes"]) - wire > 6 << 18
    assert tls_server.cli("DBSIZE") == 0
    assert main(["bench", "client", "--url", tls_server.tls_url, "--client-type", "pure"]) == 1
    assert "certificate is refused" in capsys.readouterr().err


@pytest.mark.usefixtures("_built")
def test_rows_over_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    measured, rows = _compared(f"{cluster.url}?connections=2", tmp_path)
    assert {"native", "redis-py"} <= measured
    assert not measured & {"pure", "redis-py-async"}, "they are measured on one server"
    assert all(row["connections"] == 6 for row in rows if row["client"] == "native")
    assert rows[0]["run"]["server"]["shards"] == "3"
    assert sum(node.cli("DBSIZE") for node in cluster.nodes) == 0


def test_rows_behind_sentinels(sentinels: SentinelGroup, tmp_path: Path) -> None:
    measured, _ = _compared(sentinels.url, tmp_path, "--no-floor")
    assert {"pure", "redis-py", "redis-py-async"} <= measured
    assert sentinels.master().cli("DBSIZE") == 0


def _compared(url: str, tmp_path: Path, *options: str) -> tuple[set[str], list[dict[str, Any]]]:
    """Every client that can be measured there, and their rows, all of which have figures."""
    file = tmp_path / "rows.json"
    arguments = ["--url", url, "--compare", "all", "--write", "--read", "--json", str(file)]
    assert main(["bench", "client", *arguments, *options, *SMALL]) == 0
    rows = json.loads(file.read_text())
    assert all(row["gbps"] > 0 for row in rows)
    read = [row for row in rows if row["op"] == "get"]
    assert all(row["verified_bytes"] == 3 * 6 << 18 for row in read)
    if not options:
        assert any(row["floor_ratio"] for row in rows)
    return {row["client"] for row in rows}, rows


@pytest.mark.parametrize("kind", ["redis-py", "pure", *(["native"] if NATIVE else [])])
def test_a_wrong_byte_leaves_no_figure(
    valkey: TestServer,
    proxied: Callable[[TestServer], FaultProxy],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    proxy = proxied(valkey)
    fault = proxy.flip(100_000)  # INFO replies end long before; the first value does not
    file = tmp_path / "rows.json"
    options = ["--client-type", kind, "--read", "--no-floor", "--json", str(file)]
    assert main(["bench", "client", "--url", proxy.url, *options, *SMALL]) == 1
    fault.wait_fired()
    out = capsys.readouterr().out
    assert not re.search(LINES["get"], out, re.MULTILINE)
    assert f"Batch GET: no figure for {kind}: CorruptError" in out
    (row,) = json.loads(file.read_text())
    assert (row["gbps"], row["p50_ms"], row["verified_bytes"]) == (None, None, 0)
    assert "wrong from byte" in row["error"]


class Liar(ThreadedClient):
    """redis-py, but one byte of one value of each batch is stored as another."""

    def set_batch(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        wrong = bytearray(values[0])
        wrong[-1] ^= 0x80
        super().set_batch(keys, [wrong, *values[1:]])


def test_a_set_that_stores_another_byte_leaves_no_figure(
    valkey: TestServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_liar(config: ClientConfig, connections: int | None) -> Liar:
        return Liar("liar", lambda: redis.Redis(**redis_arguments(config)), 2)

    monkeypatch.setitem(CLIENT_TYPES, "redis-py", open_liar)
    options = ["--client-type", "redis-py", "--write", "--exists", "--no-floor"]
    assert main(["bench", "client", "--url", valkey.url, *options, *SMALL]) == 1
    out = capsys.readouterr().out
    assert not re.search(LINES["set"], out, re.MULTILINE)
    assert "Batch SET: no figure for liar: CorruptError" in out
    assert re.search(LINES["exists"], out, re.MULTILINE), "the other rows keep their figures"


def test_compare_leaves_out_what_is_not_installed_and_json_goes_to_stdout(
    valkey: TestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--compare", "all", "--no-floor", "--write", "--read", "--json", "-"]
    assert main(["bench", "client", "--url", valkey.url, *options, *SMALL]) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)
    measured = {row["client"] for row in rows}
    assert measured == {*installed(), "native-unix"}
    measured.remove("native-unix")
    assert measured | set(rows[0]["run"]["skipped"]) == set(COMPARED)
    assert "Batch SET: " in said.err


def test_sweep_concurrent_and_plot(
    valkey: TestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, plot = tmp_path / "rows.json", tmp_path / "plot.png"
    options = ["--client-type", "redis-py", "--no-floor", "--read", "--write", "--concurrent"]
    options += ["--sweep", "workers", "--json", str(file)]
    if importlib.util.find_spec("matplotlib"):
        options += ["--plot", str(plot)]
    assert main(["bench", "client", "--url", valkey.url, *options, *SMALL]) == 0
    rows = json.loads(file.read_text())
    assert [row["connections"] for row in rows if row["op"] == "get"] == [1, 2, 4, 8, 16]
    assert {row["op"] for row in rows} == {"set", "get", "concurrent-set", "concurrent-get"}
    assert all(row["verified_bytes"] > 0 for row in rows if row["op"].endswith("get"))
    if "--plot" in options:
        assert plot.read_bytes().startswith(b"\x89PNG")
    assert re.search(r"^Concurrent SET: \d+\.\d\d GB/s  ", capsys.readouterr().out, re.MULTILINE)


def test_what_is_missing_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, program in MOVED.items():
        assert main(["bench", "client", "--store", "embedded", "--client-type", kind]) == 2
        assert f"kvferry bench {program}" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "glide_sync", None)
    assert main(["bench", "client", "--store", "embedded", "--client-type", "glide"]) == 2
    assert "pip install valkey-glide-sync" in capsys.readouterr().err
    assert main(["bench", "client", "--port", "1", "--client-type", "redis-py"]) == 1
    assert "cannot connect to localhost:1" in capsys.readouterr().err
    assert main(["bench", "client", "--url", "redis://h", "--port", "1"]) == 2


def test_a_password_is_not_repeated(
    start: Callable[..., TestServer],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = start("valkey", password="very-secret")
    arguments = ["bench", "client", "--url", server.url, "--client-type", "redis-py", "--exists"]
    monkeypatch.setattr("sys.argv", ["kvferry", *arguments])
    assert main([*arguments, *SMALL]) == 0
    said = capsys.readouterr()
    assert "redis://***@127.0.0.1" in said.out
    assert "very-secret" not in said.out + said.err


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("_built")
@pytest.mark.skipif(not NATIVE, reason="the bars are the native client's, which is not built")
def test_quick_bars_measure_every_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "build" / "bench.json"
    assert measure(["--quick", "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["quick"] is True
    names = [bar["name"] for bar in document["bars"]]
    assert len(names) == len(set(names)) > 2 * len(GROUPS)
    unmeasured = [bar for bar in document["bars"] if bar["value"] is None and not bar["skipped"]]
    assert unmeasured == []
    for said in (
        *("GET", "CPU: SET", "lookup of", "memory beside", "reserve + evict", "directory"),
        *("hashing", "files: SET", "retrieve of", "store + retrieve of", "first contact"),
        *("EXISTS p99 beside", "1,000 EXISTS, 8 conn, +0 ms", "Python cost of GET"),
    ):
        assert any(name.startswith(said) for name in names), said
    assert "these are no figures" in capsys.readouterr().out


@pytest.mark.skipif(not NATIVE, reason="the bars are the native client's, which is not built")
def test_strict_bars_say_no_when_one_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import throughput
    from benchmarks.bars import Target

    monkeypatch.setattr(throughput, "_PURE", Target(">=", 1e6, "x redis-py"))
    command = ["--quick", "--only", "pure_client"]
    assert measure(command) == 0
    assert measure([*command, "--strict"]) == 1


@pytest.mark.skipif(not NATIVE, reason="the native extension is not built")
def test_calls_of_the_native_client_are_told_per_value(
    valkey: TestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    where = ["--host", valkey.host, "--port", str(valkey.port), "--json", str(file)]
    assert main(["bench", "client", *where, *SMALL, "--no-floor", "--read", "--calls"]) == 0
    assert re.search(
        r"Calls a value, GET: [\d.]+ wake-ups, [\d.]+ receives", capsys.readouterr().out
    )
    row = json.loads(file.read_text())[0]
    assert row["receives"] >= 1, "a value takes a call at least"
    assert row["sends"] > 0
    assert row["wake_ups"] > 0
