"""The loop of the server: one thread that reads requests and answers them.

What memory knows is answered at once: it takes microseconds. Work that takes longer goes to
threads, and its result comes back through a queue: the reply is made here, so sessions are this
thread's alone. Work for stores has other threads than work for the kernel, and engine processes
share both fairly (`kvferry.rpc.fair_pool`). Work that waits for a store is done in steps, and has
no thread between them (`wait_queue.py`).

A request that waits for a store has a deadline at which it is answered in any case, with what
memory has: also when no thread has begun, or all hang. What the store brings later stays in memory
for the next request.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Hashable
from typing import Any, TypeVar, cast

import msgspec

from kvferry.base.errors import KVFerryError
from kvferry.base.threads import noticed
from kvferry.cache.steps import Steps, Wait
from kvferry.rpc.fair_pool import FairJob, FairPool
from kvferry.rpc.listener import Listener, ServedConnection
from kvferry.server import protocol
from kvferry.server.protocol import MESSAGE_BYTES_MAX, Failure, Reply, Request
from kvferry.server.wait_queue import WaitQueue

__all__ = ["Dispatcher", "Later", "RequestRefused"]

T = TypeVar("T")
A = TypeVar("A")

_log = logging.getLogger("kvferry.server")

TICK_S = 0.25
# Threads for work with stores, most of which waits; and for work of the kernel or of our own, e.g.
# making room and reading statistics.
_STORE_THREADS, _OWN_THREADS = 16, 8
# An answer of a store that comes at the very end of its time is still taken (_SLACK_S), and
# deadlines are looked at every _LOOK_S. Both together are less than the grace that clients add to
# that time (`_GRACE_S` in client/caller.py).
_SLACK_S, _LOOK_S = 0.05, 0.05


# Steps that nobody waits for count as one process's work; these stand for their request and sender.
_BACKGROUND = "background"
_NOBODYS, _NOWHERE = protocol.Ping(0, 0, 0), cast(ServedConnection, None)


class RequestRefused(Exception):
    """A request is answered with a `Failure`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Later:
    """What a handler returns for work that may wait.

    Args:
        work: Run in a thread; what it returns is for `reply`, or what the `Steps` that it returns
            come to.
        reply: Makes the reply, in the loop; of None where the work did not come to its end in time.
        over: Called in the loop when nothing of it is under way any more.
        who: The engine process that the work is for: they share the threads.
        limit_s: The deadline of the reply, from now; None: whenever the work ends. Work without a
            deadline waits for no store.
    """

    __slots__ = ("limit_s", "over", "reply", "who", "work")

    def __init__(
        self,
        work: Callable[[], Any],
        reply: Callable[[Any], Reply],
        over: Callable[[], None],
        who: Hashable,
        limit_s: float | None = None,
    ) -> None:
        self.work = work
        self.reply = reply
        self.over = over
        self.who = who
        self.limit_s = limit_s


class _Pending:
    """A request that was put off."""

    __slots__ = ("answered", "job", "later", "pool", "request", "sender", "steps", "wait")

    def __init__(
        self, sender: ServedConnection, request: Request, later: Later, pool: FairPool
    ) -> None:
        self.sender = sender
        self.request = request
        self.later = later
        self.pool = pool
        self.answered = False
        self.job: FairJob
        self.steps: Steps[Any] | None = None
        self.wait: Wait | None = None  # what it waits for

    def work(self) -> Any:
        """Run up to the next wait; the result of the work, or that wait."""
        if self.steps is None:
            found = self.later.work()
            if not isinstance(found, Generator):
                return found
            self.steps = found
        try:
            wait = self.wait
            wait = self.steps.send(None if wait is None else wait.of.wait(0.0))
            while wait.timeout_s <= 0 or wait.of.done:
                wait = self.steps.send(wait.of.wait(0.0))
        except StopIteration as end:
            return end.value
        self.wait = wait
        return wait


