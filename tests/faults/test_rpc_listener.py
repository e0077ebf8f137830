"""The server's sockets, and peers that do not do what clients do: nobody else notices them."""

from __future__ import annotations

import os
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kvferry.base.errors import StoreError
from kvferry.chunks.prompt import Prompt
from kvferry.config import CacheConfig
from kvferry.config.server import ServerConfig
from kvferry.rpc import listener
from kvferry.rpc.listener import Listener
from kvferry.rpc.zmtp import GREETING, framed
from kvferry.server import protocol as p
from kvferry.server.server import Server
from support import clock
from support.cache_server import CacheServerProcess, running
from support.engines import CHUNK, prompt
from support.raw_peer import Peer, hashes_of
from support.stamps import until, within
from support.wire_peer import DEALER, WirePeer

PING = p.encode(p.Ping(1, 0, 0))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, mib=1) as server:
        yield server


@pytest.fixture
def endpoint(server: Server) -> str:
    return server.endpoints[0]


def status(server: Server, name: str) -> int:
    return int(server.status()["protocol"][name])


def answers(endpoint: str) -> None:
    """A client that comes now is served, and soon."""
    with within(3), WirePeer(endpoint) as peer:
        assert p.decode_reply(peer.hello().ask(PING)).id == 1


@contextmanager
def echo(tmp_path: Path, **limits: Any) -> Iterator[tuple[Listener, str]]:
    """A listener by itself, whose thread sends each message back."""
    sockets = Listener(**limits)
    endpoint = sockets.listen(f"ipc://{tmp_path}/echo")
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            for sender, body in sockets.wait(0.05):
                sockets.send(sender, bytes(body))
        sockets.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sockets, endpoint
    finally:
        ended.set()
        thread.join(10)
        assert not thread.is_alive()


# --- Who does not speak the protocol ---


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n",
        b"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03",
        bytes(range(256)) * 300,
        b"\xff" * 64,
        GREETING + framed(b"hello"),
        GREETING + DEALER + b"\xff" * 100,
    ],
    ids=("http", "redis", "tls", "noise", "ones", "no handshake", "no frame"),
)
def test_who_speaks_something_else_is_cut_off(server: Server, endpoint: str, said: bytes) -> None:
    with Peer(endpoint) as other, WirePeer(endpoint) as peer:
        other.attach()
        with suppress(ConnectionError):  # it may end while we speak
            peer.send(said)
        with within(1):
            peer.await_end()
        until(lambda: status(server, "refused_connections") == 1, 2)
        assert other.store(prompt(2 * CHUNK)) == 2
    answers(endpoint)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65])
def test_who_says_nothing_more_is_cut_off(tmp_path: Path, size: int) -> None:
    assert listener.HANDSHAKE_S == 5.0
    with echo(tmp_path, handshake_s=1.0) as (sockets, endpoint), ExitStack() as stack:
        friend = stack.enter_context(WirePeer(endpoint)).hello()
        began = time.monotonic()
        with within(2.5):
            silent = stack.enter_context(WirePeer(endpoint))
            silent.send((GREETING + DEALER)[:size])
            silent.await_end()
        assert time.monotonic() - began > 1.0
        assert sockets.connections == 1
        assert friend.ask(b"still here") == b"still here"


def test_a_handshake_byte_by_byte_is_no_reason_to_wait_longer(tmp_path: Path) -> None:
    with echo(tmp_path, handshake_s=0.4) as (_, endpoint), WirePeer(endpoint) as slow:
        began = clock.now_s()
        with suppress(ConnectionError):
            for byte in GREETING + DEALER:
                slow.send(bytes([byte]))
                time.sleep(0.02)  # two seconds for all of it
        slow.await_end()
        assert clock.now_s() - began < 1.5


# --- Who says only a half ---


