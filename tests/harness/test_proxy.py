"""The fault proxy does to the bytes exactly what it was told, and says when it did."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pytest

from support import clock
from support.proxy import FaultProxy
from support.resp import bulk, encode, read_reply
from support.scripted import ATTRIBUTE, PUSH, ScriptedServer, answer
from support.servers import TestServer
from support.stamps import until, within

VALUE = bytes(range(256)) * 400  # 102,400 bytes
LIMIT_S = 20.0  # for what has to come


class Talk:
    def __init__(self, proxy: FaultProxy) -> None:
        self.sock = socket.create_connection((proxy.host, proxy.port), LIMIT_S)
        self.stream: BinaryIO = self.sock.makefile("rb")

    def send(self, *words: bytes | str | int) -> None:
        self.sock.sendall(encode(*words))

    def __call__(self, *words: bytes | str | int) -> Any:
        self.send(*words)
        return read_reply(self.stream)

    def rest(self) -> bytes:
        """All that still comes, until the end or an RST."""
        data = b""
        try:
            while piece := self.stream.read1(65536):  # type: ignore[attr-defined]
                data += piece
        except ConnectionResetError:
            data += b"<RST>"
        return data


@contextmanager
def talk(proxy: FaultProxy) -> Iterator[Talk]:
    conversation = Talk(proxy)
    with conversation.sock, conversation.stream:
        yield conversation


@contextmanager
def takes(at_least_s: float, less_than_s: float) -> Iterator[None]:
    """So long, and on the clock of clock.py no longer."""
    started = time.monotonic()
    with within(less_than_s):
        yield
    assert time.monotonic() - started >= at_least_s


@pytest.fixture
def proxy(valkey: TestServer, proxied: Callable[[TestServer], FaultProxy]) -> FaultProxy:
    valkey.cli("SET", "key", VALUE)
    valkey.cli("SET", "small", b"abc")
    return proxied(valkey)


def test_passes_everything_and_counts(proxy: FaultProxy) -> None:
    with talk(proxy) as ask, talk(proxy) as other:
        assert ask("GET", "key") == VALUE
        assert other("SET", "large", VALUE * 80) == b"OK"
        assert ask("GET", "large") == VALUE * 80
        assert (proxy.connections, proxy.open_connections) == (2, 2)
        assert proxy.bytes_up > len(VALUE) * 80
        assert proxy.bytes_down > len(VALUE) * 81


def test_unix_target(valkey: TestServer) -> None:
    with FaultProxy("", unix_path=valkey.unix_path) as proxy, talk(proxy) as ask:
        assert ask("PING") == b"PONG"


def test_delay_is_paid_once_by_a_pipeline(proxy: FaultProxy) -> None:
    with talk(proxy) as ask:
        ask("PING")
        proxy.up.delay_s = proxy.down.delay_s = 0.05
        with takes(at_least_s=0.1, less_than_s=0.35):  # not 20 times 0.1
            for _ in range(20):
                ask.send("PING")
                time.sleep(0.001)
            for _ in range(20):
                assert read_reply(ask.stream) == b"PONG"
        proxy.heal()
        taken_s = []
        for _ in range(5):  # one of them is not disturbed
            start = clock.now_s()
            ask("PING")
            taken_s.append(clock.now_s() - start)
        assert min(taken_s) < 0.09


def test_bandwidth_is_what_was_set(proxy: FaultProxy) -> None:
    with talk(proxy) as ask:
        proxy.down.bandwidth_bytes_per_s = 500_000
        with takes(at_least_s=0.15, less_than_s=0.6):  # 0.205 s of bytes
            assert ask("GET", "key") == VALUE


def test_a_shared_bandwidth_is_that_of_all_connections(proxy: FaultProxy) -> None:
    with talk(proxy) as one, talk(proxy) as two:
        proxy.down.shared, proxy.down.bandwidth_bytes_per_s = True, 500_000
        with takes(at_least_s=0.3, less_than_s=1.2):  # twice 0.205 s of bytes
            for ask in (one, two):
                ask.send("GET", "key")
            for ask in (one, two):
                assert ask.sock.recv(1)
                while ask.sock.recv(1 << 16)[-2:] != b"\r\n":
                    pass


def test_trickle_cuts_the_stream_into_slices(proxy: FaultProxy) -> None:
    with talk(proxy) as ask:
        proxy.down.slice_bytes, proxy.down.slice_interval_s = 2, 0.005

        def comes_in_slices() -> bool:
            ask.send("GET", "small")
            pieces: list[bytes] = []
            while len(b"".join(pieces)) < 9:
                pieces.append(ask.sock.recv(100))
            assert b"".join(pieces) == b"$3\r\nabc\r\n"
            return max(map(len, pieces)) == 2

        until(comes_in_slices, 10)  # who comes late for one finds two of them


@pytest.mark.parametrize(("ending", "end"), [("rst", b"<RST>"), ("fin", b"")])
def test_cut_after_n_bytes(proxy: FaultProxy, ending: Any, end: bytes) -> None:
    with talk(proxy) as ask:
        ask("PING")
        fault = proxy.cut_after(50_000, ending)
        ask.sock.sendall(encode("GET", "key") + encode("PING"))
        assert ask.rest() == bulk(VALUE)[:50_000] + end
        fault.wait_fired()
    with talk(proxy) as ask:
        assert ask("GET", "key") == VALUE  # once only


def test_a_fault_strikes_several_connections(proxy: FaultProxy) -> None:
    fault = proxy.cut_after(0, "fin", times=2)
    for wanted in (b"", b"", b"+PONG\r\n"):
        with talk(proxy) as ask:
            ask.send("PING")
            ask.send("QUIT")
            assert ask.rest()[:7] == wanted
    assert fault.fired == 2


def test_stall_after_n_bytes_until_healed(proxy: FaultProxy) -> None:
    with talk(proxy) as ask:
        proxy.stall_after(1000)
        ask.send("GET", "key")
        assert ask.stream.read(1000) == bulk(VALUE)[:1000]
        ask.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            ask.sock.recv(1)
        proxy.heal()
        ask.sock.settimeout(LIMIT_S)
        got = b""
        while len(got) < len(bulk(VALUE)) - 1000:
            got += ask.sock.recv(65536)
        assert got == bulk(VALUE)[1000:]


def test_flip_changes_one_byte(proxy: FaultProxy) -> None:
    with talk(proxy) as ask:
        ask("PING")
        header = len(b"$102400\r\n")
        fault = proxy.flip(header + 70_000, mask=0x80)
        got = ask("GET", "key")
        different = [i for i, (a, b) in enumerate(zip(got, VALUE, strict=True)) if a != b]
        assert different == [70_000]
        assert got[70_000] ^ VALUE[70_000] == 0x80
        assert fault.fired == 1
        assert ask("GET", "key") == VALUE


def test_drop_duplicate_and_insert_by_reply(proxy: FaultProxy) -> None:
    with talk(proxy) as ask:
        ask("PING")
        proxy.drop_reply(1)
        proxy.duplicate_reply(2)
        proxy.insert_before_reply(PUSH + ATTRIBUTE, 3)
        for word in ("a", "b", "c", "d"):
            ask.send("ECHO", word)
        wanted = bulk(b"a") + bulk(b"c") * 2 + PUSH + ATTRIBUTE + bulk(b"d")
        assert ask.stream.read(len(wanted)) == wanted
        assert ask("PING") == b"PONG"


def test_a_large_reply_is_dropped_and_duplicated_whole(proxy: FaultProxy) -> None:
    with talk(proxy) as ask:
        ask("SET", "large", VALUE * 20)
        proxy.drop_reply(0)
        ask.send("GET", "large")
        assert ask("PING") == b"PONG"
        proxy.duplicate_reply(0)
        ask.send("GET", "large")
        assert read_reply(ask.stream) == VALUE * 20
        assert read_reply(ask.stream) == VALUE * 20
        assert ask("PING") == b"PONG"


def test_pushes_of_the_server_are_not_counted_as_replies() -> None:
    scripted = ScriptedServer(answer(PUSH + b"+A\r\n", b"A"), answer(b"+B\r\n", b"B"))
    with scripted, FaultProxy(scripted.host, scripted.port) as proxy, talk(proxy) as ask:
        proxy.drop_reply(1)
        ask.send("A")
        ask.send("B")
        ask.send("A")
        wanted = (PUSH + b"+A\r\n") * 2
        assert ask.stream.read(len(wanted)) == wanted


def test_black_hole_swallows_old_and_new_connections(proxy: FaultProxy) -> None:
    with talk(proxy) as old:
        old("PING")
        proxy.black_hole()
        with talk(proxy) as new:
            for conversation in (old, new):
                conversation.send("SET", "key", "swallowed")
                conversation.sock.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    conversation.sock.recv(1)
                conversation.sock.settimeout(LIMIT_S)
            until(lambda: [link.swallows for link in proxy._links] == [True, True], 10)
            proxy.heal()
            assert old.rest() == new.rest() == b"<RST>"
    with talk(proxy) as ask:
        assert ask("GET", "key") == VALUE


def test_refuse_and_accept(proxy: FaultProxy) -> None:
    with talk(proxy) as ask:
        proxy.refuse()
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                talk(proxy).__enter__()
        assert ask("PING") == b"PONG"
        proxy.accept()
        with talk(proxy) as other:
            assert other("PING") == b"PONG"


def test_cut_now_ends_open_connections(proxy: FaultProxy) -> None:
    with talk(proxy) as ask:
        ask("PING")
        proxy.cut_now()
        assert ask.rest() == b"<RST>"
        assert proxy.open_connections == 0


def test_a_peer_that_does_not_read_fills_the_window(proxy: FaultProxy) -> None:
    proxy.up.reading = False
    with talk(proxy) as ask:
        ask.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            ask.sock.sendall(bytes(64 << 20))
        assert proxy.bytes_up == 0


def test_a_dead_server_ends_the_client(fresh_server: TestServer) -> None:
    proxy = FaultProxy(fresh_server.host, fresh_server.port)
    with proxy, talk(proxy) as ask:
        ask("PING")
        fresh_server.kill()
        assert ask.rest() in (b"", b"<RST>")
        with talk(proxy) as other:
            assert other.rest() in (b"", b"<RST>")


def test_close_leaves_no_thread_and_no_descriptor(valkey: TestServer) -> None:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    proxy = FaultProxy(valkey.host, valkey.port)
    with talk(proxy) as ask:
        ask("PING")
        proxy.down.delay_s = 5
        ask.send("PING")
        start = clock.now_s()
        proxy.close()
        assert clock.now_s() - start < 1
        assert ask.rest() == b"<RST>"
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_bug_of_the_proxy_is_loud(valkey: TestServer) -> None:
    with ScriptedServer(answer(b"$seven\r\n")) as scripted:
        proxy = FaultProxy(scripted.host, scripted.port)
        with talk(proxy) as ask:
            ask.send("PING")
            assert ask.rest() == b"<RST>"
        with pytest.raises(ValueError, match="seven"):
            proxy.close()
