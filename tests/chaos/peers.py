"""A chaos run of instances that share: five processes that read each other's memory, and a liar.

    report = run_peers(Plan(seed=7, seconds=60))
    assert not report.journal.faults

Instances are killed and come back, are stopped and go on; the ways between them are slow, cut,
silent or damage what passes; the controller is away, or begins anew. Each instance compares every
byte that it is handed, and times every call (instance.py). After all of it the liar goes, everybody
reads from a neighbour again, and ends with nothing left over.
"""

from __future__ import annotations

import json
import logging
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from chaos.instance import IDENTITY, LENGTH, PROMPTS, SHARED
from chaos.journal import Journal
from chaos.liar import liar, values_of
from chaos.report import Plan, Report
from chaos.schedule import schedule
from chaos.troubles import Troubles
from chaos.ways import damages, toxics
from kvferry.chunks.prompt import read_prompt
from kvferry.config.controller import ControllerConfig
from kvferry.config.tuning import ControllerTuning
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.membership import HeldIdentity
from support.engines import CHUNK, prompt, space
from support.proxy import FaultProxy

__all__ = ["run_peers"]

INSTANCES = 5
HOME = "127.0.0.2"  # where nodes listen; others reach them through proxies at the same ports
_PYTHON = (sys.executable, "-X", "faulthandler", "-W", "error")
WORD = "word"  # without one nobody may stand between two instances
ANSWER_S = 180.0  # of an instance: more than any of its own limits, on a machine that is full
HEARTBEATS = ControllerTuning(heartbeat_s=0.2, suspect_s=1.0, dead_s=3.0)


