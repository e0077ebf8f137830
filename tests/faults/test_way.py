"""The way to the server is cut, stalled, slow, one-sided: bounded, and never wrong bytes."""

from __future__ import annotations

import contextlib
import fcntl
import random
import socket
import ssl
import sys
import termios
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import pytest

from kvferry.client.batch import Status
from kvferry.client.pure.client import PureRedisClient
from support.certificates import certificates
from support.proxy import FaultProxy
from support.servers import TestServer
from support.stamps import (
    KIB,
    MIB,
    Fetched,
    check,
    fetch,
    poisoned,
    stamped,
    store,
    until,
    within,
)

Connect = Callable[..., Any]
Proxied = Callable[[TestServer], FaultProxy]

AWAY = {Status.UNAVAILABLE, Status.TIMEOUT}
QUICK = {"timeout_s": 1.0, "stall_timeout_s": 0.3, "connect_timeout_s": 0.5, "reconnect_max_s": 0.1}
# Around the header of the first reply, its end, the next header, and somewhere in between.
OFFSETS = [0, 1, 2, 7, 8, 9, 10, 11, 100, 4095, 4096, 4097, 65_535, 65_545, 65_546, 65_547, 65_548]
OFFSETS += [65_550, 65_556, 65_557, 65_558, 100_000, 131_071, 131_113, 131_114, 131_115, 200_000]


def test_set_that_was_repeated_or_given_up_never_comes_back(
    server: TestServer, proxied: Proxied, connect: Connect
) -> None:
    """What the way still held of it goes with its connection, which is reset: it would overwrite
    what was stored after it."""
    proxy = proxied(server)
    client = connect(proxy, connections=2, timeout_s=20, stall_timeout_s=0.5)
    sockets = 1 if isinstance(client, PureRedisClient) else 3
    key = ["register"]
    for turn in range(3):
        until(lambda: client.batch_set(key, [b"before"]).ok, 20)
        until(lambda: proxy.open_connections == sockets, 20)
        fault = proxy.stall_after(100 * turn, direction="up")
        old, new = (stamped("register", 2 * turn + more, 16 * KIB) for more in (1, 2))
        client.batch_set(key, [old])
        assert fault.fired
        until(lambda: client.batch_set(key, [new]).ok, 20)  # noqa: B023  (called in this turn)
        proxy.heal()
        until(lambda: proxy.open_connections == sockets, 20)  # the bad one has let go of all
        target = bytearray(len(new))
        until(lambda: client.batch_get(key, [target]).ok, 20)  # noqa: B023
        assert target == new


@pytest.mark.ways("tcp", "tls", "unix")
@pytest.mark.parametrize("ending", ["rst", "fin"])
def test_cut_in_the_middle_of_a_value(
    server: TestServer, proxied: Proxied, connect: Connect, ending: Any
) -> None:
    """Wherever the connection ends, the values come whole over another one."""
    proxy = proxied(server)
    client = connect(proxy, connections=1)
    sizes = {f"k{index}": 64 * KIB for index in range(4)}
    assert store(client, sizes).ok
    rng = random.Random(1)
    for offset in OFFSETS + [rng.randrange(4 * 64 * KIB) for _ in range(8)]:
        fault = proxy.cut_after(offset, ending=ending)
        with within(3):
            read = fetch(client, sizes)
        assert fault.fired, f"no reply had {offset} bytes"
        assert read.result.ok, f"cut after {offset} bytes"


@pytest.mark.ways("tcp", "tls", "unix")
def test_every_connection_is_cut_again_and_again(
    valkey: TestServer, proxied: Proxied, connect: Connect
) -> None:
    """Nothing gets through whole: UNAVAILABLE after some attempts, soon."""
    proxy = proxied(valkey)
    client = connect(proxy, reconnect_max_s=0.1)
    assert store(client, {"k": MIB}).ok
    for ending in ("rst", "fin"):
        proxy.cut_after(300_000, ending=ending, times=10_000)
        with within(2):
            assert fetch(client, {"k": MIB}).result[0] is Status.UNAVAILABLE
        proxy.heal()
        until(lambda: fetch(client, {"k": MIB}).result.ok, 3)


