"""One request and its answer; a fault of the server is no answer, and is counted and logged here.

Threads: any.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

from kvferry.base.errors import UnavailableError, UsageError
from kvferry.base.shown import in_line
from kvferry.rpc.channel import new_id
from kvferry.rpc.link import Away, LinkTimedOut
from kvferry.server.client.attachment import ClientSession
from kvferry.server.client.counters import Counters
from kvferry.server.client.session_thread import SessionThread
from kvferry.server.protocol import Count, Failure, Release, Reply, Request

__all__ = ["Caller"]

T = TypeVar("T", bound=Reply)

_log = logging.getLogger("kvferry.server.client")

# The server answers at the end of the time that it was given, or within its slack of 0.1 s
# (`_SLACK_S` and `_LOOK_S` in `kvferry.server.dispatch`) behind it.
_GRACE_S = 0.25
# How often it is looked whether a server that was asked for a sign of life has given one.
_CHECK_S = 0.02
# Codes of failures that are no fault: the session or the server ends, or the server is busy.
_EXPECTED = ("session", "attach", "draining", "busy")


class Caller:
    """Asks for a client.

    Args:
        session_thread: Has the session.
        counters: Of the client.
        timeout_s: Limit for what the server does without waiting for anybody.
    """

    def __init__(self, session_thread: SessionThread, counters: Counters, timeout_s: float) -> None:
        self.session_thread = session_thread
        self.counters = counters
        self.timeout_s = timeout_s
        self._warned: set[str] = set()

    def session(self) -> ClientSession | None:
        """The session to ask in; None, and counted, if the server is away."""
        session = self.session_thread.session
        if session is not None and session.suspected:
            self.session_thread.sure(session)
        if session is None or session.doubted:
            self.counters.add("unavailable")
            return None
        return session

    def ask(
        self,
        session: ClientSession,
        answer: type[T],
        kind: type[Request],
        *fields: Any,
        waits_s: float | None = None,
        limit_s: float | None = None,
        silent_s: float | None = None,
        raises: bool = False,
    ) -> T | None:
        """Send a request and wait for its answer.

        Args:
            session: Whose link is used; it may have ended.
            answer: What the reply must be.
            kind, fields: The request, without what each of them begins with.
            waits_s: How long the server may wait for stores, if it does.
            limit_s: Of the exchange; default: a little more than that, else that of the client.
            silent_s: Without an answer for so long, the server is asked whether it lives, and given
                up if it does not say so.
            raises: What the server refuses is an error, with its text.

        Returns:
            The answer; None if there is none, which is counted.

        Raises:
            UsageError, UnavailableError: See `raises`.
        """
        if limit_s is None:
            limit_s = self.timeout_s if waits_s is None else max(0.0, waits_s) + _GRACE_S
        until = time.monotonic() + limit_s
        told_s = limit_s if waits_s is None else max(0.0, waits_s)
        try:
            request = kind(new_id(), session.number, int(told_s * 1000), *fields)
            check = None if silent_s is None else partial(next, self._checks(session, silent_s))
            reply = session.link.ask(request, until, check)
        except Away:
            self.counters.add("unavailable")
        except LinkTimedOut:
            self.counters.add("timeouts")
            if waits_s is None:
                self.session_thread.doubt(session)
            elif (
                not session.doubted
            ):  # a store is late as a rule, and what the server has in memory is there
                self.session_thread.suspect(session)
        else:
            session.shared = getattr(reply, "shared", b"") or session.shared
            if isinstance(reply, answer):
                return reply
            if isinstance(reply, Failure):
                self._failed(session, reply)
                if raises:
                    kind_of = UsageError if reply.code == UsageError.code else UnavailableError
                    raise kind_of(reply.text)
            else:
                self.nonsense()
        return None

    def _checks(self, session: ClientSession, silent_s: float) -> Iterator[float]:
        """When to look at a server that has not answered; it ends with one that does not live.

        Raises:
            LinkTimedOut: There is no sign of life.
        """
        while True:
            yield time.monotonic() + silent_s
            self.session_thread.suspect(session)
            while session.suspected:
                yield time.monotonic() + _CHECK_S
            if session.doubted:
                raise LinkTimedOut

    def nonsense(self) -> None:
        """Count a reply that cannot be right."""
        self.counters.add("nonsense")
        self._warn("nonsense", "the cache server said what cannot be; it was ignored")

    def release(self, session: ClientSession, lease: int) -> bool:
        """End a lease; whether it was in force all the time."""
        if self.session_thread.session is session and self.session_thread.ours:
            if session.doubted:  # nobody waits for it now
                self.forget(session, lease)
            else:
                reply = self.ask(session, Count, Release, [lease])
                if reply is not None and reply.count == 1:
                    return True
        self.counters.add("lost_leases")
        return False

    def forget(self, session: ClientSession, lease: int) -> None:
        """End a lease, if there is one; nobody waits for it."""
        self.session_thread.unwaited.lease(session.number, lease)

    def abort(self, session: ClientSession, reservation: int) -> None:
        """End a reservation, if there is one; nobody waits for it."""
        self.session_thread.unwaited.reservation(session.number, reservation)

    def _failed(self, session: ClientSession, failure: Failure) -> None:
        self.counters.add("failures")
        if failure.code in ("session", "attach"):
            self.session_thread.lose(session)
        elif failure.code not in _EXPECTED:
            self._warn(
                failure.code, "the cache server refused a request: %s", in_line(failure.text)
            )

    def _warn(self, what: str, text: str, *values: str) -> None:
        if what not in self._warned:  # once each
            self._warned.add(what)
            _log.warning(text, *values)
