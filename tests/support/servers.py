"""Real servers for tests: the Valkey of the wheel and a Redis 7 of the host.

    server = start_server("valkey", "--maxmemory", "64mb")
    server.cli("SET", "key", "value"), server.kill(), server.restart(), server.stop()
    start_server("redis7", tls=True).tls_url, start_server("valkey", primary=server)

A server belongs to the process that started it and dies with it, also by SIGKILL. Its ports and
socket path outlive restart(). Waits are bounded by READY_TIMEOUT_S. tls.py, cluster.py and
sentinel.py build on this.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from kvferry.embedded.program import ServerBinary, find_server
from kvferry.embedded.supervision import SupervisedServer
from support import clock
from support.proxy import FaultProxy
from support.resp import ReplyError, encode, read_reply
from support.secrets import register, secret
from support.tls import ServerTls, has_tls

HOST = "127.0.0.1"
SERVERS_SOURCE = "127.0.0.2"  # whence servers connect that are behind proxies, which spare it
READY_TIMEOUT_S = 10.0
KINDS = ("valkey", "redis7")
ADMIN = "support-admin"  # of our own, so that no test's ACL locks us out
ADMIN_SECRET = secret("admin")  # the same everywhere: servers of one test talk to each other


def find_kind(kind: str, tls: bool = False) -> ServerBinary:
    """The program of a kind; LookupError, with the reason, where the host has none."""
    if kind == "valkey":
        binary = find_server()
    else:
        path = shutil.which("redis-server")
        if path is None:
            raise LookupError("no redis-server on PATH")
        binary = find_server(path)
        if binary.kind != "redis" or binary.release < (7, 0):
            raise LookupError(f"{path} is {binary.kind} {binary.version}, not Redis 7 or later")
    if tls and not has_tls(binary.path):
        raise LookupError(f"{binary.path} was built without TLS")
    return binary


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel gives to outgoing connections:
    else one of them might take it while a killed server waits for its restart."""
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    lowest = 10_000 if first_outgoing > 12_000 else first_outgoing
    for _ in range(1000):
        port = _ports.randrange(lowest, max(first_outgoing, lowest + 20_000))
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


_ports = random.Random()  # apart from the one that tests may seed


