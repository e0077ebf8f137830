"""Controllers and instances as processes: killed, restarted, and many of them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from typing import Any

import pytest

from support import clock, instances
from support.controllers import ControllerProcess, many
from support.processes import END_LIMIT_S, LIMIT_S
from support.stamps import until


def states(of: ControllerProcess) -> dict[str, int]:
    found: dict[str, int] = of.cluster()["states"]
    return found


QUICK = {"heartbeat_s": 0.2, "suspect_s": 1.5, "dead_s": 3}


def test_a_killed_instance_becomes_suspect_and_dead_and_its_entries_are_gone() -> None:
    mine = instances.held_by(0, 100)
    with ControllerProcess(**QUICK) as ctl, many(ctl.ports, 1, 1, 100):
        with many(ctl.ports, 0, 1, 100) as process:
            until(lambda: ctl.lookup(mine) == {"many-0": 100, "many-1": 32}, LIMIT_S)
            process.kill()
            until(lambda: states(ctl)["suspect"] == 1, LIMIT_S)
            # It is named last, and what it held is still a hint.
            assert list(ctl.lookup(mine)) == ["many-1", "many-0"]
            until(lambda: states(ctl)["dead"] == 1, LIMIT_S)
        assert ctl.lookup(mine) == {"many-1": 32}
        until(lambda: ctl.cluster()["entries"] == 100, LIMIT_S)
        with many(ctl.ports, 0, 1, 100):  # the next process of that name
            until(lambda: ctl.lookup(mine) == {"many-0": 100, "many-1": 32}, LIMIT_S)
            until(lambda: states(ctl) == {"alive": 2, "suspect": 0, "dead": 0}, LIMIT_S)


def test_a_stopped_instance_comes_back_with_all_that_it_holds() -> None:
    mine = instances.held_by(0, 100)
    with ControllerProcess(**QUICK) as ctl, many(ctl.ports, 0, 1, 100) as process:
        until(lambda: ctl.lookup(mine) == {"many-0": 100}, LIMIT_S)
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: ctl.lookup(mine) == {}, LIMIT_S)
        os.kill(process.pid, signal.SIGCONT)
        until(lambda: ctl.lookup(mine) == {"many-0": 100}, LIMIT_S)


def test_a_stopped_controller_takes_nobody_for_dead() -> None:
    mine = instances.held_by(0, 100)
    with ControllerProcess(**QUICK) as ctl, many(ctl.ports, 0, 1, 100):
        until(lambda: ctl.lookup(mine) == {"many-0": 100}, LIMIT_S)
        ctl.send(signal.SIGSTOP)
        time.sleep(5)  # longer than dead_s
        ctl.send(signal.SIGCONT)
        until(lambda: ctl.lookup(mine) == {"many-0": 100}, LIMIT_S)
        assert ctl.cluster()["counts"]["deaths"] == 0


def test_a_controller_that_was_killed_knows_all_again() -> None:
    complete_again(processes=2, each=8, chunks=2000)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_directory_of_a_million_is_complete_again() -> None:
    complete_again(processes=4, each=16, chunks=15_625)


@pytest.mark.soak  # which has the machine for itself, as a speed needs it
@pytest.mark.timeout(600)
def test_a_directory_of_ten_million_is_complete_again_within_twenty_seconds() -> None:
    measured = complete_again(processes=4, each=64, chunks=39_063)
    print(json.dumps(measured))
    assert measured["complete_s"] <= 20
    assert measured["bytes_per_entry"] <= 64
    # How fast look-ups are says `python -m benchmarks --only directory_cost`; here none ever waits.
    assert measured["lookup_p99_s"] <= 0.5
    assert measured["slowest_lookup_while_filling_s"] <= 2


def complete_again(processes: int, each: int, chunks: int) -> dict[str, float]:
    """Instances report, the controller is killed and restarted, and then all changes."""
    total = processes * each * chunks
    mine = instances.held_by(each + 1, chunks)[: 256 * 16]
    with ControllerProcess() as first:
        again = first.again()
        running = [many(first.ports, n * each, each, chunks) for n in range(processes)]
        started = [one.__enter__() for one in running]
        try:
            until(lambda: first.cluster()["entries"] == total, END_LIMIT_S, 0.1)
            first.process.kill()
            first.process.wait(END_LIMIT_S)
            began, on_the_wall = clock.now_s(), time.monotonic()
            with ControllerProcess(**again) as ctl:
                slowest_s = 0.0  # of look-ups while it fills: they are answered all the time

                def complete() -> bool:
                    nonlocal slowest_s
                    asked = clock.now_s()
                    ctl.lookup(mine)
                    slowest_s = max(slowest_s, clock.now_s() - asked)
                    return bool(ctl.cluster()["synced"] == processes * each)

                until(complete, END_LIMIT_S, 0.05)
                complete_s = clock.now_s() - began
                wall_s = time.monotonic() - on_the_wall
                found = ctl.cluster()
                assert found["entries"] == total
                assert found["counts"]["gaps"] == 0
                held = ctl.lookup(mine)
                assert held.pop(f"many-{each + 1}") == 256
                assert set(held.values()) == {instances.SHARED}
                assert len(held) == processes * each - 1
                times = lookups_while_all_changes(ctl, mine, started)
                until(lambda: ctl.cluster()["entries"] == total, LIMIT_S, 0.1)
                ctl.send(signal.SIGTERM)
                assert ctl.ends() == 0
        finally:
            for one in running:
                one.__exit__(None, None, None)
    times.sort()
    return {
        "complete_s": round(complete_s, 2),
        "complete_wall_s": round(wall_s, 2),
        "slowest_lookup_while_filling_s": round(slowest_s, 4),
        "lookup_p50_s": round(times[len(times) // 2], 5),
        "lookup_p99_s": round(times[int(0.99 * len(times))], 5),
        "bytes_per_entry": round(found["memory_bytes"] / total, 1),
    }


def lookups_while_all_changes(
    ctl: ControllerProcess, mine: bytes, started: list[Any]
) -> list[float]:
    """How long look-ups of 256 hashes take by REST while instances report changes."""
    ended = threading.Event()

    def change() -> None:
        while not ended.wait(0.05):
            for process in started:
                process.stdin.write("20\n")
                process.stdin.flush()

    changing = threading.Thread(target=change)
    changing.start()
    times = []
    try:
        for _ in range(300):
            began = clock.now_s()
            assert len(ctl.lookup(mine)) > 1
            times.append(clock.now_s() - began)
    finally:
        ended.set()
        changing.join(LIMIT_S)
    return times