def test_cut_while_a_value_is_sent(server: TestServer, proxied: Proxied, connect: Connect) -> None:
    """A SET that arrived in part is no SET; its key keeps what it had."""
    proxy = proxied(server)
    client = connect(proxy, attempts_max=1, reconnect_max_s=0.1)
    sizes = {f"k{index}": 2 * MIB for index in range(4)}
    assert store(client, sizes, 1).ok
    for version in range(2, 8):
        proxy.up.bandwidth_bytes_per_s = 100e6
        cutter = threading.Timer(0.01 * version, proxy.cut_now)
        cutter.start()
        with within(3):
            result = store(client, sizes, version)
        cutter.join()
        proxy.heal()
        assert set(result) <= {Status.OK, Status.UNAVAILABLE}
        reads: list[Fetched] = []

        def is_read(reads: list[Fetched] = reads, last: int = version) -> bool:
            reads.append(fetch(client, sizes, range(1, last + 1)))
            return reads[-1].result.ok

        until(is_read, 3)
        for key, status in zip(sizes, result, strict=True):
            assert status is not Status.OK or reads[-1].versions[key] == version


def is_quiet(proxy: FaultProxy) -> bool:
    """Whether nothing comes from the server for a moment, and nothing waits in the proxy."""
    seen = proxy.bytes_down
    time.sleep(0.1)
    with proxy._lock:
        waits = any(link.down.held_bytes or _unread_bytes(link.server) for link in proxy._links)
    return proxy.bytes_down == seen and not waits


def _unread_bytes(sock: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(sock, termios.FIONREAD, b"\0" * 4), sys.byteorder)


@pytest.mark.ways("tcp", "tls", "unix")
def test_stall_in_the_middle_of_a_value(
    server: TestServer, proxied: Proxied, connect: Connect
) -> None:
    """The batch has 50 ms; afterwards the same client serves the right bytes."""
    proxy = proxied(server)
    client = connect(proxy, connections=2, **QUICK)  # so that one of them brings two values
    sizes = {f"k{index}": MIB for index in range(4)}
    until(lambda: store(client, sizes).ok, 5)
    for offset in (3, 5000, 500_000, 1_048_580, 1_500_000):
        proxy.stall_after(offset, times=3)  # whichever connections bring values, or answer a PING
        targets = [poisoned(MIB) for _ in sizes]
        with within(0.4):
            result = client.batch_get(list(sizes), targets, timeout_s=0.05)
        assert Status.TIMEOUT in set(result)
        for key, target, status in zip(sizes, targets, result, strict=True):
            assert status in (Status.OK, Status.TIMEOUT)
            if status is Status.OK:
                check(key, target, {1})
        # The buffers are the caller's again: what was owed to them must not arrive in them later.
        for target in targets:
            target[:] = b"\x3c" * MIB
        proxy.heal()
        with within(1.5):
            until(lambda: fetch(client, sizes).result.ok, 1.2)
        assert all(target == b"\x3c" * MIB for target in targets)
        until(lambda: is_quiet(proxy), 3)  # or the next stall meets what is owed, and no answer


@pytest.mark.ways("tcp", "tls", "unix")
def test_time_limit_ends_a_batch_that_is_sent(
    valkey: TestServer, proxied: Proxied, connect: Connect
) -> None:
    """SETs into a peer that does not read: TIMEOUT, and the half-sent SET is never completed."""
    proxy = proxied(valkey)
    client = connect(proxy, **{**QUICK, "stall_timeout_s": 1.0})
    sizes = {f"k{index}": 16 * MIB for index in range(2)}
    small = {"k0": 64 * KIB}
    until(lambda: store(client, small).ok, 5)
    proxy.up.reading = False
    values = [bytearray(stamped(key, 2, size)) for key, size in sizes.items()]
    with within(0.6):
        result = client.batch_set(list(sizes), values, timeout_s=0.2)
    assert set(result) == {Status.TIMEOUT}
    for value in values:
        value[:] = bytes(len(value))  # the caller's again
    proxy.heal()
    until(lambda: fetch(client, small).result.ok, 3)  # never the zeros, never a part
    assert valkey.cli("EXISTS", "k1") == 0


