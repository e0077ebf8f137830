"""`kvferry serve-demo` as a process, as a user runs it.

with DemoServer(tmp_path, "--bytes-per-token", "2048", config={"chunk_size": 64}) as server:
    server.ask("/v1/completions", {"prompt": "hi"}), server.counted("requests")
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from support.stamps import until

__all__ = ["DemoServer"]

_AT = re.compile(r"serving \S+ at (http://\S+)/v1")
_START_S = 60.0
_ANSWER_S = 60.0


class DemoServer:
    """See the head of this module; ready when it is made.

    Args:
        folder: For its settings and its log.
        *arguments: Of the command line.
        config: Settings of the cache, in JSON, which is YAML.
    """

    def __init__(self, folder: Path, *arguments: str, config: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "kvferry.yaml"
        file.write_text(json.dumps({"cache": {"max_local_cpu_size": 0.05, **config}}))
        file.chmod(0o600)
        self._log = folder / "server.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "kvferry.cli.main", "serve-demo", "--port", "0"),
                    *("--config", str(file), *arguments),
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        try:
            until(lambda: _AT.search(self.log) or self.process.poll() is not None, _START_S)
            found = _AT.search(self.log)
            assert found, self.log
            self.url = found[1]
        except BaseException:
            self.kill()
            raise

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log.read_text()

    def ask(self, path: str, body: Any) -> tuple[int, Any]:
        """POST; the status, and JSON or the events of a stream."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, raw, {"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as reply:
                status, text = reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                status, text = error.code, error.read().decode()
        if text.startswith("data: "):
            return status, [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        return status, json.loads(text)

    def get(self, path: str) -> str:
        """GET."""
        with urllib.request.urlopen(self.url + path, timeout=_ANSWER_S) as reply:
            text: str = reply.read().decode()
            return text

    def counted(self, name: str) -> float:
        """A series of its own in /metrics."""
        found = re.search(rf"^kvferry_demo_{name} (\S+)$", self.get("/metrics"), re.MULTILINE)
        assert found, name
        return float(found[1])

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal and wait; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(_ANSWER_S)

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(_ANSWER_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
