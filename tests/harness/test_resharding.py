"""Slots move with their keys, stop half-way, return, and lose nothing while a client works."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Self

import pytest

from support.cluster import Cluster, key_slot, keys_of_slot
from support.resp import ReplyError, encode, read_reply
from support.servers import TestServer
from support.stamps import until

Start = Callable[..., Cluster]
KINDS = ["valkey", "redis7"]


def ask(node: TestServer, *words: bytes | str) -> object:
    """One command after ASKING, as a client that was sent here."""
    with socket.create_connection((node.host, node.port), 10) as talk, talk.makefile("rb") as read:
        talk.sendall(encode("ASKING") + encode(*words))
        read_reply(read)
        reply = read_reply(read)
        if isinstance(reply, ReplyError):  # ASK again, if the slot has turned back meanwhile
            raise reply
        return reply


@pytest.mark.parametrize("kind", KINDS)
def test_slots_move_with_their_keys(fresh_cluster: Start, kind: str) -> None:
    cluster = fresh_cluster(kind, replicas=1, password="secret")
    source, target = cluster.primary(0), cluster.primary(1)
    keys = keys_of_slot(7, 40)
    for key in keys:
        source.cli("SET", key, b"value of " + key)
    cluster.migrate_slots(source, target, [6, 7])
    cluster.wait_until_whole()
    assert cluster.owner(7) is target
    assert len(cluster.slots_of(source)) == 5459
    assert [target.cli("GET", key) for key in keys] == [b"value of " + key for key in keys]
    with pytest.raises(ReplyError, match="MOVED 7"):
        source.cli("GET", keys[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_migration_stops_in_the_middle_and_is_undone(fresh_cluster: Start, kind: str) -> None:
    cluster = fresh_cluster(kind)
    source, target = cluster.primary(0), cluster.primary(1)
    keys = keys_of_slot(9, 6)
    for key in keys:
        source.cli("SET", key, b"value")
    migration = cluster.begin_migration(source, target, 9)
    assert migration.move_keys(4) == migration.keys_moved == 4
    gone = [key for key in keys if key not in source.cli("CLUSTER", "GETKEYSINSLOT", 9, 10)]
    assert len(gone) == 4
    with pytest.raises(ReplyError, match=f"ASK 9 127.0.0.1:{target.port}"):
        source.cli("GET", gone[0])
    with pytest.raises(ReplyError, match="TRYAGAIN"):
        source.cli("EXISTS", *keys)
    assert ask(target, "GET", gone[0]) == b"value"
    with pytest.raises(ReplyError, match="MOVED 9"):
        target.cli("GET", gone[0])
    migration.abort()
    assert [source.cli("GET", key) for key in keys] == [b"value"] * 6
    assert target.cli("CLUSTER", "COUNTKEYSINSLOT", 9) == 0


class Follower:
    """Reads and writes keys of one slot, one at a time, wherever it is sent."""

    def __init__(self, cluster: Cluster, keys: list[bytes]) -> None:
        self.nodes = {node.port: node for node in cluster.nodes}
        self.keys, self.written = keys, dict.fromkeys(keys, b"0")
        self.redirects: set[str] = set()
        self.turns = 0
        self.stopping = threading.Event()
        self.error: Exception | None = None
        self.port = cluster.owner(key_slot(keys[0])).port
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.turns = turn = self.turns + 1
                for key in self.keys:
                    got = self.call("GET", key)
                    assert got == self.written[key], (key, got, self.written[key])
                    assert self.call("SET", key, b"%d" % turn) == b"OK"
                    self.written[key] = b"%d" % turn
        except Exception as error:
            self.error = error

    def call(self, *words: bytes | str) -> object:
        port = self.port
        call: Callable[..., object] = TestServer.cli
        for _ in range(100):
            try:
                return call(self.nodes[port], *words)
            except ReplyError as error:
                kind, *where = str(error).split()
                if kind not in ("MOVED", "ASK"):
                    raise
                self.redirects.add(kind)
                port = int(where[1].rpartition(":")[2])
                call = ask if kind == "ASK" else TestServer.cli
                self.port = port if kind == "MOVED" else self.port
        raise AssertionError("redirected without end")

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.mark.parametrize("kind", KINDS)
def test_slots_move_both_ways_while_a_client_works(fresh_cluster: Start, kind: str) -> None:
    cluster = fresh_cluster(kind)
    first, second = cluster.primary(0), cluster.primary(1)
    keys = keys_of_slot(11, 8)
    for key in keys:
        first.cli("SET", key, "0")
    with Follower(cluster, keys) as follower:
        for source, target in [(first, second), (second, first)] * 3:
            migration = cluster.begin_migration(source, target, 11)
            for _ in range(4):
                migration.move_keys(2)
                seen = follower.turns
                until(lambda seen=seen: follower.turns > seen or follower.error, 10)
            migration.move_keys()
            migration.finish()
    assert follower.error is None
    assert follower.redirects == {"MOVED", "ASK"}
    assert [first.cli("GET", key) for key in keys] == list(follower.written.values())
