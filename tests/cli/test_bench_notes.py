"""The commands of the first notes: their clients, flags and lines, and programs of others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvferry.cli.main import main
from kvferry.config import ClientConfig
from kvferry_lab.bench.client_plan import NOTED_TYPES, ClientPlan
from kvferry_lab.bench.clients import open_client
from kvferry_lab.bench.measure import Row
from kvferry_lab.bench.report import ladder, write_plot
from kvferry_lab.bench.run import bytes_max
from support.servers import TestServer

SMALL = ["--size-mb", "0.25", "--num-chunks", "6", "--repeat", "2", "--no-floor"]
READ = r"^Read 0\.001465 GB in [\d.e-]+ seconds, which is: [\d.e-]+ GB/s$"
WROTE = r"^Wrote 0\.001465 GB in [\d.e-]+ seconds, which is: [\d.e-]+ GB/s$"


def bench(server: TestServer, file: Path, *options: str) -> list[dict[str, Any]]:
    where = ["--host", server.host, "--port", str(server.port), "--json", str(file)]
    assert main(["bench", "client", *where, *SMALL, *options]) == 0
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    return rows


@pytest.mark.parametrize("kind", NOTED_TYPES)
def test_the_types_of_the_notes_have_one_command_on_its_way(
    valkey: TestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    rows = bench(valkey, tmp_path / "rows.json", "--client-type", kind, "--read")
    out = capsys.readouterr().out
    assert re.search(READ, out, re.MULTILINE), out
    (row,) = rows
    assert (row["client"], row["op"], row["batch"], row["connections"]) == (kind, "get", 1, 1)
    assert row["verified_bytes"] == 3 * 6 << 18
    assert valkey.cli("DBSIZE") == 0


@pytest.mark.parametrize("kind", NOTED_TYPES)
def test_concurrent_is_all_commands_of_what_was_asked_for_at_once(
    valkey: TestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    options = ["--client-type", kind, "--concurrent", "--num-workers", "3"]
    rows = bench(valkey, tmp_path / "rows.json", *options, "--read")
    assert [row["op"] for row in rows] == ["get"], "nobody asked for SET and EXISTS"
    assert rows[0]["batch"] == 6
    capsys.readouterr()
    rows = bench(valkey, tmp_path / "rows.json", *options, "--read", "--write")
    assert [row["op"] for row in rows] == ["set", "get", "concurrent-set", "concurrent-get"]
    out = capsys.readouterr().out
    assert len(re.findall(READ, out, re.MULTILINE)) == 2, out
    assert len(re.findall(WROTE, out, re.MULTILINE)) == 2, out
    assert "\nAll tests passed\n" in out


@pytest.mark.parametrize(("kind", "pools"), [("single-pool", 1), ("multi-pool", 10)])
def test_a_pool_has_as_many_connections_as_it_is_given(
    valkey: TestServer, kind: str, pools: int
) -> None:
    keys = [f"k{index}" for index in range(60)]
    before = int(valkey.info("stats")["total_connections_received"])
    client: Any = open_client(kind, ClientConfig.from_url(valkey.url), 23)
    try:
        client.set_batch(keys, [key.encode() for key in keys])
        assert client.get_batch(keys, [bytearray(3)] * 60) == [key.encode() for key in keys]
        assert client.exists_batch([*keys, "none"]) == 60
        made = int(valkey.info("stats")["total_connections_received"]) - before - 1  # the asker
        assert pools <= made <= client.connections == 23
        assert len(client._links) == pools
    finally:
        client.close()
        valkey.cli("DEL", *keys)


def test_without_the_floor_program_there_is_one_line(
    valkey: TestServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KVFERRY_BIN_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    options = ["--client-type", "pure", "--read", "--floor"]
    (row,) = bench(valkey, tmp_path / "rows.json", *options)
    assert (row["error"], row["floor_ratio"]) == (None, None)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "kvferry-floor" in line]
    assert line.startswith("skipped:  floor: ")


def rows_of_a_ladder() -> list[Row]:
    rates = {"native": 4.0, "redis-py": 0.5, "pure": 3.0}
    return [
        Row(client=client, op=op, chunk_bytes=4 << 20, connections=1, batch=1, rounds=1,
            gbps=rate, floor_gbps=4.5 + rate / 10)
        for client, rate in rates.items() for op in ("set", "get")
    ]  # fmt: skip


def test_the_ladder_goes_up_to_the_floor() -> None:
    found = ladder(rows_of_a_ladder())
    assert list(found) == ["set", "get"]
    assert list(found["get"].items()) == [
        ("redis-py", 0.5),
        ("pure", 3.0),
        ("native", 4.0),
        ("floor", 4.9),
    ]


def test_a_store_of_our_own_has_room_for_values_on_their_way() -> None:
    """Eight replies of 32 MiB at once pushed out the values that they were made of."""
    plan = ClientPlan(size_mb=32, num_chunks=8, read=True)
    assert bytes_max(plan) == 2 * 2 * 8 * (32 << 20)  # our keys and the floor's


def test_no_more_connections_than_keys(valkey: TestServer, tmp_path: Path) -> None:
    for kind, wanted in (("single-pool", 6), ("multi-pool", 6), ("custom", 6)):
        options = ["--client-type", kind, "--read", "--concurrent"]
        (row,) = bench(valkey, tmp_path / "rows.json", *options)
        assert row["connections"] == wanted


def test_a_plot_without_figures_is_empty(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_plot(str(tmp_path / "empty.png"), [], None)
    assert (tmp_path / "empty.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_sweep_the_ladder_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "ladder.svg"
    write_plot(str(file), rows_of_a_ladder(), None)
    text = file.read_text()
    places = [text.index(f">{name}<") for name in ("redis-py", "pure", "native", "floor")]
    assert places == sorted(places)
    assert "GB/s, values of 4 MiB" in text
