"""`lmcache server` (its MP mode) as a process of a test's own.

    with LMCacheServer(python, {"type": "resp", ...}, environment, chunk=64) as server:
        server.transfer         # kv_transfer_config of a vLLM that uses it
        server.clear()          # its memory, so that only the L2 adapter can hit

It talks to engines on the loopback, keeps to processes that copy for themselves (no GPU), and ends
with the ``with``, by force if it does not within a while.
"""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from support.servers import free_port

READY_S = 300.0  # an import of torch, on a host that has other things to do
END_S = 30.0


class LMCacheServer:
    """One server with one L2 adapter."""

    def __init__(
        self, python: Path, adapter: Mapping[str, Any], environment: Mapping[str, str], chunk: int
    ) -> None:
        self.port, self._http = free_port(), free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        settings = {
            "host": "127.0.0.1",
            "port": self.port,
            "http-port": self._http,
            "l1-size-gb": 0.5,
            "eviction-policy": "LRU",
            "chunk-size": chunk,
            "supported-transfer-mode": "engine_driven",
            "l2-adapter": json.dumps(adapter),
        }
        words = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [python.parent / "lmcache", "server", *words, "--disable-metrics"],
            env={**environment, "LMCACHE_TRACK_USAGE": "false", "OMP_NUM_THREADS": "1"},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def transfer(self) -> dict[str, Any]:
        """How vLLM finds it."""
        where = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": self.port}
        return {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": where,
        }

    @property
    def log(self) -> str:
        """All that it has printed so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def clear(self) -> None:
        """Empty its own memory, what is in use included."""
        assert self._ask("/cache/clear", {"tier": "l1", "force": True})["status"] == "ok"

    def status(self) -> dict[str, Any]:
        """What it says of itself."""
        return self._ask("/status")

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._http}{path}", data)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer

    def _await_ready(self) -> None:
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                self.status()
                return
            except (OSError, urllib.error.URLError):
                time.sleep(0.1)
        raise AssertionError(f"lmcache server does not start:\n{self.log[-3000:]}")

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
