"""`kvferry lab latency`: real links, a real run of a few requests, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kvferry.base.errors import UnavailableError
from kvferry.cli.main import main
from kvferry.client.pure.client import PureRedisClient
from kvferry.client.pure.connection import Disconnected
from kvferry.config import ClientConfig
from kvferry_lab.bench.server_probe import ServerProbe
from kvferry_lab.latency.cell_figures import read_rows
from kvferry_lab.latency.distance import FarStore, far_store, proxied
from kvferry_lab.latency.experiment import LatencyPlan, read_commands
from kvferry_lab.latency.run import remove_left, run_latency
from kvferry_lab.servers.lab_server import free_port
from support.serve_demo import DemoServer
from support.servers import TestServer
from support.stamps import until

ROOT = os.geteuid() == 0
KINDS = [
    "proxy",
    pytest.param("tun", marks=pytest.mark.skipif(not ROOT, reason="a TUN link takes root")),
]
RTT_MS = 40.0
CHILD = """
import sys, time
from pathlib import Path
from kvferry_lab.latency.distance import far_store
from kvferry_lab.servers.lab_server import served
with far_store(sys.argv[1], Path(sys.argv[2])) as far, served("--no-cache") as url:
    print(far.url, url, flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=KINDS)
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FarStore]:
    try:
        with far_store(request.param, tmp_path) as far:
            assert far.kind == request.param
            yield far
    except UnavailableError as error:
        pytest.skip(str(error))


def test_a_link_delays_both_ways_keeps_values_and_writes_down_what_passes(far: FarStore) -> None:
    value, got = os.urandom(3 << 20), bytearray(3 << 20)
    with PureRedisClient.from_url(far.url) as client:
        far.set_rtt(RTT_MS)
        began = time.monotonic()
        client.set("a-key", value)
        assert client.get("a-key", got)
        ended = time.monotonic()
        assert got == value
        assert ended - began >= 2 * RTT_MS / 1e3
        up, down = far.bytes_passed()
        assert min(up, down) >= len(value)
        (command,) = (one for one in read_commands(far.log) if one.key == "a-key")
        assert command.name == "GET"
        assert began + RTT_MS / 1e3 <= command.at_s <= ended - RTT_MS / 1e3
        far.set_rtt(0)
        assert client.exists("a-key")
    assert far.gbps is not None
    assert far.gbps > 0


def test_connections_are_made_anew_at_another_distance(far: FarStore) -> None:
    with ServerProbe(ClientConfig.from_url(far.url)) as probe:
        probe.command("SET", "a-key", "a value")
        far.set_rtt(RTT_MS)
        far.reconnect()
        with pytest.raises((OSError, Disconnected)):
            probe.command("GET", "a-key")


