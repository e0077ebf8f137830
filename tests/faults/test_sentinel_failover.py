"""The native client and a master that is replaced: it follows the Sentinels, the old master never
gets another write, and what was replicated is still there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from kvferry.client.batch import Status
from support.clients import NATIVE, completions, opened
from support.load import Load
from support.resp import bulk
from support.scripted import Action, Command, Handler, MiniStore, ScriptedServer, answer, silent
from support.sentinel import SentinelGroup
from support.servers import TestServer, address_of
from support.stamps import MIB, fetch, store, until, within

StartSentinels = Callable[..., SentinelGroup]

SIZES = {f"key-{index}": 100 + 37 * index for index in range(60)}
LOAD = [f"load-{index}" for index in range(40)]
RECOVERY_S = 2.0  # the bar: first success after a promotion
# No master is taken for dead because the machine has other work: where one dies, and where none.
PATIENT: dict[str, Any] = {"down_after_ms": 2500}
CALM: dict[str, Any] = {"down_after_ms": 20_000}
AWAY = {Status.UNAVAILABLE, Status.TIMEOUT}


def connections(node: TestServer) -> int:
    """Of clients of ours."""
    said: str = node.cli("CLIENT", "LIST").decode()
    return said.count("name=kvferry")


def assert_left_alone(node: TestServer) -> None:
    """By its own counters, since they were reset or it was started."""
    until(lambda: connections(node) == 0, RECOVERY_S)
    taken = int(node.info("commandstats").get("cmdstat_set", "calls=0,")[6:].split(",")[0])
    if node.info("replication")["role"] == "master":
        assert taken == 0  # a replica counts what its master sends it
    assert "errorstat_READONLY" not in node.info("errorstats")


def await_replicas(group: SentinelGroup, count: int = 1) -> None:
    assert group.master().cli("WAIT", count, 5000) == count


def recovered_s(client: Any, version: int) -> float:
    """From now on: until everything can be written and read again."""

    def works() -> bool:
        written = store(client, SIZES, version)
        assert set(written) <= {Status.OK, *AWAY}, written.error
        # Behind a failover the old primary may still have taken it, and it is lost: once more.
        read = fetch(client, SIZES, None).versions
        return bool(written.ok) and read == dict.fromkeys(SIZES, version)

    return until(works, 20)


# It dies.


@pytest.mark.parametrize("kind", NATIVE)
def test_a_master_that_is_killed(fresh_sentinels: StartSentinels, kind: str) -> None:
    group = fresh_sentinels(**PATIENT)
    with opened(kind, group) as client:
        assert store(client, SIZES).ok
        await_replicas(group)
        old = group.kill_master()
        with within(3):
            assert client.batch_exists(["key-1"])[0] is Status.UNAVAILABLE
        until(lambda: not client.available, 5)
        with within(1):
            assert set(fetch(client, SIZES).result) <= {Status.UNAVAILABLE, Status.OK}
        new = group.wait_for_promotion()
        until(lambda: fetch(client, SIZES).result.ok, 10)  # what was replicated is there
        taken_s = recovered_s(client, 2)
        print(f"recovered {taken_s:.2f} s after the promotion")
        assert taken_s < RECOVERY_S
        (node,) = client.nodes()
        assert node["address"] == address_of(new.host, new.server_port)
        # It comes back, takes itself for the master, and is empty.
        assert group.restart_old_master() is old
        for version in range(3, 40):
            assert store(client, SIZES, version).ok
            assert fetch(client, SIZES, {version}).result.ok
        assert_left_alone(old)
        group.wait_until_whole()
        assert_left_alone(old)
        assert fetch(client, SIZES, {39}).result.ok


def test_a_master_that_is_killed_under_load(fresh_sentinels: StartSentinels) -> None:
    group = fresh_sentinels(replicas=2, **PATIENT)
    with opened("native", group) as client:
        assert store(client, SIZES).ok
        await_replicas(group, 2)
        with Load(client, LOAD, lossy=True) as load:
            load.wait_for_rounds(2)
            group.kill_master()
            group.wait_for_promotion()
            until(lambda: fetch(client, SIZES).result.ok, 15)
            group.restart_old_master()
            load.wait_for_rounds(5)
            group.wait_until_whole()
            load.wait_for_rounds(3)
        assert load.failures() <= {Status.MISS, *AWAY}, load.reasons
        assert fetch(client, SIZES).result.ok


def test_a_master_that_hangs(fresh_sentinels: StartSentinels) -> None:
    """SIGSTOP, until another leads: when it goes on it finds no client of ours."""
    group = fresh_sentinels(**PATIENT)
    hurried = {"stall_timeout_s": 1.5, "connect_timeout_s": 1.5}
    with opened("native", group, **hurried) as client:
        assert store(client, SIZES).ok
        await_replicas(group)
        old = group.old_master = group.master()
        old.pause()
        try:
            with within(8):
                assert set(fetch(client, SIZES).result) <= {Status.OK, *AWAY}
            group.wait_for_promotion()
            taken_s = recovered_s(client, 2)
            assert taken_s < 5
        finally:
            old.resume()
        until(lambda: connections(old) == 0, 5)  # it reads what was sent to it, and that is all
        old.cli("CONFIG", "RESETSTAT")
        for version in range(3, 30):
            assert store(client, SIZES, version).ok
        assert fetch(client, SIZES, {29}).result.ok
        assert_left_alone(old)


def test_master_and_first_sentinel_die_together(fresh_sentinels: StartSentinels) -> None:
    """A machine that ran both is gone."""
    group = fresh_sentinels(**PATIENT)
    with opened("native", group) as client:
        assert store(client, SIZES).ok
        await_replicas(group)
        group.sentinels[0].kill()
        group.kill_master()
        group.wait_for_promotion()
        until(lambda: fetch(client, SIZES).result.ok, 10)
        assert recovered_s(client, 2) < RECOVERY_S


def test_a_master_that_comes_back_before_anybody_minds(fresh_sentinels: StartSentinels) -> None:
    """Restarted within the Sentinels' patience: the same one, empty."""
    group = fresh_sentinels(**CALM)
    master = group.master()
    with opened("native", group, reconnect_max_s=0.2) as client:
        assert store(client, SIZES).ok
        master.kill()
        until(lambda: not client.available, 5)
        master.restart()
        assert recovered_s(client, 2) < RECOVERY_S


