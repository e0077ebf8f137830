"""The native client behind Sentinels: the master is found, whoever is asked first, and what does
not fit is said.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvferry import RedisClient
from kvferry.base import errors
from kvferry.client.batch import Status
from support.clients import NATIVE, no_takes_s, opened
from support.programs import run_program
from support.proxy import FaultProxy
from support.secrets import secret
from support.sentinel import SentinelGroup, start_sentinels
from support.servers import HOST, TestServer, address_of, free_port
from support.stamps import KIB, MIB, fetch, store, until, within

StartSentinels = Callable[..., SentinelGroup]

SIZES = {f"key-{index}": 100 + 37 * index for index in range(60)}
PASSWORDS: dict[str, Any] = {"password": secret("data"), "sentinel_password": secret("sentinels")}
IDENTITY = bytes(range(16))


@pytest.fixture(scope="module")
def guarded_group() -> Iterator[SentinelGroup]:
    """Servers and Sentinels with passwords."""
    try:
        group = start_sentinels(replicas=1, sentinels=3, **PASSWORDS)
    except LookupError as reason:
        pytest.skip(str(reason))
    with group:
        yield group


@pytest.fixture
def guarded(guarded_group: SentinelGroup) -> SentinelGroup:
    guarded_group.flush()
    return guarded_group


def calls(node: TestServer, command: str) -> int:
    said = node.info("commandstats").get(f"cmdstat_{command}", "calls=0,")
    return int(said.split("calls=")[1].split(",")[0])


def by_seeds(*seeds: str, **settings: Any) -> Any:
    settings = {"topology": "sentinel", "sentinel_master": SentinelGroup.name} | settings
    host, port = seeds[0].rsplit(":", 1)
    return RedisClient(host, int(port), nodes=seeds[1:], **settings)


# The master.


@pytest.mark.parametrize("kind", NATIVE)
def test_every_verb_at_the_master(sentinels: SentinelGroup, kind: str) -> None:
    with opened(kind, sentinels) as client:
        assert store(client, SIZES, ttl_s=100).ok
        assert fetch(client, SIZES).result.ok
        assert client.batch_exists([*SIZES, "none"]).prefix_len == len(SIZES)
        assert client.batch_exists(list(SIZES), touch=True).ok
        big = {f"big-{index}": 3 * MIB for index in range(6)}
        assert store(client, big).ok
        assert fetch(client, big, prefix=True).result.ok
        here = client.namespace("kv:", identity=IDENTITY, value_size_bytes=9 * MIB)
        assert store(here, {"v": 9 * MIB}).ok
        assert fetch(here, {"v": 9 * MIB}).result.ok
        assert client.batch_delete(list(SIZES)).ok
        (node,) = client.nodes()
        master = sentinels.master()
        assert node["address"] == address_of(master.host, master.server_port)
        assert node["role"] == "primary"
        assert calls(master, "get") >= len(SIZES)
        assert all(calls(replica, "get") == 0 for replica in sentinels.replicas())


def test_url(sentinels: SentinelGroup) -> None:
    url = sentinels.url.removesuffix("/0") + "/3"
    for each in (url, url.replace("redis-sentinel", "redis+sentinel")):
        with RedisClient.from_url(each) as client:
            client.set("k", b"v")
            assert client.get("k", bytearray(1))
    assert sentinels.master().cli("EXISTS", "k") == 0  # it is in another database


@pytest.mark.parametrize("first", [0, 1, 2])
def test_any_sentinel_is_enough(sentinels: SentinelGroup, first: int) -> None:
    with by_seeds(sentinels.seeds[first]) as client:
        assert store(client, SIZES).ok
        assert fetch(client, SIZES).result.ok


def test_sentinels_that_are_dead(sentinels: SentinelGroup) -> None:
    """One refuses, one has no address, one swallows everything: the fourth will do."""
    one = sentinels.sentinels[0]
    with FaultProxy(one.host, one.port) as hole:
        hole.black_hole()
        dead = [f"{HOST}:{free_port()}", "no-such-host.invalid:26379", f"{HOST}:{hole.port}"]
        with by_seeds(*dead, sentinels.seeds[2]) as client, within(15):
            until(lambda: store(client, SIZES).ok, 12)
            assert fetch(client, SIZES).result.ok


def test_one_sentinel_dies(fresh_sentinels: StartSentinels) -> None:
    """Also the one that was asked first, and the only one that was named: it knew the others."""
    group = fresh_sentinels()
    with by_seeds(group.seeds[0]) as client:
        assert store(client, SIZES).ok
        group.sentinels[0].kill()
        for version in range(2, 8):
            assert store(client, SIZES, version).ok
            time.sleep(0.1)
        assert fetch(client, SIZES, {7}).result.ok
        group.failover()  # found through Sentinels that the client was never told of
        group.wait_until_whole()  # until then the old one takes writes, which will be lost
        until(lambda: store(client, SIZES, 8).ok, 10)
        new = group.master()
        assert calls(new, "set") >= len(SIZES)


def test_all_sentinels_die(fresh_sentinels: StartSentinels) -> None:
    """The master that is known goes on to serve."""
    group = fresh_sentinels()
    with opened("native", group) as client:
        assert store(client, SIZES).ok
        for node in group.sentinels:
            node.kill()
        for version in range(2, 12):
            with within(2):
                assert store(client, SIZES, version).ok
            time.sleep(0.1)
        assert fetch(client, SIZES, {11}).result.ok


# Secrets.


@pytest.mark.parametrize("kind", NATIVE)
def test_passwords_of_servers_and_of_sentinels(guarded: SentinelGroup, kind: str) -> None:
    with opened(kind, guarded) as client:
        assert store(client, SIZES).ok
        assert fetch(client, SIZES).result.ok


def test_the_minimal_rights_of_the_manual(fresh_sentinels: StartSentinels) -> None:
    """Source: the server's manual, "Sentinel, access control list authentication"."""
    rights = (
        "-@all +auth +client|getname +client|id +client|setname +command +hello +ping +role "
        "+sentinel|get-master-addr-by-name +sentinel|master +sentinel|myid +sentinel|replicas "
        "+sentinel|sentinels +sentinel|masters"
    )
    group = fresh_sentinels()
    for node in group.sentinels:
        node.cli("ACL", "SETUSER", "looker", "on", ">secret", *rights.split())
    user = {"sentinel_username": "looker", "sentinel_password": "secret"}
    with opened("native", group, **user) as client:
        assert store(client, SIZES).ok
        group.failover()
        group.wait_until_whole()  # until then the old one takes writes, which will be lost
        until(lambda: store(client, SIZES, 2).ok, 10)
        assert fetch(client, SIZES, {2}).result.ok


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"sentinel_master": "other"}, errors.UnavailableError, "(?i)no such master"),
        ({"sentinel_password": "wrong"}, errors.AuthError, "WRONGPASS"),
        ({"sentinel_password": None}, errors.AuthError, "NOAUTH"),
        ({"password": "wrong"}, errors.AuthError, "WRONGPASS"),
        ({"password": None}, errors.AuthError, "NOAUTH"),
    ],
)
def test_what_does_not_fit_is_said(
    guarded: SentinelGroup,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    kind: type[Exception],
    words: str,
) -> None:
    caplog.set_level(logging.DEBUG, "kvferry")
    with opened("native", guarded, **settings) as client, within(10):
        until(lambda: not client.available, 5)
        with pytest.raises(kind, match=words) as caught:
            client.exists("k")
        assert no_takes_s(client, ["k"]) < 0.005
    assert "the topology is not known" in caplog.text
    said = str(caught.value) + caplog.text
    assert not any(secret in said for secret in [*PASSWORDS.values(), "'wrong'"])


