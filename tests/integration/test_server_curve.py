"""CURVE: who has a key is heard, everybody else gets nothing, and keys are kept well."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
import zmq

from kvferry.errors import ConfigError
from kvferry.server.curve import (
    CurveGuard,
    apply_client,
    apply_server,
    client_keys,
    new_keys,
    server_keys,
)

ANSWER_MS = 20_000
SILENCE_MS = 400  # a refused handshake is over in a few milliseconds


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return new_keys(tmp_path / "keys")


class Echo:
    """A ROUTER with keys, and what a client of it hears."""

    def __init__(self, server: Path) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.guard: CurveGuard = apply_server(self.socket, self.context, server)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")

    def hears(self, client: Path | None, wait_ms: int = SILENCE_MS) -> bool:
        """Whether a question of such a client arrives, and the answer comes back."""
        dealer = self.context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.sndtimeo = wait_ms  # who was refused already has nobody to send to
        try:
            if client is not None:
                apply_client(dealer, client)
            dealer.connect(f"tcp://127.0.0.1:{self.port}")
            dealer.send(b"question")
            if not self.socket.poll(wait_ms):
                return False
            self.socket.send_multipart(self.socket.recv_multipart())
            return bool(dealer.poll(wait_ms)) and dealer.recv() == b"question"
        except zmq.Again:
            return False
        finally:
            dealer.close()

    def close(self) -> None:
        self.guard.stop()
        self.socket.close(linger=0)
        self.context.term()


@pytest.fixture
def echo(keys: tuple[Path, Path]) -> Iterator[Echo]:
    echo = Echo(keys[0])
    yield echo
    echo.close()


def test_only_the_right_key_is_heard(echo: Echo, keys: tuple[Path, Path], tmp_path: Path) -> None:
    assert echo.hears(keys[1], ANSWER_MS)
    assert not echo.hears(None)
    _, stranger = new_keys(tmp_path / "stranger")
    assert not echo.hears(stranger)  # another server's
    right = json.loads(keys[1].read_text())
    forged = {**json.loads(stranger.read_text()), "server": right["server"]}
    assert not echo.hears(written(tmp_path / "forged", forged))  # a key that nobody allowed
    assert echo.hears(keys[1], ANSWER_MS)


def test_clients_can_be_added_while_it_runs(
    echo: Echo, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    server = server_keys(keys[0])[0].decode()
    late = written(tmp_path / "late", {"public": public, "secret": secret, "server": server})
    assert not echo.hears(late)
    echo.guard.allow(frozenset([public.encode()]))
    assert echo.hears(late, ANSWER_MS)
    assert not echo.hears(keys[1])


def written(path: Path, content: object, mode: int = 0o600) -> Path:
    path.write_text(json.dumps(content))
    path.chmod(mode)
    return path


def test_new_keys_are_for_their_owner_and_never_replaced(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        server, client = new_keys(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    for path in (server, client):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.parent.stat().st_mode) == 0o700
    before = server.read_bytes(), client.read_bytes()
    with pytest.raises(ConfigError, match="there already"):
        new_keys(tmp_path / "a" / "b")
    assert (server.read_bytes(), client.read_bytes()) == before
    assert server_keys(server)[0] == client_keys(client)[2]
    assert server_keys(server)[2] == {client_keys(client)[0]}


def test_keys_may_be_yaml(keys: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump(json.loads(keys[0].read_text())))
    file.chmod(0o600)
    assert server_keys(file) == server_keys(keys[0])


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_keys_that_others_may_read_are_refused(keys: tuple[Path, Path], mode: int) -> None:
    for path, read in zip(keys, (server_keys, client_keys), strict=True):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            read(path)


def test_what_is_wrong_is_said_without_a_key(keys: tuple[Path, Path], tmp_path: Path) -> None:
    good = json.loads(keys[0].read_text())
    other = zmq.curve_keypair()[0].decode()
    broken: list[tuple[object, str]] = [
        ({**good, "secret": good["secret"][:-1]}, "secret is no key"),
        ({**good, "secret": "#" * 40}, "secret is no key|belong together"),
        ({**good, "public": other}, "belong together"),
        ({**good, "clients": []}, "clients"),
        ({**good, "clients": [5]}, r"clients\[0\]"),
        ({"public": good["public"]}, "has no 'secret'"),
        ([good], "not made of sections"),
    ]
    for content, said in broken:
        file = written(tmp_path / "broken", content)
        with pytest.raises(ConfigError, match=said) as caught:
            server_keys(file)
        assert good["secret"] not in str(caught.value)
    with pytest.raises(ConfigError, match="has no 'clients'"):
        server_keys(keys[1])
    with pytest.raises(ConfigError, match="has no 'server'"):
        client_keys(keys[0])
    with pytest.raises(ConfigError, match="No such file"):
        server_keys(tmp_path / "none")
