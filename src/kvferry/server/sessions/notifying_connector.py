"""A store's connector whose tickets tell when they are done, so that no thread has to wait for one.

Questions and loads are raw jobs here: the loop watches the connector's event descriptor, and calls
`drain` when it is readable. Everything else is the connector's own.

Threads: any.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kvferry.client.batch import BatchResult
from kvferry.connectors.base import BufferLike, Connector, Key

__all__ = ["NotifyingConnector"]

# After the loop has ended nobody drains for a waiting thread, which then drains this often itself.
_LOOK_S = 0.05


class _Ticket:
    """A raw job, as a ticket. Dropping it cancels the job."""

    def __init__(self, notifying: NotifyingConnector, job_id: int) -> None:
        self._telling = notifying
        self._id = job_id
        self._tell: Callable[[], object] | None = None
        self.result: BatchResult | None = None

    def wait(self, timeout_s: float) -> BatchResult | None:
        if self.result is None:
            self._telling.wait(self, timeout_s)
        return self.result

    def cancel(self) -> None:
        self._telling.connector.cancel(self._id)

    @property
    def done(self) -> bool:
        return self.result is not None

    @property
    def prefix_len(self) -> int:
        result = self.result
        if result is None:  # a job that is drained meanwhile says 0
            count = self._telling.connector.progress(self._id)
            result = self.result
            if result is None:
                return count
        return result.prefix_len

    def tell(self, call: Callable[[], object]) -> None:
        """Call a function when the job is done; see `kvferry.cache.steps.Awaited`."""
        self._tell = call
        if self.result is not None:
            call()

    def ended(self, result: BatchResult) -> None:
        self.result = result
        if self._tell is not None:
            self._tell()

    def __del__(self) -> None:
        if self.result is None:
            self.cancel()


class NotifyingConnector:
    """See the module."""

    def __init__(self, connector: Connector) -> None:
        self.connector = connector
        self._changed = threading.Condition()
        self._draining = threading.Lock()
        self._tickets: weakref.WeakValueDictionary[int, _Ticket] = weakref.WeakValueDictionary()

    def submit_get(
        self, keys: Sequence[Key], buffers: Sequence[BufferLike], **options: Any
    ) -> _Ticket:
        """See `Connector`."""
        with self._changed:  # before it can be drained
            return self._ticket(self.connector.submit_batch_get(keys, buffers, **options))

    def submit_exists(self, keys: Sequence[Key], **options: Any) -> _Ticket:
        """See `Connector`."""
        with self._changed:
            return self._ticket(self.connector.submit_batch_exists(keys, **options))

    def drain(self) -> None:
        """Take jobs that have ended, and announce each."""
        if not self._draining.acquire(blocking=False):
            return  # another thread drains, and takes all
        try:
            found = self.connector.drain_completions()
        finally:
            self._draining.release()
        if not found:
            return
        ended = []
        with self._changed:
            for job_id, result in found:
                ticket = self._tickets.pop(job_id, None)
                if ticket is not None:
                    ended.append((ticket, result))
        for ticket, result in ended:
            ticket.ended(result)
        with self._changed:
            self._changed.notify_all()

    def wait(self, ticket: _Ticket, timeout_s: float) -> None:
        """Wait until a job is done, or for so long."""
        until = time.monotonic() + timeout_s
        while True:
            self.drain()
            with self._changed:
                left_s = until - time.monotonic()
                if ticket.done or left_s <= 0:
                    return
                self._changed.wait(min(left_s, _LOOK_S))

    def _ticket(self, job_id: int) -> _Ticket:
        ticket = self._tickets[job_id] = _Ticket(self, job_id)
        return ticket

    if not TYPE_CHECKING:  # for the checker it is a `Connector` where it is used as one

        def __getattr__(self, name: str) -> Any:
            return getattr(self.connector, name)
