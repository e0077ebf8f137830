"""A server that dies, freezes, hides or hangs up: calls stay bounded, and it is found again."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from kvferry.base import errors
from kvferry.client.batch import Status
from kvferry.client.pure.client import PureRedisClient
from support import clock
from support.proxy import FaultProxy
from support.scripted import MiniStore, ScriptedServer, Silence
from support.servers import TestServer, free_port
from support.stamps import KIB, MIB, Fetched, fetch, poisoned, store, until, within

Connect = Callable[..., Any]
Start = Callable[..., TestServer]
Proxied = Callable[[TestServer], FaultProxy]

KINDS = ["valkey", "redis7"]
AWAY = {Status.UNAVAILABLE, Status.TIMEOUT}
QUICK = {"timeout_s": 1.0, "stall_timeout_s": 0.3, "connect_timeout_s": 0.3, "reconnect_max_s": 0.2}


# It dies.


@pytest.mark.ways("tcp", "tls", soak=("unix",))
@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_restarted_in_the_middle_of_a_batch(
    start: Start, proxied: Proxied, kind: str, connect: Connect
) -> None:
    server = start(kind)
    proxy = proxied(server)
    client = connect(proxy, reconnect_max_s=0.2, timeout_s=20)
    sizes = {f"k{index}": MIB for index in range(64)}
    assert store(client, sizes).ok
    # 64 MiB take 0.7 s, over however many connections.
    proxy.down.shared, proxy.down.bandwidth_bytes_per_s = True, 100e6
    results: list[Fetched] = []
    reader = threading.Thread(target=lambda: results.append(fetch(client, sizes)))
    started = proxy.bytes_down
    reader.start()
    until(lambda: proxy.bytes_down > started + 20 * MIB, 5)
    server.kill()
    time.sleep(0.1)
    server.restart()
    with within(12):
        reader.join(60)
    assert not reader.is_alive()
    counts = results[0].result
    assert counts.count(Status.OK) > 4
    assert set(counts) <= {Status.OK, Status.MISS, Status.UNAVAILABLE}
    # The client finds the new server by itself; that one is empty.
    until(lambda: store(client, sizes, 2).ok, 5)
    assert fetch(client, sizes, {2}).result.ok


@pytest.mark.ways("tcp", "tls", soak=("unix",))
def test_killed_while_values_are_sent(start: Start, connect: Connect) -> None:
    server = start("valkey")
    client = connect(server, reconnect_max_s=0.2)
    sizes = {f"k{index}": 4 * MIB for index in range(24)}
    killer = threading.Timer(0.01, server.kill)
    killer.start()
    with within(12):
        result = store(client, sizes)
    killer.join()
    assert result.count(Status.UNAVAILABLE) + result.count(Status.OK) == 24
    server.restart()
    until(lambda: store(client, sizes, 2).ok, 5)
    assert fetch(client, sizes, {2}).result.ok


@pytest.mark.ways("tcp", soak=("tls", "unix"))
def test_dead_server_is_unavailable_at_once(start: Start, connect: Connect) -> None:
    server = start("valkey")
    client = connect(server)
    assert store(client, {"k": MIB}).ok
    server.kill()
    with within(3):
        until(lambda: fetch(client, {"k": MIB}).result[0] is Status.UNAVAILABLE, 3)
    until(lambda: _quick_no(client), 3)
    with within(0.5):
        for _ in range(20):
            assert _quick_no(client)
    server.restart()
    until(lambda: store(client, {"k": MIB}, 2).ok, 5)


def _quick_no(client: Any) -> bool:
    """Whether the client says "not now" without waiting."""
    started = clock.now_s()
    status = client.batch_get(["k"], [poisoned(MIB)])[0]
    return status is Status.UNAVAILABLE and clock.now_s() - started < 0.1


# It freezes.


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_server(start: Start, connect: Connect, kind: str) -> None:
    """SIGSTOP: the kernel still accepts and acknowledges, nobody answers."""
    server = start(kind)
    client = connect(server, **QUICK)
    in_background = not isinstance(client, PureRedisClient)  # who dials
    frozen_s = 10.0 if in_background and kind == "valkey" else 2.0
    sizes = {f"k{index}": MIB for index in range(16)}
    until(lambda: store(client, sizes).ok, 5)
    server.pause()
    frozen_at = time.monotonic()
    try:
        with within(3):
            first = fetch(client, sizes).result
        assert set(first) <= AWAY
        # Whoever noticed says no at once, for as long as it takes.
        noticed_s = until(lambda: _quick_no(client), 4)
        while time.monotonic() - frozen_at < frozen_s:
            with within(1.5):
                assert _quick_no(client) or not in_background
            time.sleep(0.05)
    finally:
        server.resume()
    back_s = until(lambda: fetch(client, sizes).result.ok, 5)
    until(lambda: store(client, sizes, 2).ok, 5)
    until(lambda: fetch(client, sizes, {2}).result.ok, 5)
    print(f"said no after {noticed_s:.2f} s, was back after {back_s:.2f} s")


@pytest.mark.ways("tcp", soak=("tls", "unix"))
def test_frozen_server_with_the_default_limits(start: Start, connect: Connect) -> None:
    """Silence on one connection makes the client ask on all others: 2 s and 2 s, then "no"."""
    server = start("valkey")
    client = connect(server)
    sizes = {f"k{index}": MIB for index in range(16)}
    assert store(client, sizes).ok
    server.pause()
    frozen_at = clock.now_s()
    try:
        with within(6):
            assert set(fetch(client, sizes).result) <= AWAY
        until(lambda: _quick_no(client), 3)
        dials_in_call_s = 1.5 if isinstance(client, PureRedisClient) else 0.0
        assert clock.now_s() - frozen_at < 5.5 + dials_in_call_s
        if isinstance(client, PureRedisClient):  # it dials in the call: each is bounded by that
            for _ in range(10):
                with within(2.5):
                    assert client.batch_get(["k"], [poisoned(MIB)])[0] is Status.UNAVAILABLE
        else:
            with within(0.5):
                assert all(_quick_no(client) for _ in range(10))
    finally:
        server.resume()
    until(lambda: fetch(client, sizes).result.ok, 5)


# It cannot be reached, or hangs up.


@pytest.mark.ways("tcp", "tls", "unix")
def test_refused(valkey: TestServer, proxied: Proxied, connect: Connect) -> None:
    proxy = proxied(valkey)
    proxy.refuse()
    client = connect(proxy, reconnect_max_s=0.2)
    with within(2):
        assert client.batch_get(["k"], [poisoned(KIB)])[0] is Status.UNAVAILABLE
    with within(2), pytest.raises(errors.UnavailableError, match=r"refused|o such file"):
        client.set("k", b"v")
    proxy.accept()
    until(lambda: store(client, {"k": MIB}).ok, 5)
    assert fetch(client, {"k": MIB}).result.ok


def test_nothing_listens_on_the_unix_path(tmp_path: Path, connect: Connect) -> None:
    client = connect(unix_path=str(tmp_path / "none.sock"))
    with within(2), pytest.raises(errors.UnavailableError):
        client.set("k", b"v")


def test_name_that_does_not_exist(connect: Connect) -> None:
    client = connect(host="no-such-host.invalid")
    with within(12), pytest.raises((errors.UnavailableError, errors.DeadlineExceeded)):
        client.set("k", b"v")


@pytest.mark.ways("tcp", "tls", "unix")
def test_black_hole(valkey: TestServer, proxied: Proxied, connect: Connect) -> None:
    """Every byte is swallowed, of old connections and of new ones."""
    proxy = proxied(valkey)
    client = connect(proxy, **QUICK)
    sizes = {f"k{index}": MIB for index in range(8)}
    until(lambda: store(client, sizes).ok, 5)
    proxy.black_hole()
    for _ in range(3):
        with within(2):
            assert set(fetch(client, sizes).result) <= AWAY
        with within(2):
            assert set(store(client, sizes, 2)) <= AWAY
    until(lambda: _quick_no(client), 3)
    proxy.heal()
    until(lambda: store(client, sizes, 3).ok, 5)
    until(lambda: fetch(client, sizes, {3}).result.ok, 5)


def test_connecting_into_silence(connect: Connect) -> None:
    with ExitStack() as stack:
        port = _occupy(stack, "127.0.0.1", 0, backlog=0)
        client = connect(host="127.0.0.1", port=port, **QUICK)
        with within(2):
            assert client.batch_get(["k"], [poisoned(MIB)])[0] in AWAY
        until(lambda: _quick_no(client), 3)


def test_accepts_and_says_nothing(connect: Connect) -> None:
    with ScriptedServer(lambda command: Silence()) as server:
        client = connect(server, **QUICK)
        with within(2):
            assert client.batch_get(["k"], [poisoned(MIB)])[0] in AWAY
        until(lambda: _quick_no(client), 3)
        with within(2):
            client.close()


def test_answers_the_greeting_and_then_nothing(connect: Connect) -> None:
    """The breaker cannot know; every call is bounded all the same."""
    silent = MiniStore()
    with ScriptedServer(
        lambda command: None if command.name in (b"HELLO", b"CLIENT") else Silence(), silent
    ) as server:
        client = connect(server, **{**QUICK, "timeout_s": 0.5})
        for _ in range(2):
            with within(2):
                assert client.batch_get(["k"], [poisoned(MIB)])[0] in AWAY
            with within(2):
                assert client.batch_exists(["k"])[0] in AWAY


@pytest.mark.ways("tcp", soak=("tls", "unix"))
@pytest.mark.parametrize("kind", KINDS)
def test_idle_connections_that_the_server_closes(start: Start, kind: str, connect: Connect) -> None:
    server = start(kind, "--timeout", "1")
    client = connect(server)
    sizes = {f"k{index}": MIB for index in range(4)}
    assert store(client, sizes).ok
    old = connections_of_ours(server)
    # The server looks once in a second; those that it closed may have been made again.
    until(lambda: not old & connections_of_ours(server), 10)
    with within(2):
        assert fetch(client, sizes).result.ok
    assert client.exists("k0")


def connections_of_ours(server: TestServer) -> set[bytes]:
    """Their numbers, which no later one gets."""
    lines = server.cli("CLIENT", "LIST").splitlines()
    return {line.split()[0] for line in lines if b"name=kvferry" in line}


@pytest.mark.ways("tcp", "tls", "cluster", "sentinel", soak=("unix",))
def test_connections_killed_by_an_administrator(server: TestServer, connect: Connect) -> None:
    client = connect(server)
    sizes = {f"k{index}": 256 * KIB for index in range(32)}
    assert store(client, sizes).ok
    for _ in range(10):
        server.cli("CLIENT", "KILL", "TYPE", "normal")
        with within(2):
            read = fetch(client, sizes)
        assert set(read.result) <= {Status.OK, Status.UNAVAILABLE}
    until(lambda: fetch(client, sizes).result.ok, 5)


# It has several addresses.

_SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from support.stamps import fetch, store, until, within
from faults.conftest import CLIENTS
from support.servers import TestServer

for kind, Client in CLIENTS.items():
    with Client("two-addresses.test", {port}, connect_timeout_s=5.0) as client, within(7):
        assert store(client, {{"k": 1 << 20}}).ok, kind
        assert fetch(client, {{"k": 1 << 20}}).result.ok, kind
print("served")
"""