def test_a_sentinel_that_does_not_know_the_name(
    guarded: SentinelGroup, start: Callable[..., TestServer], caplog: pytest.LogCaptureFixture
) -> None:
    """The others do; and where none does, the reason is in the log."""
    caplog.set_level(logging.INFO, "kvferry")
    stranger = start("redis7", "--sentinel", unix=False, password=PASSWORDS["sentinel_password"])
    seed = f"{stranger.host}:{stranger.port}"
    with by_seeds(seed, *guarded.seeds, **PASSWORDS) as client:
        assert store(client, SIZES).ok
        assert fetch(client, SIZES).result.ok
    caplog.clear()
    with by_seeds(seed, **PASSWORDS) as client:
        until(lambda: not client.available, 5)
        assert client.batch_exists(["k"])[0] is Status.UNAVAILABLE
    assert "o such master" in caplog.text
    assert seed in caplog.text


def test_a_server_that_is_no_sentinel(valkey: TestServer) -> None:
    with by_seeds(f"{valkey.host}:{valkey.port}") as client, within(10):
        until(lambda: not client.available, 5)
        result = client.batch_exists(["k"])
        assert result[0] is Status.UNAVAILABLE
        assert "SENTINEL" in result.error.upper()


def test_nobody_is_there() -> None:
    with by_seeds(*(f"{HOST}:{free_port()}" for _ in range(3))) as client, within(10):
        until(lambda: not client.available, 5)
        with pytest.raises(errors.UnavailableError, match="refused"):
            client.set("k", b"v")