@pytest.mark.ways("tcp", soak=("tls", "unix"))
def test_half_open_peer(valkey: TestServer, proxied: Proxied, connect: Connect) -> None:
    """Nothing comes through and nobody says so, in either direction."""
    proxy = proxied(valkey)
    client = connect(proxy, **QUICK)
    sizes = {f"k{index}": 8 * MIB for index in range(2)}
    until(lambda: store(client, sizes).ok, 5)
    for shape in (proxy.up, proxy.down):
        shape.reading = False
        with within(2):
            assert set(fetch(client, sizes).result) <= AWAY
        with within(2):
            assert set(store(client, sizes, 2)) <= AWAY
        proxy.heal()
        until(lambda: store(client, sizes).ok, 5)
        until(lambda: fetch(client, sizes).result.ok, 5)


@pytest.mark.ways("tcp", soak=("unix",))
def test_trickle(valkey: TestServer, proxied: Proxied, connect: Connect) -> None:
    """A byte now and then is progress, but the deadline holds."""
    proxy = proxied(valkey)
    client = connect(proxy, **{**QUICK, "connect_timeout_s": 2.0})
    sizes = {"k": 64 * KIB, "tiny": 64}
    until(lambda: store(client, sizes).ok, 5)
    proxy.down.slice_bytes, proxy.down.slice_interval_s = 1, 0.0005  # 64 KiB take 33 s
    with within(2):
        assert fetch(client, {"k": 64 * KIB}).result[0] in AWAY
    until(lambda: fetch(client, {"tiny": 64}).result.ok, 20)
    proxy.heal()
    until(lambda: fetch(client, sizes).result.ok, 3)


@pytest.mark.ways("tcp", soak=("tls", "unix"))
def test_slow_link_that_moves_is_not_stalled(
    valkey: TestServer, proxied: Proxied, connect: Connect
) -> None:
    """Slower than any low-water mark of the socket fills within the stall limit."""
    proxy = proxied(valkey)
    client = connect(proxy, timeout_s=30, stall_timeout_s=1.0)
    assert store(client, {"k": MIB}).ok
    proxy.down.bandwidth_bytes_per_s = 350e3
    with within(8):
        assert fetch(client, {"k": MIB}).result.ok  # 3 s
    # Others may still have been connecting when it was stored.
    assert proxy.open_connections == proxy.connections, "a connection that moved was given up"


@pytest.mark.ways("tcp", soak=("tls", "unix"))
def test_deadline_grows_with_the_bytes(
    valkey: TestServer, proxied: Proxied, connect: Connect
) -> None:
    """A link that is faster than the floor rate, both ways, and takes longer than `timeout_s`."""
    size = 8_000_000
    proxy = proxied(valkey)
    client = connect(proxy, timeout_s=0.6, floor_rate_bytes_s=3e6)
    proxy.up.bandwidth_bytes_per_s = proxy.down.bandwidth_bytes_per_s = 8e6
    until(lambda: client.batch_exists(["k"])[0] is Status.MISS, 2)
    assert store(client, {"k": size}).ok  # 1.0 s of 3.3
    assert fetch(client, {"k": size}).result.ok
    proxy.down.bandwidth_bytes_per_s = 1.5e6  # 5.3 s
    with within(4):
        assert fetch(client, {"k": size}).result[0] is Status.TIMEOUT


def test_large_value_over_a_long_way_with_the_default_limits(
    valkey: TestServer, proxied: Proxied, connect: Connect
) -> None:
    proxy = proxied(valkey)
    client = connect(proxy)
    proxy.up.delay_s = proxy.down.delay_s = 0.05
    proxy.up.bandwidth_bytes_per_s = proxy.down.bandwidth_bytes_per_s = 60e6
    sizes = {f"k{index}": 10 * MIB for index in range(4)}
    with within(6):
        assert store(client, sizes).ok
        assert fetch(client, sizes).result.ok


# A server that reads slowly, and may answer before it has read.


def _tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates().server.cert_file, certificates().server.key_file)
    return context


