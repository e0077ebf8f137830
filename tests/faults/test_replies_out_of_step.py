"""Replies that were dropped, doubled or damaged on the way.

A raw reply does not say which key it answers. When a broken proxy swallows or repeats one, all that
follow on that connection answer the wrong request. The plain client notices where it can: by the
length, by the type, by a reply that nobody asked for, by one that never comes. It cannot notice

- values of one length that changed places: `test_raw_values_of_one_length_can_change_places`;
- a flipped bit inside a value.

A cache namespace notices both: its frames name the key and carry a checksum.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvferry.client.batch import Status
from kvferry.client.pure.client import PureRedisClient
from support.proxy import FaultProxy
from support.servers import TestServer
from support.stamps import KIB, MIB, WrongBytes, check, fetch, poisoned, store, until, within

Connect = Callable[..., Any]
Proxied = Callable[..., FaultProxy]

pytestmark = pytest.mark.ways("tcp", soak=("tls", "unix"))

# What does not come is given up soon; a call has time for that, and for all that follows.
QUICK = {"timeout_s": 3.0, "stall_timeout_s": 0.4, "connect_timeout_s": 2.0, "reconnect_max_s": 0.1}
IDENTITY = b"12345678"
SIZE = 64 * KIB
FRAMED_REPLY_BYTES = len(b"$65600\r\n") + 64 + SIZE + len(b"\r\n")
REPLY_BYTES = len(b"$65536\r\n") + SIZE + len(b"\r\n")
FAULTS = ["drop_reply", "duplicate_reply"]


@pytest.fixture
def proxy(valkey: TestServer, proxied: Proxied) -> FaultProxy:
    return proxied(valkey, sees_replies=True)


# The plain client.


@pytest.mark.parametrize("fault", FAULTS)
def test_values_of_different_lengths(proxy: FaultProxy, connect: Connect, fault: str) -> None:
    client = connect(proxy, connections=1, **QUICK)
    sizes = {f"k{index}": SIZE + 16 * index for index in range(12)}
    until(lambda: store(client, sizes).ok, 5)
    for reply in range(0, 12, 4):
        armed = getattr(proxy, fault)(reply)
        with within(4.5):
            fetch(client, sizes)
        assert armed.fired
        with within(4.5):
            until(lambda: fetch(client, sizes).result.ok, 2)


@pytest.mark.parametrize("fault", FAULTS)
def test_replies_of_different_types(proxy: FaultProxy, connect: Connect, fault: str) -> None:
    """Read, write, ask and delete in turn: no reply is taken for one of another command."""
    client = connect(proxy, connections=1, **QUICK)
    until(lambda: store(client, {"k": SIZE, "l": SIZE + 1}).ok, 5)
    for _ in range(2):
        getattr(proxy, fault)()
        for _ in range(3):
            fetch(client, {"k": SIZE})
            store(client, {"l": SIZE + 1})
            client.batch_exists(["k"])
            assert client.batch_delete(["none"])[0] is not Status.OK or fault == "duplicate_reply"
        proxy.heal()
        until(lambda: fetch(client, {"k": SIZE, "l": SIZE + 1}).result.ok, 3)
        until(lambda: client.batch_exists(["k", "none"]).prefix_len == 1, 1)


@pytest.mark.parametrize("fault", FAULTS)
def test_raw_values_of_one_length_can_change_places(
    proxy: FaultProxy, connect: Connect, fault: str
) -> None:
    """What no client of raw values can see. It ends when the connection rests: then it is left."""
    client = connect(proxy, connections=1, **QUICK)
    sizes = {f"k{index}": SIZE for index in range(12)}
    until(lambda: store(client, sizes).ok, 5)
    connections, bytes_down = proxy.connections, proxy.bytes_down
    getattr(proxy, fault)(4)
    with pytest.raises(WrongBytes), within(4.5):
        fetch(client, sizes)
    # The native client leaves it by itself; the pure one looks before it asks again.
    if not isinstance(client, PureRedisClient):
        until(lambda: proxy.connections > connections, 5)
    elif fault == "duplicate_reply":
        until(lambda: proxy.bytes_down >= bytes_down + 13 * REPLY_BYTES, 5)
        time.sleep(0.1)  # with TLS there is somebody behind the proxy
    for _ in range(3):
        until(lambda: fetch(client, sizes).result.ok, 2)
    assert proxy.connections > connections


@pytest.mark.parametrize("where", ["before", "between"])
def test_garbage_between_replies(proxy: FaultProxy, connect: Connect, where: str) -> None:
    client = connect(proxy, connections=1, **QUICK)
    sizes = {f"k{index}": SIZE for index in range(6)}
    until(lambda: store(client, sizes).ok, 5)
    for garbage in (b"\0", b"@9\r\n", b"\r\n", b"$-7\r\n", b"x" * 5000, b"$5\r\nhel", b"*1\r\n"):
        proxy.insert_before_reply(garbage, 0 if where == "before" else 3)
        with within(4.5):
            fetch(client, sizes)
        proxy.heal()
        until(lambda: fetch(client, sizes).result.ok, 3)


# A cache namespace.


@pytest.mark.parametrize("fault", FAULTS)
def test_framed_values_of_one_length_never_change_places(
    proxy: FaultProxy, connect_native: Connect, fault: str
) -> None:
    client = connect_native(proxy, connections=1, **QUICK)
    space = client.namespace("ns:", IDENTITY, SIZE)
    sizes = {f"k{index}": SIZE for index in range(12)}
    for reply in range(1, 12, 3):
        until(lambda: store(space, sizes).ok, 5)
        armed = getattr(proxy, fault)(reply)
        with within(4.5):
            read = fetch(space, sizes)
        assert armed.fired
        assert set(read.result) <= {Status.OK, Status.CORRUPT, Status.MISS, Status.UNAVAILABLE}
        with within(4.5):  # those that were CORRUPT are being deleted
            until(lambda: set(fetch(space, sizes).result) <= {Status.OK, Status.MISS}, 2)


def test_stripes_never_change_places(proxy: FaultProxy, connect_native: Connect) -> None:
    """Stripes of one value have one length too, and one key."""
    client = connect_native(proxy, connections=1, **QUICK)
    size = 16 * MIB
    space = client.namespace("ns:", IDENTITY, size)
    for fault in FAULTS:
        for reply in (0, 2):
            until(lambda: store(space, {"k": size}).ok, 5)
            getattr(proxy, fault)(reply)
            with within(4.5):
                fetch(space, {"k": size})
            proxy.heal()
            until(lambda: fetch(space, {"k": size}).result[0] in (Status.OK, Status.MISS), 3)


def test_one_doubled_reply_does_not_cost_the_cache(
    proxy: FaultProxy, valkey: TestServer, connect_native: Connect
) -> None:
    """A frame of another key means: out of step. The connection is left, the others are kept."""
    client = connect_native(proxy, connections=1, **QUICK)
    size = 4 * KIB
    space = client.namespace("ns:", IDENTITY, size)
    sizes = {f"k{index}": size for index in range(600)}
    until(lambda: store(space, sizes).ok, 5)
    proxy.duplicate_reply(10)
    fetch(space, sizes)
    until(lambda: set(fetch(space, sizes).result) <= {Status.OK, Status.MISS}, 3)
    assert valkey.cli("DBSIZE") >= 595


@pytest.mark.parametrize(
    ("offset", "part"),
    [
        *[(8, "magic"), (12, "version"), (13, "codec"), (14, "flags"), (16, "payload length")],
        *[(24, "original length"), (32, "checksum"), (40, "identity"), (48, "key")],
        *[(56, "generation"), (64, "stripe"), (68, "header checksum"), (72, "first byte")],
        *[(72 + SIZE // 2, "middle"), (72 + SIZE - 1, "last byte")],
    ],
)
def test_flipped_bit_is_corrupt_and_the_key_is_deleted(
    proxy: FaultProxy, valkey: TestServer, connect_native: Connect, offset: int, part: str
) -> None:
    client = connect_native(proxy, connections=1)  # nothing fails to come
    space = client.namespace("ns:", IDENTITY, SIZE)
    sizes = {f"k{index}": SIZE for index in range(5)}
    assert store(space, sizes).ok
    fault = proxy.flip(2 * FRAMED_REPLY_BYTES + offset, mask=0x10)
    with within(2):
        read = fetch(space, sizes)
    assert fault.fired
    bad = Status.CORRUPT
    assert list(read.result) == [Status.OK, Status.OK, bad, Status.OK, Status.OK], part
    until(lambda: valkey.cli("EXISTS", "ns:k2") == 0, 2)
    assert client.stats()["values_corrupt"] == 1
    assert fetch(space, sizes).result[2] is Status.MISS
    assert store(space, sizes, 2).ok
    assert fetch(space, sizes, {2}).result.ok


def test_flipped_bit_in_the_protocol_is_never_ok_with_wrong_bytes(
    proxy: FaultProxy, connect_native: Connect
) -> None:
    client = connect_native(proxy, connections=1, **QUICK)
    space = client.namespace("ns:", IDENTITY, SIZE)
    sizes = {f"k{index}": SIZE for index in range(3)}
    offsets = [*range(8), FRAMED_REPLY_BYTES - 2, FRAMED_REPLY_BYTES - 1]
    for offset in offsets:
        for mask in (0x01, 0x04, 0x40):
            until(lambda: store(space, sizes).ok, 3)
            fault = proxy.flip(FRAMED_REPLY_BYTES + offset, mask=mask)
            with within(4.5):
                fetch(space, sizes)
            assert fault.fired
            proxy.heal()


def test_flipped_bit_in_a_striped_value(proxy: FaultProxy, connect_native: Connect) -> None:
    client = connect_native(proxy)
    size = 9 * MIB
    space = client.namespace("ns:", IDENTITY, size)
    rng = random.Random(9)
    for _ in range(4):
        assert store(space, {"k": size, "l": size}).ok
        fault = proxy.flip(rng.randrange(100, 3 * MIB), mask=1 << rng.randrange(8))
        with within(3):
            read = fetch(space, {"k": size, "l": size})
        assert fault.fired
        assert sorted(read.result) == [Status.OK, Status.CORRUPT]
        until(lambda: Status.MISS in set(fetch(space, {"k": size, "l": size}).result), 3)


def test_value_that_was_damaged_on_the_server(valkey: TestServer, connect_native: Connect) -> None:
    space = connect_native(valkey).namespace("ns:", IDENTITY, SIZE)
    for damage in ("flip", "cut", "foreign", "short", "other key", "empty"):
        assert store(space, {"k": SIZE, "l": SIZE}).ok
        whole = bytearray(valkey.cli("GET", "ns:k"))
        if damage == "flip":
            whole[3000] ^= 1
        stored = {
            "flip": bytes(whole),
            "cut": bytes(whole[:-1]),
            "foreign": bytes(len(whole)),
            "short": b"12",
            "other key": valkey.cli("GET", "ns:l"),
            "empty": b"",
        }[damage]
        valkey.cli("SET", "ns:k", stored)
        read = fetch(space, {"k": SIZE, "l": SIZE})
        assert list(read.result) == [Status.CORRUPT, Status.OK], damage
        until(lambda: valkey.cli("EXISTS", "ns:k") == 0, 2)


def test_buffer_of_a_corrupt_value_is_not_ok_later(
    proxy: FaultProxy, connect_native: Connect
) -> None:
    """The same buffer, asked again: a miss; what lies in it is nobody's."""
    client = connect_native(proxy, connections=1)
    space = client.namespace("ns:", IDENTITY, SIZE)
    assert store(space, {"k": SIZE}).ok
    proxy.flip(1000)
    target = poisoned(SIZE)
    assert space.batch_get(["k"], [target])[0] is Status.CORRUPT
    with pytest.raises(WrongBytes):
        check("k", target)
    until(lambda: space.batch_get(["k"], [target])[0] is Status.MISS, 2)
