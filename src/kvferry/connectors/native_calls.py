"""Batches of a client that completes them by an eventfd: submitted here, drained here, waited for.

A batch that its caller has given up stays known, with its buffers, until the client completes it:
only then is that memory free. While one has been missing for seconds the client is not asked, but
for a try now and then; while many are missing it is not asked at all.

Threads: any for `run`; one of its own drains. `submit` of the client is called one at a time.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kvferry.base.errors import (
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    ServerError,
    UnavailableError,
)
from kvferry.base.threads import Guarded, noticed

__all__ = ["Calls", "Completed"]

# Whether it went well, what did not, and a flag for each key where the client has some.
Completed = tuple[bool, str, Sequence[bool] | None]

_LOOK_S = 0.5  # between two drains without a signal of the descriptor
_REST_S = 0.01  # pause after a descriptor was readable and there was nothing to drain
_PATIENCE_S = 2.0  # how old a missing batch may be while the client still gets new ones
_RETRY_S = 5.0  # from the last batch that was given up until the client is tried again
_MISSING_MAX = 8  # missing batches, from which on the client gets none
_EARLY_MAX = 1024  # completions that came before `submit` had returned their id
_CLOSE_S = 2.0  # for the thread, and then for the client, to end


class _Batch:
    """A batch under way, and the memory that the client has of it."""

    __slots__ = ("began", "buffers", "completed", "done")

    def __init__(self, buffers: object) -> None:
        self.began = time.monotonic()
        self.buffers = buffers
        self.done = threading.Event()
        self.completed: Completed | None = None


class Calls:
    """See the module.

    Args:
        client: Of the contract that `native_plugin` names; closed with this.

    Raises:
        ConfigError: Its descriptor cannot be waited for.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._submitting = threading.Lock()
        self._batches: dict[int, _Batch] = {}
        self._early: deque[tuple[int, Completed]] = deque(maxlen=_EARLY_MAX)
        self._given_up: list[_Batch] = []
        self._retry_at = 0.0
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        try:
            self._poll.register(client.event_fd(), select.POLLIN)
        except (OSError, TypeError, ValueError):
            os.close(self._wake)
            raise ConfigError("event_fd() of the client is no descriptor") from None
        self._thread = Guarded(self._drain_all, "drain")
        self._thread.start()

    @property
    def available(self) -> bool:
        """Whether the client has completed what it was given, or it is time to try again."""
        now = time.monotonic()
        with self._lock:
            if not self._given_up:
                return True
            patient = now - self._given_up[0].began < _PATIENCE_S
            return len(self._given_up) < _MISSING_MAX and (patient or now >= self._retry_at)

    @property
    def missing(self) -> int:
        """Batches that were given up and are not completed."""
        return len(self._given_up)

    def run(self, submit: Callable[[], int], buffers: object, until: float) -> Completed:
        """Submit a batch and wait for its end, until a moment of ``time.monotonic``.

        Args:
            submit: Calls the client; gives the id of the batch.
            buffers: What the client may use until it has completed the batch.

        Raises:
            ClosedError, UnavailableError, DeadlineExceeded: There is no answer.
            ServerError: The client raised something.
        """
        if not self.available:
            raise UnavailableError(f"{self.missing} batches were not completed by the client")
        batch = _Batch(buffers)
        if not self._submitting.acquire(timeout=max(0.0, until - time.monotonic())):
            raise DeadlineExceeded("the client takes no batch")
        try:
            if self._closed:
                raise ClosedError("the connector is closed")
            self._register(_submitted(submit), batch)
        finally:
            self._submitting.release()
        batch.done.wait(max(0.0, until - time.monotonic()))
        with self._lock:
            if batch.completed is not None:
                return batch.completed
            if self._closed:
                raise ClosedError("the connector is closed")
            self._given_up.append(batch)
            self._retry_at = time.monotonic() + _RETRY_S
        raise DeadlineExceeded("the client did not complete a batch in time")

    def close(self) -> bool:
        """End the thread and the client; whether it has let go of all buffers."""
        with self._lock:
            first, self._closed = not self._closed, True
            waiting = list(self._batches.values())
        if not first:
            return True
        os.eventfd_write(self._wake, 1)
        self._thread.join(_CLOSE_S)
        for batch in waiting:
            batch.done.set()
        # A client that waits for a thread which hangs must not keep us.
        ending = Guarded(self._end, "close", errand=True)
        ending.start()
        ending.join(_CLOSE_S)
        if not self._thread.is_alive():
            os.close(self._wake)
        if ending.is_alive():
            _kept.append((self._client, self._batches))
            return False
        self._batches.clear()
        return True

    # --- Inside ---

    def _end(self) -> None:
        self._client.close()  # it is gone either way

    def _register(self, batch_id: int, batch: _Batch) -> None:
        with self._lock:
            for known, completed in self._early:
                if known == batch_id:
                    self._early.remove((known, completed))
                    batch.completed = completed
                    batch.done.set()
                    return
            self._batches[batch_id] = batch

    def _drain_all(self) -> None:
        while not self._closed:
            ready = self._poll.poll(_LOOK_S * 1000)
            if self._closed:
                return
            drained = self._drain()
            if ready and not drained:
                time.sleep(_REST_S)

    def _drain(self) -> int:
        try:
            found = list(self._client.drain_completions())
        except Exception as problem:  # the batches are late then, which their callers see
            noticed("drain", problem)
            time.sleep(_LOOK_S)
            return 0
        for each in found:
            with suppress(TypeError, ValueError):
                batch_id, ok, error, flags = each
                each_key = None if flags is None else [bool(flag) for flag in flags]
                self._complete(int(batch_id), (bool(ok), str(error or ""), each_key))
        return len(found)

    def _complete(self, batch_id: int, completed: Completed) -> None:
        with self._lock:
            batch = self._batches.pop(batch_id, None)
            if batch is None:  # its id is on the way back from `submit`
                self._early.append((batch_id, completed))
                return
            batch.completed = completed
            if batch in self._given_up:
                self._given_up.remove(batch)
            batch.done.set()


def _submitted(submit: Callable[[], int]) -> int:
    try:
        return int(submit())
    except Exception as error:
        raise ServerError(f"{type(error).__name__}: {error}") from error


# Clients that do not end, and the memory that they may still write to.
_kept: list[object] = []
