"""Bare TCP between two hosts, both ends of it ours: what the way gives when no store is on it.

    kvferry doctor --serve 10.0.0.2               there: sends random bytes to whoever asks
    kvferry doctor redis://10.0.0.2 --peer 10.0.0.2    here: asks, and compares with the store

Whoever connects is greeted with eight bytes, and sends eight: a count of bytes, big-endian. So many
come back; after a count of 0 each byte is answered with a byte. The server is bounded in its
lifetime, in connections, and for each of them in bytes and time.
"""

from __future__ import annotations

import os
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from kvferry.base.errors import UnavailableError
from kvferry.base.shown import reason_of
from kvferry.config.url import show_endpoint
from kvferry_lab.doctor.facts import BareFacts

__all__ = ["PORT", "SERVED_S", "BareServer", "measure_bare"]

PORT = 7419
SERVED_S = 600.0  # then the server ends by itself

_GREETING = b"kvferry1"
_COUNT = struct.Struct("!Q")
_BLOCK_BYTES = 1 << 20
_QUIET_S = 5.0  # without a byte, and the connection ends
_CONNECTIONS_MAX = 64
_EACH_BYTES_MAX = 16 << 30
_EACH_S = 20.0
_PINGS = 31
_POLL_S = 0.2
_WARM = 0.3  # of a point's time is not counted: windows have to grow
_POINT_S = 0.4


class BareServer:
    """Sends bytes to whoever asks for them; a thread for each connection.

    Args:
        host: The address to listen on.
        port: 0 lets the kernel choose.

    Raises:
        UnavailableError: That address cannot be listened on.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = PORT) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family)
        except OSError as error:
            where = show_endpoint(host, port)
            raise UnavailableError(f"cannot listen on {where}: {reason_of(error)}") from None
        self.port: int = self._listener.getsockname()[1]
        self.address = show_endpoint(host, self.port)
        self._block = memoryview(os.urandom(_BLOCK_BYTES))
        self._stopping = threading.Event()
        self._threads: set[threading.Thread] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self, for_s: float = SERVED_S) -> None:
        """Answer for so long, or until `stop`."""
        ends = time.monotonic() + for_s
        self._listener.settimeout(_POLL_S)
        while not self._stopping.is_set() and time.monotonic() < ends:
            self._threads = {thread for thread in self._threads if thread.is_alive()}
            try:
                link, _ = self._listener.accept()
            except TimeoutError:
                continue
            if len(self._threads) >= _CONNECTIONS_MAX:
                link.close()
                continue
            thread = threading.Thread(target=self._answer, args=(link,), daemon=True)
            self._threads.add(thread)
            thread.start()

    def stop(self) -> None:
        """End `serve` and all connections, soon; from any thread."""
        self._stopping.set()

    def close(self) -> None:
        """Stop, and wait for the connections to end; idempotent."""
        self.stop()
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _answer(self, link: socket.socket) -> None:
        ends = time.monotonic() + _EACH_S
        with link:
            try:
                link.settimeout(_QUIET_S)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                link.sendall(_GREETING)
                (count,) = _COUNT.unpack(_exactly(link, _COUNT.size))
                if count == 0:
                    self._echo(link, ends)
                left = min(count, _EACH_BYTES_MAX)
                while left > 0 and not self._is_over(ends):
                    left -= link.send(self._block[: min(left, _BLOCK_BYTES)])
            except (OSError, UnavailableError):
                pass  # it has what it wanted, or went away

    def _echo(self, link: socket.socket, ends: float) -> None:
        while not self._is_over(ends) and (word := link.recv(1)):
            link.sendall(word)

    def _is_over(self, ends: float) -> bool:
        return self._stopping.is_set() or time.monotonic() > ends


def measure_bare(
    host: str,
    port: int,
    connections: Sequence[int],
    moved_bytes_max: int,
    say: Callable[[str], None] = lambda _: None,
) -> BareFacts:
    """Round trip, and bytes received per second over each number of connections.

    Args:
        connections: The points; none of them measures the round trip alone.
        moved_bytes_max: No further point begins beyond that.
    """
    peer = show_endpoint(host, port)
    rates: dict[int, float] = {}
    rtt_s: float | None = None
    moved = 0
    try:
        rtt_s = _rtt(host, port)
        for count in connections:
            if count > _CONNECTIONS_MAX or moved > moved_bytes_max:
                break
            say(f"bare TCP over {count} connections")
            rates[count], some = _point(host, port, count)
            moved += some
    except (OSError, UnavailableError) as error:
        return BareFacts(peer=peer, rtt_s=rtt_s, by_connections=rates, skipped=str(error))
    return BareFacts(peer=peer, rtt_s=rtt_s, by_connections=rates)


def _rtt(host: str, port: int) -> float:
    with _ask(host, port, 0) as link:
        times = []
        for _ in range(_PINGS):
            started = time.perf_counter()
            link.sendall(b"?")
            _exactly(link, 1)
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def _point(host: str, port: int, count: int) -> tuple[float, int]:
    """Bytes per second, and bytes in all."""
    received = [0] * count
    failures: list[str] = []
    done = threading.Event()
    links: list[socket.socket] = []

    def take(index: int) -> None:
        into = bytearray(_BLOCK_BYTES)
        try:
            while not done.is_set():
                size = links[index].recv_into(into)
                if not size:
                    raise UnavailableError("the peer closed a connection")
                received[index] += size
        except (OSError, UnavailableError) as error:
            failures.append(str(error))
            done.set()

    threads = [threading.Thread(target=take, args=(index,)) for index in range(count)]
    try:
        for _ in range(count):
            links.append(_ask(host, port, _EACH_BYTES_MAX))
        for thread in threads:
            thread.start()
        done.wait(_WARM * _POINT_S)
        begun, before = time.perf_counter(), sum(received)
        done.wait((1 - _WARM) * _POINT_S)
        ended, after = time.perf_counter(), sum(received)
    finally:
        done.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        for link in links:
            link.close()
    if failures:
        raise UnavailableError(failures[0])
    return (after - before) / (ended - begun), after


def _ask(host: str, port: int, count: int) -> socket.socket:
    where = show_endpoint(host, port)
    try:
        link = socket.create_connection((host, port), _QUIET_S)
    except OSError as error:
        raise UnavailableError(f"cannot connect to {where}: {reason_of(error)}") from None
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _exactly(link, len(_GREETING)) != _GREETING:
            raise UnavailableError(f"{where} is not `kvferry doctor --serve`")
        link.sendall(_COUNT.pack(count))
    except TimeoutError:
        link.close()
        raise UnavailableError(f"{where} is not `kvferry doctor --serve`: no greeting") from None
    except BaseException:
        link.close()
        raise
    return link


def _exactly(link: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = link.recv(size - len(found))
        if not piece:
            raise UnavailableError("the peer closed the connection")
        found += piece
    return found