@pytest.mark.ways("tcp")
@pytest.mark.parametrize("dead_address", ["::1", "127.0.0.2"])  # before 127.0.0.1, behind it
@pytest.mark.parametrize("dead", ["refuses", "drops", "silent"])
def test_name_whose_other_address_is_dead(
    valkey: TestServer, proxied: Proxied, tmp_path: Path, dead: str, dead_address: str
) -> None:
    """Both clients, in a process that sees another /etc/hosts."""
    hosts, script = tmp_path / "hosts", tmp_path / "script.py"
    hosts.write_text(f"127.0.0.1 two-addresses.test\n{dead_address} two-addresses.test\n")
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount --bind '{hosts}' /etc/hosts"
    if subprocess.run([*command, mount], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespace of our own here")
    proxy = proxied(valkey)
    script.write_text(_SCRIPT.format(tests=str(Path(__file__).parents[1]), port=proxy.port))
    with ExitStack() as stack:
        if dead != "refuses":
            try:
                _occupy(stack, dead_address, proxy.port, backlog=0 if dead == "drops" else 64)
            except OSError as error:
                pytest.skip(f"no {dead_address} here: {error}")
        run = [*command, f"{mount} && exec '{sys.executable}' '{script}'"]
        done = subprocess.run(run, capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout == "served\n", done.stderr


def _occupy(stack: ExitStack, host: str, port: int, backlog: int) -> int:
    """Listen and never accept. A backlog of 0 is filled: then SYNs are dropped."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=backlog)
    address = stack.enter_context(listener).getsockname()
    for _ in range(64 if backlog == 0 else 0):
        sock = stack.enter_context(closing(socket.socket(family)))
        sock.settimeout(0.2)
        try:
            sock.connect(address)
        except TimeoutError:
            break
    else:
        if backlog == 0:
            pytest.skip("this kernel never lets a backlog fill up")
    port_: int = address[1]
    return port_


def test_free_port_is_refused(connect: Connect) -> None:
    with within(2):
        assert connect(host="127.0.0.1", port=free_port()).batch_exists(["k"])[0] in AWAY