# It hands over.


def test_an_orderly_failover(fresh_sentinels: StartSentinels) -> None:
    group = fresh_sentinels(**CALM)
    with opened("native", group) as client:
        for version in (1, 2, 3):
            assert store(client, SIZES, version).ok
            await_replicas(group)
            old = group.master()
            new = group.failover()
            taken_s = recovered_s(client, 10 * version)
            print(f"recovered {taken_s:.2f} s after the promotion")
            assert taken_s < RECOVERY_S
            group.wait_until_whole()
            until(lambda old=old: connections(old) == 0, RECOVERY_S)
            old.cli("CONFIG", "RESETSTAT")
            assert store(client, SIZES, 10 * version + 1).ok
            assert fetch(client, SIZES, {10 * version + 1}).result.ok
            assert connections(new) > 0
            assert_left_alone(old)


def test_orderly_failovers_under_load(fresh_sentinels: StartSentinels) -> None:
    group = fresh_sentinels(**CALM)
    with opened("native", group) as client:
        with Load(client, LOAD, lossy=True) as load:
            for _ in range(2):
                load.wait_for_rounds(3)
                group.failover()
                group.wait_until_whole()
            load.wait_for_rounds(5)
            assert recovered_s(client, 2) < 5
        assert load.failures() <= {Status.MISS, *AWAY}, load.reasons
        assert load.read[Status.OK] > 0


def test_the_old_master_is_left_under_load(fresh_sentinels: StartSentinels) -> None:
    """Within a moment of the Sentinels' change of mind, however busy the client is."""
    group = fresh_sentinels(**CALM)
    with opened("native", group) as client, Load(client, LOAD, lossy=True) as load:
        load.wait_for_rounds(3)
        old = group.master()
        assert connections(old) > 0
        group.failover()
        left_s = until(lambda: connections(old) == 0, RECOVERY_S)
        print(f"left the old master after {left_s:.2f} s")
        old.cli("CONFIG", "RESETSTAT")
        load.wait_for_rounds(5)
        assert_left_alone(old)


