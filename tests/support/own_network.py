"""A network of our own, of loopback alone, where every port is free: for commands of guides.

    with OwnNetwork(folder, environment) as network:
        network.start("redis-server --port 6379", "redis")     # runs until the end of the ``with``
        network.run("redis-cli -p 6379 DBSIZE")                # its output

Commands are lines for bash, and run in `folder`. All of a scenario runs in there: sockets in the
abstract namespace belong to a network too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from support import clock

__all__ = ["OwnNetwork", "Running"]

_END_S = 60.0
_LOOK_S = 0.1
# Holds the namespace, and ends with us.
_HOLD = "ip link set lo up && echo up && exec sleep infinity"


class Running:
    """A program that was started, with all that it starts."""

    def __init__(self, process: subprocess.Popen[bytes], log_file: Path) -> None:
        self.process = process
        self._log_file = log_file

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log_file.read_text(errors="replace")

    def says(self, text: str, limit_s: float) -> None:
        """Wait until its log has a text."""
        end = clock.now_s() + limit_s
        while text not in self.log:
            assert self.process.poll() is None, f"it ended without {text!r}:\n{self.log[-4000:]}"
            assert clock.now_s() < end, f"no {text!r} in:\n{self.log[-4000:]}"
            time.sleep(_LOOK_S)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Have it end; its exit code."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()


class OwnNetwork:
    """See the module; skips the test, with the reason, where this is not permitted.

    Args:
        folder: Where commands run, and their logs are.
        environment: All variables of the commands.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = dict(environment)
        self._running: list[Running] = []
        for program in ("unshare", "nsenter", "ip", "bash"):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is not on PATH")
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        self._holder = subprocess.Popen(
            ["unshare", "--kill-child", "--fork", *user, "--net", "--", "sh", "-c", _HOLD],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != b"up\n":
            why = self._holder.stderr.read().decode().strip()
            self._end_holder()
            pytest.skip(f"no network namespace of our own: {why}")
        self._enter = self._entry()

    def run(self, command: str, *, limit_s: float = 120, **variables: str) -> str:
        """Run a command to its end; what it printed. It has to succeed."""
        done = subprocess.run(
            [*self._enter, "bash", "-c", command],
            cwd=self.folder,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, command: str, name: str, **variables: str) -> Running:
        """Start a command that stays; `name` is that of its log."""
        log_file = self.folder / f"{name}-{len(self._running)}.log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                [*self._enter, "bash", "-c", command],
                cwd=self.folder,
                env={**self.environment, **variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running.append(Running(process, log_file))
        return self._running[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for each in reversed(self._running):
                each.end()
        finally:
            self._end_holder()

    def _entry(self) -> list[str]:
        """What a command begins with to run in there: the holder is the child of `unshare`."""
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        pid = children.read_text().split()[0]
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", pid, *user, "--net", "--"]

    def _end_holder(self) -> None:
        self._holder.kill()
        self._holder.wait()
        for pipe in (self._holder.stdout, self._holder.stderr):
            assert pipe is not None
            pipe.close()
