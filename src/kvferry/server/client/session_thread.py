"""The thread that keeps a client's session: it finds the server, registers, and pings.

A life of a connection goes: connect, `Register`, map the segment, `Attached`; from then on there is
a session, which all calls use. It ends when the connection does, when a ping is not answered, when
the server does not know us any more; then another life follows. A server that comes back is another
one for us even if it is the same: nothing of the old session is taken over.

A call that got no answer in time makes the session doubted: nobody else asks until the server has
answered a ping. So a server that hangs costs one time limit and not one for each request. A call
that may wait for stores says less: the server is asked by a ping, and doubted if that is late too.

Threads: `SessionThread.session` is read by any.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kvferry.base.shown import in_line
from kvferry.base.threads import Guarded, noticed
from kvferry.chunks.identity import Identity
from kvferry.rpc.channel import Wake, new_id
from kvferry.rpc.link import ServerLink
from kvferry.server.client.attachment import ClientSession, begin, unregister
from kvferry.server.client.counters import Counters, read_reply
from kvferry.server.client.session_connection import (
    Gone,
    ServerControl,
    ServerRefused,
    Silent,
    Stopped,
)
from kvferry.server.protocol import (
    Abort,
    Failure,
    Leased,
    Ping,
    Pong,
    Release,
    Reply,
    Request,
    ReservedPages,
)

__all__ = ["SUSPECT_S", "SessionThread"]

_log = logging.getLogger("kvferry.server.client")

# Until the next attempt to get a session: after an end of the connection, after a server that does
# not answer, and after a refusal, which people have to mend.
_SOON_S = 0.05
_LATER_S = 1.0
_REFUSED_S = 10.0
_LOOK_S = 2.0  # between two looks whether a server is there, for the log
# The deadline of a ping, in heartbeats.
_PATIENCE = 2.0
# The deadline of a ping that follows a late answer of a store: then the session is doubted.
SUSPECT_S = 0.25
# A server that is back sooner was hardly away, and the log does not say that it went.
_ABSENT_S = 1.0
# Requests that wait to be sent; beyond, the oldest are dropped.
_UNWAITED_MAX = 10_000
_UNWAITED_MS = 1000


class _Ended(Exception):
    """The server has ended the session, and may begin another one."""


class SessionThread:
    """See above; the thread runs from the beginning, until `close`.

    Args:
        url: Of the server.
        identity: To register with.
        token: Reads what to show the server; "": nothing.
        counters: Of the client.
        prefault: Fill the page tables at once where the server says that it costs no memory.

    Attributes:
        session: That calls use; None: there is no server.
        refused: Why the server does not work with us; "" if it does, or is away.
        unwaited: Requests that nobody waits for.
    """

    def __init__(
        self,
        url: str,
        identity: Identity,
        token: Callable[[], str],
        counters: Counters,
        *,
        prefault: bool,
    ) -> None:
        self.session: ClientSession | None = None
        self.refused = ""
        self._url = url
        self._identity = identity
        self._token = token
        self._counters = counters
        self._prefault = prefault
        self._availability = _AvailabilityLog(url)
        self._wake = Wake()
        self._lost: ClientSession | None = None
        self._suspected: ClientSession | None = None
        self.unwaited = UnwaitedRequests(self._wake)
        self._known = threading.Condition()
        self._sessions = 0
        self._pid = os.getpid()
        self._thread = Guarded(self._run, "session")
        self._thread.start()

    # --- For all threads ---

    @property
    def ours(self) -> bool:
        """Whether this process has the thread and the sockets, and is no forked child of it."""
        return os.getpid() == self._pid

    def wait(self, timeout_s: float) -> bool:
        """Wait for a session, or until the server refuses one; whether there is one."""
        with self._known:
            self._known.wait_for(lambda: self.session or self.refused, timeout_s)
        return self.session is not None

    def doubt(self, session: ClientSession) -> None:
        """A call of this session got no answer in time."""
        session.doubted = True
        self._wake()

    def suspect(self, session: ClientSession) -> None:
        """A call of this session that may wait for stores got no answer in time."""
        self._suspected = session
        session.suspected = True
        self._wake()

    def sure(self, session: ClientSession) -> None:
        """Wait until a suspected session has shown that it lives, or is doubted; a moment."""
        with self._known:
            self._known.wait_for(lambda: not session.suspected, 2 * SUSPECT_S)

    def lose(self, session: ClientSession) -> None:
        """The server does not know this session any more."""
        self._lost = session
        self._wake()

    def close(self, timeout_s: float = 1.0) -> None:
        """End the session and the thread. Calls under way end at once."""
        if not self.ours:
            return
        self._wake.stop()
        with self._known:
            self._known.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    # --- The thread ---

    def _run(self) -> None:
        while not self._wake.stopped:
            try:
                self._wake.sleep(self._live())
            except Stopped:
                break
            except Exception as error:  # a mistake of ours must not cost more than the cache
                noticed("session", error)
                self._wake.sleep(_LATER_S)

    def _live(self) -> float:
        """One connection and its session; how long to wait before the next."""
        control = ServerControl(self._url, self._counters, self._wake)
        try:
            self._connect(control)
            self._hold(control)
        except _Ended as error:
            self._availability.missed(str(error))
        except Gone:
            self._availability.missed("the connection ended", at_once=True)
        except Silent as error:
            self._availability.missed(str(error), at_once=True)
            return _LATER_S
        except ServerRefused as error:
            self._refuse(in_line(str(error)))
            return self._wait_refused(control)
        finally:
            control.close()
        return _SOON_S

    def _connect(self, control: ServerControl) -> None:
        while not control.connected:
            self._availability.missed("nobody answers")
            control.poll(time.monotonic() + _LOOK_S)

    def _hold(self, control: ServerControl) -> None:
        """A session from its beginning to its end."""
        told, attachment = begin(control, self._identity, self._token)
        late = partial(self.unwaited.late, told.session)
        try:
            read = partial(read_reply, self._counters)
            link = ServerLink(self._url, read, self._counters.asked, late)
        except OSError as error:  # no descriptors left
            attachment.close()
            raise Silent(str(error)) from None
        session = ClientSession(
            told.session, told.incarnation, attachment, link, told.heartbeat_s, told.shared
        )
        if self._prefault and told.prefault:
            attachment.fill()
        try:
            self._publish(session)
            self._serve(control, session)
        finally:
            self.session = self._lost = self._suspected = None
            self._judge(session)
            session.link.end()
            self._availability.gone()
            if self._wake.stopped:
                unregister(control, session)
            session.attachment.close()

    def _serve(self, control: ServerControl, session: ClientSession) -> None:
        """Ping until something ends the session."""
        next_ping = time.monotonic() + session.heartbeat_s
        answer_until: float | None = None
        doubt_at = math.inf
        while True:
            wake = next_ping if answer_until is None else min(answer_until, doubt_at)
            reply = control.poll(wake)
            if isinstance(reply, Pong):
                if reply.incarnation != session.incarnation:
                    raise _Ended("another server answers")
                session.doubted, answer_until, doubt_at = False, None, math.inf
                self._judge(session)
                session.shared = reply.shared or session.shared
            elif isinstance(reply, Failure) and reply.code in ("session", "attach"):
                raise _Ended(f"the session ended: {in_line(reply.text)}")
            if self._lost is session:
                raise _Ended("the session ended")
            for request in self.unwaited.take(session.number):
                control.send(request)
            now = time.monotonic()
            suspected, self._suspected = self._suspected is session, None
            if suspected:
                doubt_at = min(doubt_at, now + SUSPECT_S)
            if now >= doubt_at:
                session.doubted, doubt_at = True, math.inf
                self._judge(session)
            if answer_until is not None:
                if now > answer_until:
                    raise Silent("it does not answer")
            elif now >= next_ping or session.doubted or suspected:
                control.send(Ping(new_id(), session.number, int(session.heartbeat_s * 1000)))
                answer_until = now + _PATIENCE * session.heartbeat_s
                next_ping = now + session.heartbeat_s

    # --- Pieces ---

    def _judge(self, session: ClientSession) -> None:
        with self._known:
            session.suspected = False
            self._known.notify_all()

    def _publish(self, session: ClientSession) -> None:
        self._sessions += 1
        if self._sessions > 1:
            self._counters.add("reconnects")
        self._availability.there()
        with self._known:
            self.session, self.refused = session, ""
            self._known.notify_all()

    def _refuse(self, text: str) -> None:
        self._availability.refused(text)
        with self._known:
            self.refused = text
            self._known.notify_all()

    def _wait_refused(self, control: ServerControl) -> float:
        """A server that refuses us is not asked again soon, unless it goes; the rest to wait."""
        until = time.monotonic() + _REFUSED_S
        try:
            while control.connected and time.monotonic() < until:
                control.poll(until)
        except Gone:
            return _SOON_S
        except ServerRefused:
            pass
        return until - time.monotonic()


class UnwaitedRequests:
    """What the server is told and nobody waits for: it is sent some time soon, or never.

    Leases and reservations whose owners cannot or must not wait for the end: a result that was
    dropped without `release`, a store that failed, a reply that came too late. The server ends them
    by itself in the end. And what an engine says of itself now and then.

    Threads: any; also destructors, at any moment: no lock is taken.

    Args:
        wake: Called when there is something to send.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._pid = os.getpid()
        self._queue: deque[Request] = deque(maxlen=_UNWAITED_MAX)

    def lease(self, session: int, lease: int) -> None:
        """A lease of a session is not needed any more."""
        if lease:
            self.add(Release, session, [lease])

    def reservation(self, session: int, reservation: int) -> None:
        """The pages of a reservation will not be written."""
        if reservation:
            self.add(Abort, session, reservation)

    def late(self, session: int, reply: Reply) -> None:
        """A reply that came too late: what it gives goes back."""
        if isinstance(reply, Leased):
            self.lease(session, reply.lease)
        elif isinstance(reply, ReservedPages):
            self.reservation(session, reply.reservation)

    def take(self, session: int) -> Iterator[Request]:
        """Requests to send in a session; those of earlier sessions have ended with them."""
        while self._queue:
            request = self._queue.popleft()
            if request.session == session:
                yield request

    def add(self, kind: type[Request], session: int, *fields: Any) -> None:
        """A request of a session, by its kind and its own fields."""
        if os.getpid() == self._pid:  # else it is the parent's after a fork
            self._queue.append(kind(new_id(), session, _UNWAITED_MS, *fields))
            self._wake()


class _AvailabilityLog:
    """One warning for each absence of the server, one error for each refusal.

    Threads: one, that of the session.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._since = time.monotonic()
        self._told = False
        self._refusal = ""

    def missed(self, why: str, *, at_once: bool = False) -> None:
        """The server is away; it is logged when that has lasted, or `at_once`."""
        late = time.monotonic() > self._since + _ABSENT_S
        if not self._told and not self._refusal and (at_once or late):
            _log.warning("no cache server at %s (%s): going on without cache", self._url, why)
            self._told = True

    def refused(self, why: str) -> None:
        """The server refuses us."""
        if self._refusal != why:
            _log.error("the cache server at %s is of no use to us: %s", self._url, why)
        self._refusal = why

    def there(self) -> None:
        """There is a session."""
        if self._told or self._refusal:
            _log.info("the cache server at %s is back", self._url)
        self._told, self._refusal = False, ""

    def gone(self) -> None:
        """The session has ended."""
        self._since = time.monotonic()