class TestServer:
    """One server; made by start_server()."""

    __test__ = False  # for pytest: not a test class

    def __init__(
        self,
        kind: str,
        *extra_args: str,
        password: str | None = None,
        users: Iterable[str] = (),
        unix: bool = True,
        tls: bool | ServerTls = False,
        host: str = HOST,
        primary: TestServer | None = None,
        proxied: bool = False,
    ) -> None:
        self.kind = kind
        self.binary = find_kind(kind, tls=bool(tls))
        self.version = self.binary.version
        self.host = host
        self.port = self.tls_port = 0
        self.tls = ServerTls() if tls is True else tls or None
        self.password = password
        if proxied and host != HOST:
            raise ValueError(f"a proxy listens on {HOST} alone")
        self.proxy: FaultProxy | None = None
        self._proxied = proxied
        self._primary = primary
        self._users = tuple(users)
        for known in (password, *re.findall(r">(\S+)", " ".join(self._users))):
            register(known)
        self._extra_args = extra_args
        self._home = tempfile.mkdtemp(prefix="kvferry-test-")  # for what outlives restart()
        self.unix_path = f"{self._home}/s.sock" if unix else None
        self._process: SupervisedServer | None = None
        try:
            self._start(attempts=5)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return f"redis://{self._user}{self.address}/0"

    @property
    def tls_url(self) -> str:
        """To be used with ``**server.tls.client_settings``."""
        assert self.tls is not None
        return f"rediss://{self._user}{address_of(self.host, self.tls_port)}/0"

    @property
    def unix_url(self) -> str | None:
        return f"unix://{self._user}{self.unix_path}" if self.unix_path else None

    @property
    def client_port(self) -> int:
        """Where a client should knock: at the proxy, else the TLS port, else the plain one."""
        return self.proxy.port if self.proxy else self.tls_port or self.port

    @property
    def server_port(self) -> int:
        """Where other servers do, to replicate; through the proxy, too, which spares them."""
        speaks_here = self.tls is None or self.tls.between_servers
        return self.client_port if speaks_here else self.port

    @property
    def address(self) -> str:
        return address_of(self.host, self.port)

    @property
    def _user(self) -> str:
        return f":{self.password}@" if self.password else ""

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
            talk.sendall(encode("AUTH", ADMIN, ADMIN_SECRET) + encode(*words))
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
        """Start again, empty, on the same ports and socket path; kills one that still runs."""
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
        if self.proxy is not None:
            self.proxy.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind} {self.version} {self.address}>"

    def _start(self, attempts: int) -> None:
        for left in reversed(range(attempts)):
            if not self.port:
                self._choose_ports()
            directory = tempfile.mkdtemp(prefix="kvferry-test-")
            config = Path(directory, "server.conf")
            config.write_text("\n".join(self._config(directory)) + "\n")
            if self.unix_path:
                Path(self.unix_path).unlink(missing_ok=True)
            self._process = SupervisedServer(
                [self.binary.path, str(config), *self._extra_args], directory
            )
            if self._await_ready():
                return
            words = self._process.last_words()
            self._process.stop()
            if not ("already in use" in words and left):
                raise RuntimeError(f"{self.binary.path} did not start:\n{words}")
            self.port = 0

    def _choose_ports(self) -> None:
        self.port = free_port()
        self.tls_port = free_port() if self.tls else 0
        if self._proxied:
            if self.proxy is not None:
                self.proxy.close()
            target = self.tls_port or self.port
            self.proxy = FaultProxy(
                HOST, target, opaque=bool(self.tls), spared_hosts=[SERVERS_SOURCE]
            )

    def _config(self, directory: str) -> list[str]:
        lines = [
            f"bind {HOST} -::1" if self.host == HOST else f"bind {self.host}",
            f"port {self.port}",
            f"dir {directory}",
            'logfile ""',
            'save ""',
            "appendonly no",
            "io-threads 1",
            "repl-diskless-sync-delay 0",
            "client-output-buffer-limit replica 0 0 0",  # however much is written, it keeps up
            "enable-debug-command local",
            f"user {ADMIN} on >{ADMIN_SECRET} ~* &* +@all",
            f"masteruser {ADMIN}",
            f"masterauth {ADMIN_SECRET}",
            *self._users,
        ]
        if self.password:
            lines.append(f'requirepass "{self.password}"')
        if self.unix_path:
            lines += [f'unixsocket "{self.unix_path}"', "unixsocketperm 700"]
        if self.tls:
            lines += self.tls.config(self.tls_port)
        if self._primary:
            primary = self._primary
            lines += [f"replicaof {primary.host} {primary.server_port}"]
        if self.proxy:
            lines += [
                f"bind-source-addr {SERVERS_SOURCE}",
                f"replica-announce-ip {HOST}",
                f"replica-announce-port {self.server_port}",
            ]
        return lines

    def _await_ready(self) -> bool:
        deadline = clock.now_s() + READY_TIMEOUT_S
        while self.is_running() and clock.now_s() < deadline:
            try:
                return int(self.info("server")["process_id"]) == self.pid
            except (OSError, EOFError, ReplyError):  # not yet, or still loading
                time.sleep(0.01)
        return False

    def _await_end(self) -> None:
        deadline = clock.now_s() + READY_TIMEOUT_S
        while self.is_running():
            if clock.now_s() > deadline:
                raise TimeoutError(f"{self!r} survives SIGKILL")
            time.sleep(0.002)


def start_server(
    kind: str,
    *extra_args: str,
    password: str | None = None,
    users: Iterable[str] = (),
    unix: bool = True,
    tls: bool | ServerTls = False,
    host: str = HOST,
    primary: TestServer | None = None,
    proxied: bool = False,
) -> TestServer:
    """Start a server of a kind of KINDS and wait until it answers.

    Args:
        extra_args: More of its command line, e.g. "--maxmemory", "64mb".
        password: Of the user "default".
        users: ACL lines, e.g. "user alice on >secret ~cache:* +@all".
        tls: A TLS port, too; see tls.py. LookupError where the program was built without.
        host: "::1" for a server of IPv6 alone.
        primary: The server that it replicates; wait_for() its master_link_status.
        proxied: With a FaultProxy, ``proxy``, in front. Other servers know it by that, as clients
            do; what they say to each other passes unharmed.
    """
    return TestServer(
        kind,
        *extra_args,
        password=password,
        users=users,
        unix=unix,
        tls=tls,
        host=host,
        primary=primary,
        proxied=proxied,
    )


def address_of(host: str, port: int) -> str:
    """``host:port``, and ``[host]:port`` for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def wait_for(what: str, is_so: Callable[[], object], timeout_s: float = READY_TIMEOUT_S) -> None:
    """Poll until ``is_so()`` is true. A server that does not answer yet counts as "no"."""
    deadline = clock.now_s() + timeout_s
    while True:
        seen: object = None
        try:
            seen = is_so()
            if seen:
                return
        except (OSError, EOFError, ReplyError) as error:
            seen = error
        if clock.now_s() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {what} (last: {seen!r})")
        time.sleep(0.02)
