"""Bars of a node among a thousand hostile clients: its memory, and what honest ones still get.

Hostile ones are of other processes, `python -m benchmarks.node_hostile PORT KIND COUNT SECONDS`:
``silent`` says nothing; ``greedy`` asks for values and texts and reads nothing; ``slow`` sends
large values a little at a time. A client that loses its connection comes again.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.bars import Bar, Lab, Target
from kvferry import RedisClient
from kvferry.base.errors import KVFerryError
from kvferry_lab.bench.programs import LineProcess, python_process
from kvferry_lab.servers.lab_server import NodeProcess

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
        node = stack.enter_context(NodeProcess(_SIZE_GB * 1e9))
        client = stack.enter_context(RedisClient.from_config(node.config))
        for number in range(16):
            client.set(f"old{number}", bytes(_VALUE_BYTES))
        alone = [_rate(client, window_s) for _ in range(3)]
        attack = [
            stack.enter_context(
                python_process(__name__, node.config.port, kind, each, attack_s, stop_s=0.1)
            )
            for kind in _KINDS
        ]
        for program in attack:
            program.line()  # all are there
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
def _half_a_core(programs: Sequence[LineProcess]) -> Iterator[None]:
    """Let one of them run at a time, for half of the time."""
    over = threading.Event()

    def deal() -> None:
        while not over.is_set():
            for program in programs:
                os.kill(program.pid, signal.SIGCONT)
                over.wait(_SLICE_S)
                os.kill(program.pid, signal.SIGSTOP)
                over.wait(_SLICE_S)

    dealer = threading.Thread(target=deal, daemon=True)
    for program in programs:
        os.kill(program.pid, signal.SIGSTOP)
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


_PAUSE_S = 0.05
_SLOW_BYTES = 40 << 20
_TEXTS = (b"COMMAND DOCS\r\n", b"SCAN 0 COUNT 16384\r\n", b"INFO\r\n", b"KEYS *\r\n")


class _Hostile:
    """One of them."""

    def __init__(self, port: int, kind: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setblocking(False)
        self._words = b"GET old%d\r\n" % random.randrange(16) * 20
        if random.randrange(2):
            self._words = random.choice(_TEXTS) * 20
        if kind == "slow":
            self._words = b"x" * 3000
            key = b"slow%d" % random.randrange(16)
            head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, _SLOW_BYTES)
            self._socket.send(head)
        self._silent = kind == "silent"

    def go_on(self) -> bool:
        """Do what it does; false: the connection is over."""
        try:
            if not self._silent:
                self._socket.send(self._words)
            elif not self._socket.recv(1):
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Go away."""
        self._socket.close()


def main(port: int, kind: str, count: int, seconds: float) -> None:
    """Be so many of a kind for so long."""
    end = time.monotonic() + seconds
    all_of_them = [_Hostile(port, kind) for _ in range(count)]
    print("there", flush=True)
    while time.monotonic() < end:
        for index, one in enumerate(all_of_them):
            if one.go_on():
                continue
            one.close()
            try:
                all_of_them[index] = _Hostile(port, kind)
            except OSError:
                continue
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