def test_big_values_across_a_failover(fresh_sentinels: StartSentinels) -> None:
    group = fresh_sentinels(**CALM)
    with opened("native", group) as client:
        big = {f"big-{index}": 3 * MIB for index in range(8)}
        keys = [f"load-{index}" for index in range(8)]
        assert store(client, big).ok
        await_replicas(group)
        with Load(client, keys, size_bytes=2 * MIB, lossy=True) as load:
            load.wait_for_rounds(1)
            group.failover()
            until(lambda: fetch(client, big).result.ok, 15)
            load.wait_for_rounds(2)
        assert load.failures() <= {Status.MISS, *AWAY}, load.reasons
        assert fetch(client, big).result.ok


# Liars.

MASTER = b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"
REPLICA = b"*5\r\n$5\r\nslave\r\n$1\r\nh\r\n:1\r\n$9\r\nconnected\r\n:0\r\n"


def naming(port: Callable[[], int], epoch: Callable[[], int] = lambda: 1) -> Handler:
    """A Sentinel's answers, which name that port of this machine."""

    def handler(command: Command) -> Action | None:
        if command.name == b"SUBSCRIBE":
            heard = enumerate(command[1:], 1)
            return b"".join(b">3\r\n$9\r\nsubscribe\r\n%b:%d\r\n" % (bulk(c), n) for n, c in heard)
        if command.name != b"SENTINEL":
            return None
        address = [b"127.0.0.1", b"%d" % port()]
        words = {
            b"MASTER": [b"ip", address[0], b"port", address[1], b"config-epoch", b"%d" % epoch()],
            b"GET-MASTER-ADDR-BY-NAME": address,
        }.get(command[1].upper(), [])
        return b"*%d\r\n" % len(words) + b"".join(map(bulk, words))

    return handler


def watched_by(*sentinels: ScriptedServer, **settings: Any) -> Any:
    nodes = tuple(f"{one.host}:{one.port}" for one in sentinels[1:])
    settings |= {"topology": "sentinel", "sentinel_master": "m", "nodes": nodes}
    return opened("native", sentinels[0], **settings)


def test_a_sentinel_that_names_a_replica_is_not_believed() -> None:
    with (
        ScriptedServer(answer(REPLICA, b"ROLE"), MiniStore()) as replica,
        ScriptedServer(answer(MASTER, b"ROLE"), MiniStore()) as master,
        ScriptedServer(naming(lambda: replica.port), MiniStore()) as behind,
        ScriptedServer(naming(lambda: master.port, lambda: 2), MiniStore()) as current,
    ):
        with watched_by(behind) as client:
            until(lambda: not client.available, 5)
            until(lambda: "the master" in client.batch_set(["k"], [b"1"]).error, 5)
            assert client.batch_set(["k"], [b"1"])[0] is Status.UNAVAILABLE
        with watched_by(behind, current) as client:
            client.set("k", b"1")
            assert b"SET" in master.names()
        assert b"SET" not in replica.names()


def test_the_newest_word_counts() -> None:
    """One Sentinel was cut off from the others, and its epoch is old."""
    with (
        ScriptedServer(answer(MASTER, b"ROLE"), MiniStore()) as old,
        ScriptedServer(answer(MASTER, b"ROLE"), MiniStore()) as new,
        ScriptedServer(naming(lambda: old.port, lambda: 7), MiniStore()) as behind,
        ScriptedServer(naming(lambda: new.port, lambda: 8), MiniStore()) as current,
        watched_by(behind, current) as client,
    ):
        for _ in range(5):
            client.set("k", b"1")
            time.sleep(0.1)
        assert b"SET" in new.names()
        assert b"SET" not in old.names()


