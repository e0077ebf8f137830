"""The rights of the security guide: they suffice, and each of them is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvferry import RedisClient
from kvferry.client.batch import Status
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig
from kvferry_lab.doctor.run import DoctorPlan, run_doctor
from kvferry_lab.doctor.traffic import Limits
from support.cluster import Cluster
from support.secrets import secret
from support.sentinel import SentinelGroup
from support.servers import ADMIN, TestServer
from support.stamps import KIB, fetch, store, until

pytestmark = pytest.mark.presence

Start = Callable[..., Any]

GUIDE = Path(__file__).parents[2] / "docs/guides/security.md"
PASSWORD = secret("least-user")
# Who asks for a Unix socket needs more: test_same_host.
USER = {"username": "kvferry", "password": PASSWORD, "same_host": "tcp"}
SIZES = {f"chunks:{index}": KIB for index in range(60)}
CLIENTS: list[Any] = [RedisClient, PureRedisClient]


def rights(*purposes: str) -> str:
    """What the guide grants for them."""
    lines = re.findall(r"^([a-z_'() ]+?) {2,}([-+&~].*)$", GUIDE.read_text(), re.MULTILINE)
    table = dict(lines)
    return " ".join(table[purpose] for purpose in purposes)


def user(*purposes: str, keys: str = "~chunks:*") -> str:
    """A line of a server's configuration."""
    return f"user kvferry on >{PASSWORD} resetchannels resetkeys {keys} {rights(*purposes)}"


def use(client: Any) -> None:
    """All that a client can be asked for, within its keys."""
    assert client.ping() > 0
    assert store(client, SIZES, ttl_s=60).ok
    until(lambda: fetch(client, SIZES).result.ok, 10)  # a replica has them a little later
    assert client.batch_exists(list(SIZES), touch=True).ok
    assert client.exists("chunks:0")
    assert client.delete("chunks:0")
    if isinstance(client, PureRedisClient):
        return
    space = client.namespace("chunks:", identity=b"of a model", value_size_bytes=KIB)
    assert space.batch_set(["one"], [bytes(KIB)]).ok
    until(lambda: space.batch_get(["one"], [bytearray(KIB)]).ok, 10)


def nothing_was_refused(nodes: Sequence[TestServer]) -> None:
    for node in nodes:
        for entry in node.cli("ACL", "LOG"):
            fields = dict(zip(entry[::2], entry[1::2], strict=True))
            assert fields[b"username"] == ADMIN.encode(), fields


def check(nodes: Sequence[TestServer], granted: str) -> None:
    """Nothing was refused, and nothing is granted that was not used, on any of them."""
    nothing_was_refused(nodes)
    used = {
        name.removeprefix("cmdstat_")
        for node in nodes
        for name in node.info("commandstats")
        if name.startswith("cmdstat_")
    }
    assert {word[1:] for word in granted.split() if word[0] == "+"} - used == set()


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_one_server(start: Start, kind: str) -> None:
    server = start(kind, users=[user("always", "another database")])
    for protocol in (2, 3):
        for make in CLIENTS:
            for place in ({}, {"db": 1}):
                settings = {"tuning": {"protocol": protocol}, **place, **USER}
                with make(server.host, server.port, **settings) as client:
                    use(client)
    check([server], rights("always", "another database"))
    with RedisClient(server.host, server.port, **USER) as client:
        theirs = client.batch_get(["chunks:1", "others:1"], [bytearray(KIB), bytearray(KIB)])
        assert list(theirs) == [Status.OK, Status.SERVER_ERROR]


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_information(start: Start, kind: str) -> None:
    server = start(kind, users=[user("always", "server_info()")])
    for make in CLIENTS:
        with make(server.host, server.port, **USER) as client:
            assert client.server_info()
            use(client)
    check([server], rights("server_info()"))


