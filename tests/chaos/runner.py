"""A chaos run: client threads at work on a stage, blows as scheduled, every answer judged.

    with open_stage("tcp", seed) as stage:
        report = run(stage, Plan(seed=7, seconds=60, threads=8))
    assert not report.journal.faults

The main thread strikes the blows and makes peace; `threads` others make calls; one watches them.
The first fault ends the run. Kinds of faults: those of lanes.py and watch.py, and

    crash       a client raised an exception
    stage       the servers could not be handled as planned
    away        a lane was not served again in time after a blow
    zombies     old connections do not end, although everything is well
    fds, threads, growth    more of them than before
"""

from __future__ import annotations

import logging
import random
import threading
import time
import traceback
from contextlib import ExitStack

from chaos.calls import calls
from chaos.journal import Journal
from chaos.lanes import Peace, Retired
from chaos.report import Plan, Report
from chaos.schedule import Blow, schedule
from chaos.stages import CONNECTIONS, LIMITS, Stage
from chaos.troubles import our_clients
from chaos.watch import Usage, Watch, growth_bytes
from support.history import Violation

__all__ = ["run"]

SETTLE_S = 0.3  # what lies in a socket of an idle server is read by then
BARRIER_S_MAX = 30.0
JOIN_S_MAX = 60.0
LEAVE_S_MAX = 6.0
GROWTH_BYTES_MAX = 8 << 20  # large blocks must be returned, see return_large_blocks()
PEACES_MIN = 9  # before growth means something


def run(stage: Stage, plan: Plan) -> Report:
    """See the module."""
    journal = Journal()
    log = logging.getLogger("kvferry")
    log.addHandler(handler := _Scribe(journal))
    log.propagate = False
    try:
        with Watch(journal, plan.late_s, plan.hung_s) as watch:
            return _Run(stage, plan, journal, watch)()
    finally:
        log.removeHandler(handler)
        log.propagate = True