def test_half_a_message_holds_nobody_up(server: Server, endpoint: str) -> None:
    message = framed(PING)
    with WirePeer(endpoint) as half, Peer(endpoint) as other:
        half.hello().send(message[:-1])
        other.attach()
        with within(5):
            for seed in range(20):
                assert other.store(prompt(2 * CHUNK, seed)) == 2
        half.send(message[-1:])
        assert p.decode_reply(half.reply()).id == 1


def test_half_a_message_is_not_kept_for_ever(tmp_path: Path) -> None:
    """Neither is one that goes on by a byte now and then; one that takes its time is."""
    with echo(tmp_path, message_s=2.0) as (sockets, endpoint), ExitStack() as stack:
        quiet, dripping, slow = (stack.enter_context(WirePeer(endpoint)).hello() for _ in range(3))
        message = framed(bytes(1000))
        quiet.send(message[:500])
        ended = False
        for byte in message[:100]:  # five seconds
            try:
                dripping.send(bytes([byte]))
            except ConnectionError:
                ended = True
                break
            slow.send(message[:500])
            time.sleep(0.05)
            slow.send(message[500:])
            assert slow.reply() == bytes(1000)
        assert ended
        with within(2):
            quiet.await_end()
        assert sockets.connections == 1


# --- Who does not listen ---


def test_who_does_not_read_its_replies(
    monkeypatch: pytest.MonkeyPatch, server: Server, endpoint: str
) -> None:
    """What waits for it is bounded, and the others are served meanwhile."""
    assert listener._UNREAD_BYTES_MAX == 16 << 20
    monkeypatch.setattr(listener, "_UNREAD_BYTES_MAX", 2 << 20)
    longest = 0
    question = p.encode(p.Register(1, 0, 1000, 1, {"x": "y" * 200}, b"d" * 16))

    def look() -> None:
        nonlocal longest
        for one in list(server._listener._connections.values()):
            longest = max(longest, len(one.out))

    with WirePeer(endpoint) as deaf, Peer(endpoint) as other:
        other.attach()
        deaf.hello()
        deaf.socket.settimeout(20.0)
        data, took_s, seed = framed(question) * 200, [], 0
        began = clock.now_s()
        with suppress(OSError):
            while clock.now_s() - began < 30:
                deaf.send(data)
                look()
                seed += 1
                if seed % 20 == 0:
                    asked = clock.now_s()
                    other.say(p.Ping)
                    took_s.append(clock.now_s() - asked)
        # It is cut off, sooner or later; before that it is not held up, and neither is anybody.
        until(lambda: status(server, "connections") == 1, 5)
        assert took_s
        assert max(took_s) < 1
        assert 0 < longest <= listener._UNREAD_BYTES_MAX
        assert other.store(prompt(2 * CHUNK)) == 2


def test_replies_that_wait_come_in_order_and_whole(tmp_path: Path) -> None:
    """The peer reads only after much has piled up for it, however fast it reads from then on."""
    bodies = [bytes([number]) * (number * 3000) for number in range(100)]
    assert sum(map(len, bodies)) < listener._UNREAD_BYTES_MAX  # or it may be cut off
    with echo(tmp_path) as (sockets, endpoint), WirePeer(endpoint) as peer:
        peer.hello()

        def send() -> None:
            for body in bodies:
                peer.send(framed(body))

        sender = threading.Thread(target=send)
        sender.start()
        until(lambda: any(len(c.out) > 1 << 20 for c in list(sockets._connections.values())), 10)
        assert [peer.reply() for _ in bodies] == bodies
        sender.join(10)
        until(lambda: not any(c.out for c in list(sockets._connections.values())), 2)


# --- Many of them ---


