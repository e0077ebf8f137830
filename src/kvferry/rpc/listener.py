"""The sockets of a server: connections come and go, messages come in, replies go out.

Everything is done by the thread that calls `wait`; others may call `wake`. A peer that does not
speak the protocol, says nothing at first, or does not take its replies, is cut off; nobody waits
for it. A process of another user is cut off at a Unix socket, whatever the mode of its file.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from kvferry.base.errors import StoreError
from kvferry.config.endpoints import ipc_path
from kvferry.rpc.zmtp import (
    GREETING,
    MESSAGE_BYTES_MAX,
    READY,
    ZmtpError,
    ZmtpParser,
    framed,
)

__all__ = ["Listener", "ServedConnection"]

_log = logging.getLogger("kvferry.rpc")

CONNECTIONS_MAX = 8192
_BACKLOG = 1024
# At once from one peer, so that it cannot keep the others waiting: 2,000 of the smallest requests.
_READ_BYTES = 1 << 15
# Replies that a peer does not read.
_UNREAD_BYTES_MAX = 4 * MESSAGE_BYTES_MAX
# How long a peer may take for its handshake, and for the rest of a message.
HANDSHAKE_S = 5.0
MESSAGE_S = 30.0
_IN, _OUT, _BROKEN = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR


class ServedConnection:
    """One peer."""

    __slots__ = ("began", "out", "socket", "waits_since", "wire")

    def __init__(self, peer: socket.socket) -> None:
        self.socket = peer
        self.wire = ZmtpParser(MESSAGE_BYTES_MAX)
        self.out = bytearray()
        self.began = time.monotonic()
        self.waits_since = 0.0  # when we first saw a message half, and none was whole since


class Listener:
    """All endpoints and all connections of a server.

    Args:
        handshake_s: How long a peer may take for its handshake.
        message_s: How long a peer may take for a message that it has begun.
    """

    def __init__(self, handshake_s: float = HANDSHAKE_S, message_s: float = MESSAGE_S) -> None:
        self._limits_s = handshake_s, message_s
        self._look_s = min(1.0, handshake_s / 4, message_s / 4)
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake_lock = threading.Lock()
        self._epoll.register(self._wake, _IN)
        self._endpoints: dict[int, socket.socket] = {}
        self._paths: list[tuple[Path, int]] = []
        self._watched: dict[int, Callable[[], object]] = {}
        self._connections: dict[int, ServedConnection] = {}
        self._came = memoryview(bytearray(_READ_BYTES))
        self._next_look = 0.0
        self._deaf = False  # there were no descriptors: nobody is accepted for a moment
        self._told = False  # that there were none, since the last one was accepted
        self.refused = 0

    def listen(self, endpoint: str) -> str:
        """Listen; the endpoint as it is, with the port that it got.

        Raises:
            StoreError: Somebody else has it, or the system refuses.
        """
        path = ipc_path(endpoint)
        try:
            server = _tcp(endpoint) if path is None else _unix(Path(path))
        except OSError as error:
            raise StoreError(
                f"cannot listen at {endpoint}: {error.strerror or error}; choose another --port or "
                "--ipc, or end the server that has it"
            ) from None
        server.setblocking(False)
        if path is not None:
            self._paths.append((Path(path), os.stat(path).st_ino))
        self._endpoints[server.fileno()] = server
        self._epoll.register(server.fileno(), _IN)
        if path is not None:
            return endpoint
        host, port = server.getsockname()[:2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    @property
    def connections(self) -> int:
        """How many peers there are."""
        return len(self._connections)

    def watch(self, descriptor: int, call: Callable[[], object]) -> None:
        """Have `wait` call this when a descriptor is readable, until it closes. Threads: any."""
        self._watched[descriptor] = call
        with suppress(ValueError):  # all has ended
            self._epoll.register(descriptor, _IN)

    def wake(self) -> None:
        """Have `wait` return soon. Threads: any, but no signal handler."""
        with self._wake_lock, suppress(BlockingIOError):
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def wait(self, timeout_s: float) -> Iterator[tuple[ServedConnection, bytes | memoryview]]:
        """Messages that came, each with who waits for its reply; it may be woken and have none.

        A message is there until the next one is taken.
        """
        for descriptor, event in self._epoll.poll(timeout_s):
            connection = self._connections.get(descriptor)
            if connection is not None:
                if event & _OUT:
                    self._flush(connection)
                if event & (_IN | _BROKEN):
                    yield from self._read(connection)
            elif descriptor == self._wake:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif descriptor in self._watched:
                self._watched[descriptor]()
            elif descriptor in self._endpoints:
                self._accept(self._endpoints[descriptor])
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + self._look_s
            self._look(now)

    def send(self, connection: ServedConnection, body: bytes) -> bool:
        """Send a reply, now or when the peer takes it; False: it is gone."""
        data = framed(body)
        if connection.out:
            if len(connection.out) + len(data) > _UNREAD_BYTES_MAX:
                self._drop(connection, "it does not read its replies")
                return False
            connection.out += data
            return True
        try:
            sent = connection.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection)
            return False
        if sent < len(data):
            connection.out += data[sent:]
            self._epoll.modify(connection.socket.fileno(), _IN | _OUT)
        return True

    def close(self) -> None:
        """Drop everybody; remove the files of Unix sockets that are still ours. Again is fine."""
        if self._wake < 0:
            return
        for connection in list(self._connections.values()):
            self._drop(connection)
        for server in self._endpoints.values():
            server.close()
        for path, inode in self._paths:
            _remove_own(path, inode)
        self._endpoints.clear()
        self._epoll.close()
        with self._wake_lock:
            os.close(self._wake)
            self._wake = -1

    # --- One connection ---

    def _accept(self, server: socket.socket) -> None:
        for _ in range(64):
            try:
                peer, _ = server.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    self._hear(False)
                return
            try:
                self._begin(peer)
            except OSError:  # it has gone already, or the system has no room for it
                peer.close()

    def _begin(self, peer: socket.socket) -> None:
        if len(self._connections) >= CONNECTIONS_MAX or not _is_ours(peer):
            self.refused += 1
            peer.close()
            return
        peer.setblocking(False)
        if peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        self._epoll.register(peer.fileno(), _IN)
        connection = self._connections[peer.fileno()] = ServedConnection(peer)
        self._told = False
        self._raw(connection, GREETING)

    def _hear(self, whether: bool) -> None:
        """Stop to accept when there are no descriptors, and begin again."""
        self._deaf = not whether
        if self._deaf and not self._told:
            self._told = True
            _log.warning("there are no descriptors left (ulimit -n): nobody new is let in for now")
        for descriptor in self._endpoints:
            self._epoll.modify(descriptor, _IN if whether else 0)

    def _read(
        self, connection: ServedConnection
    ) -> Iterable[tuple[ServedConnection, bytes | memoryview]]:
        came, wire = self._came, connection.wire
        try:
            size = connection.socket.recv_into(came)
        except BlockingIOError:
            return ()
        except OSError:
            size = 0
        if not size:
            self._drop(connection)
            return ()
        if begin := wire.only(came, size):
            connection.waits_since = 0.0
            return ((connection, came[begin:size]),)
        was_ready = wire.ready
        try:
            messages = wire.feed(bytes(came[:size]))
        except ZmtpError as error:
            self.refused += 1
            self._drop(connection, str(error))
            return ()
        if wire.ready and not was_ready:
            self._raw(connection, READY)
        if messages:
            connection.waits_since = 0.0
        return [(connection, message) for message in messages]

    def _raw(self, connection: ServedConnection, data: bytes) -> None:
        """Send a part of the handshake, which fits into any socket's buffer."""
        try:
            connection.socket.send(data)
        except OSError:
            self._drop(connection)

    def _flush(self, connection: ServedConnection) -> None:
        try:
            sent = connection.socket.send(connection.out)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)
            return
        del connection.out[:sent]
        if not connection.out:
            self._epoll.modify(connection.socket.fileno(), _IN)

    def _look(self, now: float) -> None:
        if self._deaf:
            self._hear(True)
        handshake_s, message_s = self._limits_s
        for connection in list(self._connections.values()):
            if not connection.wire.ready:
                if now - connection.began > handshake_s:
                    self.refused += 1
                    self._drop(connection, "no handshake")
            elif not connection.wire.half:
                connection.waits_since = 0.0
            elif not connection.waits_since:
                connection.waits_since = now
            elif now - connection.waits_since > message_s:
                self._drop(connection, "half a message")

    def _drop(self, connection: ServedConnection, why: str = "") -> None:
        if why:
            _log.info("a connection was ended: %s", why)
        if self._connections.pop(connection.socket.fileno(), None) is not None:
            connection.socket.close()
            connection.out.clear()  # who still sends to it is told


def _tcp(endpoint: str) -> socket.socket:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    host = host.strip("[]")
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, 0 if port == "*" else int(port)))
        server.listen(_BACKLOG)
    except BaseException:
        server.close()
        raise
    return server


def _unix(path: Path) -> socket.socket:
    _remove_stale(path)
    server = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        server.bind(str(path))
        server.listen(_BACKLOG)
    except BaseException:
        server.close()
        raise
    finally:
        os.umask(mask)
    return server


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that died; that of a living one is an error.

    Raises:
        OSError: There is a server, or something that is none of ours.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EEXIST, "there is a file that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        else:
            raise OSError(errno.EADDRINUSE, "a server listens there already")


def _remove_own(path: Path, inode: int) -> None:
    """Remove the file of our socket, unless somebody else has put another one there."""
    with suppress(OSError):
        if path.stat().st_ino == inode:
            path.unlink()


def _is_ours(peer: socket.socket) -> bool:
    """Whether a local peer is of our user, or root."""
    if peer.family != socket.AF_UNIX:
        return True
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return uid in (0, os.geteuid())
