"""kvferry-floor and kvferry-delay against a real server."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from kvferry.config import ClientConfig
from kvferry_lab.bench.programs import DelayProcess, FloorProcess, ProgramError, find_program
from kvferry_lab.bench.server_probe import ServerProbe
from support import clock
from support.cluster import Cluster
from support.servers import TestServer

SIZE_BYTES = 100_003


@pytest.fixture(autouse=True)
def _built() -> None:
    try:
        find_program("floor")
        find_program("delay")
    except ProgramError as error:
        pytest.skip(str(error))


@pytest.fixture
def config(valkey: TestServer) -> ClientConfig:
    return ClientConfig.from_url(valkey.url)


@pytest.fixture
def probe(config: ClientConfig) -> Iterator[ServerProbe]:
    with ServerProbe(config) as probe:
        yield probe


@pytest.mark.parametrize("waitall", [False, True])
@pytest.mark.parametrize("op", ["get", "set"])
def test_floor_moves_and_counts_what_it_says(
    config: ClientConfig, probe: ServerProbe, op: str, waitall: bool
) -> None:
    with FloorProcess(
        config, op=op, size_bytes=SIZE_BYTES, connections=3, ops=10, waitall=waitall
    ) as floor:
        floor.round()  # it is connected, and its keys are written
        before = probe.info("stats")
        row = floor.round()
        after = probe.info("stats")
    moved = "total_net_output_bytes" if op == "get" else "total_net_input_bytes"
    overhead_bytes = 16_384  # headers, keys and INFO itself
    assert 0 <= int(after[moved]) - int(before[moved]) - 10 * SIZE_BYTES < overhead_bytes
    assert row["op"] == op
    assert row["bytes"] == 10 * SIZE_BYTES
    assert (row["connections"], row["ops"], row["buffers"]) == (3, 10, 10)
    assert row["waitall"] is waitall
    assert row["gbps"] == pytest.approx(row["bytes"] / row["wall_s"] / 1e9, rel=0.05)
    assert row["cpu_s"] == pytest.approx(row["cpu_user_s"] + row["cpu_sys_s"], abs=1e-5)
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["wall_s"] * 1e3
    values = {probe.get(key) for key in floor.keys}
    assert {len(value or b"") for value in values} == {SIZE_BYTES}
    assert len(values) == 10, "the buffers of different keys are different"


def test_floor_over_a_unix_socket_and_with_a_password(start: Callable[..., TestServer]) -> None:
    password = "p w:/\u00e9"
    server = start("valkey", password=password)
    for where in ({"port": server.port}, {"unix_path": server.unix_path}):
        config = ClientConfig(host="127.0.0.1", password=password, **where)
        with FloorProcess(config, op="set", size_bytes=1000, connections=1, ops=2) as floor:
            assert floor.round()["bytes"] == 2000
    wrong = ClientConfig(host="127.0.0.1", port=server.port, password="wrong")
    with (
        FloorProcess(wrong, op="set", size_bytes=1000, connections=1, ops=2) as floor,
        pytest.raises(ProgramError, match="WRONGPASS"),
    ):
        floor.round()


@pytest.mark.parametrize("op", ["get", "set"])
def test_floor_over_tls(tls_server: TestServer, op: str) -> None:
    assert tls_server.tls is not None
    config = ClientConfig.from_url(tls_server.tls_url, **tls_server.tls.client_settings)
    for read_ahead in (False, True):
        with FloorProcess(
            config, op=op, size_bytes=SIZE_BYTES, connections=2, ops=6, read_ahead=read_ahead
        ) as floor:
            row = floor.round()
        assert row["bytes"] == 6 * SIZE_BYTES
        assert row["tls"].startswith("TLSv1.3 ")
        assert floor.variant == ("read ahead" if read_ahead else "plain")
        assert {tls_server.cli("STRLEN", key) for key in floor.keys} == {SIZE_BYTES}
    distrustful = config.replace(tls_ca_file=__file__)
    with (
        FloorProcess(distrustful, op=op, size_bytes=9, connections=1, ops=1) as floor,
        pytest.raises(ProgramError, match="--tls-ca"),
    ):
        floor.round()


def test_floor_over_a_cluster_reads_keys_that_are_there(cluster: Cluster) -> None:
    config = ClientConfig.from_url(cluster.url)
    options: dict[str, Any] = {
        "size_bytes": SIZE_BYTES,
        "connections": 3,
        "ops": 12,
        "prefix": "shared:",
    }
    with FloorProcess(config, op="set", **options) as floor:
        assert floor.round()["shards"] == 3
    value = b"other" * 20_000 + b"end"
    for key in floor.keys:
        node = cluster.node_of(key)
        assert node.cli("STRLEN", key) == SIZE_BYTES
        node.cli("SET", key, value)
    with FloorProcess(config, op="get", existing=True, **options) as floor:
        assert floor.round()["bytes"] == 12 * SIZE_BYTES
    assert {cluster.node_of(key).cli("GET", key) for key in floor.keys} == {value}


def test_floor_gives_no_figure_for_a_value_of_another_length(
    config: ClientConfig, probe: ServerProbe
) -> None:
    with FloorProcess(
        config, op="get", size_bytes=SIZE_BYTES, connections=1, ops=4, prefix="changed:"
    ) as floor:
        assert floor.round()["bytes"] == 4 * SIZE_BYTES
        for wrong in (b"x" * (SIZE_BYTES + 7), b"x" * 99):
            probe.set(floor.keys[2], wrong)
        with pytest.raises(ProgramError, match="unexpected reply"):
            floor.round()


@pytest.mark.parametrize("split", [False, True])
def test_delay_is_added_once_to_each_round_trip_and_to_a_pipeline(
    config: ClientConfig, split: bool
) -> None:
    rtt_s = 0.1
    with (
        DelayProcess(config, rtt_ms=rtt_s * 1e3, split=split) as proxy,
        closing(socket.create_connection(("127.0.0.1", proxy.port))) as link,
        link.makefile("rb") as replies,
    ):
        start, began = time.monotonic(), clock.now_s()
        for _ in range(3):
            link.sendall(b"PING\r\n")
            assert replies.readline() == b"+PONG\r\n"
        assert 3 * rtt_s <= time.monotonic() - start
        assert clock.now_s() - began < 6 * rtt_s
        start, began = time.monotonic(), clock.now_s()
        for _ in range(30):  # spread over time, so that they are pieces of their own
            link.sendall(b"PING\r\n")
            time.sleep(0.001)
        assert [replies.readline() for _ in range(30)] == [b"+PONG\r\n"] * 30
        assert rtt_s + 0.03 <= time.monotonic() - start
        assert clock.now_s() - began < 10 * rtt_s, "30 round trips one by one would take 30 RTT"


@pytest.mark.parametrize("split", [False, True])
def test_delay_passes_large_values_unchanged_both_ways(
    config: ClientConfig, probe: ServerProbe, split: bool
) -> None:
    value = bytes(range(256)) * (5 << 12)  # 5 MiB
    with DelayProcess(config, rtt_ms=2, split=split) as proxy:
        far = ClientConfig(host="127.0.0.1", port=proxy.port)
        with ServerProbe(far) as through, ServerProbe(far) as other:
            through.set("large", value)
            assert probe.get("large") == value
            assert through.get("large") == value
            assert other.get("large") == value
        with FloorProcess(far, op="get", size_bytes=1 << 20, connections=8, ops=32) as floor:
            assert floor.round()["bytes"] == 32 << 20


def test_delay_passes_the_end_of_a_connection_on(config: ClientConfig) -> None:
    with DelayProcess(config, rtt_ms=1) as proxy:
        with closing(socket.create_connection(("127.0.0.1", proxy.port))) as link:
            link.sendall(b"PING\r\nQUIT\r\n")
            received = b""
            while piece := link.recv(100):
                received += piece
        assert received == b"+PONG\r\n+OK\r\n"


def test_programs_end_with_their_stdin(config: ClientConfig) -> None:
    with DelayProcess(config, rtt_ms=1) as proxy:
        pass
    assert proxy._process.returncode == 0
    with FloorProcess(config, op="set", size_bytes=100, connections=1, ops=1) as floor:
        floor.round()
    assert floor._process.returncode == 0


def test_a_missing_program_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_BIN_DIR", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProgramError, match="make native"):
        find_program("floor")
