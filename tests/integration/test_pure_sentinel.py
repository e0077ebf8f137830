"""The pure-Python client and Sentinels: finding the master, following it, not believing others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kvferry.base import errors
from kvferry.client.batch import Status
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig
from support import clock
from support.pure import payload
from support.scripted import Action, Command, Handler, MiniStore, ScriptedServer, answer
from support.secrets import secret
from support.sentinel import SentinelGroup, start_sentinels
from support.servers import TestServer
from support.stamps import until, within
from support.tuned import tuned

PASSWORDS: dict[str, Any] = {"password": secret("data"), "sentinel_password": secret("sentinels")}


@pytest.fixture(scope="module")
def shared_group() -> Iterator[SentinelGroup]:
    try:
        group = start_sentinels(replicas=1, sentinels=3, **PASSWORDS)
    except LookupError as reason:
        pytest.skip(str(reason))
    with group:
        yield group


def opened(group: SentinelGroup, **settings: Any) -> PureRedisClient:
    return PureRedisClient(
        group.host, group.port, **tuned(ClientConfig, **(group.settings | settings))
    )


def test_the_master_is_found(shared_group: SentinelGroup) -> None:
    with opened(shared_group, db=2) as client:
        client.set("k", b"value")
        target = bytearray(5)
        assert client.get("k", target)
        assert target == b"value"
        assert client.server_info()["role"] == "master"
    assert shared_group.master().cli("EXISTS", "k") == 0  # it is in another database


def test_one_sentinel_of_the_list_is_enough(shared_group: SentinelGroup) -> None:
    dead = "127.0.0.1:1"
    settings = shared_group.settings | {"nodes": (dead, shared_group.seeds[2])}
    with PureRedisClient("127.0.0.1", 1, **settings) as client, within(10):
        client.set("k", b"value")


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"sentinel_master": "other"}, errors.UnavailableError, "no master of that name"),
        ({"sentinel_password": "wrong"}, errors.AuthError, "WRONGPASS"),
        ({"password": "wrong"}, errors.AuthError, "WRONGPASS"),
    ],
)
def test_what_does_not_fit_is_said(
    shared_group: SentinelGroup, settings: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with (
        opened(shared_group, **settings) as client,
        within(5),
        pytest.raises(kind, match=words) as caught,
    ):
        client.exists("k")
    assert not any(secret in str(caught.value) for secret in PASSWORDS.values())


def test_the_new_master_is_followed_and_the_old_one_is_left_alone() -> None:
    try:
        group = start_sentinels(replicas=1, sentinels=3)
    except LookupError as reason:
        pytest.skip(str(reason))
    with group, opened(group) as client, within(90):
        client.set("before", payload(100_000))
        master = group.master()
        until(lambda: master.cli("WAIT", 1, 1000) >= 1, 10)
        group.kill_master()
        with within(5):
            assert client.batch_exists(["before"])[0] is Status.UNAVAILABLE
        group.wait_for_promotion()
        deadline = clock.now_s() + 10
        while client.batch_set(["after"], [b"1"])[0] is not Status.OK:
            assert clock.now_s() < deadline
            time.sleep(0.05)
        old = group.restart_old_master()
        target = bytearray(100_000)
        for _ in range(20):
            assert client.get("before", target)
            assert client.exists("after")
            client.set("after", b"2")
        assert target == payload(100_000)
        assert old.info("commandstats").get("cmdstat_set") is None
        # An orderly change back: the connections are cut, and a replica refuses writes.
        group.wait_until_whole()
        group.failover()
        group.wait_until_whole()  # until then the old one takes writes, which will be lost
        deadline = clock.now_s() + 10
        while client.batch_set(["after"], [b"3"])[0] is not Status.OK:
            assert clock.now_s() < deadline
            time.sleep(0.05)
        assert group.master().cli("GET", "after") == b"3"


def pointing_to(server: TestServer | ScriptedServer, *handlers: Handler) -> ScriptedServer:
    """A Sentinel that names that server."""
    host, port = server.host.encode(), b"%d" % server.port
    named = b"*2\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(host), host, len(port), port)
    return ScriptedServer(*handlers, answer(named, b"SENTINEL"), MiniStore())


def watched_by(*sentinels: ScriptedServer, **settings: Any) -> PureRedisClient:
    nodes = tuple(f"{one.host}:{one.port}" for one in sentinels[1:])
    settings |= {"topology": "sentinel", "sentinel_master": "m", "nodes": nodes}
    return PureRedisClient(sentinels[0].host, sentinels[0].port, **tuned(ClientConfig, **settings))


def role(text: bytes) -> Handler:
    return answer(text, b"ROLE")


MASTER = role(b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n")
REPLICA = role(b"*5\r\n$5\r\nslave\r\n$1\r\nh\r\n:1\r\n$9\r\nconnected\r\n:0\r\n")


def test_a_sentinel_that_names_a_replica_is_not_believed() -> None:
    with (
        ScriptedServer(REPLICA, MiniStore()) as replica,
        ScriptedServer(MASTER, MiniStore()) as master,
        pointing_to(replica) as behind,
        pointing_to(master) as current,
    ):
        with watched_by(behind) as client, pytest.raises(errors.UnavailableError, match="not the"):
            client.set("k", b"1")
        assert b"SET" not in replica.names()
        with watched_by(behind, current) as client:
            client.set("k", b"1")
            assert b"SET" in master.names()
        assert b"SET" not in replica.names()


def test_readonly_means_asking_again() -> None:
    demoted = answer(b"-READONLY You can't write against a read only replica.\r\n", b"SET")
    turns = iter((MASTER, REPLICA, REPLICA, REPLICA))

    def roles(command: Command) -> Action | None:
        return next(turns)(command) if command.name == b"ROLE" else None

    with (
        ScriptedServer(roles, demoted, MiniStore()) as server,
        pointing_to(server) as sentinel,
        watched_by(sentinel) as client,
    ):
        result = client.batch_set(["k"], [b"1"])
        assert result[0] is Status.UNAVAILABLE
        assert "READONLY" in str(result.error)
        again = client.batch_set(["k"], [b"1"])
        assert "is not the master" in str(again.error)
        assert sentinel.names().count(b"SENTINEL") == 2


def test_a_connection_is_looked_at_again_after_a_while() -> None:
    with (
        ScriptedServer(MASTER, MiniStore()) as server,
        pointing_to(server) as sentinel,
        watched_by(sentinel, topology_refresh_s=0.3) as client,
    ):
        began = time.monotonic()
        client.set("k", b"1")
        client.set("k", b"1")
        looks = sentinel.names().count(b"SENTINEL")
        assert looks == 1 or time.monotonic() - began > 0.3
        time.sleep(0.4)
        client.set("k", b"1")
        assert sentinel.names().count(b"SENTINEL") == looks + 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"*-1\r\n", "no master of that name"),
        (b"-ERR not me\r\n", "not me"),
        (b"+OK\r\n", "no address"),
        (b"*2\r\n$1\r\nh\r\n$5\r\n99999\r\n", "no address"),
        (b"*2\r\n$1\r\nh\r\n$1\r\n-\r\n", "no address"),
        (b"*1\r\n$1\r\nh\r\n", "no address"),
        (b"*2\r\n$3\r\na/b\r\n$1\r\n1\r\n", "names no host"),
    ],
)
def test_what_a_sentinel_may_say(said: bytes, words: str) -> None:
    with (
        ScriptedServer(answer(said, b"SENTINEL"), MiniStore()) as sentinel,
        watched_by(sentinel) as client,
        within(5),
        pytest.raises(errors.UnavailableError, match=words),
    ):
        client.exists("k")


def test_who_may_not_ask_for_the_role_believes_the_sentinel() -> None:
    forbidden = role(b"-NOPERM this user has no permissions to run the 'role' command\r\n")
    with (
        ScriptedServer(forbidden, MiniStore()) as server,
        pointing_to(server) as sentinel,
        watched_by(sentinel) as client,
    ):
        client.set("k", b"1")