def _connected_replicas(client: RedisClient) -> bool:
    return any(node["role"] == "replica" and node["connections_up"] for node in client.nodes())


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_cluster(fresh_cluster: Start, kind: str) -> None:
    purposes = ("always", "cluster", "reads from replicas")
    cluster: Cluster = fresh_cluster(kind, replicas=1, users=[user(*purposes)])
    settings = cluster.settings | USER
    key = "chunks:moving"
    slot = cluster.slot(key)
    source = cluster.owner(slot)
    target = next(node for node in cluster.nodes[:3] if node is not source)
    with RedisClient(cluster.host, cluster.port, **settings, tuning={"protocol": 2}) as client:
        use(client)
        migration = cluster.begin_migration(source, target, slot)
        assert not client.exists(key)  # by ASK
        migration.abort()
    # Some nodes of a young cluster learn later than others of the replicas.
    settings |= {"read_from": "replica", "tuning": {"topology_refresh_s": 0.5}}
    with CLIENTS[0](cluster.host, cluster.port, **settings) as client:
        until(lambda: _connected_replicas(client), 10)
        use(client)
        until(lambda: fetch(client, dict(list(SIZES.items())[1:])).result.ok, 10)
    check(cluster.nodes, rights(*purposes))


def test_sentinel(fresh_sentinels: Start) -> None:
    group: SentinelGroup = fresh_sentinels(users=[user("always", "sentinel")])
    granted = rights("the sentinels' own")
    for node in group.sentinels:
        node.cli("ACL", "SETUSER", "kvferry", "on", f">{PASSWORD}", "resetchannels", "resetkeys")
        node.cli("ACL", "SETUSER", "kvferry", *granted.split())
    own = {"sentinel_username": "kvferry", "sentinel_password": PASSWORD}
    settings = group.settings | USER | own
    for protocol in (2, 3):
        tuning = {"protocol": protocol}
        with RedisClient(group.host, group.port, **settings, tuning=tuning) as client:
            until(lambda: client.batch_exists(["chunks:0"])[0].name in ("OK", "MISS"), 10)
            use(client)
    check(group.data, rights("always", "sentinel"))
    nothing_was_refused(group.sentinels)  # they do not count commands


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_presence(start: Start, kind: str) -> None:
    server = start(kind, users=[user("always", "presence")])
    with RedisClient(server.host, server.port, presence_prefix="chunks:", **USER) as client:
        until(lambda: client.presence(["chunks:none"]) == [False], 10)
        use(client)
        until(lambda: client.presence(["chunks:1"]) == [True], 10)
    check([server], rights("presence"))


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_same_host(start: Start, kind: str) -> None:
    server = start(kind, users=[user("always", "socket of this host")])
    with RedisClient(server.host, server.port, **USER | {"same_host": "auto"}) as client:
        until(lambda: client.stats()["connections_unix"] == 8, 10)
        use(client)
    check([server], rights("socket of this host"))


def test_presence_in_a_cluster(fresh_cluster: Start) -> None:
    purposes = ("always", "cluster", "presence", "presence in a cluster")
    cluster: Cluster = fresh_cluster("valkey", users=[user(*purposes)])
    settings = cluster.settings | USER
    with RedisClient(cluster.host, cluster.port, presence_prefix="chunks:", **settings) as client:
        until(lambda: client.presence(["chunks:none"]) == [False], 10)
        use(client)
    check(cluster.nodes, rights("presence", "presence in a cluster"))


def test_doctor(fresh_cluster: Start) -> None:
    cluster: Cluster = fresh_cluster("valkey", users=[user("doctor", keys="~kvferry:doctor:*")])
    settings: dict[str, Any] = cluster.settings | USER
    limits = Limits(total_s=1.0, point_s=0.05, connections=(1, 2), sizes_bytes=(64 * KIB,))
    plan = DoctorPlan(
        config=ClientConfig(host=cluster.host, port=cluster.port, **settings), limits=limits
    )
    facts, _ = run_doctor(plan)
    assert facts.traffic.skipped == ""
    assert facts.servers[0].config is not None
    check(cluster.nodes, rights("doctor"))
