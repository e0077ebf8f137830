"""The way to a store for one thread that must never wait: batches out, answers in, and pauses.

    channel = StoreChannel(connector, counts)
    channel.get(names, views, timeout_s=1.0, then=lambda result: ...)  # returns at once
    channel.poll()                                                     # calls what was answered

It pauses when the store leaves a whole batch without an answer, and whenever the connector
says that no server is up. Meanwhile nothing is asked, so a store that hangs costs one
request its deadline and the others nothing. A question that nobody waits for goes out every so
often, and the first answer to it ends the pause.

Neither may the threads that move the bytes make it wait: when a batch is handed over, a sleeping
I/O thread wakes up, and on a host whose cores are all busy Linux may run the I/O thread at once, in
the place of the one that handed the batch over, for milliseconds. So stores are opened
`in_the_background`: under the policy "batch" a thread keeps its share of the CPU, and waits for the
next tick instead.

Ownership: buffers belong to the store until `then` was called. Threads: one; nothing is locked.
Failure: a batch that cannot be sent is refused (None), and `then` is not called. No method raises
what a store does wrong, and none of them blocks but `wait`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from kvferry.base.errors import KVFerryError
from kvferry.chunks.generation import FIRST, drawn, joined, own_of
from kvferry.client.batch import BatchResult, Status
from kvferry.connectors.base import BufferLike, Connector

__all__ = ["StoreChannel", "Then", "in_the_background"]

_log = logging.getLogger("kvferry.integrations")

Then = Callable[[BatchResult], None]

# How long a pause lasts before the store is asked again; it doubles up to the second one.
RETRY_MIN_S = 0.25
RETRY_MAX_S = 8.0
_CANARY = "canary"
_CANARY_TIMEOUT_S = 1.0
# Statuses that are no answer: TIMEOUT, UNAVAILABLE.
_SILENT = bytes((Status.TIMEOUT, Status.UNAVAILABLE))
_TASKS = "/proc/self/task"


class StoreChannel:
    """See the head of this module.

    Args:
        connector: The store; `StoreChannel` alone drains it, and closes it.
        counts: Counts ``batches``, ``refused_batches`` and ``gate_shut``.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        connector: Connector,
        counts: Counter[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connector = connector
        self.counts = counts
        self.clock = clock
        self._absent: Callable[[str], bool] = getattr(connector, "absent", _unknown)
        self._leading: Callable[[Sequence[str]], int | None]
        self._leading = getattr(connector, "leading", _nobody_knows)
        self._generation = ""  # goes before every name; see `renew`
        self._waiting: dict[int, Then] = {}
        self._canary: int | None = None
        self._shut_until: float | None = None
        self._retry_s = RETRY_MIN_S
        self._told = ""
        self._closed = False

    # --- Pauses ---

    @property
    def shut(self) -> bool:
        """Whether nothing can be asked now."""
        return self._closed or self._shut_until is not None or not self.connector.available

    def pause(self) -> None:
        """Ask nothing for a while: the store does not answer."""
        if self._shut_until is not None:
            return
        self._shut_until = self.clock() + self._retry_s
        self.counts["gate_shut"] += 1
        self._tell("the store does not answer: computing instead")

    def _resume(self) -> None:
        self._retry_s = RETRY_MIN_S
        if self._shut_until is not None:
            self._shut_until = None
            self._tell("the store answers again")

    def _look_at_pause(self) -> None:
        """Ask the store whether it is back, if it is time; nobody waits for that."""
        if self._shut_until is None or self._canary is not None:
            return
        if self.clock() < self._shut_until or not self.connector.available:
            return
        try:
            self._canary = self.connector.submit_batch_exists(
                [_CANARY], timeout_s=_CANARY_TIMEOUT_S
            )
        except KVFerryError:
            self._still_shut()

    def _still_shut(self) -> None:
        self._retry_s = min(RETRY_MAX_S, 2 * self._retry_s)
        self._shut_until = self.clock() + self._retry_s

    def _tell(self, text: str) -> None:
        if text != self._told:  # a store that comes and goes must not fill the log
            self._told = text
            _log.warning("%s", text)

    # --- Batches ---

    def renew(self) -> None:
        """From now on all names are others: what was stored before is not found any more."""
        self._generation = f"{joined(drawn(), own_of(FIRST)).hex()}:"

    def absent(self, name: str) -> bool:
        """Whether a key is certainly absent, where the driver knows that without asking."""
        return self._absent(self._generation + name)

    def leading(self, names: Sequence[str]) -> int | None:
        """How many leading keys are there in all likelihood, where the driver knows that."""
        return self._leading(self._named(names))

    def _named(self, names: Sequence[str]) -> Sequence[str]:
        generation = self._generation
        return [generation + name for name in names] if generation else names

    def touch(self, names: Sequence[str], timeout_s: float, then: Then) -> int | None:
        """Ask which keys are there, and make them recently used; an id, None if refused."""
        names = self._named(names)
        return self._sent(
            lambda: self.connector.submit_batch_exists(names, touch=True, timeout_s=timeout_s), then
        )

    def get(
        self, names: Sequence[str], views: Sequence[BufferLike], timeout_s: float, then: Then
    ) -> int | None:
        """Read values into `views`; an id, None if refused."""
        names = self._named(names)
        return self._sent(
            lambda: self.connector.submit_batch_get(names, views, timeout_s=timeout_s), then
        )

    def set(
        self, names: Sequence[str], views: Sequence[BufferLike], timeout_s: float, then: Then
    ) -> int | None:
        """Store `views`; an id, None if refused."""
        names = self._named(names)
        return self._sent(
            lambda: self.connector.submit_batch_set(names, views, timeout_s=timeout_s), then
        )

    def cancel(self, batch: int) -> None:
        """Withdraw a batch; it is answered soon, as soon as nothing uses its buffers."""
        try:
            self.connector.cancel(batch)
        except KVFerryError:
            _log.debug("nothing to cancel", exc_info=True)

    def progress(self, batch: int) -> int:
        """How many leading keys of a batch have arrived."""
        return self.connector.progress(batch)

    def poll(self) -> None:
        """Hand every answer that is there to whoever waits for it."""
        for batch, result in self.connector.drain_completions():
            silent = bool(result.statuses) and not result.statuses.strip(_SILENT)
            if batch == self._canary:
                self._canary = None
                if silent:
                    self._still_shut()
                else:
                    self._resume()
                continue
            then = self._waiting.pop(batch, None)
            if silent:
                self.pause()
            elif self._retry_s != RETRY_MIN_S and self._shut_until is None:
                self._retry_s = RETRY_MIN_S
            if then is not None:
                then(result)
        self._look_at_pause()

    def wait(self, timeout_s: float) -> None:
        """Sleep until something is answered, `timeout_s` at most, and `poll`."""
        poller = select.poll()
        poller.register(self.connector.event_fd(), select.POLLIN)
        poller.poll(max(0.0, timeout_s) * 1e3)
        self.poll()

    def close(self) -> None:
        """Cancel everything and close the store; every batch is answered before this returns."""
        self._closed = True
        self.connector.close()
        self._waiting.clear()

    def _sent(self, submit: Callable[[], int], then: Then) -> int | None:
        try:
            batch = submit()
        except KVFerryError as error:
            self.counts["refused_batches"] += 1
            self._tell(f"a batch was refused: {error}")
            return None
        self._waiting[batch] = then
        self.counts["batches"] += 1
        return batch


@contextlib.contextmanager
def in_the_background() -> Iterator[None]:
    """Threads that are started within do not interrupt others, where the host allows that."""
    before = _threads()
    yield
    for thread in _threads() - before:
        with contextlib.suppress(OSError):  # it ended, or a sandbox does not want it
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _threads() -> set[int]:
    try:
        return {int(name) for name in os.listdir(_TASKS)}
    except (OSError, ValueError):
        return set()


def _unknown(_: str) -> bool:
    """Of a driver that has to ask."""
    return False


def _nobody_knows(_: Sequence[str]) -> None:
    """The same of a prefix."""
