"""The pure-Python client when replies are wrong or the way breaks.

Every case is bounded in time, and every OK is checked byte for byte.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from kvferry.base import errors
from kvferry.client.batch import Status
from kvferry.client.pure.client import PureRedisClient
from support.proxy import FaultProxy
from support.pure import MIB, connect, payload
from support.scripted import (
    ATTRIBUTE,
    PUSH,
    Close,
    Handler,
    MiniStore,
    ScriptedServer,
    answer,
    loading,
    noauth,
    readonly,
    streamed,
    surrounded,
    truncated,
    unknown_type,
)
from support.servers import TestServer, free_port
from support.stamps import until, within

Proxied = Callable[[TestServer], FaultProxy]
STALL_S = 1.0  # a healthy server may be kept from answering for a good part of it


# What a server may answer.


def test_pushes_and_attributes_are_passed_over() -> None:
    store = surrounded(MiniStore(), before=PUSH + ATTRIBUTE, after=PUSH)
    with ScriptedServer(store) as server, connect(server) as client:
        client.set("k", payload(MIB))
        target = bytearray(MIB)
        for _ in range(3):
            assert client.get("k", target)
            assert target == payload(MIB)
            assert client.batch_exists(["k", "none"]).prefix_len == 1
        assert server.connections == 1


@pytest.mark.parametrize(
    "handler",
    [
        unknown_type(),
        streamed(b"12345678"),
        truncated(b"12345678", keep=5),
        answer(b"$8\r\n12345678XX", b"GET"),
        answer(b"$9999999999\r\n", b"GET"),
        answer(Close(b"$8\r\n1234", rst=True), b"GET"),
        answer(Close(), b"GET"),
    ],
    ids=["type", "streamed", "truncated", "trailer", "length", "reset", "closed"],
)
def test_broken_reply_costs_the_connection_and_never_succeeds(handler: Handler) -> None:
    with (
        ScriptedServer(handler, MiniStore({b"k": b"12345678"})) as server,
        connect(server, attempts_max=3) as client,
        within(5),
    ):
        result = client.batch_get(["k", "k"], [bytearray(8), bytearray(8)])
        assert list(result) == [Status.UNAVAILABLE] * 2
        assert result.error
        assert server.connections == 3  # attempts, each on its own connection
        assert client.exists("k")  # and the client goes on


def test_broken_reply_is_made_good_by_the_next_attempt() -> None:
    once = answer(Close(b"$8\r\n1234"), b"GET", times=1)
    with ScriptedServer(once, MiniStore({b"k": b"12345678"})) as server, connect(server) as client:
        target = bytearray(8)
        assert client.get("k", target)
        assert target == b"12345678"
        assert client.stats()["connects"] == 2


@pytest.mark.parametrize("reply", [b"+OK\r\n", b":1\r\n", b"*1\r\n$1\r\nx\r\n"])
def test_reply_of_another_command_is_refused(reply: bytes) -> None:
    with ScriptedServer(answer(reply, b"GET"), MiniStore()) as server, connect(server) as client:
        result = client.batch_get(["k"], [bytearray(1)])
        assert result[0] is Status.SERVER_ERROR
        assert "unexpected type" in str(result.error)
        assert client.exists("k") is False
        assert server.connections == 2


@pytest.mark.parametrize(
    ("handler", "code"),
    [(loading(), "LOADING"), (noauth(), "NOAUTH"), (readonly(), "READONLY")],
    ids=["loading", "noauth", "readonly"],
)
def test_server_that_cannot_serve_is_unavailable(handler: Handler, code: str) -> None:
    with ScriptedServer(handler, MiniStore()) as server, connect(server) as client:
        result = client.batch_set(["k", "l"], [b"v", b"v"])
        assert list(result) == [Status.UNAVAILABLE] * 2
        assert str(result.error).startswith(code)


def test_unasked_reply_costs_the_connection() -> None:
    once = answer(b":1\r\n:1\r\n", b"EXISTS", times=1)
    with ScriptedServer(once, MiniStore()) as server, connect(server) as client:
        assert client.exists("k") is True
        time.sleep(0.05)
        assert client.exists("k") is False  # not the leftover
        assert server.connections == 2


def test_oom_fails_the_key_and_not_the_rest() -> None:
    text = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
    handler = answer(text, b"SET", after=1, times=1)
    with ScriptedServer(handler, MiniStore()) as server, connect(server) as client:
        values = [payload(2 * MIB, seed) for seed in range(3)]
        result = client.batch_set(["a", "b", "c"], values)
        assert list(result) == [Status.OK, Status.SERVER_ERROR, Status.OK]
        assert str(result.error).startswith("OOM")


# When the way breaks.


def test_cut_in_the_middle_of_a_value_is_made_good(valkey: TestServer, proxied: Proxied) -> None:
    proxy = proxied(valkey)
    keys = [f"k{index}" for index in range(6)]
    values = [payload(3 * MIB, index) for index in range(6)]
    with connect(proxy) as client:
        client.batch_set(keys, values)
        for byte in (0, 3, 12, 2 * MIB, 3 * MIB + 11, 3 * MIB + 12, 10 * MIB):
            proxy.cut_after(byte)
            targets = [bytearray(3 * MIB) for _ in keys]
            assert client.batch_get(keys, targets).ok
            assert targets == values
        assert client.stats()["disconnects"] == 7


def test_cut_in_the_middle_of_a_set_is_made_good(valkey: TestServer, proxied: Proxied) -> None:
    proxy = proxied(valkey)
    with connect(proxy) as client:
        client.ping()
        proxy.cut_after(0)  # the first reply is lost
        assert client.batch_set(["a", "b"], [payload(MIB), payload(MIB, 1)]).ok
        assert valkey.cli("GET", "b") == payload(MIB, 1)


def test_bytes_that_trickle_are_put_together(valkey: TestServer, proxied: Proxied) -> None:
    proxy = proxied(valkey)
    with connect(proxy) as client:
        client.batch_set(["a", "b"], [payload(3 * MIB), payload(70_000)])
        proxy.down.slice_bytes = 50_001
        targets = [bytearray(3 * MIB), bytearray(70_000)]
        assert client.batch_get(["a", "b"], targets).ok
        assert targets == [payload(3 * MIB), payload(70_000)]
        proxy.down.slice_bytes = 1
        assert client.batch_exists(["a", "none", "b"]).count(Status.OK) == 2


def test_slow_server_is_not_a_stalled_one(valkey: TestServer, proxied: Proxied) -> None:
    proxy = proxied(valkey)
    with connect(proxy, stall_timeout_s=STALL_S) as client:
        client.set("k", payload(3 * MIB))
        proxy.down.bandwidth_bytes_per_s = 0.9 * MIB  # below the wake-up size per stall time
        target = bytearray(3 * MIB)
        assert client.get("k", target)
        assert target == payload(3 * MIB)


@pytest.mark.parametrize("byte", [0, 5, MIB, 3 * MIB - 1, 3 * MIB + 11])
def test_stall_ends_in_time(valkey: TestServer, proxied: Proxied, byte: int) -> None:
    proxy = proxied(valkey)
    with connect(proxy, stall_timeout_s=STALL_S) as client:
        client.set("k", payload(3 * MIB))
        fault = proxy.stall_after(byte)
        with within(2.5):
            result = client.batch_get(["k"], [bytearray(3 * MIB)])
        fault.wait_fired()
        assert result[0] is Status.TIMEOUT
        assert "nothing for 1 s" in str(result.error)
        target = bytearray(3 * MIB)
        assert client.get("k", target)  # on a new connection
        assert target == payload(3 * MIB)


def test_deadline_ends_a_batch(valkey: TestServer, proxied: Proxied) -> None:
    proxy = proxied(valkey)
    with connect(proxy) as client:
        keys, values = ["a", "b", "c"], [payload(MIB, seed) for seed in range(3)]
        client.batch_set(keys, values)
        proxy.down.bandwidth_bytes_per_s = 0.7 * MIB  # the second one is there a second too late
        targets = [bytearray(MIB) for _ in keys]
        with within(4):
            result = client.batch_get(keys, targets, timeout_s=1.7)
        assert list(result)[1:] == [Status.TIMEOUT, Status.TIMEOUT]
        if result[0] is not Status.TIMEOUT:  # a busy machine is slower than that
            assert result[0] is Status.OK
            assert targets[0] == values[0]
        proxy.heal()
        assert client.batch_get(keys, targets).ok
        assert targets == values
        for bad in (0, -1, float("nan")):
            with pytest.raises(errors.UsageError):
                client.batch_exists(keys, timeout_s=bad)


def test_receiver_that_does_not_read_times_out(valkey: TestServer, proxied: Proxied) -> None:
    proxy = proxied(valkey)
    with connect(proxy, stall_timeout_s=STALL_S) as client:
        client.ping()
        proxy.up.reading = False
        with within(3):
            result = client.batch_set(["k"], [payload(32 * MIB)])
        assert result[0] is Status.TIMEOUT


def test_dead_server_is_unavailable_at_once_and_comes_back(fresh_server: TestServer) -> None:
    with connect(fresh_server, reconnect_min_s=0.2, reconnect_max_s=0.4) as client:
        client.set("k", b"v")
        fresh_server.kill()
        began = time.monotonic()
        with within(1):
            for _ in range(200):
                assert client.batch_exists(["k"])[0] is Status.UNAVAILABLE
        assert client.stats()["connect_failures"] <= 20 * max(1, time.monotonic() - began)
        with pytest.raises(errors.UnavailableError, match=r"cannot connect to 127\.0\.0\.1"):
            client.exists("k")
        fresh_server.restart()
        until(lambda: client.batch_exists(["k"])[0] is Status.MISS, 5)  # its backoff is over
        client.set("k", b"v")


def test_restart_between_batches_goes_unnoticed(fresh_server: TestServer) -> None:
    with connect(fresh_server, attempts_max=1) as client:
        client.set("k", b"v")
        fresh_server.restart()
        client.set("k", b"v")
        assert client.get("k", bytearray(1))


def test_paused_server_times_out_and_comes_back(fresh_server: TestServer) -> None:
    with connect(fresh_server, stall_timeout_s=STALL_S, connect_timeout_s=STALL_S) as client:
        client.set("k", b"v")
        fresh_server.pause()
        try:
            with within(3):
                assert client.batch_exists(["k"])[0] is Status.TIMEOUT
                assert client.batch_exists(["k"])[0] is Status.UNAVAILABLE  # greets nobody
        finally:
            fresh_server.resume()
        until(lambda: client.batch_get(["k"], [bytearray(1)]).ok, 5)


def test_nobody_listens() -> None:
    with (
        PureRedisClient("127.0.0.1", free_port()) as client,
        within(1),
        pytest.raises(errors.UnavailableError, match="refused"),
    ):
        client.set("k", b"v")
    with PureRedisClient("no-such-host.invalid") as client:
        assert client.batch_exists(["k"])[0] is Status.UNAVAILABLE
    with (
        PureRedisClient(unix_path="/nonexistent/socket") as client,
        pytest.raises(errors.UnavailableError, match="unix:/nonexistent/socket"),
    ):
        client.ping()


def test_interrupt_in_the_middle_of_a_value(valkey: TestServer, proxied: Proxied) -> None:
    class Interrupt(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    proxy = proxied(valkey)
    with connect(proxy) as client:
        client.batch_set(["a", "b"], [payload(4 * MIB), payload(4 * MIB, 1)])
        fault = proxy.stall_after(2 * MIB)

        def interrupt_when_it_stalls() -> None:
            if fault.event.wait(20):
                os.kill(os.getpid(), signal.SIGALRM)

        interrupter = threading.Thread(target=interrupt_when_it_stalls)
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            interrupter.start()
            with pytest.raises(Interrupt):
                client.get("a", bytearray(4 * MIB))
        finally:
            interrupter.join()
            signal.signal(signal.SIGALRM, before)
        target = bytearray(4 * MIB)
        assert client.get("b", target)
        assert target == payload(4 * MIB, 1)  # and not the rest of "a"
