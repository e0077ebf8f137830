"""The chaos run finds what is planted: servers that lie, and clients that hang, leak and overstep.

One lane of small raw values; a run ends at its first fault, and most of them need a second.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from chaos.callers import Blocking, Caller, Request
from chaos.calls import Shape
from chaos.lanes import Lane
from chaos.report import Plan, Report
from chaos.runner import run
from chaos.stages import LIMITS, Stage
from kvferry import RedisClient
from kvferry.client.batch import BatchResult, Status
from kvferry.config import ClientConfig
from support import clock
from support.resp import bulk
from support.scripted import Action, Command, MiniStore, ScriptedServer, Silence
from support.stamps import KIB
from support.tuned import tuned

pytestmark = pytest.mark.full  # tests of the harness itself

SHAPE = Shape((KIB, KIB, KIB, 4 * KIB, 4 * KIB, 64 * KIB))
EVERY = 20  # commands, or calls, of which one is wrong


# Which command is answered with a lie, and how often; those that are not here: GET.
LIES = {"loses": (b"SET", 3), "keeps": (b"DEL", 3)}


class Liar(MiniStore):
    """A store that now and then does not tell the truth."""

    def __init__(self, lie: str = "") -> None:
        super().__init__()
        self.lie = lie
        self.before: dict[bytes, bytes] = {}
        self.asked = 0
        self.silent = False

    def __call__(self, command: Command) -> Action | None:
        if self.silent:
            return Silence()
        if command.name == b"SET" and command[1] in self.data:
            self.before[command[1]] = self.data[command[1]]
        name, every = LIES.get(self.lie, (b"GET", EVERY))
        if self.lie and command.name == name:
            self.asked += 1
            if self.asked % every == 0 and (lie := self.told(command[1])) is not None:
                return lie
        return super().__call__(command)

    def told(self, key: bytes) -> Action | None:
        """The lie about that key, if there is anything to lie about."""
        value, before = self.data.get(key), self.before.get(key)
        match self.lie:
            case "loses":
                return b"+OK\r\n"
            case "keeps":
                return b":1\r\n"
            case "forgets":
                return b"_\r\n"
            case "mistakes":
                return b"-ERR something of mine\r\n"
        if value is None or before is None:
            return None
        alike = [one for one in self.data.values() if len(one) == len(value) and one != value]
        half = len(value) // 2
        told = {
            "stale": before,
            "swaps": (alike or [value])[0],
            "flips": value[:500] + bytes([value[500] ^ 4]) + value[501:],
            "tears": value[:half] + before[half:],
            "invents": bytes(len(value)),
        }
        return bulk(told[self.lie])


def a_run(
    store: Liar,
    connect: Callable[[ScriptedServer], Caller] | None = None,
    seconds: float = 10.0,
    hung_s: float = 15.0,
    **stage: Any,
) -> Report:
    with ScriptedServer(store) as server:

        def honestly(server: ScriptedServer) -> Caller:
            return Blocking(RedisClient(server.host, server.port, **tuned(ClientConfig, **LIMITS)))

        lane = Lane("raw", SHAPE, lambda: (connect or honestly)(server))
        plan = Plan(seed=1, seconds=seconds, threads=4, late_s=0.8, hung_s=hung_s)
        return run(Stage("planted", [lane], **stage), plan)


def test_an_honest_server_is_not_blamed() -> None:
    def patient(server: ScriptedServer) -> Caller:
        limits = LIMITS | {"timeout_s": 10.0, "stall_timeout_s": 10.0, "connect_timeout_s": 10.0}
        return Blocking(RedisClient(server.host, server.port, **tuned(ClientConfig, **limits)))

    report = a_run(Liar(), patient, seconds=8)
    assert not report.journal.faults
    assert report.calls > 500
    assert report.peaces >= 2
    assert report.pardons == 0


@pytest.mark.parametrize(
    ("lie", "kinds"),
    [
        ("swaps", {"wrong"}),
        ("flips", {"wrong"}),
        ("tears", {"wrong"}),
        ("invents", {"wrong"}),
        # A wrong answer proves that other versions are gone: what another thread finds is a ghost.
        ("stale", {"stale", "ghost"}),
        ("keeps", {"stale", "ghost"}),
        ("loses", {"stale", "lost"}),
        # Where a removal was under way, a miss may be true. Then it proves that nothing was there,
        # and what is there all the same is the fault.
        ("forgets", {"lost", "stale", "ghost"}),
        ("mistakes", {"error"}),
    ],
)
def test_a_lie_is_found(lie: str, kinds: set[str]) -> None:
    report = a_run(Liar(lie), seconds=60)  # it ends with the first fault
    assert report.journal.faults
    assert report.journal.kinds() <= kinds, report.journal.faults


class Planted(Blocking):
    """A client that does something wrong at every call that is due."""

    def __init__(self, server: ScriptedServer) -> None:
        super().__init__(RedisClient(server.host, server.port, **tuned(ClientConfig, **LIMITS)))
        self.made = 0

    def call(self, request: Request) -> BatchResult:
        self.made += 1
        if self.made % EVERY == 0:
            return self.err(request)
        return super().call(request)

    def err(self, request: Request) -> BatchResult:
        raise NotImplementedError


def test_a_call_that_does_not_come_back_is_found() -> None:
    stay = threading.Event()

    class Hangs(Planted):
        def err(self, request: Request) -> BatchResult:
            stay.wait(60)
            return super().call(request)

    started = clock.now_s()
    try:
        report = a_run(Liar(), Hangs, hung_s=1.0)
    finally:
        stay.set()
    assert report.journal.kinds() == {"hang"}
    text = report.journal.faults[0]["text"]
    assert "Call(lane=0" in text
    assert "in err" in text  # the stack says where
    assert "kvferry-io" in text
    assert clock.now_s() - started < 60


def test_a_call_that_comes_back_late_is_found() -> None:
    class Dawdles(Planted):
        def err(self, request: Request) -> BatchResult:
            result = super().call(request)
            # What the watch takes for the machine's share of it may be a third and more.
            time.sleep((request.timeout_s or 1.0) + 8.0)
            return result

    report = a_run(Liar(), Dawdles)
    assert "late" in report.journal.kinds()


def test_a_write_into_a_buffer_that_was_given_back_is_found() -> None:
    class Oversteps(Planted):
        def err(self, request: Request) -> BatchResult:
            if request.buffers:
                self.kept = request.buffers[0]
                threading.Timer(0.01, self.write).start()
            count = len(request.keys)
            return BatchResult(bytes([Status.CANCELLED]) * count, [0] * count, 0.0)

        def write(self) -> None:
            self.kept[-1:] = b"!"

    assert a_run(Liar(), Oversteps).journal.kinds() == {"late_write"}


def test_an_exception_of_a_client_is_found() -> None:
    class Raises(Planted):
        def err(self, request: Request) -> BatchResult:
            raise RuntimeError("planted")

    report = a_run(Liar(), Raises)
    assert report.journal.kinds() == {"crash"}
    assert "planted" in report.journal.faults[0]["text"]


@pytest.mark.parametrize("kind", ["fds", "threads"])
def test_a_leak_is_found(kind: str) -> None:
    done = threading.Event()
    opened: list[int] = []

    class Leaks(Blocking):
        def __init__(self, server: ScriptedServer) -> None:
            super().__init__(RedisClient(server.host, server.port, **tuned(ClientConfig, **LIMITS)))

        def close(self) -> None:
            super().close()
            if kind == "fds":
                opened.append(os.open("/dev/null", os.O_RDONLY))
            else:
                threading.Thread(target=done.wait, args=(60,), daemon=True).start()

    try:
        report = a_run(Liar(), Leaks, seconds=0.5)
    finally:
        done.set()
        for fd in opened:
            os.close(fd)
    assert report.journal.kinds() == {kind}


def test_a_client_that_does_not_find_back_is_found() -> None:
    store = Liar()

    @contextmanager
    def silence(rng: Random) -> Iterator[None]:
        store.silent = True
        yield

    report = a_run(store, server_troubles={"silence": silence}, patience_s=1.0)
    assert report.journal.kinds() == {"away"}