def test_300_connections_at_once(server: Server, endpoint: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as stack:
        peers = [stack.enter_context(WirePeer(endpoint)) for _ in range(300)]
        for peer in peers:
            peer.hello()
        assert status(server, "connections") == 300
        for peer in peers:
            peer.send(framed(PING))
        for peer in peers:
            assert p.decode_reply(peer.reply()).id == 1
        for peer in peers[::2]:
            peer.close()
        until(lambda: status(server, "connections") == 150, 5)
        for peer in peers[1::2]:
            peer.ask(PING)
    until(lambda: status(server, "connections") == 0, 5)
    until(lambda: len(os.listdir("/proc/self/fd")) == before, 5)
    assert status(server, "refused_connections") == 0


def test_no_more_than_so_many(
    monkeypatch: pytest.MonkeyPatch, server: Server, endpoint: str
) -> None:
    monkeypatch.setattr(server._listener, "_connections_max", 10)
    with ExitStack() as stack:
        peers = [stack.enter_context(WirePeer(endpoint)).hello() for _ in range(10)]
        with WirePeer(endpoint) as refused, within(1):
            refused.await_end()
        assert status(server, "refused_connections") == 1
        for peer in peers:
            peer.ask(PING)
        peers[0].close()
        until(lambda: status(server, "connections") == 9, 5)
        answers(endpoint)


def test_peers_that_come_and_go_in_a_loop(server: Server, endpoint: str) -> None:
    with Peer(endpoint) as first:
        first.attach()
    until(lambda: status(server, "connections") == 0, 5)
    before = len(os.listdir("/proc/self/fd"))
    beginnings = (b"", GREETING[:10], GREETING + DEALER, GREETING + DEALER + framed(PING) * 3)

    def come_and_go(count: int) -> None:
        for number in range(count):
            # The queue of those who wait may be full: that is another error.
            with suppress(ConnectionError, BlockingIOError), WirePeer(endpoint) as peer:
                peer.send(beginnings[number % len(beginnings)])

    with ThreadPoolExecutor(2) as pool, Peer(endpoint) as other:
        other.attach()
        loops = [pool.submit(come_and_go, 1000) for _ in range(2)]
        asked = 0
        while not all(loop.done() for loop in loops):
            with within(1):
                other.say(p.Ping)
            asked += 1
        assert asked
        for loop in loops:
            loop.result()
    until(lambda: len(os.listdir("/proc/self/fd")) <= before, 5)
    until(lambda: status(server, "connections") == 0, 5)
    answers(endpoint)


def test_without_descriptors_nobody_new_comes_in_and_later_they_do(tmp_path: Path) -> None:
    with CacheServerProcess(tmp_path, mib=1) as process, ExitStack() as stack:
        old = stack.enter_context(Peer(process.endpoint)).attach()
        pid = process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        here = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (here + 4, limits[1]))
        crowd = [stack.enter_context(WirePeer(process.endpoint)) for _ in range(30)]
        served = [peer.hello() for peer in crowd[:3]]
        for peer in served:
            assert p.decode_reply(peer.ask(PING)).id == 1
        crowd[-1].socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            crowd[-1].hello()
        for _ in range(50):
            old.want(p.Failure, p.Reserve, b"odd")  # it works, only for those it knows
        used = cpu_s(pid)
        time.sleep(1)
        assert cpu_s(pid) - used < 0.3  # the listening socket does not wake it in a loop
        assert process.log.count("no descriptors left") == 1
        for peer in crowd:
            peer.close()
        answers_in_s = until(lambda: served_by(process.endpoint), 5)
        assert answers_in_s < 3
        assert old.store(prompt(2 * CHUNK)) == 2


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def served_by(endpoint: str) -> bool:
    try:
        with WirePeer(endpoint) as peer:
            peer.socket.settimeout(1)
            return bool(p.decode_reply(peer.hello().ask(PING)).id == 1)
    except OSError:
        return False