# TLS.


def test_tls(fresh_sentinels: StartSentinels) -> None:
    group = fresh_sentinels(tls=True, **PASSWORDS)
    with opened("native", group) as client:
        assert store(client, SIZES).ok
        assert fetch(client, SIZES).result.ok
        group.failover()
        group.wait_until_whole()  # until then the old one takes writes, which will be lost
        until(lambda: store(client, SIZES, 2).ok, 15)
        assert fetch(client, SIZES, {2}).result.ok
    with opened("native", group, tls_ca_file=None) as client, within(10):
        until(lambda: not client.available, 5)
        with pytest.raises(errors.TlsError, match="certificate"):
            client.exists("k")


# Replicas.


def test_reads_go_to_replicas(fresh_sentinels: StartSentinels) -> None:
    group = fresh_sentinels(replicas=2)
    master, replicas = group.master(), group.replicas()
    with opened("native", group, read_from="replica") as client:
        until(lambda: [node["connections_up"] for node in client.nodes()] == [8, 8, 8], 15)
        assert store(client, SIZES).ok
        until(lambda: master.cli("WAIT", 2, 1000) == 2, 10)
        for _ in range(3):
            assert fetch(client, SIZES).result.ok
        assert calls(master, "get") == 0
        assert all(calls(replica, "get") for replica in replicas)
        replicas[0].kill()
        for _ in range(3):
            with within(5):
                assert fetch(client, SIZES).result.ok
        replicas[1].kill()
        for _ in range(3):
            with within(5):
                assert fetch(client, SIZES).result.ok
        assert calls(master, "get") > 0


def test_a_miss_of_a_replica_is_asked_of_the_master(fresh_sentinels: StartSentinels) -> None:
    group = fresh_sentinels()
    master, (replica,) = group.master(), group.replicas()
    with opened("native", group, read_from="replica") as client:
        until(lambda: [node["connections_up"] for node in client.nodes()] == [8, 8], 15)
        replica.cli("CONFIG", "SET", "masterauth", "wrong")
        master.cli("CLIENT", "KILL", "TYPE", "REPLICA")
        assert store(client, SIZES).ok
        assert fetch(client, SIZES).result.ok
        assert client.batch_exists([*SIZES, "none"]).prefix_len == len(SIZES)


# Life.


def test_close_while_the_master_is_sought() -> None:
    with FaultProxy(HOST, free_port()) as hole:
        hole.black_hole()
        client = by_seeds(f"{hole.host}:{hole.port}", connect_timeout_s=30.0, timeout_s=30.0)
        batch = client.submit_batch_exists(["k"])
        time.sleep(0.1)
        with within(2):
            client.close()
        ((completed, result),) = client.drain_completions()
        assert completed == batch
        assert result[0] is Status.CANCELLED


def test_fork(sentinels: SentinelGroup) -> None:
    source = """
import os, sys
import kvferry
client = kvferry.RedisClient.from_url(sys.argv[1])
client.set("k", b"v" * 1000)

def check():
    target = bytearray(1000)
    assert client.get("k", target)
    assert target == b"v" * 1000

pid = os.fork()
check()
if pid == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
check()
"""
    assert run_program(source, sentinels.url, within_s=30) == ""


def test_sentinels_see_one_connection(sentinels: SentinelGroup) -> None:
    """A client looks ten times a second, over the same connection to each."""
    with opened("native", sentinels) as client:
        assert store(client, {"k": KIB}).ok
        node = sentinels.sentinels[0]

        def ours() -> int:
            said: str = node.cli("CLIENT", "LIST").decode()
            return said.count("name=kvferry")

        until(lambda: ours() == 1, 5)
        before = int(node.info("stats")["total_connections_received"])
        time.sleep(2)
        assert ours() == 1
        assert int(node.info("stats")["total_connections_received"]) - before < 10
        assert client.available
    until(lambda: ours() == 0, 5)
