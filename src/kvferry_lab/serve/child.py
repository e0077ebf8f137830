"""`kvferry serve-demo` as a process that cannot outlive us."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvferry.base.errors import UnavailableError
from kvferry.embedded.supervision import SupervisedServer
from kvferry_lab.servers.lab_server import free_port, wait_until

__all__ = ["served"]

_START_S = 120.0


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
