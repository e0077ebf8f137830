"""A listener with a thread of its own, for those whose messages have no order between connections.

Each message is handled in that thread, or by work in one of some others if the handler says so. The
messages of one connection are handled one after the other: nothing is read of a connection whose
work is under way.

Threads: any for `start` and `close`; `handle` and `tick` are called in the service's own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from kvferry.base.threads import Guarded, noticed
from kvferry.rpc.fair_pool import FairJob, FairPool
from kvferry.rpc.listener import Listener, ServedConnection

__all__ = ["Handled", "HungUp", "Service"]

_TICK_S = 0.25
_CLOSE_S = 5.0

# A reply; None: there is none; or work that comes to one of them.
Handled: TypeAlias = bytes | Callable[[], bytes | None] | None


class HungUp(Exception):
    """A handler ends a connection.

    Args:
        why: For the log.
        last: A message that is sent before.
    """

    def __init__(self, why: str, last: bytes | None = None) -> None:
        super().__init__(why)
        self.last = last


_Said: TypeAlias = bytes | HungUp | None


class Service:
    """See the module.

    Args:
        listener: Has its endpoints; the service owns it.
        handle: From a message to what is `Handled`; raises `HungUp`. What else it or its work
            raises is noticed, and ends the connection too.
        name: Of its threads.
        threads: How many there are for work at most.
        tick: Called several times a second.
    """

    def __init__(
        self,
        listener: Listener,
        handle: Callable[[ServedConnection, bytes | memoryview], Handled],
        name: str,
        threads: int,
        tick: Callable[[], object] = lambda: None,
    ) -> None:
        self._listener = listener
        self._handle = handle
        self._tick = tick
        self._next_tick = 0.0
        self._pool = FairPool(threads, f"kvferry-{name}")
        self._busy: dict[ServedConnection, deque[bytes]] = {}  # with what came meanwhile
        self._done: deque[tuple[ServedConnection | None, FairJob, _Said]] = deque()
        self._closing = False
        self._thread = Guarded(self._run, "service", detail=name)

    def start(self) -> None:
        """Serve, until `close`."""
        self._thread.start()

    def background(self, work: Callable[[], object]) -> None:
        """Do work that nobody waits for, in one of the other threads."""
        self._put(None, work)

    def close(self) -> None:
        """End all connections; work that hangs is not waited for."""
        self._closing = True
        self._listener.wake()
        if self._thread.ident is None:
            self._listener.close()
        else:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._closing:
            now = time.monotonic()
            if now >= self._next_tick:
                self._next_tick = now + _TICK_S
                try:
                    self._tick()
                except Exception as error:  # it is called again
                    noticed("service", error)
            for connection, body in self._listener.wait(self._next_tick - now):
                waiting = self._busy.get(connection)
                if waiting is None:
                    self._serve(connection, body)
                else:
                    waiting.append(bytes(body))
            while self._done:
                self._finish(*self._done.popleft())
        self._listener.close()
        self._pool.close()

    def _serve(self, connection: ServedConnection, body: bytes | memoryview) -> None:
        if connection.socket.fileno() < 0:
            return  # it was ended by a message before this one
        try:
            handled = self._handle(connection, body)
        except HungUp as end:
            self._answer(connection, end)
        except Exception as error:
            noticed("service", error)
            self._answer(connection, HungUp("a fault of ours"))
        else:
            if callable(handled):
                self._begin(connection, handled)
            else:
                self._answer(connection, handled)

    def _answer(self, connection: ServedConnection, said: _Said) -> None:
        if isinstance(said, HungUp):
            self._listener.drop(connection, str(said), said.last)
        elif said is not None:
            self._listener.send(connection, said)

    def _begin(self, connection: ServedConnection, work: Callable[[], bytes | None]) -> None:
        if not self._put(connection, work):
            self._listener.drop(connection, "too much is under way")
            return
        self._busy[connection] = deque()
        self._listener.hold(connection, True)

    def _put(self, connection: ServedConnection | None, work: Callable[[], Any]) -> bool:
        job = FairJob(connection or self, lambda: None)
        job.work = partial(self._work, connection, job, work)
        return self._pool.put(job)

    def _work(
        self, connection: ServedConnection | None, job: FairJob, work: Callable[[], Any]
    ) -> None:
        try:
            said: _Said = work()
        except HungUp as end:
            said = end
        except BaseException as error:  # e.g. a SystemExit of a plug-in
            noticed("service", error)
            said = HungUp("a fault of ours")
        self._done.append((connection, job, said))
        self._listener.wake()

    def _finish(self, connection: ServedConnection | None, job: FairJob, said: _Said) -> None:
        self._pool.over(job)
        if connection is None:
            return
        waiting = self._busy.pop(connection)
        self._answer(connection, said)
        while waiting and connection not in self._busy:
            self._serve(connection, waiting.popleft())
        if connection in self._busy:
            self._busy[connection].extend(waiting)
        else:
            self._listener.hold(connection, False)