class Dispatcher:
    """The loop.

    Args:
        listener: Where messages come from; the loop owns it.
        handle: From a request to its reply, or to `Later`; raises `RequestRefused` or `UsageError`.
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
        self._stores = FairPool(_STORE_THREADS, "kvferry-stores")
        self._own = FairPool(_OWN_THREADS, "kvferry-serve")
        self._waits: WaitQueue[_Pending] = WaitQueue(listener.wake)
        self._pending = 0
        self._limited: dict[_Pending, float] = {}  # when they are answered in any case
        self._next_look = 0.0
        self._done: deque[tuple[_Pending, Any]] = deque()
        self._background: deque[Steps[object]] = deque()
        self._stopping = False
        self._requests: defaultdict[type, int] = defaultdict(int)
        self.failures: dict[str, int] = {}
        self.received_bytes = self.sent_bytes = 0
        self.beat = -math.inf  # it does not turn yet

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
                    except Exception as error:  # it is tried again
                        noticed("serve", error)
                wake = min(next_tick, self._next_look) if self._limited else next_tick
                if (next_wait := self._waits.next_at) is not None:
                    wake = min(wake, next_wait)
                for sender, body in listener.wait(max(0.0, wake - now)):
                    self._serve(sender, body)
                while self._background:
                    self._begin_background(self._background.popleft())
                while self._done:
                    self._finish(*self._done.popleft())
                if self._waits:
                    for pending in self._waits.ready(time.monotonic()):
                        self._begin(pending, goes_on=True)
                if self._limited and now >= self._next_look:
                    self._next_look = now + _LOOK_S
                    self._answer_late(now)
        finally:
            self._stores.close()
            self._own.close()

    def stop(self) -> None:
        """End the loop soon. Threads: any, but no signal handler."""
        self._stopping = True
        self._listener.wake()

    def in_background(self, steps: Steps[object]) -> None:
        """Run steps that nobody waits for, when a thread is idle. Threads: any."""
        self._background.append(steps)
        self._listener.wake()

    def close(self) -> None:
        """Drop work that is parked; for when the stores are closed."""
        for pending in self._waits.close():
            if pending.steps is not None:
                pending.steps.close()

    def _finish(self, pending: _Pending, found: Any) -> None:
        """The work of a request has ended, or waits."""
        pending.pool.over(pending.job)
        if type(found) is Wait:
            self._waits.park(pending, found)
            return
        pending.later.over()
        self._pending -= 1
        if not pending.answered:
            self._answer(pending, found)

    def _answer_late(self, now: float) -> None:
        """Answer requests past their deadline, whatever their work does."""
        for pending in [one for one, until in self._limited.items() if until <= now]:
            if pending.steps is None and pending.pool.abandon(pending.job):
                pending.later.over()
                self._pending -= 1
            self._answer(pending, None)

    def _answer(self, pending: _Pending, found: Any) -> None:
        pending.answered = True
        self._limited.pop(pending, None)
        if type(found) is not Failure:
            found = self._made(pending.request, pending.later.reply, found)
        self._send(pending.sender, found)

    # --- One request ---

    def _serve(self, sender: ServedConnection, body: bytes | memoryview) -> None:
        self.received_bytes += len(body)
        try:
            request = protocol.decode_request(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            text = f"cannot be read as one frame of a message: {error}"
            self._send(sender, Failure(_id_of(body), "message", text))
            return
        kind = type(request)
        self._requests[kind] += 1
        reply = self._made(request, self._handle, request)
        if isinstance(reply, Later):
            self._put_off(sender, request, reply)
        else:
            self._send(sender, reply)

    def _made(self, request: Request, make: Callable[[A], T], of: A) -> T | Failure:
        try:
            return make(of)
        except RequestRefused as error:
            return Failure(request.id, error.code, str(error))
        except KVFerryError as error:
            return Failure(request.id, error.code, str(error))
        except Exception as error:
            _log.exception("a %s request failed", type(request).__name__)
            return Failure(request.id, "internal", type(error).__name__)

    def _put_off(self, sender: ServedConnection, request: Request, later: Later) -> None:
        pool = self._own if later.limit_s is None else self._stores
        pending = _Pending(sender, request, later, pool)
        if not self._begin(pending):
            later.over()
            self._answer(pending, Failure(request.id, "busy", "too many requests are waiting"))
            return
        self._pending += 1
        if later.limit_s is not None:
            self._limited[pending] = time.monotonic() + later.limit_s + _SLACK_S

    def _begin_background(self, steps: Steps[object]) -> None:
        later = Later(lambda: steps, _unsent, _nothing, _BACKGROUND)
        pending = _Pending(_NOWHERE, _NOBODYS, later, self._stores)
        pending.answered = True
        if self._begin(pending):  # else there is too much to do
            self._pending += 1

    def _begin(self, pending: _Pending, goes_on: bool = False) -> bool:
        pending.job = FairJob(pending.later.who, lambda: self._work(pending))
        return pending.pool.put(pending.job, goes_on=goes_on)

    def _work(self, pending: _Pending) -> None:
        try:
            found: Any = self._made(pending.request, _called, pending.work)
        except BaseException as error:  # e.g. a SystemExit of a plug-in: the turn is over too
            noticed("work", error)
            found = Failure(pending.request.id, "internal", type(error).__name__)
        self._done.append((pending, found))
        self._listener.wake()

    def _send(self, sender: ServedConnection, reply: Reply) -> None:
        if type(reply) is Failure:
            self.failures[reply.code] = self.failures.get(reply.code, 0) + 1
        body = protocol.encode(reply)
        if len(body) > MESSAGE_BYTES_MAX:
            body = protocol.encode(
                Failure(reply.id, "usage", "the answer is too long; ask for less")
            )
        if self._listener.send(sender, body):
            self.sent_bytes += len(body)

    def status(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "requests": {
                kind.__name__.removesuffix("Request"): n for kind, n in list(self._requests.items())
            },
            "failures": dict(self.failures),
            "waiting": self._pending,
            "parked": len(self._waits),
            "connections": self._listener.connections,
            "refused_connections": self._listener.refused,
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
        }


def _nothing() -> None: ...


def _unsent(_: Any) -> Reply:
    raise AssertionError("nobody waits for it")


def _called(work: Callable[[], T]) -> T:
    return work()


def _id_of(body: bytes | memoryview) -> int:
    """The id of a message that cannot be read whole; 0 where there is none."""
    try:
        found = msgspec.msgpack.decode(body)
        return int(found[1]) if isinstance(found[1], int) and 0 <= found[1] < 1 << 63 else 0
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, LookupError, RecursionError):
        return 0
