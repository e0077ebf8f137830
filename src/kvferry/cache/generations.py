"""What one store says of clears for everybody, and what a clear has left in it.

In the store lies one key for each identity, with a counter and a random number. It is read once a
second, and before the first question that the store is asked. A clear for everybody writes a higher
counter; whoever reads it finds nothing of before. A store can lose the key, or bring an old one
back: it was evicted or flushed, or a replica that lagged was promoted. Then a new one is drawn, and
never an old one taken. As long as nobody has cleared there is no key, and nothing to lose.

While a store that answers does not say it, nothing is read from that store: that is a miss. One
that is known not to answer is not asked: its connector finds out when it does again.

What earlier generations have in the store is deleted behind it, chunk by chunk, until nothing of
them is left. Nothing depends on that: nobody looks for those names any more.

Threads: any; one of its own, from the first moment that there is something to do.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

from kvferry._threads import Guarded, noticed
from kvferry.cache.steps import Steps, Wait, finish
from kvferry.chunks.generation import drawn, read_name
from kvferry.client.batch import Status
from kvferry.connectors.base import Connector
from kvferry.errors import KVFerryError

__all__ = ["GenerationStore", "Mark", "StoreGenerations"]

_log = logging.getLogger("kvferry.cache")

_EVERY_S = 1.0
_AGAIN_S = 0.1  # others may draw at the same moment
# Who did not hear from the store for so long asks it before anything is read from it.
_VALID_S = 3.0
# An answer may take so long, but is waited for no longer than the second.
_TIMEOUT_S = 5.0
_PATIENCE_S = 1.0
_DELETE_KEYS = 256
# No clears lead to a number like that: somebody wrote it, and it is the newest that there can be.
_COUNTER_MAX = (1 << 63) - 1
# A deletion that fails is tried again, later and later, and given up after so long.
_RETRY_S = 1.0
_RETRY_S_MAX = 30.0
_DELETE_S_MAX = 3600.0


class Mark(NamedTuple):
    """What the key of an identity says; a higher counter is newer."""

    counter: int = 0
    half: bytes = bytes(8)

    def encode(self) -> bytes:
        """As it lies in the store."""
        return b"%d %s" % (self.counter, self.half.hex().encode())

    @classmethod
    def decode(cls, value: bytes | None) -> Mark:
        """What lies in the store; the first one where nothing does, or something else."""
        try:
            counter, half = (value or b"").decode("ascii").split(" ")
            mark = cls(int(counter), bytes.fromhex(half))
        except ValueError:
            return cls()
        return mark if 0 < mark.counter <= _COUNTER_MAX and len(mark.half) == 8 else cls()

    def next(self) -> Mark:
        """One that is newer than this one."""
        return Mark(min(self.counter + 1, _COUNTER_MAX), drawn())


@runtime_checkable
class GenerationStore(Protocol):
    """A connector whose store keeps a mark for each identity."""

    def read_mark(self, timeout_s: float) -> bytes | None: ...

    def write_mark(self, value: bytes, timeout_s: float, *, absent: bool) -> None:
        """Write it; `absent`: only where there is none."""

    def delete_generations(self, which: Callable[[bytes], bool]) -> Iterator[int]:
        """Delete chunks of these; says now and then how many."""


class StoreGenerations:
    """See the module.

    Args:
        name: Of the store.
        connector: The store.
        changed: Called when everybody's generation is another one than before.
    """

    def __init__(self, name: str, connector: Connector, changed: Callable[[], object]) -> None:
        self._name = name
        self._connector = connector
        self._keeps = connector if isinstance(connector, GenerationStore) else None
        self._changed = changed
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._asking = threading.Lock()
        self._mark: Mark | None = None if self._keeps else Mark()
        self._asked_at = float("-inf")  # for what was answered
        self._asking_since = float("inf")
        self._wanted = False  # somebody waits for an answer
        self._failed = False
        self._deletions: list[_Deletion] = []
        self._closed = False
        self._ask_at = 0.0  # the thread's own
        self._thread: threading.Thread | None = None
        if self._keeps is not None:
            with self._lock:
                self._start()

    # --- Asking ---

    @property
    def shared(self) -> bytes:
        """The shared half, as far as it is known."""
        mark = self._mark
        return Mark().half if mark is None else mark.half

    @property
    def keeps(self) -> bool:
        """Whether the store can say it to everybody."""
        return self._keeps is not None

    @property
    def known(self) -> bool:
        """Whether the store has said lately what its generation is."""
        return self._keeps is None or time.monotonic() - self._asked_at < _VALID_S

    def wait(self, until: float) -> bool:
        """Wait until it is known, up to a moment of ``time.monotonic``; whether it is.

        Nobody waits for a store that did not answer the last time.
        """
        return finish(self.waiting(until))

    def waiting(self, until: float) -> Steps[bool]:
        """`wait`, in steps."""
        while not self._is_decided:
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            with self._lock:
                self._wanted = True
                self._wake.notify_all()
            yield Wait(_Said(self), min(left_s, 0.05))
        return self.known

    @property
    def _is_decided(self) -> bool:
        """Whether waiting for it makes no sense, or none any more."""
        over = self.known or self._closed or self._failed or not self._connector.available
        return over or time.monotonic() - self._asking_since > _PATIENCE_S

    # --- Clearing ---

    def renew(self) -> None:
        """Clear for everybody: from now on nothing of before is found.

        Raises:
            UnavailableError, DeadlineExceeded, ServerError: The store does not take it.
        """
        assert self._keeps is not None
        with self._asking:
            now = Mark.decode(self._keeps.read_mark(_TIMEOUT_S))
            known = self._mark or Mark()
            mark = max(now, known, key=lambda one: one.counter).next()
            self._keeps.write_mark(mark.encode(), _TIMEOUT_S, absent=False)
            self._take(mark, time.monotonic())

    def delete(self, which: Callable[[bytes], bool], ready: Callable[[], bool]) -> None:
        """Delete chunks of some generations some time.

        Args:
            which: Says it of a generation.
            ready: Whether nothing of them is being written any more.
        """
        with self._lock:
            self._deletions.append(_Deletion(which, ready, time.monotonic()))
            self._start()
            self._wake.notify_all()

    @property
    def deleting(self) -> int:
        """How many clears have left something to delete."""
        return len(self._deletions)

    def close(self) -> None:
        """Ask and delete nothing any more."""
        with self._lock:
            self._closed = True
            self._wake.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_PATIENCE_S)

    # --- The thread ---

    def _start(self) -> None:
        """With the lock."""
        if self._thread is None and not self._closed:
            self._thread = Guarded(
                self._run, "generations", detail=self._name, failed=lambda _: self._fail()
            )
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._ask_if_due()
            self._delete_some()
            with self._lock:
                if self._closed:
                    return
                now = time.monotonic()
                wakes = [one.at for one in self._deletions]
                if self._keeps is not None:
                    wakes.append(self._ask_at)
                left_s = min(wakes) - now if wakes else None
                if (left_s is None or left_s > 0) and not self._wanted:
                    self._wake.wait(left_s)
                if self._wanted:
                    self._wanted, self._ask_at = False, 0.0

    def _ask_if_due(self) -> None:
        if self._keeps is not None and time.monotonic() >= self._ask_at:
            began = self._asking_since = time.monotonic()
            try:
                again = self._ask(began)
            finally:
                self._asking_since = float("inf")
            self._ask_at = began + (_AGAIN_S * random.random() if again else _EVERY_S)

    def _ask(self, began: float) -> bool:
        """Read the mark, and draw one where the store has lost it; whether to ask again at once."""
        assert self._keeps is not None
        if not self._connector.available:  # dialling it would take the engine's processor for that
            self._fail()
            return False
        with self._asking:
            try:
                value = self._keeps.read_mark(_TIMEOUT_S)
                found, known = Mark.decode(value), self._mark
                damaged = value is not None and not found.counter
                newer = known is None or found == known or found.counter > known.counter
                newer |= found.counter == _COUNTER_MAX
                if newer and not damaged:
                    self._take(found, began)
                    return False
                fresh = (known or Mark()).next()
                self._keeps.write_mark(fresh.encode(), _TIMEOUT_S, absent=value is None)
                _log.info("%s has lost its generation: a new one was drawn", self._name)
            except Exception as error:  # of a plug-in it may be any
                if not isinstance(error, KVFerryError):
                    noticed("generations", error)
                _log.debug("%s does not say its generation: %s", self._name, error)
                self._fail()
                return False
        return True  # another cache may have drawn one too: what lies there counts

    def _fail(self) -> None:
        with self._lock:
            self._failed = True
            self._wake.notify_all()

    def _take(self, mark: Mark, began: float) -> None:
        with self._lock:
            before, self._mark = self._mark, mark
            self._asked_at, self._failed = began, False
            self._wake.notify_all()
        if before is not None and before.half != mark.half:
            self._changed()

    def _delete_some(self) -> None:
        now = time.monotonic()
        for one in [one for one in self._deletions if one.at <= now]:
            done = False
            try:
                if one.ready():
                    done = not self._delete_pass(one.which)
                    one.wait_s = _RETRY_S  # it answers
            except Exception as error:  # of a plug-in it may be any
                if not isinstance(error, KVFerryError):
                    noticed("generations", error)
                _log.debug("%s: old generations stay for now: %s", self._name, error)
            late = now - one.began > _DELETE_S_MAX
            if done or late or self._closed:
                if late and not done:
                    _log.warning(
                        "%s: chunks of before a clear could not be deleted in an hour; nobody "
                        "finds them, and they go when the store evicts them",
                        self._name,
                    )
                with self._lock:
                    self._deletions.remove(one)
            else:
                one.at = time.monotonic() + one.wait_s
                one.wait_s = min(2 * one.wait_s, _RETRY_S_MAX)

    def _delete_pass(self, which: Callable[[bytes], bool]) -> int:
        """Delete what is there now; how many chunks there were."""
        count = 0
        for gone in self._keeps.delete_generations(which) if self._keeps else self._deleted(which):
            count += gone
            if self._closed:
                break
            self._ask_if_due()
        return count

    def _deleted(self, which: Callable[[bytes], bool]) -> Iterator[int]:
        for batch in self._connector.scan(_DELETE_KEYS):
            keys = [key for key, _ in batch if (name := read_name(key)) and which(name[1])]
            yield self._connector.batch_delete(keys).count(Status.OK) if keys else 0


class _Said:
    """That a store has said its generation."""

    def __init__(self, generations: StoreGenerations) -> None:
        self._generations = generations

    def wait(self, timeout_s: float) -> None:
        generations = self._generations
        with generations._lock:
            if not generations._is_decided and timeout_s > 0:
                generations._wake.wait(timeout_s)

    @property
    def done(self) -> bool:
        return self._generations._is_decided


class _Deletion:
    """What is to be deleted, and when it is tried next."""

    __slots__ = ("at", "began", "ready", "wait_s", "which")

    def __init__(
        self, which: Callable[[bytes], bool], ready: Callable[[], bool], now: float
    ) -> None:
        self.which = which
        self.ready = ready
        self.began = self.at = now
        self.wait_s = _RETRY_S
