"""The server fixtures: real servers that can be killed, paused and restarted, and leave nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from support.resp import ReplyError, encode
from support.servers import TestServer, start_server


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_both_kinds_answer_over_tcp_and_unix(server: TestServer) -> None:
    info = server.info("server")
    assert int(info["process_id"]) == server.pid
    assert server.version in (info.get("valkey_version"), info["redis_version"])
    assert server.unix_path is not None
    with socket.socket(socket.AF_UNIX) as talk:
        talk.settimeout(5)
        talk.connect(server.unix_path)
        talk.sendall(encode("PING"))
        assert talk.recv(100) == b"+PONG\r\n"


def test_sets_a_key(server: TestServer) -> None:
    assert server.cli("SET", "key", b"\0" * 100_000) == b"OK"
    assert server.cli("STRLEN", "key") == 100_000
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        server.cli("LPUSH", "key", "x")


def test_starts_every_test_empty(server: TestServer) -> None:
    assert server.cli("DBSIZE") == 0


def test_kill_and_restart_keep_the_addresses(fresh_server: TestServer) -> None:
    server = fresh_server
    port, path, pid = server.port, server.unix_path, server.pid
    server.cli("SET", "key", "value")
    server.kill()
    assert not server.is_running()
    assert gone(pid)
    with pytest.raises(ConnectionRefusedError):
        server.cli("PING")
    server.restart()
    assert (server.port, server.unix_path) == (port, path)
    assert server.pid != pid
    assert server.cli("GET", "key") is None


def test_pause_stops_answers_until_resume(fresh_server: TestServer) -> None:
    fresh_server.pause()
    with pytest.raises(TimeoutError):
        fresh_server.cli("PING", timeout_s=0.1)
    fresh_server.resume()
    assert fresh_server.cli("PING") == b"PONG"


def test_a_paused_server_can_be_stopped(fresh_server: TestServer) -> None:
    pid = fresh_server.pid
    fresh_server.pause()
    fresh_server.stop()
    assert gone(pid)


def test_stop_leaves_no_process_and_no_file() -> None:
    with start_server("valkey") as server:
        pid, path = server.pid, server.unix_path
        assert path is not None
        assert os.path.exists(path)
    assert gone(pid)
    assert not os.path.exists(os.path.dirname(path))


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_passwords_users_and_arguments(start: Callable[..., TestServer], kind: str) -> None:
    server = start(
        kind,
        "--maxmemory",
        "64mb",
        password="secret",
        users=["user reader on >pw ~cache:* +get"],
        unix=False,
    )
    assert server.unix_path is None
    assert server.cli("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"67108864"]
    assert b"reader" in server.cli("ACL", "USERS")
    with socket.create_connection((server.host, server.port), 20) as talk:
        talk.sendall(encode("PING") + encode("AUTH", "secret") + encode("AUTH", "reader", "pw"))
        talk.sendall(encode("GET", "other"))
        answer = b""
        while answer.count(b"\r\n") < 4 and (piece := talk.recv(1000)):
            answer += piece
    lines = answer.split(b"\r\n")
    assert lines[0].startswith(b"-NOAUTH")
    assert lines[1:3] == [b"+OK", b"+OK"]
    assert lines[3].startswith(b"-NOPERM")


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match="nonsense"):
        start_server("valkey", "--nonsense", "1")