class _Process:
    """One instance, and what it said; the next one of its name takes its place."""

    def __init__(self, number: int, seed: int, sharing: dict[str, Any]) -> None:
        self.number = number
        self._arguments = json.dumps([number, seed, sharing])
        self._start()

    def _start(self) -> None:
        self._awaited = 1  # answers; the first one comes by itself
        self._process = subprocess.Popen(
            [*_PYTHON, "-m", "chaos.instance", self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ),
            bufsize=0,
        )

    def tell(self, *words: object) -> None:
        """Have it do something; `answer` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self._awaited += 1

    def answer(self, report: Report) -> None:
        """Wait until it has done all, and put down what it says."""
        assert self._process.stdout is not None
        found: dict[str, Any] = {}
        while self._awaited:
            ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
            line = self._process.stdout.readline() if ready else b""
            if not line:
                how = "has ended by itself" if ready else f"says nothing for {ANSWER_S:g} s"
                report.journal.fault("away", f"instance {self.number} {how}")
                return
            found = json.loads(line)
            self._awaited -= 1
        for fault in found["faults"]:
            report.journal.fault(fault["kind"], f"instance {self.number}: {fault['text']}")
        report.outcomes[f"i{self.number}"] = found["done"]
        report.overdue_s_max = max(report.overdue_s_max, found["overdue_s"])

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def restart(self) -> None:
        self._start()
        self.tell("run")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class _Controller:
    """A controller that can go, and come back at the same ports."""

    def __init__(self) -> None:
        self._ports = {"pull": 0, "reply": 0, "heartbeat": 0}
        self._start()
        self._ports = self._running.ports

    def _start(self) -> None:
        config = ControllerConfig(port=0, monitor_ports=self._ports, secret=WORD, tuning=HEARTBEATS)
        self._running = Controller(config)
        self._running.start()

    @property
    def ports(self) -> dict[str, int]:
        return self._ports

    @contextmanager
    def away(self, rng: random.Random) -> Iterator[None]:
        self._running.stop()
        try:
            yield
        finally:
            self._start()

    def stop(self) -> None:
        self._running.stop()


def _troubles(processes: list[_Process], controller: _Controller) -> Troubles:
    @contextmanager
    def kill(rng: random.Random) -> Iterator[None]:
        one = rng.choice(processes)
        one.kill()
        try:
            yield
        finally:
            one.restart()

    @contextmanager
    def pause(rng: random.Random) -> Iterator[None]:
        paused = rng.sample(processes, rng.choice((1, 1, 2)))
        for one in paused:
            one.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for one in paused:
                one.signal(signal.SIGCONT)

    return {"kill": kill, "pause": pause, "controller away": controller.away}


def run_peers(plan: Plan) -> Report:
    """See the module."""
    report = Report(Journal())
    logging.getLogger("kvferry").addHandler(logging.NullHandler())
    with ExitStack() as stack:
        controller = _Controller()
        stack.callback(controller.stop)
        ways = [stack.enter_context(FaultProxy(HOME, seed=plan.seed)) for _ in range(INSTANCES)]
        processes = [
            stack.enter_context(_Process(n, plan.seed, _sharing(n, way.port, controller.ports)))
            for n, way in enumerate(ways)
        ]
        with _a_liar(plan, controller, processes, ways, report):
            _strike(plan, report, _troubles(processes, controller), ways)
        _make_peace(report, processes)
    return report


def _sharing(number: int, port: int, controller: dict[str, int]) -> dict[str, Any]:
    return {
        "enable_p2p": True,
        "p2p_host": "127.0.0.1",
        "p2p_bind": HOME,
        "p2p_init_ports": [port],
        "p2p_secret": WORD,
        "enable_controller": True,
        "lmcache_instance_id": f"i{number}",
        "controller_pull_url": f"127.0.0.1:{controller['pull']}",
        "controller_reply_url": f"127.0.0.1:{controller['reply']}",
    }


@contextmanager
def _a_liar(
    plan: Plan,
    controller: _Controller,
    processes: list[_Process],
    ways: list[FaultProxy],
    report: Report,
) -> Iterator[None]:
    """The liar takes part while everybody is at work; it has its values from one of them."""
    for one in processes:
        one.tell("store")
        one.answer(report)
    own = read_prompt(prompt(LENGTH, 1000), CHUNK, b"")
    keys = own.keys(0, LENGTH // CHUNK)
    values = values_of(HOME, ways[0].port, WORD, space(IDENTITY).prefix, keys)
    assert len(values) == LENGTH // CHUNK
    claimed = b"".join(
        read_prompt(prompt(LENGTH, seed, SHARED), CHUNK, b"").hashes for seed in range(PROMPTS)
    )
    identity = HeldIdentity(IDENTITY.digest, IDENTITY.model, CHUNK, b"")
    for one in processes:
        one.tell("run")
    with liar(controller.ports, WORD, identity, claimed, values, plan.seed):
        yield


def _strike(plan: Plan, report: Report, servers: Troubles, ways: list[FaultProxy]) -> None:
    passing = {**toxics(ways), **damages(ways)}
    end = time.monotonic() + plan.seconds
    for blow in schedule(plan.seed, list(servers), list(passing)):
        if time.monotonic() > end or report.journal.failed.is_set():
            return
        report.journal.blow(**blow.as_json())
        time.sleep(blow.wait_s)
        rng = random.Random(blow.seed)
        with ExitStack() as stack:
            for name in blow.troubles:
                stack.enter_context({**servers, **passing}[name](rng))
                report.blows[name] = report.blows.get(name, 0) + 1
            time.sleep(blow.hold_s)
        time.sleep(blow.peace_s)


def _make_peace(report: Report, processes: list[_Process]) -> None:
    """Everybody has what another one holds, and goes with nothing left over."""
    for words in ("rest", "store", "read", "end"):
        began = time.monotonic()
        for one in processes:
            whose = [(one.number + 1) % INSTANCES] if words == "read" else []
            one.tell(words, *whose)
        for one in processes:
            one.answer(report)
        if report.journal.failed.is_set():
            return
        if words == "read":
            report.peaces, report.away_s_max = 1, time.monotonic() - began
    if not any(done.get("from peers") for done in report.outcomes.values()):
        report.journal.fault("nothing", "nobody has read anything from a peer")
