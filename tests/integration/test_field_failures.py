"""Failures that others had in the field with instances that share, each of them a test.

P1   silent ones are reaped, then all misses   test_an_empty_directory_is_an_alarm_and_...
P2   a peer that restarts is asked as before   test_sharing: ...that_is_killed_is_a_miss_...
P3   a restarted controller knows nothing      test_controller_processes: ..._knows_all_again
P4   a reader vanishes, and chunks stay held   test_sharing: ...that_vanishes_leaves_nothing...
P5   one slow transfer holds up all others     test_a_transfer_that_stands_still_keeps_no_...
P6   who starts first waits for the others     test_sharing: ...start_before_their_...
P7   no answer is remembered as "not there"    test_no_answer_is_not_taken_for_no
P8   the number of a process comes back        test_members: ...takes_the_place_of_the_one_...
P9   an idle instance is taken for dead        test_members: ...lives_by_its_heartbeats_alone
P10  the reaper waits for who waits for it     test_reaping_the_dead_keeps_nobody_waiting
P11  a large pool cannot be registered         test_lending_a_pool_locks_no_memory
P12  hashes differ from process to process     test_hashes_are_the_same_in_every_process
P13  the guide has other times than the code   test_the_times_in_the_guide_are_those_of_...
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvferry import TieredCache
from kvferry.chunks.keys import chunk_hashes
from kvferry.config import ClientConfig
from kvferry.config.controller import ControllerConfig
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http import views
from kvferry.sharing.controller.http.usage import WindowQuery
from kvferry.sharing.controller.journal import Journal
from kvferry.sharing.controller.members import Change, Members
from kvferry.sharing.membership.messages import (
    Begin,
    End,
    MemoryUsage,
    RegisterInstance,
    SnapshotPart,
    Synced,
)
from kvferry.sharing.peers.lending import USER
from kvferry.sharing.peers.peer_tier import open_peer
from support.engines import CHUNK, check, expected, open_engine, prompt
from support.holdings import IDENTITY, hashes
from support.proxy import FaultProxy
from support.servers import wait_for
from support.sharing import PROMPT, finds, instances, meets, owner, running_controller
from support.tuned import tuned

ROOT = Path(__file__).parents[2]
WORD = "word"  # a proxy is no way in for who knows no secret
LIMIT_S = 60.0  # of what must end, on a machine that has other work


def address_of(controller: Controller, name: str) -> tuple[str, int]:
    """Where others read an instance."""
    wait_for(
        "it registers",
        lambda: name in [member.instance for member in controller.members.living()],
    )
    [member] = [m for m in controller.members.living() if m.instance == name]
    host, _, port = member.facts.address.rpartition(":")
    return host, int(port)


def reads_over(engine: TieredCache, name: str, way: FaultProxy, **settings: Any) -> None:
    """It has a peer behind a proxy."""
    settings |= {"username": USER, "password": WORD}
    config = ClientConfig(
        host=way.host, port=way.port, same_host="tcp", **tuned(ClientConfig, **settings)
    )
    engine.tiers.append(open_peer(engine, name, config))


def in_background(work: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    """Runs it in a thread; what it returned, or its exception, is appended."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(work())
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, came


# --- P1 ---


def test_an_empty_directory_is_an_alarm_and_heartbeats_are_on_and_far_below_their_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = ControllerConfig().tuning
    assert 3 * config.heartbeat_s <= config.suspect_s < config.dead_s
    monkeypatch.setattr(views, "_NOBODY_S", 0.0)
    with running_controller() as controller:

        def alarms() -> str:
            return "; ".join(views.cluster(controller, WindowQuery())["alarms"])

        assert "no instance has registered: every look-up misses" in alarms()
        with instances(controller) as opened:
            one = opened("one")
            one.store(prompt(PROMPT), expected(prompt(PROMPT)))
            wait_for("all is well", lambda: not alarms())
        with owner(controller, "two") as program:
            wait_for("all is well", lambda: not alarms())
            program.process.kill()
            later_s = 0.0
            monkeypatch.setattr(controller.members, "_clock", lambda: time.monotonic() + later_s)
            while controller.members.living():
                later_s += 0.1  # in steps: a leap would be a pause of the controller itself
                controller.members.tick()
            assert "no instance is registered: every look-up misses; 1 died" in alarms()


# --- P5 ---


def test_a_transfer_that_stands_still_keeps_no_other_one_waiting() -> None:
    with (
        running_controller(secret=WORD) as controller,
        instances(controller) as opened,
        ExitStack() as stack,
    ):
        one = opened("one", p2p_secret=WORD)
        prompts = [prompt(PROMPT, seed) for seed in range(6)]
        for tokens in prompts:
            one.store(tokens, expected(tokens))
        address = address_of(controller, "one")
        stuck, other = (
            stack.enter_context(open_engine(retrieve_timeout_s=2 * LIMIT_S)) for _ in range(2)
        )
        ways = [stack.enter_context(FaultProxy(*address)) for _ in range(2)]
        reads_over(stuck, "one", ways[0], stall_timeout_s=LIMIT_S, timeout_s=2 * LIMIT_S)
        reads_over(other, "one", ways[1])
        for engine in (stuck, other):
            finds(engine, prompts[0])
        fault = ways[0].stall_after(20_000)  # of one connection, in the middle of what it brings
        waiting, came = in_background(lambda: check(stuck, prompts[0]))
        fault.wait_fired()
        # One connection of this reader stands still as well: what it owes comes over the others.
        ways[1].stall_after(20_000)
        reading = [in_background(partial(check, other, tokens)) for tokens in prompts]
        for thread, found in reading:
            thread.join(LIMIT_S)
            assert found == [PROMPT]
        assert not came
        ways[0].heal()
        waiting.join(LIMIT_S)
        assert came == [PROMPT]


