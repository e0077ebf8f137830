"""`kvferry config`: effective values with sources, all problems, masked secrets, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvferry.cli.main import main
from support.config import SECRET

GOOD = f"""
client: {{connections: 4}}
cache:
  chunk_size: 128
  eviction_policy: arc
  remote_url: redis://writer:{SECRET}@cache-1/2
  stores:
    - type: plugin
      module_path: my.store
      class_name: Store
      params: {{token: {SECRET}}}
"""
BAD = """
chunk_size: 0
max_local_cpu_sise: 3
enable_p2p: true
numa_mode: auto
"""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVFERRY_CONFIG_FILE", "LMCACHE_CONFIG_FILE", "KVFERRY_RESP_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "engine.yaml"
    path.write_text(GOOD)
    path.chmod(0o600)
    return path


def test_show_prints_values_with_their_sources(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMCACHE_CHUNK_SIZE", "64")  # not read beside a file
    monkeypatch.setenv("KVFERRY_RETRIEVE_TIMEOUT_S", "3")
    assert main(["config", "show", str(file)]) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert ["chunk_size", "128", "file"] in lines
    assert ["retrieve_timeout_s", "3", "KVFERRY_RETRIEVE_TIMEOUT_S"] in lines
    assert ["eviction_policy", "ARC", "file"] in lines
    assert ["local_cpu", "true", "default"] in lines
    assert ["store", "redis", "redis", "at", "cache-1:6379", "file"] in lines
    assert ["password", "***"] in lines
    assert ["connections", "4"] in lines
    assert SECRET not in out + err
    assert err == ""


def test_show_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", str(file), "--json"]) == 0
    out, _ = capsys.readouterr()
    shown = json.loads(out)
    assert shown["settings"]["chunk_size"] == {"value": 128, "source": "file"}
    assert [store["name"] for store in shown["stores"]] == ["redis", "plugin"]
    assert shown["stores"][0]["password"] == "***"
    assert shown["stores"][1]["params"] == {"token": "***"}
    assert (shown["problems"], shown["file"]) == ([], str(file))
    assert SECRET not in out


def test_check_says_that_all_is_well(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: 0 problems\n"


def test_check_prints_every_problem(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(BAD)
    assert main(["config", "check", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == ["problem"] * 3 + ["note"]
    assert "did you mean 'max_local_cpu_size'?" in lines[1]
    assert lines[-1] == f"{file}: 3 problems"
    assert main(["config", "check", str(file), "--json"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert (len(verdict["problems"]), len(verdict["notes"])) == (3, 1)
    assert main(["config", "show", str(file)]) == 1
    out, err = capsys.readouterr()
    assert "max_local_cpu_size" in out
    assert err.count("problem: ") == 3


def test_check_looks_into_what_the_settings_name(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("client: {port: 0}\ncache: {p2p_secret_file: missing}\n")
    assert main(["config", "check", str(file)]) == 1
    out = capsys.readouterr().out
    assert "port=0" in out
    assert "missing: No such file" in out


def test_without_a_file_the_environment_speaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFERRY_RECOMPUTE", "perhaps")
    assert main(["config", "check"]) == 1
    out = capsys.readouterr().out
    assert "KVFERRY_RECOMPUTE='perhaps' is not valid; use auto or never" in out
    assert out.endswith("the environment: 1 problem\n")


def test_what_cannot_be_read_is_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(tmp_path / "missing.yaml")]) == 2
    broken = tmp_path / "broken.yaml"
    broken.write_text(f"cache: {{remote_url: '{SECRET}\n")
    assert main(["config", "show", str(broken)]) == 2
    assert main(["config", "nonsense"]) == 2
    assert SECRET not in "".join(capsys.readouterr())
