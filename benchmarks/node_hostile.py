"""Bars of a node among a thousand hostile clients: its memory, and what honest ones still get."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.bars import Bar, Lab, Target
from kvferry import RedisClient
from kvferry.base.errors import KVFerryError

__all__ = ["node_hostile"]

_KINDS = ("silent", "greedy", "slow")
_CLIENTS = 1000  # of all kinds together
_SIZE_GB = 0.1
_VALUE_BYTES = 1 << 20
_ATTACK_S, _WINDOW_S = 20.0, 2.0
_SLICE_S = 0.01  # of half a core, dealt out to one process after another
_MEMORY = Target("<=", 300.0, "MB")
_RATE = Target(">=", 0.5, "x of alone")


def node_hostile(lab: Lab) -> Iterator[Bar]:
    """RSS of a node of 0.1 GB, and GET and SET of 1 MiB by an honest client, under attack."""
    each = lab.count(_CLIENTS) // len(_KINDS) + 1
    attack_s, window_s = lab.count(int(_ATTACK_S)), _WINDOW_S / (10 if lab.quick else 1)
    with ExitStack() as stack:
        node, port = stack.enter_context(_node())
        client = stack.enter_context(RedisClient.from_url(f"redis://127.0.0.1:{port}"))
        for number in range(16):
            client.set(f"old{number}", bytes(_VALUE_BYTES))
        alone = [_rate(client, window_s) for _ in range(3)]
        attack = [
            stack.enter_context(_program("hostile_process", port, kind, each, attack_s))
            for kind in _KINDS
        ]
        stack.enter_context(_half_a_core(attack))
        rates, end = [], time.monotonic() + attack_s
        while time.monotonic() < end:
            rates.append(_rate(client, window_s))
        memory = _peak_mb(node.pid)
    mean, worst = sum(rates) / len(rates), min(rates)
    best = sum(alone) / len(alone)
    where = f"a node of {_SIZE_GB} GB among {len(_KINDS) * each:,} hostile clients"
    yield Bar(name=f"memory of {where}", target=_MEMORY, value=memory, detail="the most of all")
    yield Bar(
        name=f"GET and SET of 1 MiB, {where}",
        target=_RATE,
        value=mean / best if best else None,
        detail=f"{mean:.0f} of {best:.0f} pairs/s, the worst {window_s:g} s {worst:.0f}",
    )


def _rate(client: RedisClient, seconds: float) -> float:
    """Pairs of GET and SET a second; those that failed do not count."""
    buffer, value = bytearray(_VALUE_BYTES), bytes(_VALUE_BYTES)
    done, tried, start = 0, 0, time.monotonic()
    while time.monotonic() - start < seconds:
        tried += 1
        try:
            client.get(f"old{tried % 16}", buffer)
            client.set(f"new{tried % 8}", value)
        except KVFerryError:
            continue
        done += 1
    return done / (time.monotonic() - start)


@contextmanager
def _node() -> Iterator[tuple[subprocess.Popen[str], int]]:
    words = ["--size-gb", str(_SIZE_GB), "--listen", "127.0.0.1:0"]
    command = [sys.executable, "-m", "kvferry.cli.main", "node", *words]
    with _running(command) as node:
        assert node.stdout is not None
        yield node, int(node.stdout.readline().rpartition(":")[2])


@contextmanager
def _program(module: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    with _running([sys.executable, "-m", f"benchmarks.{module}", *map(str, words)]) as program:
        assert program.stdout is not None
        program.stdout.readline()
        yield program


@contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


@contextmanager
def _half_a_core(programs: Sequence[subprocess.Popen[str]]) -> Iterator[None]:
    """Let one of them run at a time, for half of the time."""
    over = threading.Event()

    def deal() -> None:
        while not over.is_set():
            for program in programs:
                program.send_signal(signal.SIGCONT)
                over.wait(_SLICE_S)
                program.send_signal(signal.SIGSTOP)
                over.wait(_SLICE_S)

    dealer = threading.Thread(target=deal, daemon=True)
    for program in programs:
        program.send_signal(signal.SIGSTOP)
    dealer.start()
    try:
        yield
    finally:
        over.set()
        dealer.join()


def _peak_mb(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise ValueError("the kernel does not say what memory the node has had")
    return int(found[1]) * 1024 / 1e6
