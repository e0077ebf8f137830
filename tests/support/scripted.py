"""A RESP server that answers what the test says: what no real server can be made to say.

    with ScriptedServer(oom(after=2), MiniStore()) as server: ...

A handler takes a Command (a list of bytes, with its connection) and returns bytes to send, an
Action, or None for "not mine": then the next handler is asked. Where no handler answers, the
reply is an unknown-command error. A thread per connection; close() ends them all.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar, Self

from support.resp import bulk, read_exactly, read_line

HOST = "127.0.0.1"
CLOSE_TIMEOUT_S = 5.0
LOGGED_BYTES_MAX = 64  # of each word in ScriptedServer.commands


@dataclass(eq=False)
class Connection:
    """What a handler may want to remember about who asks."""

    index: int  # 0 for the first connection of the server
    protocol: int = 2


class Command(list[bytes]):
    """The words of a command; ``name`` is the first, in capitals."""

    def __init__(self, words: Iterable[bytes], connection: Connection) -> None:
        super().__init__(words)
        self.connection = connection

    @property
    def name(self) -> bytes:
        return self[0].upper()


@dataclass(frozen=True)
class Close:
    """Send ``data``, then end the connection, by FIN or by RST."""

    data: bytes = b""
    rst: bool = False


@dataclass(frozen=True)
class Silence:
    """Say nothing, now and to all later commands of this connection; keep it open."""


@dataclass(frozen=True)
class Pieces:
    """Send these one by one, with a pause between them."""

    pieces: tuple[bytes, ...]
    pause_s: float = 0.0


Action = bytes | Close | Silence | Pieces
Handler = Callable[[Command], Action | None]


class ScriptedServer:
    """See the module.

    Args:
        handlers: Asked in order.
        greeting: Sent on accept, before any command; a Close ends the connection at once.
        port: 0: any.
    """

    settings: ClassVar = {"same_host": "tcp"}  # of clients: no questions but the test's

    def __init__(
        self, *handlers: Handler, greeting: bytes | Close | Pieces = b"", port: int = 0
    ) -> None:
        self.handlers = handlers
        self.greeting = greeting
        self.commands: list[list[bytes]] = []  # every command met, long words cut
        self.connections = 0
        self.errors: list[Exception] = []  # of handlers and of framing; a test may look
        self._open: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._listener = socket.create_server((HOST, port))
        self.host, self.port = self._listener.getsockname()
        self._accepter = threading.Thread(target=self._accept, name="scripted", daemon=True)
        self._accepter.start()

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    def names(self) -> list[bytes]:
        """The names of the commands met so far."""
        return [words[0].upper() for words in self.commands]

    def close(self) -> None:
        """End every connection and thread; idempotent."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepter.join(CLOSE_TIMEOUT_S)
        self._listener.close()
        with self._lock:
            threads = dict(self._open)
        for sock, thread in threads.items():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            thread.join(CLOSE_TIMEOUT_S)
            assert not thread.is_alive(), "a connection's thread does not end"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            connection = Connection(self.connections)
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock, connection), daemon=True)
            with self._lock:
                self._open[sock] = thread
            thread.start()

    def _serve(self, sock: socket.socket, connection: Connection) -> None:
        with sock, sock.makefile("rb") as stream:
            try:
                self._converse(sock, stream, connection)
            except (OSError, EOFError):
                pass  # the client left, or we close
            except Exception as error:
                self.errors.append(error)
        with self._lock:
            self._open.pop(sock, None)

    def _converse(self, sock: socket.socket, stream: BinaryIO, connection: Connection) -> None:
        going = self._perform(sock, self.greeting)
        while going and (words := _read_command(stream)):
            command = Command(words, connection)
            self.commands.append([word[:LOGGED_BYTES_MAX] for word in words])
            going = self._perform(sock, self._answer(command))
        while going is None and sock.recv(65536):
            pass  # silent, but the client can still send

    def _answer(self, command: Command) -> Action:
        for handler in self.handlers:
            action = handler(command)
            if action is not None:
                return action
        return b"-ERR unknown command '%b', with args beginning with: \r\n" % command[0][:128]

    def _perform(self, sock: socket.socket, action: Action) -> bool | None:
        """True: go on; False: the connection is over; None: be silent from now on."""
        match action:
            case Silence():
                return None
            case Close(data, rst):
                sock.sendall(data)
                if rst:
                    linger = struct.pack("ii", 1, 0)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                else:  # closing over unread commands would make it an RST
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65536):
                        pass
                return False
            case Pieces(pieces, pause_s):
                for piece in pieces:
                    sock.sendall(piece)
                    time.sleep(pause_s)
            case _:
                sock.sendall(action)
        return True


def _read_command(stream: BinaryIO) -> list[bytes]:
    """One command, array or inline; empty at the end."""
    if not stream.peek(1):  # type: ignore[attr-defined]  # a BufferedReader
        return []
    line = read_line(stream)
    if line[:1] != b"*":
        return line.split()
    words = []
    for _ in range(int(line[1:])):
        header = read_line(stream)
        if header[:1] != b"$":
            raise ValueError(f"a command's word begins with {header!r}")
        word = read_exactly(stream, int(header[1:]) + 2)
        if word[-2:] != b"\r\n":
            raise ValueError("a command's word is longer than it says")
        words.append(word[:-2])
    return words