# --- libzmq at the other end ---


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_libzmq_over_tcp(tmp_path: Path, host: str) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        if host == "[::1]":
            pytest.skip("this host has no ::1")
    with running(tmp_path, mib=1, endpoints=(f"tcp://{host}:*",)) as server:
        [endpoint] = server.endpoints
        assert endpoint.startswith(f"tcp://{host}:")
        assert not endpoint.endswith((":0", "*"))
        with Peer(endpoint) as one, Peer(endpoint) as other:
            one.attach()
            other.attach()
            tokens = prompt(8 * CHUNK)
            assert one.store(tokens) == 8
            assert other.read(tokens)[0] == 8
            for size in (0, 1, 254, 255, 256, 257, 70_000, p.MESSAGE_BYTES_MAX):
                assert one.raw(b"\xc1" * size).code == "message"
            for count, frames in enumerate(([bytes(p.MESSAGE_BYTES_MAX + 1)], [PING, PING]), 1):
                one.socket.send_multipart(frames)
                until(lambda count=count: status(server, "refused_connections") == count, 5)
                assert other.read(tokens)[0] == 8
                until(lambda: isinstance(one.raw(PING, timeout_s=0.2), p.Failure), 5)  # it is back


def test_a_stream_of_requests_is_answered_in_order(endpoint: str) -> None:
    with Peer(endpoint) as peer:
        for number in range(2000):
            peer.socket.send(p.encode(p.Ping(number, 0, 0)))
        assert [peer.answer().id for _ in range(2000)] == list(range(2000))


# --- Files of Unix sockets ---


def server_at(path: Path) -> Server:
    config = ServerConfig(
        cache=CacheConfig(max_local_cpu_size=1 / 1024), endpoints=(f"ipc://{path}",), http=None
    )
    return Server(config)


@contextmanager
def served(server: Server) -> Iterator[None]:
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.state != "starting", 10)
        assert server.ready
        yield
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()


def test_the_file_of_a_socket_is_for_its_user_alone(tmp_path: Path) -> None:
    path, mask = tmp_path / "s", os.umask(0)
    try:
        with served(server_at(path)):
            assert stat.S_ISSOCK(path.stat().st_mode)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert os.umask(0) == 0
        assert not path.exists()
    finally:
        os.umask(mask)


def test_the_socket_of_a_living_server_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with served(server_at(path)):
        inode = path.stat().st_ino
        for _ in range(2):
            with pytest.raises(StoreError, match="listens there already"):
                server_at(path).run()
        assert path.stat().st_ino == inode
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(path))


def test_the_socket_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    with served(server_at(path)), socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
    assert not path.exists()


@pytest.mark.parametrize("kind", ["file", "directory", "link", "datagrams"])
def test_what_is_no_socket_of_ours_is_left_alone(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "s", tmp_path / "target"
    target.write_text("precious")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        if kind == "file":
            path.write_text("precious")
        elif kind == "directory":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(target)
        else:
            datagrams.bind(str(path))
        before = path.lstat()
        with pytest.raises(StoreError, match="cannot listen at"):
            server_at(path).run()
        assert (path.lstat().st_ino, path.lstat().st_size) == (before.st_ino, before.st_size)
    assert target.read_text() == "precious"


def test_a_server_does_not_remove_the_socket_of_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "server"
    with running(tmp_path, mib=1), socket.socket(socket.AF_UNIX) as successor:
        path.unlink()
        successor.bind(str(path))
    assert path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_is_cut_off_whatever_the_mode_of_the_file(tmp_path: Path) -> None:
    program = (
        "import os, socket, sys; there = os.open(sys.argv[1], os.O_PATH); os.setuid(65534);"
        "peer = socket.socket(socket.AF_UNIX); peer.settimeout(5);"
        "peer.connect(f'/proc/self/fd/{there}'); print(peer.recv(64))"
    )
    with running(tmp_path, mib=1) as server:
        path = tmp_path / "server"
        path.chmod(0o666)
        command = [sys.executable, "-c", program, str(path)]
        told = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert told.stdout == "b''\n", told.stderr
        assert status(server, "refused_connections") == 1
        answers(server.endpoints[0])


def test_hashes_of_the_longest_prompt_pass(endpoint: str) -> None:
    with Peer(endpoint) as peer:
        peer.attach()
        longest = Prompt(bytes(16 * p.HASHES_MAX), CHUNK * p.HASHES_MAX, CHUNK)
        found = peer.want(p.Found, p.LookupRequest, longest)
        assert found.tiers == {"l1": 0}
        assert hashes_of(prompt(CHUNK))