@pytest.mark.parametrize("kind", [pytest.param("proxy", marks=pytest.mark.full), KINDS[1]])
def test_nothing_is_left_of_a_run_that_was_killed(kind: str, tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, kind, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        words = child.stdout.readline().split()
        if not words:
            pytest.skip("no such link here")
        store, server = (urlsplit(word) for word in words)
        assert connects(store.hostname, store.port)
        assert connects(server.hostname, server.port)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    until(lambda: not connects(server.hostname, server.port), 60)
    if kind == "proxy":
        until(lambda: not connects(store.hostname, store.port), 60)
    else:
        until(lambda: not has_address(f"{str(store.hostname)[:-1]}1"), 60)


def test_a_run_removes_the_files_of_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    killed, living, other = (
        tmp_path / f"kvferry-latency-{name}" for name in (f"{ended.pid}-a", f"{os.getpid()}-b", "c")
    )
    for folder in (killed, living, other):
        folder.mkdir()
        (folder / "link.log").touch()
    remove_left()
    assert [folder.exists() for folder in (killed, living, other)] == [False, True, True]


def connects(host: str | None, port: int | None) -> bool:
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex((host or "", port or 0)) == 0


def has_address(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


@pytest.mark.full
def test_a_run_counts_the_waits_of_both_clients_and_writes_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        *("lab", "latency", "--link", "proxy", "--results-dir", str(tmp_path / "result")),
        *("--rtt-ms", "0,50", "--clients", "ours,in-turn", "--workloads", "miss,hit"),
        *("--prompt-tokens", "1100", "--concurrency", "1", "--requests", "1"),
        *("--output-tokens", "3", "--prefill-tokens-per-s", "2000"),
    ]
    assert main(words) == 0
    said = capsys.readouterr().out
    rows = read_rows(tmp_path / "result" / "latency.json")
    assert not any(row.failed for row in rows)
    waits = {(row.client, row.workload): row.waits for row in rows if row.rtt_ms}
    assert waits["ours", "miss"] == 0
    assert waits["in-turn", "miss"] == 1
    assert waits["in-turn", "hit"] == 4 + 2  # chunks of 256 tokens
    assert (waits["ours", "hit"] or 9) <= 2
    hits = [row.hit_share or 0.0 for row in rows if row.workload == "hit"]
    assert min(hits) > 0.9
    assert "| 1000 | 2.3079 |" in said  # the published rows stand beside it
    assert (tmp_path / "result" / "output.png").read_bytes()[:4] == b"\x89PNG"
    assert "flowchart LR" in (tmp_path / "result" / "README.md").read_text()


def test_the_client_that_asks_in_turn_writes_a_prompt_at_once(
    tmp_path: Path, store: TestServer
) -> None:
    """Else 160 chunks at 1,000 ms are on their way for minutes, and the cell after that waits."""
    with proxied(ClientConfig.from_url(store.url), free_port(), tmp_path) as far:
        settings = {"chunk_size": 64, "local_cpu": False, "remote_url": far.url}
        words = ("--prefill-tokens-per-s", "10000", "--bytes-per-token", "512")
        with DemoServer(tmp_path, "--client", "in-turn", *words, config=settings) as server:
            far.set_rtt(200)
            server.ask("/v1/completions", {"prompt": "hello " * 200, "max_tokens": 1})
            with ServerProbe(ClientConfig.from_url(store.url)) as probe:
                until(lambda: probe.command("DBSIZE") == 2 * 18, 60)
            far.bytes_passed()
            lines = [line.split() for line in far.log.read_text().splitlines()]
    sent = sorted(int(line[0]) / 1e9 for line in lines if line[2] == "SET")
    assert len(sent) == 36
    assert sum(after - before > 0.1 for before, after in pairwise(sent)) <= 2


def test_another_server_is_measured_behind_a_proxy_of_its_store(
    tmp_path: Path, store: TestServer
) -> None:
    """The server was started first: the proxy is where it looks for its store."""
    port = free_port()
    settings = {
        "chunk_size": 64,
        "local_cpu": False,
        "remote_url": f"redis://127.0.0.1:{port}?same_host=tcp",
    }
    with DemoServer(
        tmp_path, "--prefill-tokens-per-s", "1000", "--bytes-per-token", "2048", config=settings
    ) as server:
        words = [
            *("lab", "latency", "--base-url", f"{server.url}/v1", "--store", store.url),
            *("--listen", str(port), "--rtt-ms", "50", "--workloads", "miss"),
            *("--prompt-tokens", "200", "--concurrency", "1", "--requests", "2"),
            *("--output-tokens", "2", "--no-plot", "--results-dir", str(tmp_path / "result")),
        ]
        assert main(words) == 0
    found: dict[str, Any] = json.loads((tmp_path / "result" / "latency.json").read_text())
    (row,) = found["rows"]
    assert (row["client"], row["requests"], row["failed"]) == ("server", 2, 0)
    assert row["up_bytes"] > 128 * 2048
    assert found["link"] == "proxy"


def test_a_server_that_starts_behind_the_link_is_waited_for(
    tmp_path: Path, store: TestServer
) -> None:
    """Some connect to their store when they start, so the link has to be there first."""
    port, asked = free_port(), free_port()
    settings = {"remote_url": f"redis://127.0.0.1:{port}?same_host=tcp", "local_cpu": False}
    words = [
        *("lab", "latency", "--base-url", f"http://127.0.0.1:{asked}/v1", "--store", store.url),
        *("--listen", str(port), "--rtt-ms", "10", "--workloads", "miss", "--no-plot"),
        *("--prompt-tokens", "64", "--concurrency", "1", "--requests", "1"),
        *("--output-tokens", "1", "--results-dir", str(tmp_path / "result")),
    ]
    assert main(words) == 1  # nobody is there, and nobody said to wait
    with ThreadPoolExecutor(1) as pool:
        lab = pool.submit(main, [*words, "--wait-s", "60"])
        until(lambda: connects("127.0.0.1", port), 30)
        paced = ("--prefill-tokens-per-s", "1000", "--bytes-per-token", "2048")
        with DemoServer(tmp_path, *paced, "--port", str(asked), config=settings):
            assert lab.result(60) == 0


def test_the_cells_before_a_server_was_lost_are_kept(tmp_path: Path) -> None:
    """It is asked for its model before the prompts of each length."""
    settings = {"chunk_size": 64}
    words = ("--prefill-tokens-per-s", "1000", "--bytes-per-token", "2048")
    with DemoServer(tmp_path, *words, config=settings) as server:
        plan = LatencyPlan(
            base_url=f"{server.url}/v1",
            rtt_ms=(10.0,),
            workloads=("miss",),
            prompt_tokens=(64, 128),
            concurrency=(1, 2),
            requests=1,
            output_tokens=2,
        )

        def say(text: str) -> None:
            if "2 at a time" in text:
                server.kill()

        report = run_latency(plan, link="auto", store_url=None, listen_port=None, say=say)
    assert [(row.concurrency, row.failed) for row in report.rows] == [(1, 0), (2, 1)]
    assert server.url in report.stopped
    report.write(tmp_path / "result")
    assert "It ended before its last cell" in (tmp_path / "result" / "README.md").read_text()
    assert json.loads((tmp_path / "result" / "latency.json").read_text())["stopped"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--clients", "theirs"], "--clients: theirs is none of ours"),
        (["--rtt-ms", "0,far"], "is no list like 0,10,50"),
        (["--store", "redis://localhost"], "are for a server at --base-url"),
        (["--base-url", "http://localhost:1/v1"], "name one --rtt-ms"),
        (["--base-url", "http://localhost:1/v1", "--listen", "7000"], "belong together"),
    ],
)
def test_what_cannot_be_run_is_said(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "latency", "--no-plot", *words]) == 2
    assert why in capsys.readouterr().err


def test_a_port_that_is_taken_is_said(store: TestServer, tmp_path: Path) -> None:
    config = ClientConfig.from_url(store.url)
    with (
        pytest.raises(UnavailableError, match="in use"),
        proxied(config, config.port, tmp_path),
    ):
        pass
