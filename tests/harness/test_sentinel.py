"""The Sentinel fixture: all agree when it starts, and after every change of the primary."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from support.resp import ReplyError, encode, read_reply
from support.sentinel import MASTER_NAME, SentinelGroup
from support.servers import TestServer, wait_for

Start = Callable[..., SentinelGroup]
LONG_MS = 3000  # no pause of a busy machine is taken for a loss


def test_sentinels_name_the_primary_and_each_other(sentinels: SentinelGroup) -> None:
    master = sentinels.master()
    assert master is sentinels.data[0]
    assert sentinels.replicas() == [sentinels.data[1]]
    assert sentinels.is_whole()
    others = {f"127.0.0.1:{node.port}" for node in sentinels.sentinels}
    assert set(sentinels.seeds) == others
    assert sentinels.url == f"redis-sentinel://{','.join(sentinels.seeds)}/{MASTER_NAME}/0"
    assert sentinels.settings["nodes"] == sentinels.seeds[1:]
    assert b"OK" in sentinels.sentinels[0].cli("SENTINEL", "CKQUORUM", MASTER_NAME)


def test_a_replica_has_the_keys_and_takes_none(sentinels: SentinelGroup) -> None:
    replica = sentinels.replicas()[0]
    assert sentinels.master().cli("DBSIZE") == 0
    sentinels.master().cli("SET", "key", "value")
    wait_for("the key to arrive", lambda: replica.cli("GET", "key") == b"value")
    with pytest.raises(ReplyError, match="READONLY"):
        replica.cli("SET", "key", "other")


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_failover_kill_and_return(fresh_sentinels: Start, kind: str) -> None:
    group = fresh_sentinels(kind, down_after_ms=LONG_MS)
    first, second = group.data
    first.cli("SET", "key", "value")
    wait_for("the key to arrive", lambda: second.cli("GET", "key") == b"value")
    assert group.failover() is group.master() is second
    group.wait_until_whole()
    assert second.cli("GET", "key") == b"value"
    assert first.cli("ROLE")[0] == b"slave"
    assert group.kill_master() is second
    assert group.wait_for_promotion() is first
    assert group.restart_old_master() is second
    group.wait_until_whole()
    assert second.cli("GET", "key") == b"value"


def test_a_frozen_primary_returns_as_a_replica(fresh_sentinels: Start) -> None:
    group = fresh_sentinels(down_after_ms=2000)
    old = group.old_master = group.master()
    old.pause()
    assert group.wait_for_promotion() is not old
    old.resume()
    group.wait_until_whole()
    assert old.cli("ROLE")[0] == b"slave"


def test_a_sentinel_that_restarts_learns_what_happened(fresh_sentinels: Start) -> None:
    group = fresh_sentinels(down_after_ms=LONG_MS)
    group.sentinels[0].kill()
    new = group.failover()
    group.sentinels[0].restart()
    group.wait_until_whole()
    assert group.sentinels[0].master_address() == (new.host, new.port)


def ping(node: TestServer) -> str:
    """As somebody who has no password."""
    with socket.create_connection((node.host, node.port), 5) as talk, talk.makefile("rb") as read:
        talk.sendall(encode("PING"))
        return str(read_reply(read))


def test_servers_and_sentinels_have_passwords_of_their_own(fresh_sentinels: Start) -> None:
    group = fresh_sentinels(
        password="for-data", sentinel_password="for-sentinels", down_after_ms=LONG_MS
    )
    assert group.url.startswith("redis-sentinel://:for-data@")
    assert group.settings["sentinel_password"] == "for-sentinels"
    for node in (*group.data, *group.sentinels):
        assert "NOAUTH" in ping(node)
    assert group.failover() is group.data[1]


def test_tls_everywhere(fresh_sentinels: Start) -> None:
    group = fresh_sentinels(tls=True, down_after_ms=LONG_MS)
    assert group.url.startswith("rediss+sentinel://")
    assert group.sentinels[0].master_address() == ("127.0.0.1", group.data[0].tls_port)
    assert group.failover() is group.data[1]


def test_proxied_servers_are_known_by_their_proxies(fresh_sentinels: Start) -> None:
    group = fresh_sentinels(proxied=True, down_after_ms=LONG_MS)
    ports = [proxy.port for proxy in group.proxies]
    assert [node.client_port for node in (*group.data, *group.sentinels)] == ports
    assert group.sentinels[0].master_address() == ("127.0.0.1", ports[0])
    for proxy in group.proxies:
        proxy.black_hole()
    assert group.failover().client_port == ports[1]
    group.wait_until_whole()
    said = group.sentinels[0].cli("SENTINEL", "SENTINELS", MASTER_NAME)
    fields = [dict(zip(one[::2], one[1::2], strict=True)) for one in said]
    assert {int(one[b"port"]) for one in fields} == set(ports[3:])
