"""A cache server as a process of its own, for benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from kvferry.base.errors import StoreError

__all__ = ["CacheServer", "cache_server", "cpu_s_of"]

_START_S = 30.0
_STOP_S = 15.0


class CacheServer:
    """`kvferry server` on a socket in a directory of its own, without HTTP.

    Args:
        *arguments: Further ones of the command line, e.g. a store.
    """

    def __init__(self, directory: Path, pool_gb: float, *arguments: str) -> None:
        self.url = f"ipc://{directory}/server"
        self._socket = directory / "server"
        self._log = directory / "log"
        self._command = [
            *(sys.executable, "-m", "kvferry.cli.main", "server", "--no-tcp", "--no-http"),
            *("--ipc", str(self._socket), "--l1-size-gb", str(pool_gb)),
            *("--shm-name", f"kvferry-bench-{os.getpid()}", *arguments),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it; it listens when this returns.

        Raises:
            StoreError: It does not.
        """
        self._socket.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until = time.monotonic() + _START_S
        while not self._socket.exists():
            if self._process.poll() is not None or time.monotonic() > until:
                raise StoreError(f"kvferry server did not start: {self._log.read_text()[-500:]}")
            time.sleep(0.005)
        return self

    @property
    def pid(self) -> int:
        """Of its process; its main thread answers requests."""
        assert self._process is not None
        return self._process.pid

    @property
    def cpu_s(self) -> float:
        """CPU that it has used, user and system."""
        return cpu_s_of(self.pid)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_STOP_S)

    def close(self) -> None:
        """End it, one way or the other."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()


def cpu_s_of(pid: int) -> float:
    """CPU that a process has used, user and system, to the nanosecond; see clock_getcpuclockid(3).

    /proc counts in ticks of 10 ms.
    """
    return time.clock_gettime(~pid << 3 | 2)


@contextmanager
def cache_server(pool_gb: float, *arguments: str) -> Iterator[CacheServer]:
    """A server that runs as long as the block."""
    with tempfile.TemporaryDirectory() as directory:
        server = CacheServer(Path(directory), pool_gb, *arguments)
        try:
            yield server.start()
        finally:
            server.close()
