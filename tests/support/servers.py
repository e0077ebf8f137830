"""Real servers for tests: the Valkey of the wheel and a Redis 7 of the host.

    server = start_server("valkey", "--maxmemory", "64mb")
    server.cli("SET", "key", "value"), server.kill(), server.restart(), server.stop()

A server belongs to the process that started it and dies with it, also by SIGKILL. Its port and
socket path outlive restart(). Waits are bounded by READY_TIMEOUT_S.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from kvferry._server_binary import ServerBinary, find_server
from kvferry._supervised import SupervisedServer
from support.resp import ReplyError, encode, read_reply

HOST = "127.0.0.1"
READY_TIMEOUT_S = 10.0
KINDS = ("valkey", "redis7")
_ADMIN = "support-admin"  # of our own, so that no test's ACL locks us out


def find_kind(kind: str) -> ServerBinary:
    """The program of a kind; LookupError, with the reason, where the host has none."""
    if kind == "valkey":
        return find_server()
    path = shutil.which("redis-server")
    if path is None:
        raise LookupError("no redis-server on PATH")
    binary = find_server(path)
    if binary.kind != "redis" or binary.release < (7, 0):
        raise LookupError(f"{path} is {binary.kind} {binary.version}, not Redis 7 or later")
    return binary


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class TestServer:
    """One server; made by start_server()."""

    __test__ = False  # for pytest: not a test class

    def __init__(
        self,
        kind: str,
        extra_args: tuple[str, ...],
        password: str | None,
        users: Iterable[str],
        unix: bool,
    ) -> None:
        self.kind = kind
        self.binary = find_kind(kind)
        self.version = self.binary.version
        self.host = HOST
        self.port = 0
        self.password = password
        self._users = tuple(users)
        self._admin_secret = secrets.token_hex(16)
        self._extra_args = extra_args
        self._home = tempfile.mkdtemp(prefix="kvferry-test-")
        self.unix_path = f"{self._home}/s.sock" if unix else None
        self._process: SupervisedServer | None = None
        try:
            self._start(attempts=5)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        user = f":{self.password}@" if self.password else ""
        return f"redis://{user}{self.host}:{self.port}/0"

    @property
    def unix_url(self) -> str | None:
        user = f":{self.password}@" if self.password else ""
        return f"unix://{user}{self.unix_path}" if self.unix_path else None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was stopped"
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running()

    def cli(self, *words: bytes | str | int | float, timeout_s: float = 10.0) -> Any:
        """Send one command as an administrator; its reply. An error reply raises ReplyError."""
        with socket.create_connection((self.host, self.port), timeout_s) as talk:
            talk.settimeout(timeout_s)
            talk.sendall(encode("AUTH", _ADMIN, self._admin_secret) + encode(*words))
            with talk.makefile("rb") as stream:
                for _ in range(2):
                    reply = read_reply(stream)
                    if isinstance(reply, ReplyError):
                        raise reply
                return reply

    def info(self, section: str = "everything") -> dict[str, str]:
        """INFO as a dictionary."""
        lines = self.cli("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def flush(self) -> None:
        """An empty server: no keys, no statistics, no command or latency log."""
        self.cli("FLUSHALL")
        self.cli("CONFIG", "RESETSTAT")

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self._await_end()

    def restart(self) -> None:
        """Start again, empty, on the same port and socket path; kills one that still runs."""
        if self._process is not None:
            self._process.stop()
        self._start(attempts=1)

    def pause(self) -> None:
        """SIGSTOP: connections stay, the kernel still accepts, nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Kill the server and remove its files; idempotent."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<TestServer {self.kind} {self.version} {self.host}:{self.port}>"

    def _start(self, attempts: int) -> None:
        for left in reversed(range(attempts)):
            port = self.port or free_port()
            directory = tempfile.mkdtemp(prefix="kvferry-test-")
            config = Path(directory, "server.conf")
            config.write_text(self._config(directory, port))
            if self.unix_path:
                Path(self.unix_path).unlink(missing_ok=True)
            self._process = SupervisedServer(
                [self.binary.path, str(config), *self._extra_args], directory
            )
            self.port, chosen = port, self.port
            if self._await_ready():
                return
            words = self._process.last_words()
            self._process.stop()
            if not ("already in use" in words and left):
                raise RuntimeError(f"{self.binary.path} did not start:\n{words}")
            self.port = chosen

    def _config(self, directory: str, port: int) -> str:
        lines = [
            f"bind {HOST} -::1",
            f"port {port}",
            f"dir {directory}",
            'logfile ""',
            'save ""',
            "appendonly no",
            "io-threads 1",
            "enable-debug-command local",
            f"user {_ADMIN} on >{self._admin_secret} ~* &* +@all",
            *self._users,
        ]
        if self.password:
            lines.append(f'requirepass "{self.password}"')
        if self.unix_path:
            lines += [f'unixsocket "{self.unix_path}"', "unixsocketperm 700"]
        return "\n".join(lines) + "\n"

    def _await_ready(self) -> bool:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while self.is_running() and time.monotonic() < deadline:
            try:
                return int(self.info("server")["process_id"]) == self.pid
            except (OSError, EOFError, ReplyError):  # not yet, or still loading
                time.sleep(0.01)
        return False

    def _await_end(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while self.is_running():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self!r} survives SIGKILL")
            time.sleep(0.002)


def start_server(
    kind: str,
    *extra_args: str,
    password: str | None = None,
    users: Iterable[str] = (),
    unix: bool = True,
) -> TestServer:
    """Start a server of a kind of KINDS and wait until it answers.

    Args:
        extra_args: More of its command line, e.g. "--maxmemory", "64mb".
        password: Of the user "default".
        users: ACL lines, e.g. "user alice on >secret ~cache:* +@all".
    """
    return TestServer(kind, extra_args, password, users, unix)
