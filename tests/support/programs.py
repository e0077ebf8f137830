"""Python programs in processes of their own, with a time limit.

program = Program(SOURCE, server.port)      # warnings are errors; sys.argv[1:] as given
program.read_line(), program.interrupt()    # while it runs
program.ends(within_s=3)                    # exit code 0, nothing on stderr; its output
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from support import clock

KILL_AFTER_S = 60.0
POLL_S = 0.25
PYTEST_LIMIT_S = 280.0
TESTS = Path(__file__).parents[1]  # programs may import support, too


class Program:
    """A program that was started; killed at the end of a ``with`` block."""

    def __init__(self, source: str, *arguments: object) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-W", "error", "-c", source]
            + [str(argument) for argument in arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # a line that is read leaves the rest to `ends`
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )

    def read_line(self, limit_s: float = 60) -> str:
        """Its next line of output, which it must flush; empty if it ended."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], limit_s)[0], "the program says nothing"
        return self.process.stdout.readline().decode().rstrip("\n")

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def ends(self, within_s: float = KILL_AFTER_S, code: int = 0) -> str:
        """Wait for its end; what it printed. Fails if it is late, ends badly, or complains.

        Late is what clock.py calls so.
        """
        started = clock.now_s()
        while True:
            try:
                out, err = self.process.communicate(timeout=POLL_S)
                break
            except subprocess.TimeoutExpired:
                if clock.now_s() - started < within_s:
                    continue
            self.process.send_signal(signal.SIGABRT)  # faulthandler tells where it is
            _, err = self.process.communicate()
            raise AssertionError(f"it runs after {within_s} s:\n{err.decode()}")
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


def pytest_of(directory: Path, source: str, *options: str) -> tuple[int, str]:
    """Exit code and output of a pytest with one file of tests."""
    Path(directory, "test_it.py").write_text(source)
    words = ["-q", "-c", os.devnull, "--rootdir", str(directory), "-p", "no:cacheprovider"]
    words += ["-p", "no:hypothesispytest"]  # it warns of other packages that are installed
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *options, "test_it.py"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=PYTEST_LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