class _Scribe(logging.Handler):
    """What the clients log goes into the journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        self._journal.note("log", level=record.levelname, text=record.getMessage())


class _Run:
    def __init__(self, stage: Stage, plan: Plan, journal: Journal, watch: Watch) -> None:
        self.stage, self.plan, self.journal, self.watch = stage, plan, journal, watch
        self.report = Report(journal)
        self.peace: Peace | None = None
        self.ended = False
        self.gate = threading.Condition()
        self.held = False  # no thread begins a call
        self.working = 0

    def __call__(self) -> Report:
        before = Usage(self.stage.ways)
        for lane in self.stage.lanes:
            lane.open()
        threads = [
            threading.Thread(target=self._work, args=(number,), name=f"chaos-{number}", daemon=True)
            for number in range(self.plan.threads)
        ]
        self.working = len(threads)
        for thread in threads:
            thread.start()
        try:
            self._strike_until(time.monotonic() + self.plan.seconds)
        except Exception:
            self.journal.fault("stage", traceback.format_exc())
        self._end(threads)
        if "hang" not in self.journal.kinds():
            self._check_usage(before)
        self._sum_up()
        return self.report

    # The client threads.

    def _work(self, number: int) -> None:
        retired = Retired()
        shapes = [lane.shape for lane in self.stage.lanes]
        try:
            for call in calls(self.plan.seed, number, shapes):
                with self.gate:
                    if self.held:
                        retired.let_go()  # or it would look like growth
                    self.working -= 1
                    self.gate.notify_all()
                    self.gate.wait_for(lambda: not self.held or self.ended)
                    self.working += 1
                if self.ended or self.journal.failed.is_set():
                    return
                lane = self.stage.lanes[call.lane]
                retired.check()
                self.watch.begins(f"{call}", lane.allowed_s(call, self.peace))
                try:
                    result = lane.perform(call, retired, lambda: self.peace)
                finally:
                    self.watch.ends()
                keys = "".join(f"{status:d}" for status in result)
                self.journal.note(
                    "call", thread=number, lane=lane.name, verb=call.verb, keys=call.keys, got=keys
                )
        except Violation as violation:
            self.journal.fault(violation.kind, f"thread {number}: {violation}")
        except Exception:
            self.journal.fault("crash", f"thread {number}: {traceback.format_exc()}")
        finally:
            with self.gate:
                self.working -= 1
                self.gate.notify_all()

    # The main thread.

    def _strike_until(self, end: float) -> None:
        self._make_peace(0.5)
        kinds = list(self.stage.server_troubles), list(self.stage.way_troubles)
        for blow in schedule(self.plan.seed, *kinds):
            if time.monotonic() > end or self.journal.failed.is_set():
                break
            self._strike(blow)
        self._make_peace(0.5)

    def _strike(self, blow: Blow) -> None:
        self.journal.blow(**blow.as_json())
        self._pause(blow.wait_s)
        rng = random.Random(blow.seed)
        troubles = {**self.stage.server_troubles, **self.stage.way_troubles}
        with ExitStack() as stack:
            for name in blow.troubles:
                stack.enter_context(troubles[name](rng))
                self.report.blows[name] = self.report.blows.get(name, 0) + 1
            self._pause(blow.hold_s)
        self.journal.note("healed", blow=blow.number)
        if blow.recovers:
            self._await_service()
        if blow.peace_s:
            self._make_peace(blow.peace_s)

    def _pause(self, seconds: float) -> None:
        self.journal.failed.wait(seconds)

    def _await_service(self) -> None:
        """Until every lane has served a call that began from now on."""
        self.stage.settle()
        since = time.monotonic()
        while not self.journal.failed.is_set():
            waiting = [lane.name for lane in self.stage.lanes if lane.answered_since < since]
            now = time.monotonic()
            if not waiting:
                self.report.away_s_max = max(self.report.away_s_max, now - since)
                return
            if now - since > self.stage.patience_s + self.watch.stood_s(since):
                self.journal.fault("away", f"{waiting} not served again within {now - since:.1f} s")
            self._pause(0.01)

    def _make_peace(self, seconds: float) -> None:
        """A barrier, and then a while in which nothing goes wrong."""
        self._await_service()
        self._hold()
        begun = time.monotonic()
        self._await_quiet()
        if not self.journal.failed.is_set():
            now = time.monotonic()
            for lane in self.stage.lanes:
                lane.history.barrier(begun, now)
                if lane.damaged:
                    lane.history.pardon(now)
                    lane.damaged = False
            self.report.usage.append(Usage(self.stage.ways))
            self.peace = Peace({lane.name: lane.caller.retried() for lane in self.stage.lanes})
        self._release()
        if (peace := self.peace) is not None:
            self._pause(seconds)
            self._hold()
            self.peace = None
            for lane in self.stage.lanes:
                lane.settle(peace)
            self._release()
            self.report.peaces += 1
            self.report.pardons += len(peace.pardoned)

    def _hold(self) -> None:
        """Wait for all calls; none begins until the release."""
        with self.gate:
            self.held = True
            while self.working and not self.journal.failed.is_set():
                self.gate.wait(0.1)

    def _release(self) -> None:
        with self.gate:
            self.held = False
            self.gate.notify_all()

    def _await_quiet(self) -> None:
        """Until what was sent earlier has been read or thrown away, everywhere."""
        if any(lane.damaged for lane in self.stage.lanes):
            self._pause(LIMITS["stall_timeout_s"] + 2 * SETTLE_S)  # owed replies do not come
        limit = CONNECTIONS + 2  # the small lane, and one that listens to what the servers say
        end = time.monotonic() + BARRIER_S_MAX
        while not self.journal.failed.is_set():
            self._pause(SETTLE_S)
            ways = [lane.way.open_connections for lane in self.stage.lanes if lane.way]
            servers = [len(our_clients(server)) for server in self.stage.servers()]
            if all(count <= limit for count in ways) and all(
                count <= limit * len(self.stage.lanes) for count in servers
            ):
                return
            if time.monotonic() > end:
                self.journal.fault("zombies", f"connections: ways {ways}, servers {servers}")

    def _end(self, threads: list[threading.Thread]) -> None:
        with self.gate:
            self.ended = True
            self.gate.notify_all()
        end = time.monotonic() + JOIN_S_MAX
        for thread in threads:
            while thread.is_alive() and "hang" not in self.journal.kinds():
                thread.join(0.1)
                if time.monotonic() > end:
                    self.journal.fault("hang", f"{thread.name} does not end")
        if "hang" not in self.journal.kinds():
            for lane in self.stage.lanes:
                self.watch.begins(f"close {lane.name}", 1.0)
                lane.close()
                self.watch.ends()

    def _check_usage(self, before: Usage) -> None:
        end = time.monotonic() + LEAVE_S_MAX  # proxies and servers take leave of the clients
        while True:
            after = Usage(self.stage.ways)
            more = [
                kind for kind in ("fds", "threads") if getattr(after, kind) > getattr(before, kind)
            ]
            if not more or time.monotonic() > end:
                break
            time.sleep(0.05)
        for kind in more:
            self.journal.fault(kind, f"before {before!r}, after {after!r}")
        samples = [usage.rss_bytes for usage in self.report.usage]
        growth = growth_bytes(samples)
        if len(samples) >= PEACES_MIN and growth > GROWTH_BYTES_MAX:
            megabytes = [round(sample / 1e6) for sample in samples]
            self.journal.fault(
                "growth", f"{growth / 1e6:.0f} MB in a third of the run: {megabytes}"
            )
        self.report.usage.append(after)

    def _sum_up(self) -> None:
        self.report.overdue_s_max = self.watch.overdue_s_max
        for lane in self.stage.lanes:
            self.report.outcomes[lane.name] = dict(lane.outcomes)
            self.report.errors[lane.name] = dict(lane.errors.most_common(20))
