"""A program that answers a line of JSON with a line of JSON, and lives from one to the next.

    with LineProcess([python, DRIVER], environment) as driver:
        driver("get", name="a", keys=[...])      # {"do": "get", ...}; the value of "ok"

A reply with "error" is raised. The program's side is `serve`, which needs nothing but the standard
library, so that it works in the environment of any engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

__all__ = ["DriverError", "LineProcess", "serve"]


class DriverError(Exception):
    """What was raised in the program, as text."""


class LineProcess:
    """See the head of this module."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def __call__(self, do: str, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise DriverError(f"the program ended with {self._process.wait(10)}")
        reply = json.loads(line)
        if "error" in reply:
            raise DriverError(reply["error"])
        return reply["ok"]

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def close(self) -> None:
        """End it."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.terminate()
        self._process.wait(20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(call: Callable[..., Any]) -> None:
    """Answer requests on stdin by ``call(do, **request)`` until it ends.

    What else is printed in this process goes to stderr.
    """
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            reply = {"ok": call(**json.loads(line))}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
