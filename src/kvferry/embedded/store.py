"""A Valkey server of our own, started for a KV cache and stopped with us.

    >>> import kvferry
    >>> with kvferry.embedded_store(maxmemory_mb=256) as store:
    ...     store.url.startswith("unix:///"), store.is_running()
    (True, True)

It listens on loopback and on a Unix socket, which its address names because GETs are up to 1.2
times as fast there; it keeps nothing on disk, evicts when full, and is gone when we are: stopped,
exited or killed (see `supervision.py`). The configuration file lies in the
server's own directory of mode 0700, so that a password is on no command line.

Threads: any. Fork: a child may use the addresses, but only the process that started a store can
stop it. Fails with StoreError, whose text ends with the server's last words; a setting that
cannot be right is a ConfigError.
"""

from __future__ import annotations

import contextlib
import operator
import os
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import quote

from kvferry.base.errors import ConfigError, StoreError
from kvferry.base.host import available_memory_bytes, usable_cores
from kvferry.embedded.program import ServerBinary, find_server
from kvferry.embedded.supervision import SupervisedServer

__all__ = ["EmbeddedStore", "embedded_store"]

_HOST = "127.0.0.1"
_MIB = 1 << 20
_MAXMEMORY_MB_MIN = 256  # by default
_MAXMEMORY_MB_MAX = 1 << 40
_IO_THREADS_MAX = 4  # by default
_IO_THREADS_LIMIT = 256  # of Valkey; Redis says itself that it takes fewer
_PORT_MAX = 65535
_IO_THREADS_CORES_MIN = 8
_PORT_ATTEMPTS_MAX = 5
_PROBE_INTERVAL_S = 0.01
_UNIX_PATH_BYTES_MAX = 107  # sun_path, less the terminating NUL


