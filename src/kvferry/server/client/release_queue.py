"""Leases and reservations that nobody waits for: they are ended some time soon.

Of a result that was dropped without `release`, a store that failed, a reply that came too late:
their owners cannot or must not wait. What is not sent in the end, the server ends by itself.

Threads: any; also destructors, at any moment: no lock is taken.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator

from kvferry.server.client.replies import new_id
from kvferry.server.protocol import Abort, Leased, Release, Reply, Request, ReservedPages

__all__ = ["ReleaseQueue"]

_COUNT_MAX = 10_000
_TIMEOUT_MS = 1000


class ReleaseQueue:
    """A queue of requests whose answers nobody reads.

    Args:
        wake: Called when there is something to send.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._pid = os.getpid()
        self._queue: deque[Request] = deque(maxlen=_COUNT_MAX)

    def lease(self, session: int, lease: int) -> None:
        """A lease of a session is not needed any more."""
        if lease:
            self._put(Release(new_id(), session, _TIMEOUT_MS, [lease]))

    def reservation(self, session: int, reservation: int) -> None:
        """The pages of a reservation will not be written."""
        if reservation:
            self._put(Abort(new_id(), session, _TIMEOUT_MS, reservation))

    def late(self, session: int, reply: Reply) -> None:
        """A reply that came too late: what it gives goes back."""
        if isinstance(reply, Leased):
            self.lease(session, reply.lease)
        elif isinstance(reply, ReservedPages):
            self.reservation(session, reply.reservation)

    def take(self, session: int) -> Iterator[Request]:
        """What is to be sent in this session; what is of others has ended with them."""
        while self._queue:
            request = self._queue.popleft()
            if request.session == session:
                yield request

    def _put(self, request: Request) -> None:
        if os.getpid() == self._pid:  # else it is the parent's after a fork
            self._queue.append(request)
            self._wake()
