"""Each toxic does what its name says, in both directions, the same for the same seed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.proxy import FaultProxy
from support.resp import encode, read_reply
from support.scripted import MiniStore, ScriptedServer
from support.servers import TestServer
from support.stamps import until
from support.toxics import TOXICS, Storm, apply, names

VALUE = bytes(range(256)) * 400
Proxied = Callable[..., FaultProxy]


@contextmanager
def connected(proxy: FaultProxy, timeout_s: float = 20) -> Iterator[socket.socket]:
    with socket.create_connection((proxy.host, proxy.port), timeout_s) as talk:
        yield talk


def ask(talk: socket.socket, *words: bytes | str) -> Any:
    with talk.makefile("rb") as stream:
        talk.sendall(encode(*words))
        return read_reply(stream)


def received(proxy: FaultProxy, command: bytes, size: int) -> bytes:
    """Raw bytes of the answer, which is so long."""
    with connected(proxy) as talk:
        talk.sendall(command)
        data = b""
        while len(data) < size:
            data += talk.recv(65536)
        return data


@pytest.fixture
def proxy(valkey: TestServer, proxied: Proxied) -> FaultProxy:
    valkey.cli("SET", "key", VALUE)
    return proxied(valkey)


@pytest.mark.parametrize("name", names("slows"))
@pytest.mark.parametrize("seed", [1, 2])
def test_what_only_slows_delivers_everything(proxy: FaultProxy, name: str, seed: int) -> None:
    apply(name, proxy, seed)
    with connected(proxy) as talk:
        assert ask(talk, "SET", "other", VALUE) == b"OK"
        assert ask(talk, "GET", "other") == VALUE


def test_all_that_slows_at_once(proxy: FaultProxy) -> None:
    for name in names("slows"):
        apply(name, proxy, seed=3)
    with connected(proxy) as talk:
        assert ask(talk, "GET", "key") == VALUE


@pytest.mark.parametrize("name", names("breaks"))
def test_what_breaks_is_over_when_healed(proxy: FaultProxy, name: str) -> None:
    with connected(proxy) as talk:
        ask(talk, "PING")
        talk.settimeout(0.3)
        apply(name, proxy, seed=1)
        try:  # the fault strikes at 1 MiB at the latest, once
            for _ in range(15):
                assert ask(talk, "SET", "other", VALUE) == b"OK"
                assert ask(talk, "GET", "key") == VALUE
        except (OSError, EOFError):
            pass
        else:
            raise AssertionError(f"{name} broke nothing")
    proxy.heal()
    with connected(proxy) as talk:
        assert ask(talk, "GET", "key") == VALUE


def test_jitter_comes_late_and_in_order(proxy: FaultProxy) -> None:
    proxy.down.jitter_s = 0.05
    with connected(proxy) as talk, talk.makefile("rb") as stream:
        started = time.monotonic()
        for i in range(20):
            talk.sendall(encode("ECHO", str(i)))
            time.sleep(0.002)
        assert [read_reply(stream) for _ in range(20)] == [b"%d" % i for i in range(20)]
        assert time.monotonic() - started > 0.05  # 0.04 s of sending, the last of 20 delays


def test_slices_of_a_random_size(proxy: FaultProxy) -> None:
    proxy.down.slice_bytes, proxy.down.slice_random = 9, True
    proxy.down.slice_interval_s = 0.003

    def come(talk: socket.socket) -> bool:
        talk.sendall(encode("ECHO", "x" * 100))
        pieces: list[int] = []
        while sum(pieces) < 108:
            pieces.append(len(talk.recv(1000)))
        return len(pieces) > 12 and len(set(pieces)) > 2

    with connected(proxy) as talk:
        until(lambda: come(talk), 10)  # who comes late for one finds two of them


def test_random_flips_are_those_of_the_seed(proxy: FaultProxy) -> None:
    command, size = encode("GET", "key"), len(b"$102400\r\n") + len(VALUE) + 2
    clean = received(proxy, command, size)

    def flipped(seed: int, slice_bytes: int | None) -> list[int]:
        proxy.seed, proxy.connections = seed, 0
        proxy.down.flips_per_byte, proxy.down.slice_bytes = 1 / 5000, slice_bytes
        before = proxy.tally_down.flips
        got = received(proxy, command, size)
        places = [i for i, (a, b) in enumerate(zip(clean, got, strict=True)) if a != b]
        assert all((clean[i] ^ got[i]).bit_count() == 1 for i in places)
        assert proxy.tally_down.flips - before == len(places)
        return places

    first = flipped(1, None)
    assert 5 < len(first) < 60
    assert flipped(1, 1000) == first
    assert flipped(2, None) != first
    proxy.heal()
    assert received(proxy, command, size) == clean


def test_faults_on_the_way_up(proxied: Proxied) -> None:
    with ScriptedServer(MiniStore()) as scripted, FaultProxy(scripted.host, scripted.port) as proxy:
        with connected(proxy) as talk:
            fault = proxy.flip(encode("SET", "key", "abc").index(b"abc"), 0x20, direction="up")
            assert ask(talk, "SET", "key", "abc") == b"OK"
            fault.wait_fired()
            assert ask(talk, "GET", "key") == b"Abc"
            proxy.cut_after(10, direction="up")
            with pytest.raises((OSError, EOFError)):
                ask(talk, "SET", "key", "def")
        with connected(proxy) as talk:
            assert ask(talk, "GET", "key") == b"Abc"
            proxy.stall_after(0, direction="up")
            talk.settimeout(0.2)
            with pytest.raises(TimeoutError):
                ask(talk, "PING")
            proxy.heal()
            talk.settimeout(20)
            assert talk.recv(100) == b"+PONG\r\n"


def test_half_open_forgets_the_old_and_serves_the_new(proxy: FaultProxy) -> None:
    with connected(proxy) as old:
        ask(old, "PING")
        old.settimeout(0.2)
        proxy.half_open()
        with connected(proxy) as new:
            assert ask(new, "GET", "key") == VALUE
        with pytest.raises(TimeoutError):
            ask(old, "PING")


def test_opaque_bytes_can_be_anything(tls_server: TestServer) -> None:
    assert tls_server.tls is not None
    context = tls_server.tls.client_context()
    with (
        FaultProxy(tls_server.host, tls_server.tls_port, opaque=True) as proxy,
        connected(proxy) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as talk,
    ):
        assert proxy.url.startswith("rediss://")
        assert ask(talk, "SET", "key", VALUE) == b"OK"
        assert ask(talk, "GET", "key") == VALUE
        with pytest.raises(ValueError, match="opaque"):
            proxy.drop_reply()
        proxy.flip(5000)
        with pytest.raises(OSError, match="MAC"):  # ssl.SSLError is one
            ask(talk, "GET", "key")


def test_spared_hosts_meet_a_plain_proxy(valkey: TestServer) -> None:
    with FaultProxy(valkey.host, valkey.port, spared_hosts=["127.0.0.2"]) as proxy:
        source = ("127.0.0.2", 0)
        with socket.create_connection((proxy.host, proxy.port), 5, source) as spared:
            proxy.black_hole()
            proxy.flip(0)
            proxy.cut_now()
            proxy.down.delay_s = 60
            assert ask(spared, "PING") == b"PONG"
            assert proxy.open_connections == proxy.connections == proxy.bytes_down == 0


def test_a_unix_socket_on_both_sides(valkey: TestServer, tmp_path: Path) -> None:
    path = str(tmp_path / "proxy.sock")
    with FaultProxy("", unix_path=valkey.unix_path, listen_path=path) as proxy:
        for _ in range(2):
            with socket.socket(socket.AF_UNIX) as talk:
                talk.settimeout(20)
                talk.connect(path)
                assert ask(talk, "PING") == b"PONG"
                proxy.refuse()
                with socket.socket(socket.AF_UNIX) as late, pytest.raises(FileNotFoundError):
                    late.connect(path)
                proxy.accept()
        assert proxy.url == f"unix://{path}"


def test_a_storm_repeats_itself_and_leaves_clear_skies(
    valkey: TestServer, proxied: Proxied
) -> None:
    logs = []
    for _ in range(2):
        proxies = [proxied(valkey) for _ in range(3)]
        storm = Storm(proxies, seed=11, toxics=TOXICS, poisoned_max=2)
        for _ in range(300):
            storm.step()
            assert len(storm.poisoned) <= 2
        storm.heal()
        logs.append(storm.log)
        for proxy in proxies:
            with connected(proxy) as talk:
                assert ask(talk, "PING") == b"PONG"
    assert logs[0] == logs[1]
    assert len({line.split(" on ")[0] for line in logs[0] if " on " in line}) == len(TOXICS)
