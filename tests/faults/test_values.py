"""What a key may hold or lack, and what a server may refuse: each a status, the rest intact."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvferry.base import errors
from kvferry.client.batch import Status
from support.servers import TestServer
from support.stamps import KIB, MIB, check, fetch, poisoned, store, until, within

Connect = Callable[..., Any]
Start = Callable[..., TestServer]

KINDS = ["valkey", "redis7"]


# What a key holds.


@pytest.mark.ways("tcp", "tls", "unix", "cluster", "sentinel")
def test_absent_key_is_a_miss_and_touches_nothing(server: TestServer, connect: Connect) -> None:
    client = connect(server)
    target = poisoned(64 * KIB)
    with within(1):
        assert client.get("none", target) is False
        assert client.exists("none") is False
        assert client.delete("none") is False
    assert target == poisoned(64 * KIB)
    sizes = {f"k{index}": 8 * KIB for index in range(200)}
    assert store(client, {key: sizes[key] for key in list(sizes)[::2]}).ok
    read = fetch(client, sizes)
    assert list(read.result) == [Status.OK, Status.MISS] * 100
    assert not any(read.result.sizes[1::2])


@pytest.mark.ways("tcp", "tls", "unix", soak=("cluster", "sentinel"))
@pytest.mark.parametrize("stored", [0, 1, 4095, 4097, 64 * KIB, MIB, 9 * MIB])
def test_value_of_another_length_is_a_mismatch(
    server: TestServer, connect: Connect, stored: int
) -> None:
    """Also beyond drain_bytes_max (8 MiB), where it costs the connection and only that."""
    client = connect(server)
    server.cli("SET", "odd", bytes(stored))
    sizes = {f"k{index}": 32 * KIB for index in range(9)}
    assert store(client, sizes).ok
    keys = [*list(sizes)[:4], "odd", *list(sizes)[4:]]
    for expected in (4096, stored + 1, max(stored - 1, 2)):
        targets = [poisoned(32 * KIB if key != "odd" else expected) for key in keys]
        with within(5):
            result = client.batch_get(keys, targets)
        assert result[4] is Status.SIZE_MISMATCH
        assert result.sizes[4] == stored
        for key, target, status in zip(keys, targets, result, strict=True):
            if key != "odd":
                assert status is Status.OK
                check(key, target, {1})
    with pytest.raises(errors.SizeMismatchError):
        client.get("odd", poisoned(stored + 7))


@pytest.mark.ways("tcp", "tls", "cluster", "sentinel", soak=("unix",))
def test_wrong_type_is_a_status_of_its_key(server: TestServer, connect: Connect) -> None:
    client = connect(server)
    server.cli("RPUSH", "list", "item")
    sizes = {"a": MIB, "list": 4 * KIB, "b": MIB}
    assert store(client, {"a": MIB, "b": MIB}).ok
    read = fetch(client, sizes)
    assert list(read.result) == [Status.OK, Status.SERVER_ERROR, Status.OK]
    assert "WRONGTYPE" in str(read.result.error)
    with pytest.raises(errors.ServerError) as caught:
        client.get("list", poisoned(4 * KIB))
    assert caught.value.server_code == "WRONGTYPE"
    assert client.exists("list")
    assert store(client, {"list": 4 * KIB}, 2).ok  # SET replaces any type
    assert fetch(client, {"list": 4 * KIB}, {2}).result.ok


@pytest.mark.parametrize("kind", KINDS)
def test_full_server_refuses_some_and_breaks_nothing(
    start: Start, kind: str, connect: Connect
) -> None:
    server = start(kind, "--maxmemory", "24mb", "--maxmemory-policy", "noeviction")
    client = connect(server)
    sizes = {f"k{index}": MIB for index in range(40)}
    with within(10):
        result = store(client, sizes)
    assert set(result) == {Status.OK, Status.SERVER_ERROR}
    assert "OOM" in str(result.error)
    stored = {key for key, status in zip(sizes, result, strict=True) if status is Status.OK}
    read = fetch(client, sizes)
    assert set(read.versions) == stored
    assert read.result.count(Status.MISS) == len(sizes) - len(stored)
    _random_operations(client, random.Random(24), 200)


def _random_operations(client: Any, rng: random.Random, count: int) -> None:
    """Sets (some of which do not fit), gets, deletes; a model knows what may be read."""
    model: dict[str, int | None] = {}
    client.batch_delete([f"k{index}" for index in range(40)])
    for version in range(1, count + 1):
        key = f"r{rng.randrange(40)}"
        action = rng.choice(["set", "set", "get", "get", "delete", "exists"])
        if action == "set":
            if store(client, {key: MIB}, version).ok:
                model[key] = version
        elif action == "get":
            read = fetch(client, {key: MIB}, {model.get(key) or 0})
            assert read.result.ok is (model.get(key) is not None)
        elif action == "delete":
            assert client.delete(key) is (model.pop(key, None) is not None)
        else:
            assert client.exists(key) is (key in model)


@pytest.mark.ways("tcp", "tls", "cluster", "sentinel", soak=("unix",))
def test_time_to_live_ends_a_value(server: TestServer, connect: Connect) -> None:
    client = connect(server)
    sizes = {"short": 64 * KIB, "long": 64 * KIB}
    assert store(client, {"long": 64 * KIB}, ttl_s=60).ok

    def was_there_in_time() -> bool:
        began = time.monotonic()
        assert store(client, {"short": 64 * KIB}, ttl_s=0.3).ok
        read = fetch(client, sizes).result
        in_time = time.monotonic() - began < 0.3
        assert read.ok or not in_time
        return in_time

    until(was_there_in_time, 10)
    until(lambda: list(fetch(client, sizes).result) == [Status.MISS, Status.OK], 2)
    assert client.batch_exists(list(sizes)).statuses == bytes([Status.MISS, Status.OK])
    assert store(client, {"long": 64 * KIB}, 2).ok
    assert server.cli("PTTL", "long") == -1  # a SET without one takes it away


# Who may do what, and where.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", [2, 3])
def test_forbidden_key_is_a_status_of_its_key(
    start: Start, kind: str, connect: Connect, protocol: int
) -> None:
    """ACL: the connection is good, one key is not ours."""
    server = start(kind, users=["user alice on >secret ~mine:* +@all"])
    client = connect(server, username="alice", password="secret", protocol=protocol)
    sizes = {"mine:a": MIB, "theirs": MIB, "mine:b": MIB}
    expected = [Status.OK, Status.SERVER_ERROR, Status.OK]
    stored = store(client, sizes)
    assert list(stored) == expected
    assert "NOPERM" in str(stored.error)
    assert list(fetch(client, sizes).result) == expected
    assert list(client.batch_exists(list(sizes))) == expected
    with pytest.raises(errors.ServerError) as caught:
        client.get("theirs", poisoned(MIB))
    assert caught.value.server_code == "NOPERM"
    assert server.cli("EXISTS", "theirs") == 0


@pytest.mark.ways("tcp", soak=("tls", "unix"))
def test_databases_are_apart(server: TestServer, connect: Connect) -> None:
    first, second = connect(server, db=1), connect(server, db=2)
    assert store(first, {"k": MIB}, 1).ok
    assert fetch(second, {"k": MIB}).result[0] is Status.MISS
    assert store(second, {"k": MIB}, 2).ok
    # Every connection is in its database, also those that are made later.
    server.cli("CLIENT", "KILL", "TYPE", "normal")
    until(lambda: fetch(first, {"k": MIB}, {1}).result.ok, 5)
    until(lambda: fetch(second, {"k": MIB}, {2}).result.ok, 5)
    assert server.cli("EXISTS", "k") == 0  # in database 0


@pytest.mark.ways("tcp")
def test_unix_socket(server: TestServer, connect: Connect) -> None:
    client = connect(unix_path=server.unix_path)
    sizes = {f"k{index}": 3 * MIB + index for index in range(6)}
    assert store(client, sizes).ok
    assert fetch(client, sizes).result.ok
    server.cli("CLIENT", "KILL", "TYPE", "normal")
    until(lambda: fetch(client, sizes).result.ok, 5)


@pytest.mark.ways("tcp")
def test_ipv6(server: TestServer, connect: Connect) -> None:
    try:
        socket.create_connection(("::1", server.port), 1).close()
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    client = connect(host="::1", port=server.port)
    assert store(client, {"k": MIB}).ok
    assert fetch(client, {"k": MIB}).result.ok
