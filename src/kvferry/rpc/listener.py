"""The sockets of a server: connections come and go, messages come in, replies go out.

Everything is done by the thread that calls `wait`; others may call `wake`. A peer that does not
speak the protocol, says nothing at first, or does not take its replies, is cut off; nobody waits
for it. A process of another user is cut off at a Unix socket, whatever the mode of its file.

Where there is no room for a newcomer, the origin that has most connections makes room for one that
has less. An origin is the address that a connection comes from, and of IPv6 its network of 64 bits,
which is what one host has to choose from.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import select
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvferry.base.local_secret import is_own_process
from kvferry.base.socket_folder import remove_if_left
from kvferry.config.endpoints import ipc_path
from kvferry.config.url import show_endpoint
from kvferry.rpc.channel import Wake
from kvferry.rpc.zmtp import (
    GREETING,
    MESSAGE_BYTES_MAX,
    READY,
    ZmtpError,
    ZmtpParser,
    framed,
)

__all__ = ["Listener", "ServedConnection", "greediest", "origin_of"]

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
_NETWORK_BYTES = 8  # of an IPv6 address
_IN, _OUT, _BROKEN = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR


class ServedConnection:
    """One peer.

    Attributes:
        host: Its address as the system has it; empty: it is on this host.
        about: Whatever the listener's owner knows of it.
    """

    __slots__ = ("about", "began", "held", "host", "out", "socket", "waits_since", "wire")

    def __init__(self, peer: socket.socket, host: str = "") -> None:
        self.socket = peer
        self.host = host
        self.about: Any = None
        self.held = False
        self.wire = ZmtpParser(MESSAGE_BYTES_MAX)
        self.out = bytearray()
        self.began = time.monotonic()
        self.waits_since = 0.0  # when we first saw a message half, and none was whole since


class Listener:
    """All endpoints and all connections of a server.

    Args:
        handshake_s: How long a peer may take for its handshake.
        message_s: How long a peer may take for a message that it has begun.
        connections_max: How many peers there may be.
        unmet_max: How many of them that have not greeted; the oldest makes room for a new one.
        greets: Makes the first message to each new peer, which has to answer it in the time of the
            handshake, until its owner says `met`. Without it the handshake is all.
    """

    def __init__(
        self,
        handshake_s: float = HANDSHAKE_S,
        message_s: float = MESSAGE_S,
        connections_max: int = CONNECTIONS_MAX,
        unmet_max: int = CONNECTIONS_MAX,
        greets: Callable[[ServedConnection], bytes] | None = None,
    ) -> None:
        self._connections_max, self._unmet_max = connections_max, unmet_max
        self._greets = greets
        self._unmet: dict[ServedConnection, None] = {}  # the oldest first
        self._limits_s = handshake_s, message_s
        self._look_s = min(1.0, handshake_s / 4, message_s / 4)
        self._epoll = select.epoll()
        self._wake = Wake()
        self._epoll.register(self._wake.fd, _IN)
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
            OSError: Somebody else has it, or the system refuses.
        """
        path = ipc_path(endpoint)
        server = _tcp(endpoint) if path is None else _unix(Path(path))
        server.setblocking(False)
        if path is not None:
            self._paths.append((Path(path), os.stat(path).st_ino))
        self._endpoints[server.fileno()] = server
        self._epoll.register(server.fileno(), _IN)
        if path is not None:
            return endpoint
        host, port = server.getsockname()[:2]
        return f"tcp://{show_endpoint(host, port)}"

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
        """Have `wait` return soon. Threads: any."""
        self._wake()

    def wait(self, timeout_s: float) -> Iterator[tuple[ServedConnection, bytes | memoryview]]:
        """Messages that came, each with who waits for its reply; it may be woken and have none.

        A message is there until the next one is taken.
        """
        for descriptor, event in self._epoll.poll(timeout_s):
            connection = self._connections.get(descriptor)
            if connection is not None:
                if event & _OUT:
                    self._flush(connection)
                if event & _BROKEN and connection.held:
                    self.drop(connection)
                elif event & (_IN | _BROKEN):
                    yield from self._read(connection)
            elif descriptor == self._wake.fd:
                self._wake.clear()
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
                self.drop(connection, "it does not read its replies")
                return False
            connection.out += data
            return True
        try:
            sent = connection.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.drop(connection)
            return False
        if sent < len(data):
            connection.out += data[sent:]
            self._arm(connection)
        return True

    def met(self, connection: ServedConnection) -> None:
        """A peer has greeted as it should."""
        self._unmet.pop(connection, None)

    def hold(self, connection: ServedConnection, whether: bool) -> None:
        """Read nothing of a peer, who is not waited for meanwhile; or go on."""
        connection.held = whether
        connection.waits_since = 0.0
        if connection.socket.fileno() in self._connections:
            self._arm(connection)

    def drop(self, connection: ServedConnection, why: str = "", last: bytes | None = None) -> None:
        """End a connection.

        Args:
            connection: It may have ended.
            why: For the log; empty: nothing to say.
            last: A message that is sent before, if the peer takes it at once.
        """
        if why:
            _log.info("a connection was ended: %s", why)
        if self._connections.get(connection.socket.fileno()) is connection:
            if last is not None:
                self.send(connection, last)
            self._connections.pop(connection.socket.fileno(), None)
            self._unmet.pop(connection, None)
            connection.socket.close()
            connection.out.clear()  # who still sends to it is told

    def close(self) -> None:
        """Drop everybody; remove the files of Unix sockets that are still ours. Again is fine."""
        for connection in list(self._connections.values()):
            self.drop(connection)
        for server in self._endpoints.values():
            server.close()
        for path, inode in self._paths:
            _remove_own(path, inode)
        self._endpoints.clear()
        self._paths.clear()
        self._epoll.close()

    # --- One connection ---

    def _accept(self, server: socket.socket) -> None:
        for _ in range(64):
            try:
                peer, address = server.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    self._hear(False)
                return
            try:
                self._begin(peer, address[0] if peer.family != socket.AF_UNIX else "")
            except BaseException as error:
                peer.close()
                if not isinstance(error, OSError):  # else it has gone, or the system has no room
                    raise

    def _begin(self, peer: socket.socket, host: str) -> None:
        local = peer.family == socket.AF_UNIX
        full = len(self._connections) >= self._connections_max
        if (local and not is_own_process(peer)) or (full and not self._make_room(origin_of(host))):
            self.refused += 1
            peer.close()
            return
        if len(self._unmet) >= self._unmet_max:
            self.refused += 1
            self.drop(next(iter(self._unmet)))
        peer.setblocking(False)
        if not local:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        self._epoll.register(peer.fileno(), _IN)
        connection = self._connections[peer.fileno()] = ServedConnection(peer, host)
        self._unmet[connection] = None
        self._told = False
        self._raw(connection, GREETING)

    def _make_room(self, newcomer: str) -> bool:
        """End a connection of the origin that has most; False: no other origin has more."""
        held = list(self._connections.values())
        origin = greediest((origin_of(one.host) for one in held), newcomer)
        if origin is None:
            return False
        self.refused += 1
        self.drop(next(one for one in reversed(held) if origin_of(one.host) == origin))
        return True

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
            self.drop(connection)
            return ()
        if begin := wire.only(came, size):
            connection.waits_since = 0.0
            return ((connection, came[begin:size]),)
        was_ready = wire.ready
        try:
            messages = wire.feed(bytes(came[:size]))
        except ZmtpError as error:
            self.refused += 1
            self.drop(connection, str(error))
            return ()
        if wire.ready and not was_ready:
            self._raw(connection, READY)
            if self._greets is None:
                self.met(connection)
            else:
                self.send(connection, self._greets(connection))
        if messages:
            connection.waits_since = 0.0
        return [(connection, message) for message in messages]

    def _raw(self, connection: ServedConnection, data: bytes) -> None:
        """Send a part of the handshake, which fits into any socket's buffer."""
        try:
            connection.socket.send(data)
        except OSError:
            self.drop(connection)

    def _flush(self, connection: ServedConnection) -> None:
        try:
            sent = connection.socket.send(connection.out)
        except BlockingIOError:
            return
        except OSError:
            self.drop(connection)
            return
        del connection.out[:sent]
        if not connection.out:
            self._arm(connection)

    def _arm(self, connection: ServedConnection) -> None:
        """Have `wait` hear what it has to hear of a connection."""
        events = (0 if connection.held else _IN) | (_OUT if connection.out else 0)
        self._epoll.modify(connection.socket.fileno(), events)

    def _look(self, now: float) -> None:
        if self._deaf:
            self._hear(True)
        handshake_s, message_s = self._limits_s
        for connection in list(self._connections.values()):
            if connection in self._unmet:
                if now - connection.began > handshake_s:
                    self.refused += 1
                    self.drop(connection, "no handshake")
            elif connection.held or not connection.wire.half:
                connection.waits_since = 0.0
            elif not connection.waits_since:
                connection.waits_since = now
            elif now - connection.waits_since > message_s:
                self.drop(connection, "half a message")


def origin_of(host: str) -> str:
    """The origin of an address as the system has it; see the module."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or address.packed[:_NETWORK_BYTES].hex())


def greediest(held: Iterable[str], newcomer: str) -> str | None:
    """The origin that has to make room for a newcomer's; None: no other one has more."""
    counts = Counter(held)
    origin, most = counts.most_common(1)[0]
    return origin if counts[newcomer] + 1 < most else None


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
    if not remove_if_left(path):
        raise OSError(errno.EADDRINUSE, "a server listens there already")


def _remove_own(path: Path, inode: int) -> None:
    """Remove the file of our socket, unless somebody else has put another one there."""
    with suppress(OSError):
        if path.stat().st_ino == inode:
            path.unlink()
