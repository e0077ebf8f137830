"""A cache server for tests: in a thread, or as a process that can be killed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from kvferry.config import CacheConfig
from kvferry.config.server import ServerConfig
from kvferry.server.memory.segments import SHARED_MEMORY
from kvferry.server.server import Server
from support.servers import free_port
from support.stamps import until
from support.tuned import tuned

_PORTS_MAX = 5


@contextlib.contextmanager
def running(tmp_path: Path, *, mib: float = 16, **settings: Any) -> Iterator[Server]:
    """A server in a thread of this process, on an ipc socket: `server.config.endpoints[0]`."""
    cache = settings.pop("cache", {})
    settings = tuned(ServerConfig, **{"drain_s": 5.0, **settings})
    config = ServerConfig(
        cache=CacheConfig(max_local_cpu_size=mib / 1024, **cache),
        **{"endpoints": (f"ipc://{tmp_path}/server",), "http": None, **settings},
    )
    server = Server(config)
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        until(lambda: server.state != "starting", 10)
        assert server.ready
        yield server
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()


class CacheServerProcess:
    """`kvferry server` as a user runs it, on an ipc socket.

    Args:
        directory: For its socket and its log; its segments are named after it.
        *arguments: Further ones of the command line.
        mib: Size of the pool.
        **environment: Further variables.
    """

    def __init__(
        self, directory: Path, *arguments: str, mib: float = 16, **environment: str
    ) -> None:
        self._environment = {**os.environ, **environment}
        self.endpoint = f"ipc://{directory}/server"
        # Tests of one name have directories of one name, in each run beside this one.
        name = hashlib.blake2b(bytes(directory), digest_size=8).hexdigest()
        self.shm_name = f"kvferry-test-{name}"
        self.log_file = directory / "server.log"
        self._http = free_port()
        self._command = [
            *(sys.executable, "-m", "kvferry.cli.main", "server", "--l1-size-gb", f"{mib / 1024}"),
            *("--no-tcp", "--ipc", f"{directory}/server", "--shm-name", self.shm_name, *arguments),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, limit_s: float = 30) -> Self:
        """Start it, and wait until it is ready; at another port if somebody has taken ours."""
        for _ in range(_PORTS_MAX):
            with self.log_file.open("ab") as log:
                begins = len(self.log)
                self.process = subprocess.Popen(
                    [*self._command, "--http-port", str(self._http)],
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                )
            until(lambda: self.ready or self.process.poll() is not None, limit_s)
            if self.ready or "HTTP cannot listen" not in self.log[begins:]:
                break
            self._http = free_port()
        assert self.ready, self.log
        return self

    @property
    def log(self) -> str:
        """What it has said."""
        return self.log_file.read_text()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self.process is not None
        return self.process.pid

    @property
    def ready(self) -> bool:
        """Whether it says that it serves; not another one, which has its port."""
        try:
            return self.http("/readyz") is not None and self.status()["pid"] == self.pid
        except OSError:
            return False

    def url(self, path: str) -> str:
        """Of its HTTP side."""
        return f"http://127.0.0.1:{self._http}{path}"

    def http(self, path: str, body: object = None) -> Any:
        """Ask its HTTP side; JSON where it is some, else text."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url(path), data)
        with urllib.request.urlopen(request, timeout=10) as reply:
            text = reply.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text

    def status(self) -> Any:
        """See `Server.status`."""
        return self.http("/v1/status")

    def segments(self) -> list[Path]:
        """Its shared segments."""
        return sorted(SHARED_MEMORY.glob(f"{self.shm_name}-*"))

    def remove_segments(self) -> None:
        """Remove what it left."""
        for segment in self.segments():
            segment.unlink(missing_ok=True)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(60)

    def stop(self, limit_s: float = 60) -> int:
        """SIGTERM; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        return self.process.wait(limit_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.stop()
        finally:
            assert self.process is not None
            self.process.kill()
            self.process.wait()
            if self.process.returncode:  # killed: nobody else would remove them
                self.remove_segments()
