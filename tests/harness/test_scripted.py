"""The scripted server says what its script says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pytest

from support import scripted
from support.resp import ReplyError, encode, read_reply
from support.scripted import Close, MiniStore, Pieces, ScriptedServer


class Talk:
    """A connection that sends commands and reads replies."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.stream: BinaryIO = sock.makefile("rb")

    def __call__(self, *words: bytes | str | int) -> Any:
        self.sock.sendall(encode(*words))
        return read_reply(self.stream)


@contextmanager
def talk(server: ScriptedServer) -> Iterator[Talk]:
    with socket.create_connection((server.host, server.port), 5) as sock:
        conversation = Talk(sock)
        with conversation.stream:
            yield conversation


def code(reply: Any) -> str:
    assert isinstance(reply, ReplyError), reply
    return str(reply).split()[0]


def test_mini_store_stores() -> None:
    with ScriptedServer(MiniStore()) as server, talk(server) as ask:
        assert ask("PING") == b"PONG"
        assert ask("SET", "k", b"a\r\nb" * 100_000) == b"OK"
        assert ask("GET", "k") == b"a\r\nb" * 100_000
        assert ask("GET", "none") is None
        assert ask("HELLO", 3)[b"proto"] == 3
        assert ask("GET", "none") is None
        assert ask("TOUCH", "k", "none", "k") == 2
        assert ask("DEL", "k", "none") == 1
        assert code(ask("FLY")) == "ERR"
        assert server.names()[:2] == [b"PING", b"SET"]
        assert server.errors == []


@pytest.mark.parametrize(
    ("handler", "command", "expected"),
    [
        (scripted.loading(), ("GET", "k"), "LOADING"),
        (scripted.readonly(), ("SET", "k", "v"), "READONLY"),
        (scripted.noauth(), ("GET", "k"), "NOAUTH"),
        (scripted.wrongpass(), ("AUTH", "u", "p"), "WRONGPASS"),
        (scripted.wrongpass(), ("HELLO", "3", "AUTH", "u", "p"), "WRONGPASS"),
        (scripted.oom(), ("SET", "k", "v"), "OOM"),
        (scripted.resp2_only(), ("HELLO", "3"), "ERR"),
        (scripted.noproto(), ("HELLO", "3"), "NOPROTO"),
    ],
)
def test_error_presets(handler: scripted.Handler, command: tuple[str, ...], expected: str) -> None:
    with ScriptedServer(handler, MiniStore()) as server, talk(server) as ask:
        assert code(ask(*command)) == expected
        assert ask("CLIENT", "SETINFO") == b"OK"


def test_oom_in_the_middle_of_a_batch() -> None:
    with ScriptedServer(scripted.oom(after=2, times=1), MiniStore()) as server:
        with talk(server) as ask:
            ask.sock.sendall(b"".join(encode("SET", f"k{i}", "v") for i in range(4)))
            replies = [read_reply(ask.stream) for _ in range(4)]
        assert replies[:2] == [b"OK", b"OK"]
        assert code(replies[2]) == "OOM"
        assert replies[3] == b"OK"


def test_loading_ends() -> None:
    with ScriptedServer(scripted.loading(times=2), MiniStore()) as server, talk(server) as ask:
        replies = [ask("PING") for _ in range(3)]
        assert [isinstance(reply, ReplyError) for reply in replies] == [True, True, False]


def test_max_clients_greets_and_closes() -> None:
    with ScriptedServer(greeting=scripted.max_clients()) as server, talk(server) as ask:
        assert "max number of clients" in str(read_reply(ask.stream))
        assert ask.sock.recv(1) == b""


def test_unknown_type_and_streamed_string() -> None:
    handlers = [scripted.unknown_type(b"STRLEN"), scripted.streamed(b"0123456789")]
    with ScriptedServer(*handlers, MiniStore()) as server, talk(server) as ask:
        with pytest.raises(ValueError, match="unknown reply"):
            ask("STRLEN", "k")
        ask.sock.sendall(encode("GET", "k") + encode("PING"))
        wanted = b"$?\r\n;4\r\n0123\r\n;4\r\n4567\r\n;2\r\n89\r\n;0\r\n+PONG\r\n"
        assert ask.stream.read(len(wanted)) == wanted


def test_pushes_and_attributes_around_replies() -> None:
    store = MiniStore()
    handler = scripted.surrounded(store, scripted.PUSH + scripted.ATTRIBUTE, scripted.PUSH)
    with ScriptedServer(handler) as server, talk(server) as ask:
        assert ask("SET", "k", "v") == b"OK"
        assert ask("GET", "k") == b"v"
        ask.sock.sendall(encode("PING"))
        wanted = scripted.PUSH + scripted.PUSH + scripted.ATTRIBUTE + b"+PONG\r\n" + scripted.PUSH
        assert ask.stream.read(len(wanted)) == wanted


def test_truncated_closes_in_the_value() -> None:
    with ScriptedServer(scripted.truncated(b"x" * 1000, keep=10)) as server, talk(server) as ask:
        ask.sock.sendall(encode("GET", "k"))
        assert ask.stream.read() == b"$1000\r\n" + b"x" * 10


def test_reset_and_pieces() -> None:
    handlers = [
        scripted.answer(Close(rst=True), b"DIE"),
        scripted.answer(Pieces((b"+PO", b"NG\r\n"), pause_s=0.01), b"PING"),
    ]
    with ScriptedServer(*handlers) as server, talk(server) as ask:
        assert ask("PING") == b"PONG"
        with pytest.raises(ConnectionResetError):
            ask("DIE")


def test_silent_stays_silent_and_open() -> None:
    with ScriptedServer(scripted.silent(b"GET"), MiniStore()) as server, talk(server) as ask:
        assert ask("PING") == b"PONG"
        ask.sock.settimeout(0.1)
        ask.sock.sendall(encode("GET", "k") + encode("PING"))
        with pytest.raises(TimeoutError):
            ask.sock.recv(1)


def test_close_ends_connections_and_threads() -> None:
    before = threading.active_count()
    server = ScriptedServer(scripted.silent(b"GET"), MiniStore())
    with talk(server) as ask:
        assert ask("PING") == b"PONG"
        ask.sock.sendall(encode("GET", "k"))
        server.close()
        assert ask.sock.recv(1) == b""
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.host, server.port), 1)


def test_a_broken_handler_is_not_hidden() -> None:
    def broken(command: scripted.Command) -> bytes:
        raise RuntimeError("oops")

    with ScriptedServer(broken) as server, talk(server) as ask:
        with pytest.raises(EOFError):
            ask("PING")
        assert [str(error) for error in server.errors] == ["oops"]
