"""`kvferry controller`: its settings and refusals, and what it prints."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import click
import pytest

from kvferry.base.errors import ConfigError
from kvferry.cli.controller import controller as command
from kvferry.cli.main import main
from kvferry.config.controller import ControllerConfig
from kvferry.config.setting import specs
from support.processes import Process
from support.secrets import secret

PORTS = '{"pull": 0, "reply": 0, "heartbeat": 0}'


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["controller", *map(str, words)]) == 2
    return capsys.readouterr().err


def shown(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    assert main(["controller", *map(str, words), "--check"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_line_of_the_guide_is_taken_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    ports = {"pull": 8300, "reply": 8400, "heartbeat": 8082}
    found = shown(capsys, "--host", "localhost", "--port", 9000, "--monitor-ports", ports_of(ports))
    assert (found["host"], found["port"], found["monitor_ports"]) == ("127.0.0.1", 9000, ports)
    older = shown(capsys, "--monitor-ports", '{"pull": 8301, "reply": 8401}')
    assert older["monitor_ports"] == {"pull": 8301, "reply": 8401, "heartbeat": 8082}


def ports_of(ports: dict[str, int]) -> str:
    return json.dumps(ports)


def test_every_setting_is_an_option_but_the_secrets() -> None:
    options = {option for p in command.params if isinstance(p, click.Option) for option in p.opts}
    hidden = ("secret", "http_token", "tuning")
    for name in specs(ControllerConfig):
        assert (f"--{name.replace('_', '-')}" in options) is (name not in hidden)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--monitor-ports", "{"), "no JSON"),
        (("--monitor-ports", '{"push": 1}'), "monitor_ports is not valid"),
        (("--monitor-ports", '{"pull": 99999}'), "ports up to 65535"),
        (("--monitor-ports", '{"pull": "x"}'), "monitor-ports"),
        (("--port", 8300), "port 8300 is there twice"),
        (("--heartbeat-s", 2), "--heartbeat-s is gone"),
        (("--dead-s", 3), "--dead-s is gone: an instance is dead after 10 s"),
        (("--host", "0.0.0.0"), "needs a secret; set secret_file"),
        (("--host", "no.such.host.invalid"), "host="),
    ],
)
def test_settings_that_cannot_be_are_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[object, ...], says: str
) -> None:
    assert says in refused(capsys, *words)


def test_beyond_loopback_it_needs_a_secret_and_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("secret", "token"):
        file = tmp_path / name
        file.write_text(secret(name) + "\n")
        file.chmod(0o600)
    words = ("--host", "0.0.0.0", "--secret-file", tmp_path / "secret")
    assert "needs a token" in refused(capsys, *words)
    found = shown(capsys, *words, "--token-file", tmp_path / "token")
    assert (found["secret"], found["http_token"]) == ("***", "***")


def test_the_call_wins_over_the_file_and_that_over_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "kvferry.yaml"
    file.write_text("controller:\n  port: 9001\n  secret: two\n")
    environ = {"KVFERRY_CONTROLLER_PORT": "9002", "KVFERRY_CONTROLLER_HTTP_TOKEN": "one"}
    config = ControllerConfig.load(file, environ=environ, secret="three")
    assert (config.port, config.secret, config.http_token) == (9001, "three", "one")
    # Kubernetes says where a service of that name is.
    of_service = {"KVFERRY_CONTROLLER_PORT": "tcp://10.0.0.1:9000"}
    assert ControllerConfig.load(environ=of_service).port == 9000
    file.write_text("controller:\n  prot: 9001\n")
    with pytest.raises(ConfigError, match="port"):
        ControllerConfig.load(file, environ={})


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = json.dumps({"pull": 0, "reply": port, "heartbeat": 0})
        with Process("controller", "--port", 0, "--monitor-ports", ports) as process:
            process.says(rf"port {port} \(reply\): Address already in use; .*--monitor-ports")
            assert process.ends() == 1
        with Process("controller", "--port", port, "--monitor-ports", PORTS) as process:
            process.says(rf"port {port}: Address already in use; choose another --port")
            assert process.ends() == 1


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(by: signal.Signals) -> None:
    with Process("controller", "--port", 0, "--monitor-ports", PORTS) as process:
        process.says("ready")
        process.send(by)
        assert process.ends() == 0
        assert "ended" in process.said
