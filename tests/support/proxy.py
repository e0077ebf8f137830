"""A proxy that breaks things on the way between a client and a real server.

    with FaultProxy(server.host, server.port) as proxy:
        client = connect(proxy.host, proxy.port)
        proxy.down.delay_s = 0.020          # shape a direction at any time
        fault = proxy.cut_after(1 << 20)    # arm a fault; it fires once
        ...
        fault.wait_fired(), proxy.heal()

Two directions: ``up`` is client to server, ``down`` server to client. A Shape slows bytes, or turns
bits over at random. A fault changes the stream at an offset that counts from the moment it was
armed, on each connection by itself, in bytes of either direction as they were sent, or in replies;
the first connection that gets there takes it (``times`` of them). Pushes are not counted as
replies. Shapes and faults add up. What is random comes from ``seed``. toxics.py has names for all.

``opaque=True`` is for TLS and whatever else is not RESP: no faults by reply. Connections from an
address of ``spared_hosts`` pass as through a plain proxy, whatever is armed: that is how servers
that only know each other's proxies replicate in peace.

One thread does all the forwarding, so order is what it looks like; tests call from any thread.
Delays are exact to about 1 ms. Close it, or leave the ``with``: the thread ends, sockets close.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Collection
from typing import ClassVar, Literal, Self

from support.flow import BYTE_FAULTS, READ_BYTES, Ending, Fault, Link, Pipe, Shape, Tally
from support.resp import ReplyFramer

HOST = "127.0.0.1"
CLOSE_TIMEOUT_S = 5.0
RESET_WAIT_S = 1.0  # for the client to take what comes before an RST
SHAPE_CHECK_S = 0.05  # a Shape may change without a word
Direction = Literal["up", "down"]


class FaultProxy:
    """See the module."""

    settings: ClassVar = {"same_host": "tcp"}  # of clients: faults are for their connections

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        unix_path: str | None = None,
        listen_path: str | None = None,
        opaque: bool = False,
        seed: int = 0,
        spared_hosts: Collection[str] = (),
    ) -> None:
        """Of the server at host and port, or at ``unix_path``; itself at a free port, or at
        ``listen_path``. Port 0: the same as its own, where host is another address."""
        self.up, self.down = Shape(), Shape()
        self.tally_up, self.tally_down = Tally(), Tally()
        self.connections = 0  # accepted so far
        self.listen_path = listen_path
        self.seed = seed  # may change: for the connections to come
        self.error: Exception | None = None  # a bug of ours; close() raises it
        self.host, self.port = HOST, 0
        self._target: str | tuple[str, int] = unix_path or (host, port)
        self._links: list[Link] = []
        self._faults: dict[Direction, list[Fault]] = {"up": [], "down": []}
        self._opaque, self._spared_hosts = opaque, frozenset(spared_hosts)
        self._hole = self._closing = False
        self._lock = threading.RLock()
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._listener: socket.socket | None = None
        self.accept()
        if not port and not unix_path:
            self._target = (host, self.port)
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._thread.start()

    # What tests do.

    @property
    def url(self) -> str:
        if self.listen_path:
            return f"unix://{self.listen_path}"
        return f"{'rediss' if self._opaque else 'redis'}://{self.host}:{self.port}/0"

    @property
    def bytes_up(self) -> int:
        """Delivered so far, all that the other end can have."""
        with self._lock:  # sent and counted in one
            return self.tally_up.bytes

    @property
    def bytes_down(self) -> int:
        with self._lock:
            return self.tally_down.bytes

    @property
    def open_connections(self) -> int:
        with self._lock:
            return sum(not link.spared for link in self._links)

    def cut_after(
        self,
        byte: int,
        ending: Ending = "rst",
        times: int = 1,
        direction: Direction = "down",
    ) -> Fault:
        """Deliver ``byte`` more bytes, then end the connection."""
        return self._arm(Fault("cut", byte, times, ending=ending), direction)

    def stall_after(self, byte: int, times: int = 1, direction: Direction = "down") -> Fault:
        """Deliver ``byte`` more bytes, then nothing until heal()."""
        return self._arm(Fault("stall", byte, times), direction)

    def flip(
        self, byte: int, mask: int = 0x01, times: int = 1, direction: Direction = "down"
    ) -> Fault:
        """Change the byte after ``byte`` more: xor with ``mask``."""
        return self._arm(Fault("flip", byte, times, mask=mask), direction)

    def drop_reply(self, reply: int = 0, times: int = 1) -> Fault:
        """Swallow the reply that begins after ``reply`` more."""
        return self._arm(Fault("drop", reply, times))

    def duplicate_reply(self, reply: int = 0, times: int = 1) -> Fault:
        """Deliver that reply twice."""
        return self._arm(Fault("duplicate", reply, times))

    def insert_before_reply(self, data: bytes, reply: int = 0, times: int = 1) -> Fault:
        """Deliver ``data`` (a push, an attribute, garbage) just before that reply."""
        return self._arm(Fault("insert", reply, times, data=data))

    def black_hole(self) -> None:
        """From now on accept connections and swallow every byte, of old ones too."""
        self._do(lambda: setattr(self, "_hole", True))

    def half_open(self) -> None:
        """Open connections are dead, and nobody says so; new ones work."""

        def forget() -> None:
            for link in self._links:
                link.swallows = not link.spared

        self._do(forget)

    def lead_to(self, host: str, port: int) -> None:
        """Connections from now on are of that server, as where a name has another address."""
        self._target = (host, port)

    def refuse(self) -> None:
        """Close the listener: connecting is refused. Open connections stay."""

        def stop_listening() -> None:
            while self._open_link():  # those that were connected already
                pass
            self._close_listener()

        self._do(stop_listening)

    def accept(self) -> None:
        """Listen again, on the same port."""
        with self._lock:
            if self._listener is None:
                self._listener = self._listening()
        self._poke()

    def cut_now(self, ending: Ending = "rst") -> None:
        """End every open connection."""

        def cut() -> None:
            for link in list(self._links):
                if not link.spared:
                    self._drop(link, ending)

        self._do(cut)

    def heal(self) -> None:
        """A plain proxy again. Connections that a black hole has bitten are cut."""
        with self._lock:
            for shape in (self.up, self.down):
                shape.__dict__.update(Shape().__dict__)
            for faults in self._faults.values():
                faults.clear()
            self._hole = False
            for link in list(self._links):
                for pipe in link.pipes:
                    pipe.stalled, pipe.next_send_at = False, 0.0
                if link.swallows:
                    self._drop(link, "rst")
        self.accept()

    def close(self) -> None:
        """End the thread, close every socket; idempotent."""
        if self._closing:
            return
        self._closing = True
        self._poke()
        self._thread.join(CLOSE_TIMEOUT_S)
        assert not self._thread.is_alive(), "the proxy's thread does not end"
        for link in list(self._links):
            self._drop(link, "rst")
        self._close_listener()
        self._wake.close()
        self._waker.close()
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                with self._lock:
                    poller, by_fd, timeout_ms = self._interests()
                events = poller.poll(timeout_ms)
                with self._lock:
                    for fd, _ in events:
                        self._dispatch(*by_fd[fd])
                    now = time.monotonic()
                    for link in list(self._links):
                        self._advance(link, now)
        except Exception as error:  # close() raises it
            self.error = error
            self.cut_now()

    def _interests(
        self,
    ) -> tuple[select.poll, dict[int, tuple[socket.socket, Link | None]], float]:
        poller = select.poll()
        by_fd: dict[int, tuple[socket.socket, Link | None]] = {}
        now = time.monotonic()
        wake_at = [now + SHAPE_CHECK_S]
        for sock in (self._wake, self._listener):
            if sock is not None:
                by_fd[sock.fileno()] = (sock, None)
                poller.register(sock, select.POLLIN)
        for link in self._links:
            for sock, feeds, drains in link.ends():
                mask = select.POLLIN if self._may_read(link, feeds) else 0
                mask |= select.POLLOUT if drains.blocked else 0
                if mask:
                    by_fd[sock.fileno()] = (sock, link)
                    poller.register(sock, mask)
            wake_at += [at for pipe in link.pipes if (at := pipe.wake_at()) is not None]
            if link.reset_at is not None:
                wake_at.append(now + 0.001)
        return poller, by_fd, max(0.0, (min(wake_at) - now) * 1000)

    def _may_read(self, link: Link, pipe: Pipe) -> bool:
        return pipe.shape.reading and (pipe.wants_read() or self._swallows(link))

    def _swallows(self, link: Link) -> bool:
        return link.swallows or (self._hole and not link.spared)

    def _dispatch(self, sock: socket.socket, link: Link | None) -> None:
        if sock is self._wake:
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)
        elif sock is self._listener:
            self._open_link()
        elif link is not None and link in self._links:
            for end, feeds, drains in link.ends():
                if end is sock:
                    drains.blocked = False
                    if self._may_read(link, feeds):
                        self._read(link, feeds)

    def _open_link(self) -> bool:
        """Accept one connection; False where none waits."""
        if self._listener is None:
            return False
        try:
            client, source = self._listener.accept()
        except OSError:
            return False
        server = socket.socket(_family(self._target))
        server.settimeout(2.0)
        try:
            server.connect(self._target)
        except OSError:  # the client learns of it as of a server that died
            self.connections += 1
            client.close()
            server.close()
            return True
        spared = bool(source) and source[0] in self._spared_hosts
        self.connections += not spared
        shapes = (Shape(), Shape()) if spared else (self.up, self.down)
        tallies = (Tally(), Tally()) if spared else (self.tally_up, self.tally_down)
        seed = f"{self.seed} {self.connections}"
        framer = None if self._opaque or spared else ReplyFramer()
        up = Pipe(shapes[0], client, server, tallies[0], f"{seed} up")
        down = Pipe(shapes[1], server, client, tallies[1], f"{seed} down", framer)
        link = Link(client, server, up, down)
        link.spared = spared
        self._links.append(link)
        return True

    def _read(self, link: Link, pipe: Pipe) -> None:
        try:
            data = pipe.source.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._drop(link, "rst")
            return
        if self._swallows(link):
            link.swallows = True
            if not data:
                self._drop(link, "fin")
        elif data:
            faults = self._faults["up" if pipe is link.up else "down"]
            pipe.take(data, [] if link.spared else faults, time.monotonic())
        else:
            pipe.ended = True
            pipe.hold("eof", time.monotonic())

    def _advance(self, link: Link, now: float) -> None:
        """Deliver what is due in both directions, then end what has to end."""
        if link.reset_at is not None:
            if now >= link.reset_at or not link.unsent_bytes():
                self._drop(link, "rst")
            return
        for pipe in link.pipes:
            try:
                mark = pipe.deliver(now)
                if mark == "eof":
                    pipe.sink.shutdown(socket.SHUT_WR)
                    pipe.finished = True
                elif mark == "stall":
                    pipe.stalled = True
                elif mark == "fin":  # a close() over unread bytes would send RST
                    pipe.sink.shutdown(socket.SHUT_WR)
                    pipe.held.clear()
                    link.swallows = True
                elif mark == "rst":
                    link.reset_at = now + RESET_WAIT_S
            except OSError:
                self._drop(link, "rst")
                return
        if all(pipe.finished for pipe in link.pipes):
            self._drop(link, "fin")

    def _arm(self, fault: Fault, direction: Direction = "down") -> Fault:
        if fault.kind not in BYTE_FAULTS and self._opaque:
            raise ValueError("an opaque proxy does not know what a reply is")
        with self._lock:
            for link in self._links:
                fault.arm(link.up if direction == "up" else link.down)
            self._faults[direction].append(fault)
        return fault

    def _drop(self, link: Link, ending: Ending) -> None:
        link.close(ending)
        if link in self._links:
            self._links.remove(link)

    def _listening(self) -> socket.socket:
        place = self.listen_path or (HOST, self.port)
        listener = socket.socket(_family(place))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(128)
        listener.setblocking(False)
        if not self.listen_path:
            self.port = listener.getsockname()[1]
        return listener

    def _close_listener(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):  # close() alone waits for the poll to return
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
            if self.listen_path:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.listen_path)

    def _do(self, action: Callable[[], object]) -> None:
        with self._lock:
            action()
        self._poke()

    def _poke(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"!")


def _family(place: str | tuple[str, int]) -> socket.AddressFamily:
    if isinstance(place, str):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in place[0] else socket.AF_INET
