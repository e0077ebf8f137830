"""`kvferry doctor`: pages, JSON, exit codes; and no secret in any of them."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry.cli.main import main
from kvferry.embedded.store import embedded_store
from kvferry_lab.cli.doctor import doctor
from kvferry_lab.doctor import bare_tcp
from kvferry_lab.doctor.bare_tcp import BareServer
from kvferry_lab.doctor.prefill import GPUS
from support.cluster import Cluster
from support.servers import TestServer

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVFERRY_CONFIG_FILE", raising=False)
    for prefix in ("KVFERRY_RESP_", "LMCACHE_RESP_"):
        for name in ("URL", "HOST", "PORT", "USERNAME", "PASSWORD"):
            monkeypatch.delenv(prefix + name, raising=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B))
    return path


def test_a_good_store_is_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    with embedded_store(maxmemory_mb=1024) as store:
        assert main(["doctor", store.url, "--no-bandwidth"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("servers")
    assert "Healthy: " in out
    assert "bandwidth: not measured: not asked for" in out


def test_what_is_wrong_comes_with_reason_and_fix(
    valkey: TestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", valkey.url, "--no-bandwidth"]) == 1
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    at = lines.index("warn   maxmemory: maxmemory 0: no limit")
    assert lines[at + 1].startswith("       why  it grows until")
    fix = next(line for line in lines[at:] if "fix  " in line)
    assert fix.startswith("       fix  CONFIG SET maxmemory ")
    assert lines[-1].startswith("Not as it could be: 2 warnings, ")
    levels = [line.split()[0] for line in lines if line[:1].isalpha()]
    assert levels.index("warn") < levels.index("info") < levels.index("ok")


def test_all_lists_what_is_fine(valkey: TestServer, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", valkey.url, "--no-bandwidth", "--all"])
    assert "ok     timeout: never" in capsys.readouterr().out


def test_json(valkey: TestServer, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--json", "--quick", "--model", str(model), "--gpu", "H100"]
    assert main(["doctor", valkey.url, *options]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["worst"] == "warn"
    found = {finding["id"]: finding for finding in report["findings"]}
    assert set(found["maxmemory"]) == {"id", "severity", "seen", "why", "fix", "scope", "where"}
    assert found["maxmemory"]["where"] == [f"127.0.0.1:{valkey.port}"]
    assert report["servers"][0]["kind"] == "valkey"
    assert report["traffic"]["rtt_s"] > 0
    assert set(report["traffic"]["get_bytes_s_by_connections"]) <= {"1", "4", "16"}
    assert "131,072 bytes of KV per token" in found["kv-size"]["seen"]
    assert found["chunk-tokens"]["seen"].startswith("chunk_size 32: 4 MiB")
    assert "makes 4." in found["beats-prefill"]["seen"]
    assert report["machine"]["cores"] >= 1
    assert valkey.cli("DBSIZE") == 0


def test_the_page_knows_every_check_option_and_gpu(
    cluster: Cluster, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs/guides/doctor.md").read_text()
    seed = f"redis://{cluster.seeds[0]}"
    main(["doctor", seed, "--json", "--quick", "--model", str(model), "--gpu", "l4"])
    found = [finding["id"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert len(found) > 40
    assert [name for name in found if f"`{name}`" not in page] == []
    options = [name for option in doctor.params for name in option.opts if name[:2] == "--"]
    assert [name for name in options if name not in page] == []
    assert [name for name in GPUS if not re.search(rf"\b{name}\b", page)] == []


def test_a_peer_is_measured_beside_the_store(
    valkey: TestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with BareServer(port=0) as peer:
        thread = threading.Thread(target=peer.serve, args=(60.0,))
        thread.start()
        try:
            main(["doctor", valkey.url, "--quick", "--json", "--peer", peer.address])
        finally:
            peer.stop()
            thread.join()
    report = json.loads(capsys.readouterr().out)
    found = {finding["id"]: finding for finding in report["findings"]}
    assert f"from {peer.address}" in found["bare-tcp"]["seen"]
    assert "% of that" in found["bare-tcp"]["seen"]
    assert report["bare_tcp"]["rtt_s"] > 0
    assert report["bare_tcp"]["bytes_s_by_connections"]


def test_a_break_even_takes_the_place_of_two_gigabytes(
    valkey: TestServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--json", "--quick", "--model", str(model), "--prefill-tokens-s", "1e9"]
    main(["doctor", valkey.url, *options])
    findings = json.loads(capsys.readouterr().out)["findings"]
    (found,) = (finding for finding in findings if finding["id"] == "bandwidth")
    assert found["severity"] == "warn"
    assert "the engine computes this model's KV at 131072.00 GB/s" in found["why"]


def test_serve(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare_tcp, "PORT", 0)  # one that is free
    monkeypatch.setattr(BareServer, "serve", lambda self: None)
    assert main(["doctor", "--serve"]) == 0
    assert "serving bare TCP on 127.0.0.1:" in capfd.readouterr().err
    assert main(["doctor", "--serve", "0.0.0.0"]) == 0
    assert "serving bare TCP on 0.0.0.0:" in capfd.readouterr().err


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "redis://127.0.0.1:1"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "kvferry: 127.0.0.1:1: Connection refused\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["http://x"],
        ["redis://localhost", "--model", "/nowhere"],
        ["redis://localhost", "--gpus", "0"],
        ["redis://localhost", "--config", "/nowhere.yaml"],
        ["redis://localhost", "--peer", "host:port"],
        ["--serve", ":7419"],
        ["redis://localhost", "--serve"],
    ],
)
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err) > 10


@pytest.mark.parametrize("named", [True, False], ids=["name", "file"])
def test_an_unknown_gpu(named: bool, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    which = "llama-3.1-8b" if named else str(model)
    assert main(["doctor", "redis://127.0.0.1:1", "--model", which, "--gpu", "h1000"]) == 2
    assert "known are" in capsys.readouterr().err


def test_the_server_of_the_environment_or_a_file(
    valkey: TestServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = f"127.0.0.1:{valkey.port} (valkey"
    monkeypatch.setenv("KVFERRY_RESP_HOST", "127.0.0.1")
    monkeypatch.setenv("KVFERRY_RESP_PORT", str(valkey.port))
    assert main(["doctor", "--no-bandwidth"]) == 1
    assert where in capsys.readouterr().out
    monkeypatch.delenv("KVFERRY_RESP_HOST")
    monkeypatch.delenv("KVFERRY_RESP_PORT")
    file = tmp_path / "kvferry.yaml"
    file.write_text(f"client:\n  url: {valkey.url}\n  ttl_s: 60\n")
    assert main(["doctor", "--config", str(file), "--no-bandwidth"]) == 1
    assert where in capsys.readouterr().out


@pytest.mark.parametrize("secret", ["right-password-7431", "wrong-password-7431"])
def test_no_secret_is_printed(
    start: Callable[..., TestServer],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    secret: str,
) -> None:
    server = start("valkey", password="right-password-7431")
    url = f"redis://:{secret}@127.0.0.1:{server.port}"
    for options in ([], ["--json", "--all"]):
        monkeypatch.setattr(sys, "argv", ["kvferry", "doctor", url, "--quick", *options])
        code = main()
        assert code == (1 if "right" in secret else 2)
        out, err = capfd.readouterr()
        assert "7431" not in out + err
