"""Commands of kvferry that serve, as processes whose log is read."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from typing import Self

from support import clock

__all__ = ["END_LIMIT_S", "LIMIT_S", "Process"]

LIMIT_S = 30.0
END_LIMIT_S = 200.0  # also of a machine that has other work
LOOK_S = 0.25


class Process:
    """A command of kvferry that serves; killed at the end of a ``with`` block.

    Args:
        words: The command, and its options.
        environ: Beside the environment without our variables.
    """

    def __init__(self, *words: object, **environ: str) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("KVFERRY_", "LMCACHE_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "kvferry.cli.main", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**kept, **environ},
        )
        self.said = ""

    def says(self, pattern: str) -> re.Match[str]:
        """Read its log until a line has the pattern."""
        assert self.process.stderr is not None
        end = clock.now_s() + LIMIT_S
        while not (found := re.search(pattern, self.said)):
            assert clock.now_s() < end, f"no {pattern!r} in:\n{self.said}"
            if select.select([self.process.stderr], [], [], LOOK_S)[0]:
                piece = os.read(self.process.stderr.fileno(), 65536)
                assert piece, f"it ended without {pattern!r}:\n{self.said}"
                self.said += piece.decode()
        return found

    def send(self, signum: int) -> None:
        """A signal."""
        self.process.send_signal(signum)

    def ends(self) -> int:
        """Wait for its end; the exit code."""
        out, err = self.process.communicate(timeout=END_LIMIT_S)
        self.said += err.decode()
        assert not out
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