# --- P7 ---


@pytest.mark.parametrize("presence", [False, pytest.param(True, marks=pytest.mark.presence)])
def test_no_answer_is_not_taken_for_no(presence: bool) -> None:
    with (
        running_controller(secret=WORD) as controller,
        instances(controller) as opened,
        ExitStack() as stack,
    ):
        one = opened("one", p2p_secret=WORD)
        tokens = prompt(PROMPT)
        one.store(tokens, expected(tokens))
        reader = stack.enter_context(open_engine(retrieve_timeout_s=0.5))
        way = stack.enter_context(FaultProxy(*address_of(controller, "one")))
        reads_over(reader, "one", way)
        finds(reader, tokens)
        way.black_hole()
        for _ in range(3):
            assert check(reader, tokens) == 0
        way.heal()
        connector = reader.tiers[-1].tier.connector
        wait_for("it is reached", lambda: connector.stats()["client_connections_up"])
        # What is asked for now is answered by the peer, and not from what was learnt meanwhile.
        wait_for("it is found", lambda: check(reader, tokens) == PROMPT, 5.0)


# --- P10 ---


def test_reaping_the_dead_keeps_nobody_waiting() -> None:
    """Many die again and again, each with much to be forgotten, while others ask and register."""
    now, ended = [1000.0], threading.Event()
    members = Members(Journal(), clock=lambda: now[0])
    held = hashes(20_000)
    asked = [0]

    def join(number: int) -> None:
        key, incarnation = (f"n{number}", 0), number.to_bytes(16, "big")
        facts = RegisterInstance(1.0, f"127.0.0.1:{7000 + number}", (IDENTITY,), MemoryUsage())
        assert members.register(key, incarnation, "127.0.0.1", facts) == []
        whole: tuple[Change, ...] = (
            Begin(1, IDENTITY.digest, True),
            *(SnapshotPart(2 + i, IDENTITY.digest, held[i * 80_000 :][:80_000]) for i in range(4)),
            End(6, IDENTITY.digest),
            Synced(7, (IDENTITY.digest,)),
        )
        for change in whole:
            members.change(key, incarnation, change)

    def ask_on() -> None:
        while not ended.is_set():
            members.lookup(held[: 16 * 256])
            members.peers(0)
            for member in members.all():
                members.chunks(member)
            asked[0] += 1

    def reap() -> None:
        for _, seats in members.tick():
            members.drop(seats)

    asking = [in_background(ask_on) for _ in range(2)]
    for first in (0, 20, 40):
        joining = [in_background(partial(join, first + n)) for n in range(20)]
        for thread, came in joining:
            thread.join(LIMIT_S)
            assert came == [None]
        before = asked[0]
        for _ in range(60):
            now[0] += 0.25
            reaping, came = in_background(reap)
            reaping.join(LIMIT_S)
            assert came == [None]
        assert members.living() == []
        assert asked[0] > before, "nobody was answered meanwhile"
    ended.set()
    for thread, came in asking:
        thread.join(LIMIT_S)
        assert came == [None]
    assert members.lookup(held) == []
    assert members.counts["deaths"] == 60


# --- P11 ---


def test_lending_a_pool_locks_no_memory() -> None:
    """Where others pin all of a pool for the network card, and a limit on that ends the process."""
    with (
        running_controller() as controller,
        instances(controller) as opened,
        owner(controller, "one", limit="RLIMIT_MEMLOCK") as program,
    ):
        reader = opened("reader")
        meets(reader, "one")
        finds(reader, prompt(PROMPT))
        assert check(reader, prompt(PROMPT)) == PROMPT
        status = Path(f"/proc/{program.process.pid}/status").read_text()
        assert re.findall(r"Vm(?:Lck|Pin):\s+(\d+) kB", status) == ["0", "0"]


# --- P12 ---


@pytest.mark.parametrize("seed", ["0", "7", "random"])
def test_hashes_are_the_same_in_every_process(seed: str) -> None:
    tokens = prompt(3 * CHUNK)
    source = (
        "import sys; from kvferry.chunks.keys import chunk_hashes\n"
        "print(*(each.hex() for each in chunk_hashes(eval(sys.argv[1]), 16)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, str(tokens)],
        env={"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout.split() == [each.hex() for each in chunk_hashes(tokens, CHUNK)]


# --- P13 ---


def test_the_times_in_the_guide_are_those_of_the_code() -> None:
    """Its tables are made from the declarations; `make check` compares them, and so does this."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "settings.py", "--check"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    guide = (ROOT / "docs" / "guides" / "controller.md").read_text()
    config = ControllerConfig().tuning
    assert config.heartbeat_s == 1
    for words in (
        "An instance says every second that it lives",
        f"After {config.suspect_s:g} s of silence it is *suspect*",
        f"after {config.dead_s:g} s it is *dead*",
    ):
        assert words in guide
