"""What only TLS suffers: records that were touched, goodbyes in the middle, handshakes that hang.

Values are raw here: nothing but TLS tells that a byte was changed.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from kvferry.client.batch import Status
from support import clock
from support.proxy import Direction, FaultProxy
from support.servers import TestServer
from support.stamps import KIB, fetch, poisoned, store, until, within

Connect = Callable[..., Any]
Proxied = Callable[..., FaultProxy]

pytestmark = pytest.mark.ways("tls")

AWAY = {Status.UNAVAILABLE, Status.TIMEOUT}
QUICK = {"timeout_s": 1.0, "stall_timeout_s": 0.3, "connect_timeout_s": 0.5, "reconnect_max_s": 0.1}
SIZES = {f"k{index}": 256 * KIB for index in range(4)}
DIRECTIONS: tuple[Direction, ...] = ("down", "up")


@pytest.fixture
def proxy(redis7: TestServer, proxied: Proxied) -> FaultProxy:
    return proxied(redis7)


# Bytes that are changed on the way.


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_flipped_bit_ends_the_connection(
    proxy: FaultProxy, connect: Connect, direction: Direction
) -> None:
    """In the head of a record, in what it holds, in its tag: OK only with the right bytes."""
    client = connect(proxy, connections=1, **QUICK)
    until(lambda: store(client, SIZES).ok, 5)
    rng = random.Random(5)
    for offset in [0, 1, 2, 3, 4, 5, 6, 20, *(rng.randrange(300 * KIB) for _ in range(6))]:
        connected = proxy.connections
        fault = proxy.flip(offset, mask=1 << rng.randrange(8), direction=direction)
        with within(5):
            for _ in range(3):
                fetch(client, SIZES)
                store(client, SIZES)
        assert fault.fired or direction == "up"
        proxy.heal()
        until(lambda: store(client, SIZES).ok and fetch(client, SIZES).result.ok, 5)
        assert proxy.connections > connected or not fault.fired


def test_rain_of_flipped_bits(proxy: FaultProxy, connect: Connect) -> None:
    client = connect(proxy, **QUICK)
    until(lambda: store(client, SIZES).ok, 5)
    proxy.down.flips_per_byte = proxy.up.flips_per_byte = 1 / 2_000_000
    statuses: set[Status] = set()
    ends = time.monotonic() + 1
    while (now := time.monotonic()) < ends or (Status.OK not in statuses and now < ends + 30):
        with within(3):
            statuses |= set(fetch(client, SIZES).result)
            statuses |= set(store(client, SIZES))
    assert Status.OK in statuses
    assert statuses <= AWAY | {Status.OK}
    proxy.heal()
    until(lambda: store(client, SIZES).ok and fetch(client, SIZES).result.ok, 5)


# Segments as small as they get.


def test_one_byte_at_a_time(proxy: FaultProxy, connect: Connect) -> None:
    """Handshake and values whose every byte is a segment of its own."""
    for shape in (proxy.up, proxy.down):
        shape.slice_bytes = 1
    client = connect(proxy, connections=1, connect_timeout_s=30, timeout_s=30)
    sizes = {"a": 600, "b": 3000}
    with within(30):
        assert store(client, sizes).ok
        read = fetch(client, {**sizes, "none": 100})
    assert list(read.result) == [Status.OK, Status.OK, Status.MISS]


# Ends that are polite, and ends that are not.


@pytest.mark.parametrize("ending", ["fin", "rst"])
def test_end_between_two_records(
    redis7: TestServer, proxied: Proxied, connect: Connect, ending: Any
) -> None:
    """With close_notify, which a plain end lacks, and without: a part of a value is no value."""
    proxy = proxied(redis7, sees_replies=True)  # its end becomes a close_notify
    client = connect(proxy, connections=1, reconnect_max_s=0.1)
    assert store(client, SIZES).ok
    for offset in (0, 1, 9, 11, 4096, 100_000, 262_150, 262_160, 600_000):
        fault = proxy.cut_after(offset, ending=ending)
        with within(3):
            read = fetch(client, SIZES)
        assert fault.fired
        assert read.result.ok, read.result.error  # by another connection


# The handshake.


@pytest.mark.parametrize("offset", [0, 5, 100, 1500])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_handshake_that_hangs_or_breaks(
    proxy: FaultProxy, connect: Connect, direction: Direction, offset: int
) -> None:
    """Wherever it stops, calls are bounded; the next handshake is as good as the first."""
    proxy.stall_after(offset, times=10_000, direction=direction)
    client = connect(proxy, **QUICK)
    answers = AWAY if offset < 500 else AWAY | {Status.MISS}  # it may be over by then
    with within(2):
        assert client.batch_get(["k0"], [poisoned(KIB)])[0] in answers
    proxy.heal()
    proxy.flip(offset, times=10_000, direction=direction)
    with within(2):
        assert client.batch_get(["k0"], [poisoned(KIB)])[0] in answers
    proxy.heal()
    until(lambda: store(client, SIZES).ok, 5)
    until(lambda: fetch(client, SIZES).result.ok, 5)


def test_close_while_handshakes_hang(proxy: FaultProxy, connect_native: Connect) -> None:
    proxy.black_hole()
    client = connect_native(proxy, **{**QUICK, "connect_timeout_s": 20.0, "timeout_s": 20.0})
    results: list[Any] = []
    caller = threading.Thread(target=lambda: results.append(client.batch_exists(["k"])))
    caller.start()
    until(lambda: proxy.connections > 0, 5)
    with within(3):
        client.close()
        caller.join(60)
    assert results[0][0] in AWAY | {Status.CANCELLED}


# How long it may take.


@pytest.mark.ways("tls", soak=("tcp", "unix"))
@pytest.mark.parametrize("trouble", ["black_hole", "stall", "deaf", "half_open"])
def test_every_batch_is_back_by_its_deadline(
    proxy: FaultProxy, connect: Connect, trouble: str
) -> None:
    """At most 50 ms later; single ones may be late on a busy machine, half of them never."""
    limit_s = 0.15
    client = connect(proxy, stall_timeout_s=30, connect_timeout_s=30, timeout_s=5)
    assert store(client, SIZES).ok
    if trouble == "stall":
        proxy.stall_after(1000, times=10_000)
    elif trouble == "deaf":
        proxy.up.reading = False
    else:
        getattr(proxy, trouble)()
    late_s = []
    values = [bytes(size) for size in SIZES.values()]
    for turn in range(6):
        targets = [poisoned(size) for size in SIZES.values()]
        started = clock.now_s()
        if turn % 3 == 0:
            client.batch_set(list(SIZES), values, timeout_s=limit_s)
        elif turn % 3 == 1:
            client.batch_get(list(SIZES), targets, timeout_s=limit_s)
        else:
            client.batch_exists(list(SIZES), timeout_s=limit_s)
        late_s.append(clock.now_s() - started - limit_s)
    assert median(late_s) < 0.05, late_s
    assert max(late_s) < 1, late_s
    print(f"late by {max(late_s) * 1e3:.0f} ms at most")