def test_work_that_is_in_flight_goes_to_the_new_master() -> None:
    """The old one takes commands and says nothing; meanwhile the Sentinel names another."""
    led_by: list[ScriptedServer] = []
    epoch = [1]
    new_store = MiniStore()
    with (
        ScriptedServer(answer(MASTER, b"ROLE"), silent(b"SET"), MiniStore()) as old,
        ScriptedServer(answer(MASTER, b"ROLE"), new_store) as new,
        ScriptedServer(naming(lambda: led_by[0].port, lambda: epoch[0]), MiniStore()) as sentinel,
    ):
        led_by.append(old)
        with watched_by(sentinel, stall_timeout_s=10.0) as client:
            until(lambda: client.nodes() and client.nodes()[0]["connections_up"] == 8, 5)
            batch = client.submit_batch_set(["in flight"], [b"1"])
            until(lambda: b"SET" in old.names(), 5)
            led_by[0], epoch[0] = new, 2
            assert completions(client, 1, 3)[batch].ok
            before = old.names().count(b"SET")
            for index in range(50):
                client.set(f"k{index}", b"2")
            assert old.names().count(b"SET") == before
            assert len(new_store.data) == 51


@pytest.mark.parametrize(
    "said",
    [
        b"*-1\r\n",
        b"-ERR not me\r\n",
        b"+OK\r\n",
        b"*0\r\n",
        b"*4\r\n$2\r\nip\r\n$1\r\nh\r\n$4\r\nport\r\n$5\r\n99999\r\n",
        b"*4\r\n$2\r\nip\r\n$1\r\nh\r\n$4\r\nport\r\n$1\r\n-\r\n",
        b"*4\r\n$2\r\nip\r\n$3\r\na/b\r\n$4\r\nport\r\n$1\r\n1\r\n",
        b"*2\r\n$2\r\nip\r\n$1\r\nh\r\n",
        b"*1000000000\r\n",
        b"@\r\n",
    ],
)
def test_what_a_sentinel_may_say(said: bytes) -> None:
    with (
        ScriptedServer(answer(said, b"SENTINEL"), MiniStore()) as sentinel,
        watched_by(sentinel) as client,
        within(10),
    ):
        until(lambda: not client.available, 5)
        result = client.batch_exists(["k"])
        assert result[0] is Status.UNAVAILABLE
        assert result.error


def test_who_may_not_ask_for_the_role_believes_the_sentinel() -> None:
    forbidden = answer(
        b"-NOPERM this user has no permissions to run the 'role' command\r\n", b"ROLE"
    )
    with (
        ScriptedServer(forbidden, MiniStore()) as server,
        ScriptedServer(naming(lambda: server.port), MiniStore()) as sentinel,
        watched_by(sentinel) as client,
    ):
        client.set("k", b"1")


def test_who_may_not_listen_asks_now_and_then() -> None:
    """The server's manual has no SUBSCRIBE among the rights that users of Sentinels need."""
    led_by: list[ScriptedServer] = []
    epoch = [1]
    with (
        ScriptedServer(answer(MASTER, b"ROLE"), MiniStore()) as old,
        ScriptedServer(answer(MASTER, b"ROLE"), MiniStore()) as new,
        ScriptedServer(
            answer(b"-NOPERM this user has no permissions to run the command\r\n", b"SUBSCRIBE"),
            naming(lambda: led_by[0].port, lambda: epoch[0]),
            MiniStore(),
        ) as sentinel,
    ):
        led_by.append(old)
        with watched_by(sentinel) as client:
            client.set("k", b"1")
            led_by[0], epoch[0] = new, 2
            until(lambda: client.nodes()[0]["address"].endswith(f":{new.port}"), 5)
            client.set("k", b"1")
            assert b"SET" in new.names()


def test_readonly_means_looking_again() -> None:
    """A master that was demoted without a word to anybody."""
    demoted = answer(b"-READONLY You can't write against a read only replica.\r\n", b"SET")
    with (
        ScriptedServer(answer(MASTER, b"ROLE"), demoted, MiniStore()) as server,
        ScriptedServer(naming(lambda: server.port), MiniStore()) as sentinel,
        watched_by(sentinel) as client,
    ):
        client.batch_exists(["k"])
        result = client.batch_set(["k"], [b"1"])
        assert result[0] is Status.UNAVAILABLE
        assert "READONLY" in result.error
        assert client.batch_exists(["k"])[0] is Status.MISS
