"""Python programs in processes of their own, with a time limit.

program = Program(SOURCE, server.port)      # warnings are errors; sys.argv[1:] as given
program.read_line(), program.interrupt()    # while it runs
program.ends(within_s=3)                    # exit code 0, nothing on stderr; its output
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from typing import Self

KILL_AFTER_S = 60.0


class Program:
    """A program that was started; killed at the end of a ``with`` block."""

    def __init__(self, source: str, *arguments: object) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-W", "error", "-c", source]
            + [str(argument) for argument in arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def read_line(self, limit_s: float = 20) -> str:
        """Its next line of output, which it must flush; empty if it ended."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], limit_s)[0], "the program says nothing"
        return self.process.stdout.readline().decode().rstrip("\n")

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def ends(self, within_s: float = KILL_AFTER_S, code: int = 0) -> str:
        """Wait for its end; what it printed. Fails if it is late, ends badly, or complains."""
        try:
            out, err = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler tells where it is
            _, err = self.process.communicate()
            raise AssertionError(f"it runs after {within_s} s:\n{err.decode()}") from None
        assert self.process.returncode == code, (self.process.returncode, err.decode())
        assert not err, err.decode()
        return out.decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def run_program(source: str, *arguments: object, within_s: float = KILL_AFTER_S) -> str:
    """Run to the end; what it printed."""
    with Program(source, *arguments) as program:
        return program.ends(within_s)