class SlowReader:
    """Answers the first SET of each connection, early or when all of it is here.

    Its socket buffers little, and `received` holds all that it read.
    """

    def __init__(
        self, reply: bytes, way: str, *, bytes_per_s: float, value_bytes: int | None = None
    ) -> None:
        self.speaks_tls = way == "tls"
        self.received = bytearray()
        self.begun = 0  # connections on which a SET arrived
        self._reply, self._rate, self._value_bytes = reply, bytes_per_s, value_bytes
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
        self.host, self.port = self._listener.getsockname()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            stack.enter_context(sock)
            if self.speaks_tls:
                sock.settimeout(5)
                sock = stack.enter_context(_tls_context().wrap_socket(sock, True))
            sock.settimeout(0.1)
            count = 0
            while not self._closing.is_set():
                try:
                    data = sock.recv(16 * KIB)
                except TimeoutError:
                    continue
                if not data:
                    return
                if count == 0 and b"SET\r\n" not in data[:64]:  # the greeting
                    sock.sendall(b"+OK\r\n")
                    continue
                self.begun += count == 0
                early = self._value_bytes is None
                due = 0 if self._value_bytes is None else self._value_bytes
                if (count == 0) if early else (count <= due < count + len(data)):
                    sock.sendall(self._reply)
                count += len(data)
                self.received += data
                time.sleep(len(data) / self._rate)


@pytest.mark.ways("tcp", soak=("tls",))
def test_slow_link_that_takes_a_value_is_not_stalled(connect: Connect, way: str) -> None:
    """Megabytes wait in the kernel after the last send; that they leave is progress."""
    size = 12 * MIB
    with SlowReader(b"+OK\r\n", way, bytes_per_s=2.5e6, value_bytes=size) as server:
        client = connect(server, timeout_s=40, stall_timeout_s=1.0)
        with within(15):
            assert store(client, {"k": size}).ok  # 5 s
        assert server.begun == 1, "a connection that moved was given up"
        until(lambda: stamped("k", 1, size) in server.received, 5)  # its thread notes it later


@pytest.mark.ways("tcp", "tls")
@pytest.mark.parametrize(
    ("reply", "statuses"),
    [
        (b"-OOM command not allowed\r\n", {Status.SERVER_ERROR}),
        (b"+OK\r\n", {Status.SERVER_ERROR, Status.UNAVAILABLE}),  # it cannot have stored it
    ],
    ids=["error", "ok"],
)
def test_answer_before_the_value_was_sent(
    connect_native: Connect, way: str, reply: bytes, statuses: set[Status]
) -> None:
    """The batch is over, so the buffer is the caller's: not one byte more of it may be sent."""
    with SlowReader(reply, way, bytes_per_s=20e6) as server:
        client = connect_native(server, connections=1, attempts_max=1)
        value = bytearray(b"\x11") * (16 * MIB)
        with within(3):
            result = client.batch_set(["k"], [value])
        value[:] = b"\x22" * len(value)
        time.sleep(1)
        assert server.received.count(b"\x22") == 0, "the caller's new bytes were sent"
        assert result[0] in statuses


@pytest.mark.ways("tcp", "tls")
def test_two_answers_to_one_set(connect_native: Connect, way: str) -> None:
    """The second one is not the answer of the SET whose payload has not been sent yet."""
    with SlowReader(b"+OK\r\n+OK\r\n", way, bytes_per_s=50e6) as server:
        # One SET in flight: a busy machine looks far away, where several whole ones would be.
        client = connect_native(server, connections=1, attempts_max=1, window_bytes=1)
        values = [bytearray(b"\x11") * (2 * MIB) for _ in range(8)]
        with within(6):
            result = client.batch_set([f"k{index}" for index in range(8)], values)
        for value in values:
            value[:] = b"\x22" * len(value)
        time.sleep(0.5)
        assert server.received.count(b"\x22") == 0
        # The first of each connection was in the kernel when its answer came; no other was.
        assert set(result) <= {Status.OK, Status.SERVER_ERROR, Status.UNAVAILABLE}
        assert result.count(Status.OK) <= server.begun


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_value_beyond_the_servers_limit(
    start: Callable[..., TestServer], kind: str, connect: Connect
) -> None:
    """proto-max-bulk-len: the server answers an error at the head and hangs up."""
    server = start(kind, "--proto-max-bulk-len", "1mb")
    client = connect(server, reconnect_max_s=0.1)
    with within(3):
        result = store(client, {"large": 8 * MIB})
    assert result[0] in (Status.SERVER_ERROR, Status.UNAVAILABLE)
    until(lambda: store(client, {"k": 64 * KIB}).ok, 3)
    assert fetch(client, {"k": 64 * KIB, "large": 8 * MIB}).result.prefix_len == 1
