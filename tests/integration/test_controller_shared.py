"""Controllers that share their directory in a real Valkey: either may die, and so may the store."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from kvferry.base.errors import ConfigError
from kvferry.config import CacheConfig
from kvferry.config.controller import ControllerConfig
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.jobs import Step
from kvferry.sharing.controller.member_logs import entry_id, log_name
from kvferry.sharing.membership import Command, Quota
from support import clock
from support.controllers import ControllerProcess, many
from support.holdings import FakeCache, config, hashes, reporting
from support.processes import LIMIT_S
from support.servers import TestServer, start_server, wait_for

FIRST = "kvferry:controller:"
QUICK = {"heartbeat_s": 0.2, "suspect_s": 2.0, "dead_s": 4.0}


@pytest.fixture
def store() -> Iterator[TestServer]:
    with start_server("valkey") as server:
        yield server


class Two:
    """Two controllers of one store; instances are told of both."""

    def __init__(self, stack: ExitStack, url: str) -> None:
        self._stack, self._url = stack, url
        self.one, self.two = self.another(), self.another()
        self.ports = {
            name: f"{self.one.ports[name]},127.0.0.1:{self.two.ports[name]}"
            for name in ("pull", "reply")
        }

    def another(self) -> Controller:
        made = Controller(config(directory=self._url, **QUICK))
        made.start()
        self._stack.callback(made.stop)
        return made


@pytest.fixture
def two(store: TestServer) -> Iterator[Two]:
    with ExitStack() as stack:
        yield Two(stack, store.url)


def held(by: Controller, chunks: int = 9) -> dict[str, int]:
    return {one.member.instance: one.chunks for one in by.members.lookup(hashes(chunks))}


def knows(by: Controller, **expected: int) -> None:
    wait_for(f"all of {expected} is known", lambda: held(by) == expected, LIMIT_S)


def beats_of(by: Controller, name: str) -> int:
    return next(one.beats for one in by.members.living() if one.instance == name)


def nobody(by: Controller) -> None:
    wait_for("all are gone", lambda: not by.members.living(), LIMIT_S)


@contextmanager
def speaking(cache: FakeCache, to: Any, name: str = "one") -> Iterator[None]:
    with reporting(cache, to, name):
        yield


def test_what_one_is_told_both_know(two: Two) -> None:
    cache = FakeCache()
    cache.add(hashes(4))
    with speaking(cache, two.one):
        knows(two.one, one=4)
        knows(two.two, one=4)
        cache.add(hashes(7))
        knows(two.two, one=7)
        cache.remove(hashes(9)[5 * 16 :])
        knows(two.two, one=5)
        [here], [there] = (each.members.living() for each in (two.one, two.two))
        assert (here.facts, here.host) == (there.facts, there.host)
        wait_for("its usage too", lambda: there.usage == cache.usage())
        third = two.another()  # it knows all when it begins
        assert held(third) == {"one": 5}
    for each in (two.one, two.two, third):
        nobody(each)


def test_an_instance_goes_on_at_the_other_controller(two: Two) -> None:
    cache = FakeCache()
    cache.add(hashes(4))
    with reporting(cache, two.ports) as reporter:
        knows(two.two, one=4)
        two.one.stop()
        beats = beats_of(two.two, "one") + 3
        wait_for("it is heard here", lambda: beats_of(two.two, "one") > beats, LIMIT_S)
        assert held(two.two) == {"one": 4}
        cache.add(hashes(6))
        knows(two.two, one=6)
        assert two.two.members.counts["deaths"] == 0
        assert reporter.status()["problem"] == ""
        third = two.another()
        knows(third, one=6)
        cache.add(hashes(8))
        knows(third, one=8)


def test_a_log_that_nobody_can_read_is_written_anew(two: Two, store: TestServer) -> None:
    cache = FakeCache()
    cache.add(hashes(4))
    with speaking(cache, two.one):
        knows(two.two, one=4)
        store.cli("DEL", logs_in(store))
        cache.add(hashes(7))
        knows(two.two, one=7)


def test_what_the_store_has_lost_is_there_again(two: Two, store: TestServer) -> None:
    cache = FakeCache()
    cache.add(hashes(4))
    with speaking(cache, two.one):
        knows(two.two, one=4)
        two.one.quotas.put("one", Quota(5))
        store.cli("FLUSHALL")
        cache.add(hashes(6))
        knows(two.two, one=6)
        knows(two.another(), one=6)
        assert held(two.one) == {"one": 6}
        wait_for("quotas too", lambda: two.two.quotas.of("one") == (Quota(5),))


def test_what_was_cut_or_is_no_message_in_a_log_harms_nobody(two: Two, store: TestServer) -> None:
    cache, other = FakeCache(), FakeCache()
    with speaking(cache, two.one), speaking(other, two.one, "other"):
        cache.add(hashes(4))
        other.add(hashes(4))
        knows(two.two, one=4, other=4)
        [member] = [each for each in two.one.members.living() if each.instance == "one"]
        log = log_name(member.key, member.incarnation)
        # A controller was killed while it wrote a long message.
        store.cli("XADD", log, entry_id(member.seq, 1), "more", b"half of it")
        cache.add(hashes(5))
        knows(two.two, one=5, other=4)
        store.cli("XADD", log, entry_id(member.seq + 1), "end", b"rubbish")
        cache.add(hashes(6))
        other.add(hashes(7))
        knows(two.two, one=6, other=7)
        assert two.two.shared is not None
        assert not two.two.shared.problem


@pytest.mark.full
def test_a_store_that_is_away_costs_no_answer(two: Two, store: TestServer) -> None:
    cache, other = FakeCache(), FakeCache()
    cache.add(hashes(4))
    other.add(hashes(2))
    with speaking(cache, two.one), speaking(other, two.two, "other"):
        knows(two.one, one=4, other=2)
        knows(two.two, one=4, other=2)
        store.pause()
        try:
            wait_for("it is said", lambda: two.one.shared and two.one.shared.problem, LIMIT_S)
            cache.add(hashes(6))
            knows(two.one, one=6, other=2)
            assert held(two.two) == {"one": 4, "other": 2}
            beats = beats_of(two.two, "other") + 25  # longer than dead_s
            wait_for("time passes", lambda: beats_of(two.two, "other") > beats, LIMIT_S)
            assert held(two.two) == {"one": 4, "other": 2}
        finally:
            store.resume()
        knows(two.two, one=6, other=2)
        assert two.one.counts["deaths"] == two.two.counts["deaths"] == 0


def test_a_job_reaches_an_instance_that_is_heard_elsewhere(two: Two) -> None:
    cache = FakeCache()
    cache.add(hashes(4))
    with speaking(cache, two.one):
        knows(two.two, one=4)
        job = two.two.jobs.start("clear", [Step(Command("-", "clear"), [("one", 0)])])
        assert job.ended.wait(LIMIT_S)
        assert (job.state, job.chunks) == ("done", 4)
        knows(two.two)


def test_quotas_are_those_of_both_and_the_younger_counts(two: Two) -> None:
    cache = FakeCache()
    with speaking(cache, two.one):
        wait_for("it is known", lambda: two.two.members.living())
        row = two.two.quotas.put("one", Quota(1000))
        wait_for("it is told", lambda: list(cache.quotas) == [Quota(1000)])
        two.one.quotas.put("one", Quota(2000))
        wait_for("the younger one", lambda: two.two.quotas.of("one") == (Quota(2000),))
        two.two.quotas.remove(row.id)
        wait_for("it is removed", lambda: not cache.quotas and not two.one.quotas.all())


def test_the_next_process_of_an_instance_leaves_no_log_behind(two: Two, store: TestServer) -> None:
    for to in (two.one, two.two, two.two):
        cache = FakeCache()
        cache.add(hashes(4))
        with reporting(cache, to) as reporter:
            log = f"{FIRST}log:{reporter.incarnation.hex()}:0:one"
            wait_for("its log is the only one", partial(same, store, log), LIMIT_S)
            knows(two.one, one=4)
            knows(two.two, one=4)
            reporter._closing.set()
            reporter._heartbeat = None  # so that it does not say goodbye


def logs_in(store: TestServer) -> str:
    return b"\n".join(key for key in store.cli("KEYS", "*") if b":log:" in key).decode()


def same(store: TestServer, log: str) -> bool:
    return logs_in(store) == log


def test_whoever_dies_is_dead_for_both(two: Two, store: TestServer) -> None:
    cache = FakeCache()
    cache.add(hashes(4))
    with reporting(cache, two.one) as reporter:
        knows(two.two, one=4)
        reporter._closing.set()
        reporter._heartbeat = None  # so that it does not say goodbye
    for each in (two.one, two.two):
        nobody(each)
    wait_for("nothing is left", lambda: store.cli("HLEN", f"{FIRST}members") == 1, LIMIT_S)
    assert not logs_in(store)


# --- Processes ---


def process(store: TestServer) -> ControllerProcess:
    return ControllerProcess(directory=store.url, heartbeat_s=0.2, suspect_s=2, dead_s=5)


def in_states(by: ControllerProcess, expected: dict[str, int]) -> bool:
    return bool(by.cluster()["states"] == expected)


def finds(by: ControllerProcess, **expected: int) -> None:
    wait_for(f"{expected} is known", lambda: by.lookup(hashes(9)) == expected, LIMIT_S)


@pytest.mark.parametrize("killed", [0, 1])
def test_either_of_two_controllers_may_be_killed(store: TestServer, killed: int) -> None:
    old, new = FakeCache(), FakeCache()
    old.add(hashes(4))
    new.add(hashes(7))
    with process(store) as one, process(store) as two:
        both = [one, two]
        ports: dict[str, Any] = {
            name: f"{one.ports[name]},127.0.0.1:{two.ports[name]}" for name in ("pull", "reply")
        }
        with reporting(old, ports, "old"):
            for each in both:
                finds(each, old=4)
            dead = both.pop(killed)
            dead.send(signal.SIGKILL)
            [left] = both
            assert left.lookup(hashes(9)) == {"old": 4}
            with reporting(new, ports, "new"), process(store) as third:
                for each in (left, third):
                    finds(each, new=7, old=4)
                old.add(hashes(9))
                alive = {"alive": 2, "suspect": 0, "dead": 0}
                for each in (left, third):
                    finds(each, new=7, old=9)
                    wait_for("all live", partial(in_states, each, alive), LIMIT_S)


def test_a_controller_that_hangs_loses_its_instances_and_learns_of_them_again(
    store: TestServer,
) -> None:
    cache = FakeCache()
    cache.add(hashes(4))
    with process(store) as one, process(store) as two:
        ports: dict[str, Any] = {
            name: f"{one.ports[name]},127.0.0.1:{two.ports[name]}" for name in ("pull", "reply")
        }
        with reporting(cache, ports, "it"):
            finds(two, it=4)
            one.send(signal.SIGSTOP)
            cache.add(hashes(7))
            finds(two, it=7)
            one.send(signal.SIGCONT)
            finds(one, it=7)
            cache.remove(hashes(9)[2 * 16 :])
            for each in (one, two):
                finds(each, it=2)
                assert each.cluster()["states"]["dead"] == 0


def test_a_directory_is_read_by_others_and_by_whoever_comes() -> None:
    shared(processes=2, each=8, chunks=2000)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_directory_of_a_million_is_read_by_others_and_by_whoever_comes() -> None:
    measured = shared(processes=4, each=16, chunks=15_625)
    assert measured["store_bytes_per_entry"] <= 32


@pytest.mark.soak  # which has the machine for itself, as a speed needs it
@pytest.mark.timeout(600)
def test_a_directory_of_ten_million_is_read_within_twenty_seconds() -> None:
    measured = shared(processes=4, each=64, chunks=39_063)
    print(json.dumps(measured))
    assert measured["other_s"] <= 20
    assert measured["begins_s"] <= 20
    assert measured["store_bytes_per_entry"] <= 32


def shared(processes: int, each: int, chunks: int) -> dict[str, float]:
    """Instances report to one of two controllers; a third one begins later."""
    total = processes * each * chunks

    def complete(by: ControllerProcess) -> bool:
        said = by.cluster()
        return bool(said["entries"] == total and said["synced"] == processes * each)

    with ExitStack() as stack:
        store = stack.enter_context(start_server("valkey"))
        one, two = (stack.enter_context(process(store)) for _ in range(2))
        began = clock.now_s()
        for number in range(processes):
            stack.enter_context(many(one.ports, number * each, each, chunks))
        wait_for("the one is complete", lambda: complete(one), 120)
        wait_for("the other is complete", lambda: complete(two), 120)
        other_s, began = clock.now_s() - began, clock.now_s()
        third = stack.enter_context(process(store))
        wait_for("a third one is complete", lambda: complete(third), 120)
        begins_s = clock.now_s() - began
        assert [by.cluster()["states"]["alive"] for by in (one, two, third)] == [
            processes * each
        ] * 3
        return {
            "other_s": round(other_s, 2),
            "begins_s": round(begins_s, 2),
            "store_bytes_per_entry": round(int(store.info("memory")["used_memory"]) / total, 1),
        }


# --- Settings ---


def test_a_directory_is_one_server() -> None:
    with pytest.raises(ConfigError, match="one server"):
        ControllerConfig(directory="redis+cluster://localhost")
    with pytest.raises(ConfigError, match="directory: the URL"):
        ControllerConfig(directory="http://localhost")
    assert "s3cret" not in repr(ControllerConfig(directory="redis://:s3cret@localhost"))


def test_addresses_of_several_controllers_come_in_pairs() -> None:
    def settings(reply: str) -> CacheConfig:
        where = {"controller_pull_url": "a:1,b:2", "controller_reply_url": reply}
        return CacheConfig(enable_controller=True, **where)  # type: ignore[arg-type]

    assert settings("a:3,[::1]:4").enable_controller
    for wrong in ("a:3", "a:3,b", "a:3,", "a:3,b:4,c:5"):
        with pytest.raises(ConfigError, match="controller_reply_url"):
            settings(wrong)