# Handlers: one that stores, and presets that go before it.


@dataclass
class MiniStore:
    """The commands of a cache client, honestly answered, from a dictionary."""

    data: dict[bytes, bytes] = field(default_factory=dict)

    def __call__(self, command: Command) -> Action | None:
        words, here = command[1:], command.connection
        match command.name:
            case b"PING":
                return b"+PONG\r\n"
            case b"HELLO":
                here.protocol = int(words[0]) if words else here.protocol
                fields: list[bytes | int | None] = [
                    b"server",
                    b"redis",
                    b"version",
                    b"7.0.0",
                    b"proto",
                    here.protocol,
                ]
                fields += [b"id", here.index + 1, b"mode", b"standalone", b"role", b"master"]
                fields += [b"modules", None]
                start = b"%7\r\n" if here.protocol == 3 else b"*14\r\n"
                return start + b"".join(map(_spelled, fields))
            case b"AUTH" | b"CLIENT" | b"SELECT":
                return b"+OK\r\n"
            case b"SET":
                self.data[words[0]] = words[1]
                return b"+OK\r\n"
            case b"GET":
                value = self.data.get(words[0])
                null = b"_\r\n" if here.protocol == 3 else b"$-1\r\n"
                return null if value is None else bulk(value)
            case b"EXISTS" | b"TOUCH":
                return b":%d\r\n" % sum(key in self.data for key in words)
            case b"DEL" | b"UNLINK":
                gone = [self.data.pop(key, None) is not None for key in words]
                return b":%d\r\n" % sum(gone)
        return None


def _spelled(value: bytes | int | None) -> bytes:
    if value is None:
        return b"*0\r\n"
    return b":%d\r\n" % value if isinstance(value, int) else bulk(value)


HANDSHAKE = (b"HELLO", b"AUTH", b"CLIENT", b"SELECT")
WRITES = (b"SET", b"DEL", b"UNLINK", b"GETEX")


def answer(action: Action, *names: bytes, after: int = 0, times: int | None = None) -> Handler:
    """``action`` for commands of these names (none given: for all but the handshake).

    The first ``after`` of them pass by; then ``times`` are answered, or all.
    """
    seen = 0
    lock = threading.Lock()

    def handler(command: Command) -> Action | None:
        nonlocal seen
        mine = command.name in names if names else command.name not in HANDSHAKE
        if not mine:
            return None
        with lock:
            seen += 1
            due = seen > after and (times is None or seen <= after + times)
        return action if due else None

    return handler


def loading(times: int | None = None) -> Handler:
    return answer(b"-LOADING Redis is loading the dataset in memory\r\n", times=times)


def readonly() -> Handler:
    return answer(b"-READONLY You can't write against a read only replica.\r\n", *WRITES)


def oom(after: int = 0, times: int | None = None) -> Handler:
    text = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
    return answer(text, b"SET", after=after, times=times)


def noauth() -> Handler:
    """No password is ever good enough."""
    return answer(b"-NOAUTH Authentication required.\r\n")


def wrongpass() -> Handler:
    def handler(command: Command) -> Action | None:
        has_auth = command.name == b"AUTH" or b"AUTH" in [word.upper() for word in command]
        if command.name in (b"AUTH", b"HELLO") and has_auth:
            return b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
        return None

    return handler


def max_clients() -> Close:
    """A greeting: what a full server says."""
    return Close(b"-ERR max number of clients reached\r\n")


def resp2_only() -> Handler:
    """A server from before HELLO."""
    return answer(b"-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n", b"HELLO")


def noproto() -> Handler:
    return answer(b"-NOPROTO unsupported protocol version\r\n", b"HELLO")


def unknown_type(*names: bytes) -> Handler:
    """A reply whose first byte is no RESP type."""
    return answer(b"@7\r\n", *(names or (b"GET",)))


def silent(*names: bytes) -> Handler:
    """These commands, and all after them on that connection, are never answered."""
    return answer(Silence(), *names)


def truncated(value: bytes, keep: int) -> Handler:
    """GET promises ``value``, sends ``keep`` bytes of it and closes."""
    return answer(Close(bulk(value)[: len(bulk(value)) - 2 - len(value) + keep]), b"GET")


def streamed(value: bytes, piece_bytes: int = 4) -> Handler:
    """GET answers with a RESP3 streamed string."""
    pieces = [value[at : at + piece_bytes] for at in range(0, len(value), piece_bytes)]
    body = b"".join(b";%d\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return answer(b"$?\r\n" + body + b";0\r\n", b"GET")


def surrounded(handler: Handler, before: bytes = b"", after: bytes = b"") -> Handler:
    """Another handler's replies with bytes around them, except in the handshake."""

    def wrapper(command: Command) -> Action | None:
        action = handler(command)
        if isinstance(action, bytes) and command.name not in HANDSHAKE:
            return before + action + after
        return action

    return wrapper


PUSH = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n"
ATTRIBUTE = b"|1\r\n+key-popularity\r\n%1\r\n$1\r\na\r\n,0.1923\r\n"
