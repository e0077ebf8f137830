"""Servers that the lab starts: a Redis or Valkey, a node, and `kvferry serve-demo`.

    with LabServer(find_server(), ["maxmemory 1gb"]) as server:
        server.config, server.pid
    with served("--no-cache") as url:
        OpenAIClient(f"{url}/v1")

What `kvferry.embedded.store` starts is for use; a `LabServer` may have any setting. It keeps
nothing on disk and listens on 127.0.0.1 unless told otherwise. All die with us.

Threads: one at a time.
"""

from __future__ import annotations

import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from kvferry.base.errors import DeadlineExceeded, ServerError, StoreError, UnavailableError
from kvferry.config import ClientConfig
from kvferry.embedded.program import ServerBinary
from kvferry.embedded.supervision import SupervisedServer
from kvferry_lab.bench.programs import LineProcess
from kvferry_lab.bench.server_probe import ServerProbe

__all__ = ["HOST", "LabServer", "NodeProcess", "free_port", "served", "wait_until"]

HOST = "127.0.0.1"
_READY_TIMEOUT_S = 15.0
_LOOK_S = 0.002
_START_ATTEMPTS = 5
_START_S = 120.0


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel gives to outgoing connections:
    else one of them might take it while a killed server waits for its restart."""
    outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    lowest = 10_000 if outgoing > 12_000 else outgoing
    for _ in range(1000):
        port = random.SystemRandom().randrange(lowest, max(outgoing, lowest + 20_000))
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise StoreError("no free port")


def wait_until(what: str, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Look again and again; DeadlineExceeded when the time is over."""
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            raise DeadlineExceeded(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(_LOOK_S)


class LabServer:
    """See the module.

    Args:
        settings: Lines of its configuration file; they win over ours.
        host: Where it listens.
        enter: What its command line begins with, for one in another network.
    """

    def __init__(
        self,
        binary: ServerBinary,
        settings: Sequence[str] = (),
        *,
        host: str = HOST,
        enter: Sequence[str] = (),
    ) -> None:
        self.binary = binary
        self._host, self._enter = host, enter
        self._settings = tuple(settings)
        for left in reversed(range(_START_ATTEMPTS)):
            self.port = free_port()
            try:
                self._process = self._start()
                return
            except StoreError as error:
                if not ("already in use" in str(error) and left):
                    raise

    @property
    def config(self) -> ClientConfig:
        """The settings of a client of this server."""
        return ClientConfig(host=self._host, port=self.port)

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """End it and remove its files; idempotent."""
        self._process.stop()

    def _start(self) -> SupervisedServer:
        """Start it on its port, and wait until it answers."""
        directory = tempfile.mkdtemp(prefix="kvferry-lab-")
        file = Path(directory, "server.conf")
        file.write_text("\n".join(self._lines(directory)) + "\n")
        process = SupervisedServer([*self._enter, self.binary.path, str(file)], directory)
        try:
            wait_until(
                f"an answer of {self.binary.path}",
                lambda: not process.is_running() or self._answers(process.pid),
                _READY_TIMEOUT_S,
            )
            if not process.is_running():
                raise StoreError(f"{self.binary.path} did not start:\n{process.last_words()}")
        except BaseException:
            process.stop()
            raise
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _lines(self, directory: str) -> list[str]:
        lines = [
            f"bind {self._host}",
            f"port {self.port}",
            f'dir "{directory}"',
            'logfile ""',
            'save ""',
            "appendonly no",
        ]
        if self.binary.kind == "valkey" and self.binary.release >= (8, 1):
            # It logs every request and reply past 1 MiB: all of ours.
            lines += ["commandlog-request-larger-than -1", "commandlog-reply-larger-than -1"]
        return [*lines, *self._settings]

    def _answers(self, pid: int) -> bool:
        try:
            with ServerProbe(self.config) as probe:
                return probe.info("server").get("process_id") == str(pid)
        except (OSError, ServerError, UnavailableError):  # not yet
            return False


class NodeProcess(LineProcess):
    """A `kvferry node` with a port of its own; it listens when this returns."""

    def __init__(self, size_bytes: float) -> None:
        words = ["node", "--log-level", "error", "--listen", f"{HOST}:0"]
        command = [sys.executable, "-m", "kvferry.cli.main", *words]
        size_gb = str(size_bytes / 1e9)
        super().__init__(
            [*command, "--size-gb", size_gb],
            name="kvferry node",
            stop_s=15.0,
            signal=signal.SIGTERM,
        )
        port = int(self.first_line().rpartition(":")[2])
        self.config = ClientConfig(host=HOST, port=port, same_host="tcp")


@contextmanager
def served(*words: str) -> Iterator[str]:
    """Serve as long as the block; the URL, without the version.

    Raises:
        UnavailableError: It did not start; the text has the end of its log.
        DeadlineExceeded: Nor did it end.
    """
    port, folder = free_port(), tempfile.mkdtemp(prefix="kvferry-serve-")
    command = [sys.executable, "-m", "kvferry.cli.main", "serve-demo", "--port", str(port), *words]
    log = Path(folder, "server.log")
    log.touch()
    process = SupervisedServer(command, folder)
    try:
        wait_until(
            "serve-demo to serve",
            lambda: "serving" in log.read_text(errors="replace") or not process.is_running(),
            _START_S,
        )
        if not process.is_running():
            raise UnavailableError(f"serve-demo ended:\n{process.last_words()}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stop()
