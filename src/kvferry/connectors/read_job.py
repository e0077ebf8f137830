"""A one-sided read that a thread carries out, as a ticket that tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

from kvferry.client.batch import BatchResult
from kvferry.connectors.calls import CallJob

__all__ = ["Progress", "ReadJob"]


class Progress:
    """How far a job is: so many leading keys have final buffers; and whether to go on."""

    arrived = 0
    cancelled = False


class ReadJob(CallJob):
    """A job; see `Ticket`."""

    def __init__(
        self,
        progress: Progress,
        call: Callable[[float], BatchResult],
        count: int,
        limit_s: float,
    ) -> None:
        super().__init__(call, count, limit_s)
        self._progress = progress

    def cancel(self) -> None:
        super().cancel()
        self._progress.cancelled = True

    @property
    def prefix_len(self) -> int:
        return super().prefix_len if self.done else self._progress.arrived
