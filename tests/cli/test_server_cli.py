"""`kvferry server`: the command line, start, reload and end of real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from kvferry.cli.main import main
from kvferry.cli.server import server as command
from kvferry.config.server import ServerSettings
from kvferry.config.setting import specs
from kvferry.server import Client
from support.engines import CHUNK, IDENTITY, expected, prompt
from support.processes import END_LIMIT_S, Process
from support.secrets import secret
from support.servers import TestServer, free_port
from support.stamps import until
from support.views import ask

TOKENS = prompt(4 * CHUNK, seed=1)


class Server(Process):
    """A `kvferry server` that was started; killed at the end of a ``with`` block."""

    def __init__(self, *words: object, **environ: str) -> None:
        super().__init__("server", *words, **environ)

    def started(self) -> tuple[str, str]:
        """Wait until it is ready; where engines and where HTTP connect."""
        endpoint = self.says(r"ready, engines at ([^,\s]+)")[1]
        http = re.search(r"HTTP at (\S+);", self.said)
        return endpoint, http[1] if http else ""


def small(name: str, *more: object) -> list[object]:
    """Options of a server that tests can have many of."""
    words: list[object] = ["--l1-size-gb", "0.02", "--port", "0", "--shm-name", name]
    return [*words, *more]


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    name = f"kvferry-cli-{os.getpid()}-{tmp_path.name}"[:60]
    yield name
    for left in Path("/dev/shm").glob(f"{name}*"):
        left.unlink()


# --- The command line ---


def test_help_names_units_defaults_and_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for text in ("2^30 bytes", "[default: LRU]", "KVFERRY_RESP_PASSWORD", "SIGHUP", "Exit codes"):
        assert text in out
    names = {option.name for option in command.params}
    # By other options, or none.
    others = {"endpoints", "state_file", "tcp", "http", "http_token", "token", "tuning"}
    assert set(specs(ServerSettings)) - others <= names
    assert not {"token", "http_token"} & names  # a secret is no word of a command line


def test_every_option_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "server.md").read_text()
    for option in command.params:
        assert isinstance(option, click.Option)
        assert option.hidden or f"`{option.opts[0]}" in guide, option.opts[0]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["server", "--check", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


LMCACHE_COMMAND = (
    *("--l1-size-gb", "10", "--eviction-policy", "LRU", "--chunk-size", "16", "--l2-adapter"),
    '{"type":"resp","host":"localhost","port":6379,"num_workers":8,"max_capacity_gb":10,'
    '"eviction":{"eviction_policy":"LRU","trigger_watermark":0.8,"eviction_ratio":0.2}}',
    *("--port", "6555"),
)


@pytest.mark.presence
def test_the_command_of_the_resp_guide_is_understood(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMCACHE_RESP_USERNAME", "writer")
    monkeypatch.setenv("LMCACHE_RESP_PASSWORD", secret("resp"))
    found = shown(capsys, *LMCACHE_COMMAND)
    assert found["endpoints"] == ["tcp://127.0.0.1:6555"]
    assert (found["chunk_size"], found["cache"]["max_local_cpu_size"]) == (16, 10)
    (store,) = found["stores"]
    assert store == {
        "name": "redis",
        "type": "redis",
        "address": "localhost:6379",
        "max_capacity_gb": 10,
        "eviction": {"eviction_policy": "LRU", "trigger_watermark": 0.8, "eviction_ratio": 0.2},
        "username": "writer",
        "password": "***",
        "connections": 8,
    }


def test_options_win_over_the_file_and_that_over_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "kvferry.yaml"
    file.write_text("server: {state_file: /2, chunk_size: 2}")
    monkeypatch.setenv("KVFERRY_SERVER_SHM_NAME", "one")
    monkeypatch.setenv("KVFERRY_SERVER_STATE_FILE", "/1")
    monkeypatch.setenv("KVFERRY_SERVER_CHUNK_SIZE", "1")
    found = shown(capsys, "--config", str(file), "--chunk-size", "3", "--no-http")
    assert (found["shm_name"], found["state_file"], found["chunk_size"]) == ("one", "/2", 3)
    assert found["http_port"] == 0
    found = shown(capsys, "--ipc", "/run/k.sock", "--no-tcp", "--l1-use-hugepages")
    assert (found["endpoints"], found["cache"]["hugetlb"]) == (["ipc:///run/k.sock"], True)


def test_several_adapters_keep_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    adapters = ({"type": "memory", "max_capacity_gb": 1}, {"type": "valkey", "host": "a"})
    words = [word for one in adapters for word in ("--l2-adapter", json.dumps(one))]
    assert [store["name"] for store in shown(capsys, *words)["stores"]] == ["memory", "redis"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "token_file"),
        (["--http-host", "0.0.0.0"], "http_token"),
        (["--l1-size-gb", "0"], "--l1-size-gb='0' is not valid; use a number of GB"),
        (["--l1-size-gb", "ten"], "--l1-size-gb='ten' is not valid; use a number of GB"),
        (["--eviction-policy", "MRU"], "--eviction-policy='MRU' is not valid; use LRU"),
        (["--no-tcp"], "nobody could connect"),
        (["--config", "/none.yaml"], "no configuration file"),
        (["--l2-adaptor", "{}"], "No such option"),
        (["--lease-s", "60"], "--lease-s is gone: a lease lasts 60 s; leave it out"),
        (["--no-hugepages"], "--hugepages is called hugetlb"),
    ],
)
def test_what_cannot_be_is_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["server", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ['{"type": "resp", "password": "%s"', '{"type": "resp", "passwort": "%s"}', "%s"]
)
def test_an_adapter_s_secret_is_never_said(text: str) -> None:
    good = '{"type": "memory", "max_capacity_gb": 1}'
    with Server("--l2-adapter", good, "--l2-adapter", text % secret("adapter")) as process:
        assert process.ends() == 2
    assert "--l2-adapter 2 " in process.said or "l2_adapter[1]" in process.said
    assert secret("adapter") not in process.said


def test_a_pool_that_does_not_fit_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "--l1-size-gb", "1000000"]) == 2
    said = capsys.readouterr().err
    assert "1000000.00 GB" in said
    assert "--shm-size" in said


def test_a_file_that_is_no_state_is_refused_and_kept(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever reads a state removes it: a key that was named by mistake must not go with it."""
    key = tmp_path / "tls.key"
    key.write_text("-----BEGIN PRIVATE KEY-----\n")
    key.chmod(0o600)
    assert main(["server", *map(str, small(name)), "--no-http", "--state", str(key)]) == 2
    assert f"{key} is no state of a server; name another file" in capsys.readouterr().err
    assert key.read_text() == "-----BEGIN PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("path", "reason"), [("", "it is a directory"), ("none/state", "there is no directory")]
)
def test_a_state_that_could_not_be_written_is_refused_at_the_start(
    path: str, reason: str, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not at the end, when what it should keep is lost."""
    words = [*map(str, small(name)), "--no-http", "--state", str(tmp_path / path)]
    assert main(["server", *words]) == 2
    said = capsys.readouterr().err
    assert f"kvferry: state_file={str(tmp_path / path)!r} cannot be written: {reason}" in said


# --- Processes ---


def test_the_command_of_the_resp_guide_serves(
    valkey: TestServer, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    adapter = LMCACHE_COMMAND[7].replace("6379", str(valkey.port)).replace("localhost", "127.0.0.1")
    words = [*LMCACHE_COMMAND[1:7], adapter, "--port", port, "--http-port", free_port()]
    with Server("--l1-size-gb", "0.05", *words[1:], "--shm-name", name) as process:
        endpoint, url = process.started()
        assert endpoint == f"tcp://127.0.0.1:{port}"
        assert re.search(
            r"pool of 0.05 GB, LRU, taken as it fills; stores: redis \(redis at .*, 10 GB\)",
            process.said,
        )
        with Client(IDENTITY, endpoint, timeout_s=20) as client:
            until(lambda: client.available, 20)
            assert client.store(TOKENS, expected(TOKENS)).chunks == 4
            status, found = ask(f"{url}/v1/lookup", "POST", {"tokens": TOKENS})
            assert (status, found["tiers"]["l1"]) == (200, 4 * CHUNK)
            assert main(["top", url, "--once"]) == 0
            out = capsys.readouterr().out
            assert "redis" in out
            assert str(os.getpid()) in out
            assert list(Path("/dev/shm").glob(f"{name}-*"))
        process.send(signal.SIGTERM)
        assert process.ends() == 0
    assert not list(Path("/dev/shm").glob(f"{name}-*"))
    assert "Traceback" not in process.said


def test_hangup_reads_the_settings_again(tmp_path: Path, name: str) -> None:
    file = tmp_path / "kvferry.yaml"
    file.write_text("{server: {http_port: 1}, cache: {retrieve_timeout_s: 8}}")
    token = tmp_path / "token"
    token.write_text("first-token")
    token.chmod(0o600)
    options = small(name, "--config", file, "--http-token-file", token, "--http-port", free_port())
    with Server(*options) as process:
        process.says("ready, ")
        url = process.says(r"HTTP at (\S+);")[1]
        found = ask(f"{url}/v1/config", Authorization="Bearer first-token")[1]
        assert found["cache"]["retrieve_timeout_s"] == 8
        file.write_text("cache: {retrieve_timeout_s: 20}")
        token.write_text("second-token")
        process.send(signal.SIGHUP)
        process.says("retrieve_timeout_s is 20")
        found = ask(f"{url}/v1/config", Authorization="Bearer second-token")[1]
        assert found["cache"]["retrieve_timeout_s"] == 20
        assert ask(f"{url}/v1/config", Authorization="Bearer first-token")[0] == 401
        file.write_text("cache: {retrieve_timeout_s: never}")
        process.send(signal.SIGHUP)
        process.says("retrieve_timeout_s='never'")
        assert ask(f"{url}/readyz")[0] == 200
        process.send(signal.SIGINT)
        assert process.ends() == 0
        assert "SIGINT: draining" in process.said


def test_ports_that_are_taken(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Server(*small(name), "--port", port, "--no-http") as process:
            assert process.ends() == 1
            assert f"127.0.0.1:{port}" in process.said
        with Server(*small(name), "--http-port", port) as process:
            assert process.ends() == 1
            assert f"port {port}" in process.said
    assert "Traceback" not in process.said
    assert not list(Path("/dev/shm").glob(f"{name}-*"))


def test_beyond_this_host_only_who_has_the_token_is_served(tmp_path: Path, name: str) -> None:
    file, where = tmp_path / "token", tmp_path / "socket"
    file.write_text(secret("first"))
    file.chmod(0o600)
    options = ("--token-file", file, "--host", "0.0.0.0", "--ipc", where, "--no-http")
    with Server(*small(name, *options)) as process:
        endpoint = process.started()[0].replace("0.0.0.0", "127.0.0.1")
        with Client(IDENTITY, endpoint, token_file=file, timeout_s=20) as client:
            until(lambda: client.available, 20)
            assert client.store(TOKENS, expected(TOKENS)).chunks == 4
        with Client(IDENTITY, endpoint) as stranger:
            until(lambda: stranger.refused, 10)
            assert stranger.lookup(TOKENS).tokens == 0
        process.says("an engine was refused: kvferry .* it shows no token")
        file.write_text(secret("second"))
        process.send(signal.SIGHUP)
        process.says("token has changed")
        for url in (endpoint, f"ipc://{where}"):
            with Client(IDENTITY, url, token_file=file, timeout_s=20) as client:
                until(lambda client=client: client.available, 20)
                assert client.lookup(TOKENS).tokens == 4 * CHUNK
        process.send(signal.SIGTERM)
        assert process.ends() == 0
    assert secret("first") not in process.said
    assert secret("second") not in process.said


def test_ipv6_and_a_unix_socket(tmp_path: Path, name: str) -> None:
    where = tmp_path / "socket"
    options = small(name, "--host", "::1", "--ipc", where, "--http-port", free_port())
    with Server(*options) as process:
        endpoint, _ = process.started()
        assert endpoint.startswith("tcp://[::1]:")
        assert where.stat().st_mode & 0o777 == 0o600
        with Client(IDENTITY, f"ipc://{where}", timeout_s=20) as client:
            until(lambda: client.available, 20)
            client.store(TOKENS, expected(TOKENS))
        with Client(IDENTITY, endpoint, timeout_s=20) as client:
            until(lambda: client.available, 20)
            assert client.lookup(TOKENS).tokens == 4 * CHUNK
        process.send(signal.SIGTERM)
        assert process.ends() == 0


def test_systemd_is_told(tmp_path: Path, name: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(END_LIMIT_S)
        with Server(*small(name, "--no-http"), NOTIFY_SOCKET=str(tmp_path / "notify")) as process:
            assert systemd.recv(100) == b"READY=1"
            process.send(signal.SIGTERM)
            assert systemd.recv(100) == b"STOPPING=1"
            assert process.ends() == 0


def test_the_usual_port_of_http_may_be_taken(name: str) -> None:
    with Server(*small(f"{name}-1")) as one, Server(*small(f"{name}-2")) as other:
        for process in (one, other):
            process.says("ready, ")
        assert "going on without HTTP: HTTP cannot listen at 127.0.0.1 port 8080" in (
            one.said + other.said
        )
        for process in (one, other):
            process.send(signal.SIGTERM)
            assert process.ends() == 0


HANGING = """
import sys, threading, time
from kvferry.config.server import ServerConfig
from kvferry.server import server
from kvferry.server.run import run_server

class Hanging:
    alive, ready, endpoints = True, True, []
    def __init__(self, config):
        self.config = config
    def run(self):
        while True:
            time.sleep(0.05)
    def stop(self):
        print("stopping", flush=True)
    def reload(self):
        raise RuntimeError("a bug")

server.Server = Hanging
print("begins", flush=True)
run_server(ServerConfig.load(environ={}, l1_size_gb=0.001, http=False))
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_drain_that_hangs(signum: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline() == b"begins\n"
        while b"ready" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGHUP)
        process.send_signal(signum)
        assert process.stdout.readline() == b"stopping\n"
        process.send_signal(signum)
        _, err = process.communicate(timeout=END_LIMIT_S)
        assert process.returncode == 128 + signum
        assert b"settings were not read again" in err
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
