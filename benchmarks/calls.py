"""Bars of system calls: how many a value costs the client's whole process, as perf counts them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Self

from benchmarks.bars import Bar, Lab, Target
from benchmarks.latency import native_client
from kvferry.base.errors import CorruptError, KVFerryError
from kvferry_lab.bench.data import Chunks
from kvferry_lab.bench.server_probe import ServerProbe

__all__ = ["CallCounter", "system_calls"]

_COUNT = 32
_OWN = ("wake_ups", "receives", "sends")
_STOP_S = 10.0


def system_calls(lab: Lab) -> Iterator[Bar]:
    """4 MiB over one connection: system calls of this process for each value."""
    chunks = Chunks(lab.size_bytes(4), _COUNT, _COUNT)
    for server in lab.servers():
        with (
            lab.probed(server, 2 * _COUNT * chunks.size_bytes) as (config, probe),
            closing(native_client(config, 1)) as client,
        ):
            for op, limit in (("set", 8.0), ("get", 12.0)):
                name = f"system calls of {op.upper()} {lab.label(4)}, 1 conn, {server}"
                target = Target("<=", limit, "a value")
                before = client.stats()
                try:
                    counts = [_round(op, client, chunks, probe) for _ in range(lab.pairs)]
                except CallCounter.Missing as error:
                    yield Bar(name=name, target=target, value=None, skipped=True, reason=str(error))
                    continue
                moved = 2 * _COUNT * lab.pairs
                own = {key: (client.stats()[key] - before[key]) / moved for key in _OWN}
                yield Bar.of_median(
                    name,
                    target,
                    counts,
                    f"{len(counts)} rounds of {_COUNT}; by the client's own counters "
                    + ", ".join(f"{count:.2f} {key}" for key, count in own.items()),
                )


def _round(op: str, client: Any, chunks: Chunks, probe: ServerProbe) -> float:
    """System calls for each value of a batch that follows another one."""
    batch, last = chunks.batches()[0], _COUNT - 1
    move, buffers = client.batch_set, chunks.sources
    if op == "set":
        chunks.next_write(batch)
    else:
        move, buffers = client.batch_get, chunks.targets
        chunks.poison()
    move(chunks.keys, buffers).raise_for_errors()  # an idle way begins slowly
    with CallCounter() as counter:
        result = move(chunks.keys, buffers)
    result.raise_for_errors()
    chunks.verify_one(
        batch, last, chunks.targets[last] if op == "get" else probe.get(chunks.keys[last])
    )
    return counter.calls / _COUNT


class CallCounter:
    """Counts the system calls that all threads of this process make, between enter and exit.

    Raises:
        CallCounter.Missing: perf is not installed, or may not count them here.
    """

    class Missing(KVFerryError):
        """There is no perf that counts system calls; the text says why."""

        code = "not_installed"

    def __init__(self) -> None:
        self.calls = 0
        path = shutil.which("perf")
        if path is None:
            raise self.Missing("perf is not on PATH")
        theirs, self._tell = os.pipe()
        self._told, answers = os.pipe()
        command = [path, "stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "--delay=-1"]
        command += ["-p", str(os.getpid()), f"--control=fd:{theirs},{answers}"]
        self._process = subprocess.Popen(
            command, pass_fds=(theirs, answers), stderr=subprocess.PIPE, text=True
        )
        os.close(theirs)
        os.close(answers)

    def __enter__(self) -> Self:
        self._say(b"enable\n")
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._say(b"disable\n")
            self._process.send_signal(signal.SIGINT)
            said = self._end()
        finally:
            self._close()
        count = said.strip().splitlines()[-1].partition(",")[0]
        if not count.isdigit():
            raise CorruptError(f"perf counted no system calls: {said.strip()}")
        self.calls = int(count) - 2  # those that told it to stop

    def _say(self, word: bytes) -> None:
        try:
            os.write(self._tell, word)
            answered = os.read(self._told, 8)
        except BrokenPipeError:
            answered = b""
        if not answered:
            said = self._end().strip().splitlines()
            self._close()
            raise self.Missing(f"perf cannot count system calls: {said[-1] if said else ''}")

    def _end(self) -> str:
        return self._process.communicate(timeout=_STOP_S)[1]

    def _close(self) -> None:
        for pipe in (self._tell, self._told):
            os.close(pipe)