def embedded_store(
    *,
    maxmemory_mb: int | None = None,
    policy: str = "allkeys-lru",
    io_threads: int | None = None,
    unix: bool = True,
    port: int | None = 0,
    password: str | None = None,
    startup_timeout_s: float = 10.0,
    binary: str | os.PathLike[str] | None = None,
) -> EmbeddedStore:
    """Start a server for a KV cache and return when it answers.

    Keep the returned object: the server is stopped when it is collected.

    Args:
        maxmemory_mb: What it may hold, in MiB. Default: a quarter of the memory that is
            available to us now (cgroup limits count), at least 256.
        policy: What to evict: a ``maxmemory-policy`` of the server.
        io_threads: Threads that read and write sockets. Default: 1 below 8 usable cores, else a
            quarter of them, at most 4: io-threads spin, and cost more than they give where
            cores are short.
        unix: Listen on a Unix socket too; `url` names that then.
        port: TCP port; 0 takes a free one, ``None`` listens on the Unix socket only.
        password: Asked of every client. Without one, any user of this host may connect to the
            TCP port; the Unix socket is open to our own user only.
        startup_timeout_s: Time the server has to answer, in seconds.
        binary: Another valkey-server or redis-server (6.2 or later).

    Raises:
        ConfigError: A setting cannot be right; nothing was started.
        StoreError: There is no server program, or it did not start.
    """
    if port is None and not unix:
        raise ConfigError("port=None and unix=False leave the store nothing to listen on")
    if maxmemory_mb is None:
        maxmemory_mb = max(_MAXMEMORY_MB_MIN, available_memory_bytes() // 4 // _MIB)
    if io_threads is None:
        cores = usable_cores()
        io_threads = min(_IO_THREADS_MAX, cores // 4) if cores >= _IO_THREADS_CORES_MIN else 1
    maxmemory_mb = _whole("maxmemory_mb", maxmemory_mb, 1, _MAXMEMORY_MB_MAX)
    io_threads = _whole("io_threads", io_threads, 1, _IO_THREADS_LIMIT)
    port = None if port is None else _whole("port", port, 0, _PORT_MAX)
    server = find_server(binary)
    deadline = time.monotonic() + startup_timeout_s
    for attempts_left in reversed(range(_PORT_ATTEMPTS_MAX if port == 0 else 1)):
        plan = _Plan(
            server=server,
            maxmemory_mb=maxmemory_mb,
            policy=policy,
            io_threads=io_threads,
            unix=unix,
            port=_free_port() if port == 0 else port,
            password=password or None,
        )
        try:
            return _start(plan, deadline)
        except _PortTaken:  # by somebody else, between our look and the server's bind
            if not attempts_left:
                raise
    raise AssertionError("the last attempt returns or raises")


class EmbeddedStore:
    """A running server; made by embedded_store(). Stopped when closed, collected, or at our exit.

    Attributes:
        host: "127.0.0.1", or None when the store listens on the Unix socket only.
        port: The TCP port, or None.
        unix_path: Path of the Unix socket (mode 0700, in a directory of mode 0700), or None.
        url: What to give to a client of this host and user: the Unix socket if there is one, else
            TCP. Holds the password.
        unix_url: The same, or None without a Unix socket.
        pid: Process id of the server.
        version: Its version, e.g. "9.1.2".
        binary: Path of its program.
        maxmemory_mb: What it may hold, in MiB.
    """

    def __init__(self, process: SupervisedServer, plan: _Plan) -> None:
        self._process = process
        user = f":{quote(plan.password, safe='')}@" if plan.password else ""
        self.host = _HOST if plan.port is not None else None
        self.port = plan.port
        self.unix_path = plan.unix_path(process.directory)
        self.unix_url = f"unix://{user}{quote(self.unix_path)}" if self.unix_path else None
        self.url = self.unix_url or f"redis://{user}{_HOST}:{plan.port}/0"
        self.pid = process.pid
        self.version = plan.server.version
        self.binary = plan.server.path
        self.maxmemory_mb = plan.maxmemory_mb

    def is_running(self) -> bool:
        """Whether the server lives."""
        return self._process.is_running()

    def stop(self) -> None:
        """Kill the server and remove its directory; it holds a cache, so nothing is saved."""
        self._process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        where = f"{self.host}:{self.port}" if self.port else self.unix_path
        state = f"pid {self.pid}" if self.is_running() else "stopped"
        return f"<EmbeddedStore {where} version {self.version} {state}>"


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The settings of one start, with nothing left to choose."""

    server: ServerBinary
    maxmemory_mb: int
    policy: str
    io_threads: int
    unix: bool
    port: int | None
    password: str | None = field(repr=False)

    def unix_path(self, directory: str) -> str | None:
        return f"{directory}/s.sock" if self.unix else None

    def config_text(self, directory: str) -> str:
        """The server's configuration file."""
        lines = [
            f"bind {_HOST} -::1",  # "-": where the host has no IPv6, go on without
            f"port {self.port or 0}",
            "protected-mode yes",
            "daemonize no",
            f"dir {_quoted(directory)}",
            'logfile ""',  # to standard output, which goes to server.log
            'save ""',
            "appendonly no",
            f"maxmemory {self.maxmemory_mb * _MIB}",
            f"maxmemory-policy {_quoted(self.policy)}",
            f"io-threads {self.io_threads}",
        ]
        lines += [
            f"lazyfree-lazy-{event} yes"
            for event in ("eviction", "expire", "server-del", "user-del", "user-flush")
        ]
        if path := self.unix_path(directory):
            lines += [f"unixsocket {_quoted(path)}", "unixsocketperm 700"]
        if self.password:
            lines.append(f"requirepass {_quoted(self.password)}")
        if self.server.kind == "redis" and self.server.release < (8, 0) and self.io_threads > 1:
            lines.append("io-threads-do-reads yes")  # later ones always do
        if self.server.kind == "valkey" and self.server.release >= (8, 1):
            # The server logs every request and reply past 1 MiB: all of ours.
            lines += ["commandlog-request-larger-than -1", "commandlog-reply-larger-than -1"]
        return "\n".join(lines) + "\n"


class _PortTaken(StoreError):
    """Another process has the port."""


def _start(plan: _Plan, deadline: float) -> EmbeddedStore:
    directory = _new_directory()
    config = Path(directory, "server.conf")
    try:
        config.write_text(plan.config_text(directory))
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise StoreError(f"cannot write {config}: {error}") from error
    process = SupervisedServer([plan.server.path, str(config)], directory)
    address = plan.unix_path(directory) or (_HOST, plan.port or 0)
    try:
        while process.is_running() and time.monotonic() < deadline:
            if _answers(address, plan.password, process.pid):
                return EmbeddedStore(process, plan)
            time.sleep(_PROBE_INTERVAL_S)
        what = "did not answer in time" if process.is_running() else "did not start"
        words = process.last_words() or "(no output)"
    except BaseException:  # Ctrl-C while we wait
        process.stop()
        raise
    process.stop()
    kind = _PortTaken if "already in use" in words else StoreError
    raise kind(f"{plan.server.path} (version {plan.server.version}) {what}:\n{words}")


def _whole(name: str, value: object, least: int, most: int) -> int:
    """A setting that the server takes as a whole number, of whatever type."""
    with contextlib.suppress(TypeError):
        if least <= (number := operator.index(value)) <= most:  # type: ignore[arg-type]
            return number
    raise ConfigError(f"{name}={value!r} cannot be; use a whole number from {least} to {most}")


def _quoted(value: str) -> str:
    """A value as the server's configuration file spells it, whatever bytes it holds."""
    spelled = (
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b'"\\' else f"\\x{byte:02x}"
        for byte in os.fsencode(value)
    )
    return f'"{"".join(spelled)}"'


def _new_directory() -> str:
    """A directory of mode 0700 whose path leaves room for the name of a Unix socket."""
    directory = tempfile.mkdtemp(prefix="kvferry-")
    if len(os.fsencode(directory)) + len("/s.sock") > _UNIX_PATH_BYTES_MAX:
        os.rmdir(directory)
        directory = tempfile.mkdtemp(prefix="kvferry-", dir="/tmp")
    return directory


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(address: str | tuple[str, int], password: str | None, pid: int) -> bool:
    """Whether our server answers PING there: ours, for another may have taken the port."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    secret = os.fsencode(password or "")
    auth = b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%b\r\n" % (len(secret), secret) if secret else b""
    answer = b""
    with contextlib.suppress(OSError), socket.socket(family) as talk:
        talk.settimeout(1.0)
        talk.connect(address)
        talk.sendall(auth + b"PING\r\nINFO server\r\nQUIT\r\n")
        while piece := talk.recv(65536):
            answer += piece
    return b"+PONG" in answer and b"process_id:%d\r\n" % pid in answer
