"""The socket of the server: one thread that reads requests and answers them.

What memory knows is answered at once: it takes microseconds. What may wait, for a store or for the
kernel, goes to threads, and the reply comes back through a queue. So no client waits for another
one's stores, and a client that has too much under way is told so.

"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from kvferry.errors import KVFerryError, UsageError
from kvferry.server import protocol
from kvferry.server.listener import Listener, Route
from kvferry.server.protocol import MESSAGE_BYTES_MAX, Failure, Reply, Request

__all__ = ["Dispatcher", "Later", "Refused"]

_log = logging.getLogger("kvferry.server")

TICK_S = 0.25
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
        listener: Where messages come from; the loop owns it.
        handle: From a request to its reply, or to `Later`; raises `Refused` or `UsageError`.
        tick: Called several times a second.

    Attributes:
        failures: How many were refused, by code.
        beat: When the loop last turned, by ``time.monotonic``.
    """

    def __init__(
        self,
        listener: Listener,
        handle: Callable[[Request], Reply | Later],
        tick: Callable[[], None],
    ) -> None:
        self._listener = listener
        self._handle = handle
        self._tick = tick
        self._threads = ThreadPoolExecutor(_THREADS, "kvferry-serve")
        self._waiting = 0
        self._done: deque[tuple[Route, Reply, Callable[[], None]]] = deque()
        self._stopping = False
        self._requests: defaultdict[type, int] = defaultdict(int)
        self.failures: dict[str, int] = {}
        self.received_bytes = self.sent_bytes = 0
        self.beat = time.monotonic()

    def run(self) -> None:
        """Serve until `stop`."""
        listener, next_tick = self._listener, 0.0
        try:
            while not self._stopping:
                now = self.beat = time.monotonic()
                if now >= next_tick:
                    next_tick = now + TICK_S
                    try:
                        self._tick()
                    except Exception:
                        _log.exception("looking after sessions failed; it is tried again")
                for route, body in listener.wait(max(0.0, next_tick - now)):
                    self._serve(route, body)
                while self._done:
                    self._finish(*self._done.popleft())
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """End the loop soon. Threads: any, but no signal handler."""
        self._stopping = True
        self._listener.wake()

    def _finish(self, route: Route, reply: Reply, over: Callable[[], None]) -> None:
        self._waiting -= 1
        over()
        self._send(route, reply)

    # --- One request ---

    def _serve(self, route: Route, body: bytes) -> None:
        self.received_bytes += len(body)
        try:
            request = protocol.decode_request(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            text = f"cannot be read as one frame of a message: {error}"
            self._send(route, Failure(_id_of(body), "message", text))
            return
        kind = type(request)
        self._requests[kind] += 1
        try:
            reply = self._handle(request)
        except Refused as error:
            reply = Failure(request.id, error.code, str(error))
        except UsageError as error:
            reply = Failure(request.id, "usage", str(error))
        except Exception as error:
            _log.exception("a %s request failed", kind.__name__)
            reply = Failure(request.id, "internal", type(error).__name__)
        if isinstance(reply, Later):
            self._put_off(route, request, reply)
        else:
            self._send(route, reply)

    def _put_off(self, route: Route, request: Request, later: Later) -> None:
        if self._waiting >= _WAITING_MAX:
            later.over()
            self._send(route, Failure(request.id, "busy", "too many requests are waiting"))
            return
        self._waiting += 1
        self._threads.submit(self._work, route, request, later)

    def _work(self, route: Route, request: Request, later: Later) -> None:
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
        self._listener.wake()

    def _send(self, route: Route, reply: Reply) -> None:
        if type(reply) is Failure:
            self.failures[reply.code] = self.failures.get(reply.code, 0) + 1
        body = protocol.encode(reply)
        if len(body) > MESSAGE_BYTES_MAX:
            body = protocol.encode(
                Failure(reply.id, "usage", "the answer is too long; ask for less")
            )
        if self._listener.send(route, body):
            self.sent_bytes += len(body)

    def status(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "requests": {kind.__name__: n for kind, n in list(self._requests.items())},
            "failures": dict(self.failures),
            "waiting": self._waiting,
            "connections": self._listener.connections,
            "refused_connections": self._listener.refused,
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
        }

    @staticmethod
    def nothing() -> dict[str, Any]:
        """The `status` of one that has not begun."""
        counters = dict.fromkeys(
            ("waiting", "connections", "refused_connections", "received_bytes", "sent_bytes"), 0
        )
        return {"requests": {}, "failures": {}, **counters}


def _id_of(body: bytes) -> int:
    """The id of a message that cannot be read whole; 0 where there is none."""
    try:
        found = msgspec.msgpack.decode(body)
        return int(found[1]) if isinstance(found[1], int) and 0 <= found[1] < 1 << 63 else 0
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, LookupError, RecursionError):
        return 0
