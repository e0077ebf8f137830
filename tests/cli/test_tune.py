"""`kvferry tune`: what it writes, when it writes nothing, and what it says."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvferry.cli.main import main
from kvferry.config import ClientConfig, load_client_config
from support.proxy import FaultProxy
from support.servers import TestServer

if importlib.util.find_spec("kvferry._native") is None:
    pytest.skip("tune measures the native client, which is not built", allow_module_level=True)

SMALL = ["--mib", "1", "--budget-s", "1", "--connections", "1,2", "--workers", "1"]
SMALL += ["--chunks", "0.25"]
BEFORE = "# a comment\ncache: {name: e}\nclient: {db: 0, password: very-secret, workers: 2}\n"


@pytest.fixture(autouse=True)
def _no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVFERRY_CONFIG_FILE", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "kvferry.yaml"
    file.write_text(BEFORE)
    file.chmod(0o600)
    return file


def run(*words: object) -> int:
    return main(["tune", *map(str, words), *SMALL])


def test_the_best_settings_are_written_beside_what_is_there(
    valkey: TestServer, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(valkey.url, "--config", file) == 0
    said = capsys.readouterr()
    assert f"written to {file}" in said.out
    assert "very-secret" not in said.out + said.err
    document: dict[str, Any] = yaml.safe_load(file.read_text())
    assert list(document) == ["cache", "client", "tuned"]
    assert document["cache"] == {"name": "e"}
    client, tuned = document["client"], document["tuned"]
    assert (client["db"], client["password"], client["workers"]) == (0, "very-secret", 1)
    assert client["connections"] in (1, 2)
    assert (tuned["chunk_bytes"], tuned["stripe_bytes"]) == (1 << 18, 4 << 20)
    assert tuned["server"] == f"valkey {valkey.version}"
    assert tuned["address"] == f"{valkey.host}:{valkey.port}"
    assert tuned["get_gbps"] > 0 < tuned["set_gbps"]
    assert tuned["machine"]["cores"] >= 1
    loaded = load_client_config(file, environ={})
    assert (loaded.connections, loaded.workers) == (client["connections"], 1)
    assert os.listdir(file.parent) == [file.name]
    assert valkey.cli("DBSIZE") == 0


def test_json_names_what_was_measured(
    valkey: TestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.yaml"
    longer = ["--budget-s", "3"]  # that a busy machine leaves time for a step
    assert main(["tune", valkey.url, "--config", str(file), "--json", *SMALL, *longer]) == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert result["written"] == str(file)
    document = yaml.safe_load(file.read_text())
    assert {name: result[name] for name in ("client", "tuned")} == document
    assert set(document["client"]) == {"connections", "workers"}
    assert result["verified_bytes"] >= result["turns"] << 20
    assert result["before"]["workers"] == 1
    assert "points against" in said.err, "talk goes to standard error"


def test_the_server_may_stand_in_the_file_or_the_environment(
    start: Callable[..., TestServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start("valkey", password="very-secret")
    file = tmp_path / "kvferry.yaml"
    file.write_text(f"client:\n  host: {server.host}\n  port: {server.port}\n")
    monkeypatch.setenv("KVFERRY_CONFIG_FILE", str(file))
    assert run() == 1, "no password"
    monkeypatch.setenv("KVFERRY_RESP_PASSWORD", "very-secret")
    assert run() == 0
    document = yaml.safe_load(file.read_text())
    assert document["client"]["port"] == server.port
    assert "tuned" in document
    assert "very-secret" not in file.read_text(), "secrets of the environment stay there"


def test_a_dry_run_writes_nothing_and_needs_no_file(
    valkey: TestServer, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(valkey.url, "--dry-run", "--config", file) == 0
    assert "nothing was written" in capsys.readouterr().out
    assert file.read_text() == BEFORE
    assert run(valkey.url, "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["written"] is None
    assert run(valkey.url) == 2
    assert "--config" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--connections", "1,x"], "no list like 1,2,4"),
        (["--connections", "0"], "no list like 1,2,4"),
        (["--chunks", "1,1"], "each once"),
        (["--chunks", "0.001"], "no list like 1,2,4"),
        (["--budget-s", "0"], "0"),
        (["redis://h?conections=1"], "'connections'"),
    ],
)
def test_what_cannot_be_is_usage(
    words: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--dry-run", *words]) == 2
    assert advice in capsys.readouterr().err


def test_a_file_that_is_wrong_is_found_before_measuring(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("client: {conections: 4, password: very-secret}\n")
    assert run("redis://nowhere.invalid", "--config", file) == 2
    said = capsys.readouterr().err
    assert "'connections'" in said
    assert "very-secret" not in said


def test_a_wrong_byte_writes_nothing(
    valkey: TestServer,
    proxied: Callable[[TestServer], FaultProxy],
    file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    proxy = proxied(valkey)
    fault = proxy.flip(300_000)
    assert run(proxy.url, "--config", file) == 1
    fault.wait_fired()
    assert "wrong from byte" in capsys.readouterr().err
    assert file.read_text() == BEFORE
    assert valkey.cli("DBSIZE") == 0


def test_a_server_without_room_is_refused_before_anything_is_stored(
    start: Callable[..., TestServer], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start("valkey", "--maxmemory", "24mb", "--maxmemory-policy", "allkeys-lru")
    words = [server.url, "--config", str(file), "--mib", "16"]
    assert main(["tune", *words, "--chunks", "0.5,1"]) == 1
    assert "lower --mib" in capsys.readouterr().err
    assert server.cli("DBSIZE") == 0
    assert file.read_text() == BEFORE


def test_ctrl_c_leaves_file_and_server_as_they_were(valkey: TestServer, file: Path) -> None:
    command = [sys.executable, "-m", "kvferry.cli.main", "tune", valkey.url, "--budget-s", "60"]
    with subprocess.Popen(
        [*command, "--mib", "4", "--config", str(file)], stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while valkey.cli("DBSIZE") == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=200)
    assert process.returncode == 130, said
    assert "interrupted" in said
    assert valkey.cli("DBSIZE") == 0
    assert file.read_text() == BEFORE
    assert os.listdir(file.parent) == [file.name]


def test_the_defaults_of_the_command_are_those_of_the_search() -> None:
    from kvferry_lab.cli.tune import tune
    from kvferry_lab.tune.run import Tune

    plain = Tune(config=ClientConfig())
    options: dict[str | None, Any] = {option.name: option.default for option in tune.params}
    assert options["budget_s"] == plain.budget_s
    assert options["get_weight"] == plain.get_weight
    assert options["mib"] << 20 == plain.size_bytes
