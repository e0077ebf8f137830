"""A node among clients that say nothing, take nothing, or take long: memory, and who is cut."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kvferry import RedisClient
from support.programs import Program
from support.servers import wait_for

MIB = 1 << 20
CLIENTS = 120
_NODE = """
import signal, sys
from kvferry import RedisClient
from kvferry.node import Node, NodeSettings
with Node(NodeSettings(listen=("127.0.0.1:0",), size_gb=0.05, tuning={"threads": 2})) as node:
    port = node.endpoints[0].rpartition(":")[2]
    with RedisClient.from_url(f"redis://127.0.0.1:{port}") as client:
        client.set(sys.argv[1], bytes(16384))
    print(port, flush=True)
    signal.pause()
"""
_LENDER = """
import signal, sys
from kvferry._native import ChunkCache, PagePool
from kvferry.sharing.peers.lending import LendingNode
pool = PagePool(16384, 3000)
cache = ChunkCache(3000, pool=pool)
hashes = b"".join(number.to_bytes(16, "little") for number in range(1, 2501))
cache.commit(cache.reserve(hashes, 0, 60.0)[0])
node = LendingNode("127.0.0.1", [0], "word", {}, 32 << 20)
node.lend(cache, "kvf:test:", b"identity", 16384)
print(node.ports[0], flush=True)
signal.pause()
"""
USER = "peer:word"  # of the lender
KEY = "kvf:test:01" + 30 * "0"  # of the first chunk that is lent
GREEDY = {
    "texts": b"INFO\r\n" * 800,
    "keys": b"SCAN 0 COUNT 100000\r\n" * 400,
    "values": b"GET %b\r\n" % KEY.encode() * 200,
}


class Port(NamedTuple):
    """Where a node listens, and who may ask it: "USER:PASSWORD", or everybody."""

    number: int
    user: str = ""

    @property
    def url(self) -> str:
        """For a client."""
        return f"redis://{self.user}@127.0.0.1:{self.number}".replace("//@", "//")


@pytest.fixture(params=["node", "lender"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Program, Port]]:
    """A node in a process of its own, and where it listens."""
    with Program(_NODE if request.param == "node" else _LENDER, KEY) as program:
        user = "" if request.param == "node" else USER
        yield program, Port(int(program.read_line()), user)


def memory_mb(program: Program) -> float:
    """The most that the process has had."""
    status = Path(f"/proc/{program.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def dial(port: Port, *, says_who: bool = True) -> socket.socket:
    """A connection that takes little at a time."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", port.number))
    if port.user and says_who:
        one.sendall(f"AUTH {port.user.replace(':', ' ')}\r\n".encode())
    one.setblocking(False)
    return one


def press(one: socket.socket, words: bytes) -> None:
    """Send what can be sent."""
    try:
        while words:
            words = words[one.send(words) :]
    except OSError:
        pass  # full, or cut


@pytest.mark.parametrize("kind", GREEDY)
def test_who_does_not_read_takes_no_memory_from_others(
    served: tuple[Program, Port], kind: str
) -> None:
    program, port = served
    before = memory_mb(program)
    with RedisClient.from_url(port.url) as honest:
        assert not honest.exists("kvf:none")
        greedy = [dial(port) for _ in range(CLIENTS)]
        try:
            for _ in range(5):
                for one in greedy:
                    press(one, GREEDY[kind])
                assert not honest.exists("kvf:none")
        finally:
            for one in greedy:
                one.close()
        assert memory_mb(program) - before < 120


def test_arguments_and_trackers_have_one_budget(served: tuple[Program, Port]) -> None:
    program, port = served
    before = memory_mb(program)
    arguments = b"*90000\r\n$6\r\nEXISTS\r\n" + (b"$64\r\n" + b"k" * 64 + b"\r\n") * 80_000
    prefixes = [b"kvf:%d:" % number + b"p" * 4000 for number in range(64)]
    words = [b"CLIENT", b"TRACKING", b"ON", b"BCAST"]
    for prefix in prefixes:
        words += [b"PREFIX", prefix]
    tracking = b"HELLO 3\r\n*%d\r\n" % len(words)
    tracking += b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    with RedisClient.from_url(port.url) as honest:
        assert not honest.exists("kvf:none")
        hostile = [dial(port) for _ in range(2 * CLIENTS)]
        try:
            for number, one in enumerate(hostile):
                one.setblocking(True)
                one.settimeout(20)
                press(one, arguments if number % 4 == 0 else tracking)
            assert not honest.exists("kvf:none")
        finally:
            for one in hostile:
                one.close()
        assert memory_mb(program) - before < 150


def test_a_large_value_that_trickles_keeps_nobody_busy() -> None:
    with Program(_NODE, KEY) as program:
        port = Port(int(program.read_line()))
        with RedisClient.from_url(port.url) as honest, dial(port) as slow:
            press(slow, b"*3\r\n$3\r\nSET\r\n$4\r\nslow\r\n$%d\r\n" % (40 * MIB) + b"x" * 1000)
            for number in range(20):
                honest.set(f"key{number}", bytes(MIB))
                press(slow, b"x")
            assert honest.get("key19", bytearray(MIB))


def test_a_pool_that_is_quiet_and_a_tracker_stay(served: tuple[Program, Port]) -> None:
    _, port = served
    silent = [dial(port, says_who=False) for _ in range(20)]
    with RedisClient.from_url(port.url) as pool, dial(port) as tracker:
        assert not pool.exists("kvf:none")
        press(tracker, b"HELLO 3\r\nCLIENT TRACKING ON BCAST PREFIX kvf:\r\n")
        for one in silent:
            one.settimeout(60)
            assert one.recv(1) == b""  # who says nothing is cut after ten seconds
            one.close()
        tracker.setblocking(True)
        tracker.settimeout(60)
        said = b""
        press(tracker, b"PING\r\n")
        while b"+PONG\r\n" not in said:
            part = tracker.recv(4096)
            assert part
            said += part
        wait_for("the pool is served", lambda: not pool.exists("kvf:none"))
