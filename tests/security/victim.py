"""A client in a process of its own, before a server that means harm; what it cost is measured.

    with Victim() as victim:
        cost = victim.suffer("native", server.host, server.port, timeout_s=0.3)
        cost.growth_bytes, cost.descriptors, cost.statuses, cost.close_s

One process serves many cases, one after the other. What does not come back within HANG_S counts as
a hang: the process is killed, and a new one is started for the next case.

`python -m security.victim` is the child: a case per line of its input, an answer per line.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kvferry import RedisClient
from kvferry.base.errors import KVFerryError
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig
from support import clock
from support.tuned import tuned

HANG_S = 120.0
SAMPLE_S = 0.005
CALLS = ("get", "exists", "get")
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Cost:
    """What a case took, beyond what the process had before."""

    growth_bytes: int  # of resident memory, at its highest
    descriptors: int  # open at a time, at most
    said_bytes: int  # in log lines and errors
    statuses: list[str]  # of each call: a batch's status, or an exception
    seconds: list[float]  # of each call, by clock.py, as close_s
    close_s: float


class Victim:
    """The process; used from one thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def suffer(self, kind: str, host: str, port: int, **settings: Any) -> Cost:
        """Let a client make its calls.

        Args:
            kind: "native" or "pure".
            settings: Of the client. Besides: `calls` to make instead of CALLS, `keys` to ask for
                in each, `wait_s` to stay on afterwards.
        """
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(HANG_S, process.kill)
        watchdog.start()
        try:
            line = json.dumps({"kind": kind, "host": host, "port": port, **settings})
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        finally:
            watchdog.cancel()
        if not answer:
            self.close()
            raise AssertionError(f"the client hangs for {HANG_S} s, or its process died")
        return Cost(**json.loads(answer))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "security.victim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TESTS), "MALLOC_ARENA_MAX": "2"},
        )


# What follows runs in the child.


class _Meter(threading.Thread):
    """Watches this process, and the lines that it logs, for the length of a `with` block."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._done = threading.Event()
        self._before = self._resident()
        self.growth_bytes = self.descriptors = 0

    def run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        self.growth_bytes = max(self.growth_bytes, self._resident() - self._before)
        self.descriptors = max(self.descriptors, len(os.listdir("/proc/self/fd")))

    @staticmethod
    def _resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def __enter__(self) -> Self:
        self._look()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()
        self._look()


class _Listener(logging.Handler):
    """Counts what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.bytes += len(record.getMessage())


def _call(client: Any, what: str, keys: list[str]) -> tuple[str, int]:
    """Its outcome (the worst, of many keys), and the length of what it said."""
    try:
        if what == "info":
            return "OK", len(repr(client.server_info()))
        result = (
            client.batch_exists(keys)
            if what == "exists"
            else client.batch_get(keys, [bytearray(8) for _ in keys])
        )
        return max(result).name, len(result.error or "")
    except KVFerryError as error:
        return type(error).__name__, len(str(error))


def _suffer(
    kind: str,
    calls: list[str] | tuple[str, ...] = CALLS,
    keys: int = 1,
    wait_s: float = 0.0,
    **settings: Any,
) -> dict[str, Any]:
    listener = _Listener()
    logging.getLogger("kvferry").addHandler(listener)
    statuses, seconds = [], []
    with _Meter() as meter:
        client: Any = (RedisClient if kind == "native" else PureRedisClient)(
            **tuned(ClientConfig, **settings)
        )
        for what in calls:
            began = clock.now_s()
            status, said = _call(client, what, [f"key {index}" for index in range(keys)])
            seconds.append(clock.now_s() - began)
            statuses.append(status)
            listener.bytes += said
        time.sleep(wait_s)
        if kind == "native":
            listener.bytes += len(repr(client.stats())) + len(repr(client.nodes()))
        began = clock.now_s()
        client.close()
        close_s = clock.now_s() - began
    logging.getLogger("kvferry").removeHandler(listener)
    return {
        "growth_bytes": meter.growth_bytes,
        "descriptors": meter.descriptors,
        "said_bytes": listener.bytes,
        "statuses": statuses,
        "seconds": seconds,
        "close_s": close_s,
    }


def _main() -> None:
    logging.getLogger("kvferry").setLevel(logging.DEBUG)
    logging.lastResort = None
    _suffer("native", calls=(), host="127.0.0.1", port=1)  # what is loaded once is no growth
    _suffer("pure", calls=(), host="127.0.0.1", port=1)
    for line in sys.stdin:
        print(json.dumps(_suffer(**json.loads(line))), flush=True)


if __name__ == "__main__":
    _main()
