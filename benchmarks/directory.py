"""Bars of the controller: its index alone, and look-ups by HTTP, while instances report changes.

The index is measured in wall time, because what it promises is that look-ups are not kept waiting.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.bars import Bar, Lab, Target
from kvferry import _native
from kvferry.base.errors import CorruptError
from kvferry.config.controller import ControllerConfig
from kvferry.http.listener import HttpListener
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http.app import make_app
from kvferry.sharing.membership.messages import (
    Begin,
    End,
    HeldIdentity,
    MemoryUsage,
    RegisterInstance,
    SnapshotPart,
    Synced,
)

__all__ = ["directory_cost"]

_ENTRIES = 10_000_000
_INSTANCES = 256
_HASHES = 256
_NATIVE = Target("<=", 2.0, "ms, p99")
_REST = Target("<=", 10.0, "ms, p99")
_MEMORY = Target("<=", 64.0, "bytes per entry")
_IDENTITY = HeldIdentity(bytes(range(16)), "many", 256)
_PIECE = 16 << 15
_CHANGED = 64


def directory_cost(lab: Lab) -> Iterator[Bar]:
    """Memory of ten million entries of 256 instances, and look-ups of 256 hashes among them."""
    ports = {"pull": 0, "reply": 0, "heartbeat": 0}
    controller = Controller(ControllerConfig(port=0, monitor_ports=ports))
    each = lab.count(_ENTRIES) // _INSTANCES
    prompts = _fill(controller, each)
    where = f"{each * _INSTANCES:,} entries of {_INSTANCES} instances"
    stats = controller.members.directory.stats()
    if stats["entries"] != each * _INSTANCES:
        raise CorruptError("the directory does not hold what it was told")
    memory = stats["memory_bytes"] / stats["entries"]
    yield Bar(name=f"directory: memory, {where}", target=_MEMORY, value=memory)
    count = max(1, min(each, _HASHES))
    for name, asked in (("one holds", prompts[:-1]), ("all hold", prompts[-1:])):
        with _changing(controller.members.directory):
            times = _times(
                lambda prompt: controller.members.directory.lookup(prompt), asked, lab.count(5000)
            )
        yield _bar(f"directory: lookup of {count} chunks that {name}, {where}", _NATIVE, times)
    listener = HttpListener(make_app(controller), "127.0.0.1", 0, "another port")
    listener.start()
    try:
        with _changing(controller.members.directory):
            times = _by_http(listener, prompts, lab.count(1000))
    finally:
        listener.stop()
    yield _bar(f"directory: lookup of {count} chunks by HTTP, {where}", _REST, times)


def _fill(controller: Controller, each: int) -> list[bytes]:
    """Have 256 instances say what they hold; prompts of which one holds each, and one of all."""
    pick = random.Random(1)
    shared = pick.randbytes(16 * min(each, _HASHES))
    prompts = []
    for number in range(_INSTANCES):
        key, incarnation = (f"instance-{number}", 0), pick.randbytes(16)
        facts = RegisterInstance(1.0, "", (_IDENTITY,), MemoryUsage())
        controller.members.register(key, incarnation, "127.0.0.1", facts)
        own = pick.randbytes(16 * each - len(shared))
        prompts.append(own[: 16 * _HASHES])
        held, seq = shared + own, 2
        identity = _IDENTITY.digest
        controller.members.change(key, incarnation, Begin(1, identity, True))
        for at in range(0, len(held), _PIECE):
            part = SnapshotPart(seq, identity, held[at : at + _PIECE])
            controller.members.change(key, incarnation, part)
            seq += 1
        controller.members.change(key, incarnation, End(seq, identity))
        controller.members.change(key, incarnation, Synced(seq + 1, (identity,)))
    return [*(prompt for prompt in prompts if prompt), shared]


@contextmanager
def _changing(directory: _native.Directory) -> Iterator[None]:
    """Chunks come to all instances and go again, a thousand times a second."""
    ended = threading.Event()

    def change() -> None:
        pick = random.Random(2)
        while not ended.wait(0.001):
            seat, hashes = pick.randrange(_INSTANCES), pick.randbytes(16 * _CHANGED)
            directory.update(seat, hashes, b"")
            directory.update(seat, b"", hashes)

    thread = threading.Thread(target=change, name="kvferry-bench", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _times(ask: Callable[[bytes], object], prompts: list[bytes], rounds: int) -> list[float]:
    times = []
    for round in range(max(1, rounds)):
        prompt = prompts[round % len(prompts)]
        start = time.perf_counter()
        found = ask(prompt)
        times.append(time.perf_counter() - start)
        if not found:
            raise CorruptError("the directory does not know who holds a prompt")
    return times


def _by_http(listener: HttpListener, prompts: list[bytes], rounds: int) -> list[float]:
    connection = http.client.HTTPConnection(listener.url.removeprefix("http://"), timeout=30)

    def ask(prompt: bytes) -> object:
        digests = [prompt[i : i + 16].hex() for i in range(0, len(prompt), 16)]
        connection.request("POST", "/v1/lookup", json.dumps({"hashes": digests}))
        return json.loads(connection.getresponse().read())["instances"]

    try:
        return _times(ask, prompts, rounds)
    finally:
        connection.close()


def _bar(name: str, target: Target, times: list[float]) -> Bar:
    times = sorted(times)
    return Bar(
        name=name,
        target=target,
        value=times[int(0.99 * len(times))] * 1e3,
        detail=f"p50 {times[len(times) // 2] * 1e3:.3g} ms",
    )
