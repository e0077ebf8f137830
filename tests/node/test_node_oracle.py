"""A node answers as Valkey does, byte for byte, on random mixes of the commands that both have."""

from __future__ import annotations

import re
import socket
import time

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from support.node_server import NodeServer
from support.resp import encode
from support.servers import TestServer

KEYS = (b"a", b"b", b"key:1", b"\0c\r\n", b"d" * 300)
VALUES = (b"", b"x", b"12", b"y" * 3000, b"z" * 200_000)
NUMBERS = (b"-1", b"0", b"1000000", b"7000000", b"9223372036854775807", b"1.5", b"x", b"+5", b" 1")

a_key = st.sampled_from(KEYS)
a_value = st.sampled_from(VALUES)
a_number = st.sampled_from(NUMBERS)
a_unit = st.sampled_from([b"EX", b"PX", b"ex", b"NX", b"FOO"])
some_keys = st.lists(a_key, max_size=4).map(tuple)
a_pattern = st.sampled_from([b"*", b"k*", b"?", b"[ab]", b"[^a]", b"key:[0-9]", b"\\a", b"["])


def words(name: bytes, *parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[tuple[bytes, ...]]:
    return st.tuples(st.just(name), *parts)


def listed(name: bytes) -> st.SearchStrategy[tuple[bytes, ...]]:
    return some_keys.map(lambda keys: (name, *keys))


a_set = st.tuples(a_key, a_value, st.lists(st.one_of(a_unit, a_number), max_size=3).map(tuple)).map(
    lambda parts: (b"SET", parts[0], parts[1], *parts[2])
)
a_command = st.one_of(
    words(b"SET", a_key, a_value),
    a_set,
    words(b"SET", a_key, a_value, st.sampled_from([b"EX", b"PX"]), a_number),
    words(b"get", a_key),
    words(b"STRLEN", a_key),
    words(b"TYPE", a_key),
    words(b"TTL", a_key),
    *(listed(name) for name in (b"DEL", b"unlink", b"EXISTS", b"TOUCH")),
    words(b"SCAN", st.sampled_from([b"0", b"x", b"-1"]), st.just(b"COUNT"), st.just(b"x")),
    words(
        b"SCAN", st.just(b"0"), st.just(b"COUNT"), st.just(b"1000"), st.just(b"MATCH"), a_pattern
    ),
    words(b"PING", a_value),
    words(b"SELECT", st.sampled_from([b"0", b"x"])),
    words(b"FLUSHALL", st.sampled_from([b"SYNC", b"ASYNC", b"NOW"])),
    words(b"HELLO", st.sampled_from([b"1", b"x"])),
    words(b"CLIENT", st.sampled_from([b"SETNAME", b"FOO"]), st.just(b"name")),
    words(b"CLIENT", st.sampled_from([b"SETNAME", b"KILL"])),
    words(b"CLIENT", st.just(b"KILL"), st.just(b"ID"), st.sampled_from([b"0", b"99999"])),
    st.sampled_from([(b"DBSIZE",), (b"GET",), (b"SET", b"a"), (b"FOO", b"a", b"\r\n"), (b"PING",)]),
)
UNORDERED = (b"SCAN",)


class Talk:
    """One connection, and what it answers up to a PING behind each command."""

    def __init__(self, port: int, proto: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 60)
        self._held = b""
        self.mark = 0
        if proto == 3:
            self._socket.sendall(encode("HELLO", "3"))
            self.ask((b"PING",))

    def ask(self, command: tuple[bytes, ...]) -> bytes:
        self.mark += 1
        end = b"$10\r\nend-%06d\r\n" % self.mark
        self._socket.sendall(encode(*command) + encode(b"PING", b"end-%06d" % self.mark))
        while not self._held.endswith(end):
            piece = self._socket.recv(1 << 20)
            assert piece, f"the connection ended behind {command!r}"
            self._held += piece
        answer, self._held = self._held.removesuffix(end), b""
        return answer

    def close(self) -> None:
        self._socket.close()


def comparable(command: tuple[bytes, ...], answer: bytes) -> object:
    if command[0] in UNORDERED and not answer.startswith(b"-"):
        return sorted(re.split(rb"\r\n", answer))
    return answer


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(proto=st.sampled_from([2, 3]), commands=st.lists(a_command, min_size=5, max_size=60))
def check(
    node: NodeServer, real: TestServer, proto: int, commands: list[tuple[bytes, ...]]
) -> None:
    node.flush()
    real.flush()
    ours, theirs = Talk(node.port, proto), Talk(real.port, proto)
    try:
        for command in commands:
            for _ in range(3):  # a second may end between the two
                got = comparable(command, ours.ask(command))
                wanted = comparable(command, theirs.ask(command))
                if got == wanted or command[0] != b"TTL":
                    break
                time.sleep(0.1)
            assert got == wanted, command
    finally:
        ours.close()
        theirs.close()


def test_a_node_answers_as_valkey_does(valkey_session: TestServer) -> None:
    with NodeServer() as node:
        check(node, valkey_session)
