"""`kvferry node` as a process: its start, its end, and what it keeps from one to the next."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest
import redis

from kvferry.base.host import usable_cores
from kvferry.cli.main import main
from kvferry.config.tuning import NodeTuning
from kvferry.sharing.node import Node, NodeSettings
from kvferry.sharing.peers.lending import USER, LendingNode
from support import clock
from support.secrets import secret

LIMIT_S = 60.0  # also of a machine that has other work
PASSWORD = secret("node")
SMALL = ("--size-gb", "0.05")
TUNING = '{"prefault": false, "threads": 2}'


class Process:
    """A `kvferry node` that was started; killed at the end of a ``with`` block."""

    def __init__(self, *words: object, **environ: str) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("KVFERRY_", "LMCACHE_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvferry.cli.main", "node", *SMALL, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**kept, "KVFERRY_NODE_TUNING": TUNING, **environ},
        )
        assert self.process.stdout is not None
        self.said = b""
        end = clock.now_s() + LIMIT_S
        while not self.said.endswith(b"\n"):
            assert clock.now_s() < end, "it said nothing"
            if select.select([self.process.stdout], [], [], 0.2)[0]:
                piece = os.read(self.process.stdout.fileno(), 65536)
                assert piece, self.process.communicate()
                self.said += piece
        self.port = int(self.said.split()[0].rpartition(b":")[2])

    def ends(self, number: int) -> tuple[int, str]:
        """Send a signal; its exit code and its log."""
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, log.decode()

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(port=self.port, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_listens_and_ends_with_a_signal(tmp_path: Path, number: int) -> None:
    path = tmp_path / "node.sock"
    with Process("--listen", "127.0.0.1:0", "--listen", f"unix:{path}") as node:
        assert node.said.split()[1].decode() == f"unix:{path}"
        with node.client() as client, redis.Redis(unix_socket_path=str(path)) as other:
            client.set("a", b"x" * 5_000_000)
            assert other.get("a") == b"x" * 5_000_000
            code, log = node.ends(number)
        assert code == 0
        assert "ended" in log
        assert "Traceback" not in log
        assert not path.exists()


def test_state_comes_back_after_an_end_and_not_after_a_kill(tmp_path: Path) -> None:
    state = tmp_path / "node.state"
    words = ("--listen", "127.0.0.1:0", "--state", state)
    values = {f"k{index}": os.urandom(300_000) for index in range(20)}
    with Process(*words) as node, node.client() as client:
        for key, value in values.items():
            client.set(key, value)
        client.set("short", "x", ex=1000)
        assert node.ends(signal.SIGTERM)[0] == 0
    assert state.stat().st_mode & 0o777 == 0o600
    with Process(*words) as node, node.client() as client:
        assert {key: client.get(key) for key in values} == values
        assert 0 < client.ttl("short") <= 1000
        client.set("k0", "replaced")
        node.ends(signal.SIGKILL)
    with Process(*words) as node, node.client() as client:  # what was replaced must not be back
        assert client.dbsize() == 0


def test_unless_told_it_has_no_more_threads_than_cores() -> None:
    cores = os.sched_getaffinity(0)
    settings = NodeSettings(
        listen=("127.0.0.1:0",), size_gb=0.05, tuning=NodeTuning(prefault=False)
    )
    found = []
    try:
        for some in (cores, {min(cores)}):
            os.sched_setaffinity(0, some)
            lending = LendingNode("127.0.0.1", [0], "word", {}, 1 << 20)
            try:  # what sits in a cache follows the same rule
                threads = {_threads(settings), _threads_at(lending.ports[0], "word")}
            finally:
                lending.stop()
            found.append((threads, {min(4, usable_cores())}))
    finally:
        os.sched_setaffinity(0, cores)
    assert [threads for threads, _ in found] == [expected for _, expected in found]
    assert found[1][0] == {1}
    assert _threads(settings.replace(tuning=NodeTuning(threads=3))) == 3


def _threads(settings: NodeSettings) -> int:
    with Node(settings) as node:
        return _threads_at(int(node.endpoints[0].rpartition(":")[2]))


def _threads_at(port: int, word: str | None = None) -> int:
    user = USER if word else None
    with redis.Redis(port=port, username=user, password=word) as client:
        return int(client.info("server")["io_threads"])


@pytest.mark.parametrize(
    ("path", "reason"), [("", "it is a directory"), ("none/state", "there is no directory")]
)
def test_a_state_that_could_not_be_written_is_refused_at_the_start(
    path: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["node", *SMALL, "--listen", "127.0.0.1:0", "--state", str(tmp_path / path)]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"kvferry: state_file={str(tmp_path / path)!r} cannot be written: {reason}" in said


def test_more_memory_than_there_is_is_refused_with_the_size_that_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not by the system, which would end a process that takes what it was promised."""
    assert main(["node", "--size-gb", "100000", "--listen", "127.0.0.1:0"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"size_gb is 100000 GB and this host has [\d.]+ free: use at most", said)


def test_an_address_that_is_taken_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["node", *SMALL, "--listen", address]) == 1
    said = capsys.readouterr().err
    assert f"cannot listen at {address}: Address already in use; choose another --listen" in said


def test_an_address_of_others_needs_to_know_who_comes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["node", *SMALL, "--listen", "0.0.0.0:0"]) == 2
    assert "needs password_file, users_file, or TLS" in capsys.readouterr().err
    word = tmp_path / "password"
    word.write_text(PASSWORD + "\n")
    word.chmod(0o600)
    with Process("--listen", "0.0.0.0:0", "--password-file", word) as node:
        with node.client() as nobody, pytest.raises(redis.AuthenticationError):
            nobody.get("a")
        with node.client(password=PASSWORD) as client:
            assert client.set("a", "x")
        assert PASSWORD not in node.ends(signal.SIGTERM)[1]


def test_settings_come_from_the_environment_and_wrong_ones_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (
        Process(KVFERRY_NODE_LISTEN="127.0.0.1:0", KVFERRY_NODE_EVICTION_POLICY="s3fifo") as node,
        node.client() as client,
    ):
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "s3-fifo"}
    for words, reason in {
        ("--listen", "nowhere"): "listen: 'nowhere' is not valid",
        ("--policy", "newest"): "--policy='newest' is not valid",
        ("--users-file", "/nonexistent"): "users_file /nonexistent",
    }.items():
        assert main(["node", *SMALL, *words]) == 2
        assert reason in capsys.readouterr().err
