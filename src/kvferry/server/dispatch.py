"""The socket of the server: one thread that reads requests and answers them.

What memory knows is answered at once: it takes microseconds. What may wait, for a store or for the
kernel, goes to threads, and the reply comes back through a queue. So no client waits for another
one's stores, and a client that has too much under way is told so.

A reply that its client does not take is dropped, as ZeroMQ does it: nobody slow holds up the loop.

The loop waits in `recv` and nowhere else, which costs half of what polling does. Threads wake it by
a message of their own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import zmq

from kvferry.errors import KVFerryError, UsageError
from kvferry.server import protocol
from kvferry.server.protocol import MESSAGE_BYTES_MAX, Failure, Reply, Request

__all__ = ["Dispatcher", "Later", "Refused"]

_log = logging.getLogger("kvferry.server")

TICK_S = 0.25
_WAKE_ENDPOINT = "inproc://wake"
_WAKE_ROUTE = b"wake"
_THREADS = 32
# Requests that may wait for a thread; beyond it all are told that the server is busy.
_WAITING_MAX = 4096


class Refused(Exception):
    """A request is answered with a `Failure`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Later:
    """What a handler returns for work that may wait: it is run in a thread, and makes the reply.

    Args:
        work: Makes the reply.
        over: Called in the loop when that has been sent, or failed.
    """

    __slots__ = ("over", "work")

    def __init__(self, work: Callable[[], Reply], over: Callable[[], None]) -> None:
        self.work = work
        self.over = over


class Dispatcher:
    """The loop.

    Args:
        socket: A ROUTER that is bound; the loop owns it.
        handle: From a request to its reply, or to `Later`; raises `Refused` or `UsageError`.
        tick: Called several times a second.

    Attributes:
        requests: How many came, by the name of their kind.
        failures: How many were refused, by code.
        beat: When the loop last turned, by ``time.monotonic``.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        handle: Callable[[Request], Reply | Later],
        tick: Callable[[], None],
    ) -> None:
        self._socket = socket
        self._handle = handle
        self._tick = tick
        self._threads = ThreadPoolExecutor(_THREADS, "kvferry-serve")
        self._waiting = 0
        self._done: deque[tuple[bytes, Reply, Callable[[], None]]] = deque()
        socket.bind(_WAKE_ENDPOINT)
        self._wake = socket.context.socket(zmq.DEALER)
        self._wake.setsockopt(zmq.LINGER, 0)
        self._wake.setsockopt(zmq.ROUTING_ID, _WAKE_ROUTE)
        self._wake.connect(_WAKE_ENDPOINT)
        self._wake_lock = threading.Lock()
        self._stopping = False
        self.requests: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self.received_bytes = self.sent_bytes = 0
        self.beat = time.monotonic()

    def run(self) -> None:
        """Serve until `stop`."""
        self._socket.setsockopt(zmq.RCVTIMEO, int(TICK_S * 1000))
        next_tick = 0.0
        try:
            while not self._stopping:
                now = self.beat = time.monotonic()
                if now >= next_tick:
                    self._tick()
                    next_tick = now + TICK_S
                try:
                    frames = self._socket.recv_multipart()
                except zmq.Again:
                    continue
                if frames[0] != _WAKE_ROUTE:
                    self._serve(frames)
                while self._done:
                    self._finish(*self._done.popleft())
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)
            with self._wake_lock:
                self._wake.close()

    def stop(self) -> None:
        """End the loop soon. Threads: any; also a signal handler."""
        self._stopping = True

    def _finish(self, route: bytes, reply: Reply, over: Callable[[], None]) -> None:
        self._waiting -= 1
        over()
        self._send(route, reply)

    # --- One request ---

    def _serve(self, frames: list[bytes]) -> None:
        route, body = frames[0], frames[-1]
        self.received_bytes += len(body)
        try:
            if len(frames) != 2:
                raise Refused("message", "a message has one frame")
            request = protocol.decode_request(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, Refused) as error:
            self._send(route, Failure(_id_of(body), "message", f"cannot be read: {error}"))
            return
        kind = type(request).__name__
        self.requests[kind] = self.requests.get(kind, 0) + 1
        try:
            reply = self._handle(request)
        except Refused as error:
            reply = Failure(request.id, error.code, str(error))
        except UsageError as error:
            reply = Failure(request.id, "usage", str(error))
        except Exception as error:
            _log.exception("a %s request failed", kind)
            reply = Failure(request.id, "internal", type(error).__name__)
        if isinstance(reply, Later):
            self._put_off(route, request, reply)
        else:
            self._send(route, reply)

    def _put_off(self, route: bytes, request: Request, later: Later) -> None:
        if self._waiting >= _WAITING_MAX:
            later.over()
            self._send(route, Failure(request.id, "busy", "too many requests are waiting"))
            return
        self._waiting += 1
        self._threads.submit(self._work, route, request, later)

    def _work(self, route: bytes, request: Request, later: Later) -> None:
        try:
            reply = later.work()
        except Refused as error:
            reply = Failure(request.id, error.code, str(error))
        except KVFerryError as error:
            reply = Failure(request.id, error.code, str(error))
        except Exception as error:
            _log.exception("a %s request failed", type(request).__name__)
            reply = Failure(request.id, "internal", type(error).__name__)
        self._done.append((route, reply, later.over))
        with self._wake_lock:
            if not self._wake.closed:
                self._wake.send(b"", zmq.NOBLOCK)

    def _send(self, route: bytes, reply: Reply) -> None:
        if type(reply) is Failure:
            self.failures[reply.code] = self.failures.get(reply.code, 0) + 1
        body = protocol.encode(reply)
        if len(body) > MESSAGE_BYTES_MAX:
            body = protocol.encode(
                Failure(reply.id, "usage", "the answer is too long; ask for less")
            )
        try:
            self._socket.send_multipart((route, body), zmq.NOBLOCK)
        except zmq.ZMQError:  # it went, or does not read
            return
        self.sent_bytes += len(body)

    def status(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "requests": dict(self.requests),
            "failures": dict(self.failures),
            "waiting": self._waiting,
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
        }

    @staticmethod
    def nothing() -> dict[str, Any]:
        """The `status` of one that has not begun."""
        counters = dict.fromkeys(("waiting", "received_bytes", "sent_bytes"), 0)
        return {"requests": {}, "failures": {}, **counters}


def _id_of(body: bytes) -> int:
    """The id of a message that cannot be read whole; 0 where there is none."""
    try:
        found = msgspec.msgpack.decode(body)
        return int(found[1]) if isinstance(found[1], int) and 0 <= found[1] < 1 << 63 else 0
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, LookupError, RecursionError):
        return 0
