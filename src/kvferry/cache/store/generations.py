"""What one store says of clears for everybody, and the stale chunks that a clear leaves in it.

The store keeps a mark for each identity, with a counter and a random number. The mark is read once
a second, and before the first question that the store is asked. A clear for everybody writes a mark
with a higher counter; whoever reads it finds nothing of before. A store whose mark is older than
the cache's, which heard a newer one elsewhere, is told the newer one.

A store can lose the mark, or bring an old one back: the mark was evicted or flushed, or a replica
that lagged was promoted. Then a new mark is drawn, and never an old one taken. As long as nobody
has cleared there is no mark, and nothing to lose.

While a store that answers does not say the cache's mark, nothing is read from it: every read is a
miss. A store that is known not to answer is not asked: its connector finds out when it does again.

Chunks of earlier generations are deleted from the store in the background until none is left.
Nothing depends on the deletion: nobody looks for their names any more.

All sources say marks of one order (stores, a controller, peers: `kvferry.sharing.peers`), and a
cache takes the newest (`NewestMark`). Where two marks differ that are equally new, two clears met
that did not know of each other: both are over, and a newer mark follows.

Threads: any; one of its own, from the first moment that there is something to do.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

from kvferry.base.errors import KVFerryError, UnavailableError
from kvferry.base.threads import Guarded, noticed
from kvferry.cache.steps import Polled, Steps, Wait
from kvferry.cache.store import process_breaks
from kvferry.chunks.generation import Mark, read_name
from kvferry.client.batch import Status
from kvferry.connectors.base import Connector

__all__ = ["GenerationStore", "MarkSource", "NewestMark", "StoreGenerations"]

# A process that was stopped may have missed a clear: it finds nothing until all sources have
# answered or failed, for so long at most. Whoever asks waits for less.
_CLEARED_S = 3.0
_WAIT_S = 1.0
_LINE_MAX = 12  # halves that are remembered


class MarkSource(Protocol):
    """Who says marks, and is told newer ones."""

    def heard_since(self, moment: float) -> bool:
        """Whether it was asked after that moment of ``time.monotonic``, and has answered or
        failed."""

    def ask_soon(self) -> None:
        """Ask and tell this source, in the background."""


class NewestMark:
    """The newest mark of one cache, and the sources that it follows.

    Args:
        changed: Called behind each new mark; says how many chunks that ended.

    Attributes:
        mark: The newest.
        line: Halves that came before it, the last one first. A source that says one of them lags; a
            source that says another one was cleared by somebody who did not know of `mark`.
    """

    def __init__(self, changed: Callable[[], int]) -> None:
        self.mark = Mark()
        self.line: tuple[bytes, ...] = ()
        self._changed = changed
        self._lock = threading.Lock()
        self._sources: tuple[MarkSource, ...] = ()
        self._heard_since = time.monotonic()

    def follow(self, source: MarkSource) -> None:
        """Ask this source too."""
        process_breaks.watch_breaks()
        with self._lock:
            self._sources = (*self._sources, source)

    def leave(self, source: MarkSource) -> None:
        """Ask this source no more."""
        with self._lock:
            self._sources = tuple(one for one in self._sources if one is not source)

    def heard(self, mark: Mark, line: tuple[bytes, ...] = ()) -> int:
        """A source says this mark; how many chunks ended with the one before."""
        with self._lock:
            known = self.mark
            if mark.counter < known.counter or not mark.is_sound:
                return 0
            if mark == known:
                self._remember(line)
                return 0
            if mark.counter > known.counter:
                self._take(mark, line)
            else:
                self._take(known.met(mark), (mark.half,))
        return self._told()

    def meet(self, mark: Mark) -> int:
        """Somebody has cleared who did not know of `mark`, whatever the counters: both are over."""
        with self._lock:
            self._take(self.mark.met(mark), (mark.half,))
        return self._told()

    def renew(self, *others: Mark) -> int:
        """Clear for everybody: take a mark that is newer than all, `others` too; as `heard`."""
        with self._lock:
            self._take(self.mark.renewed(*others), tuple(each.half for each in others))
        return self._told()

    def _take(self, mark: Mark, line: tuple[bytes, ...]) -> None:
        self._remember((self.mark.half, *line))
        self.mark = mark

    def _remember(self, line: tuple[bytes, ...]) -> None:
        halves = dict.fromkeys((*line, *self.line))
        self.line = tuple(half for half in halves if any(half))[:_LINE_MAX]

    def _told(self) -> int:
        count = self._changed()
        for source in self._sources:
            source.ask_soon()
        return count

    # --- After a break of the process ---

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was missed: this process was not stopped, or has asked since then."""
        since = process_breaks.since()
        if since <= self._heard_since:
            return True
        late = time.monotonic() - since > _CLEARED_S
        if late or all(source.heard_since(since) for source in self._sources):
            self._heard_since = since
            return True
        return False

    def refreshing(self, until: float) -> Steps[bool]:
        """Wait until `is_fresh`, up to a moment of ``time.monotonic``; whether it is."""
        if self.is_fresh:
            return True
        for source in self._sources:
            source.ask_soon()
        until = min(until, time.monotonic() + _WAIT_S)
        while not self.is_fresh and (left_s := until - time.monotonic()) > 0:
            yield Wait(Polled(lambda: self.is_fresh), left_s)
        return self.is_fresh


_log = logging.getLogger("kvferry.cache")

_EVERY_S = 1.0  # that the mark is read
_AGAIN_S = 0.1  # after a mark was written: others may draw one at the same moment
_VALID_S = 3.0  # an answer that is older does not count: the store is asked before it is read from
_TIMEOUT_S = 5.0  # for the answer of the store
_PATIENCE_S = 1.0  # that anybody waits for the answer
_WRITES_MAX = 8  # of one clear: others may write too
_DELETE_KEYS_MAX = 256  # of one batch
_RETRY_S, _RETRY_S_MAX = 1.0, 30.0  # before a deletion that failed is tried again
_DELETE_S_MAX = 3600.0  # after which a deletion is given up


@runtime_checkable
class GenerationStore(Protocol):
    """A connector whose store keeps a mark for each identity.

    One that deletes chunks quicker than by `scan` and `batch_delete` also has
    ``delete_generations(which)``, which says now and then how many went.
    """

    def read_mark(self, timeout_s: float) -> bytes | None: ...

    def write_mark(self, value: bytes, timeout_s: float, *, absent: bool) -> None:
        """Write a mark; `absent`: only where there is none."""


class StoreGenerations:
    """The mark of one store, and its deletions.

    Args:
        name: Of the store.
        connector: The store.
        newest: Of the cache.
    """

    def __init__(self, name: str, connector: Connector, newest: NewestMark) -> None:
        self._name = name
        self._connector = connector
        self._keeps = connector if isinstance(connector, GenerationStore) else None
        self._newest = newest
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._asking = threading.Lock()
        self._said: Mark | None = None  # what lay there the last time
        self._owes = False  # a clear that it did not take
        self._asked_at = float("-inf")  # for what was answered
        self._tried_at = float("-inf")  # for what was answered, or failed
        self._asking_since = float("inf")
        self._wanted = False  # somebody waits for an answer
        self._failed = False
        self._deletions: list[_Deletion] = []
        self._closed = False
        self._ask_at = 0.0  # the thread's own
        self._thread: threading.Thread | None = None
        if self._keeps is not None:
            newest.follow(self)
            with self._lock:
                self._start()

    # --- Asking ---

    @property
    def keeps(self) -> bool:
        """Whether the store keeps marks, so that a clear reaches everybody who uses it."""
        return self._keeps is not None

    @property
    def known(self) -> bool:
        """Whether the store has said lately that its generation is that of the cache."""
        if self._keeps is None:
            return True
        lately = time.monotonic() - self._asked_at < _VALID_S
        return lately and self._said == self._newest.mark

    def heard_since(self, moment: float) -> bool:
        """See `MarkSource`."""
        return self._tried_at >= moment

    def ask_soon(self) -> None:
        """See `MarkSource`."""
        with self._lock:
            self._wanted = True
            self._wake.notify_all()

    def waiting(self, until: float) -> Steps[bool]:
        """Wait until the mark is `known`, up to a moment of ``time.monotonic``; whether it is.

        Nobody waits for a store that did not answer the last time.
        """
        while not self._is_decided:
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            self.ask_soon()
            yield Wait(_Said(self), min(left_s, 0.05))
        return self.known

    @property
    def _is_decided(self) -> bool:
        """Whether waiting for the store makes no sense, or none any more."""
        over = self.known or self._closed or self._failed or not self._connector.available
        return over or time.monotonic() - self._asking_since > _PATIENCE_S

    # --- Clearing ---

    def read(self) -> Mark:
        """The mark of the store now.

        Raises:
            UnavailableError, DeadlineExceeded, ServerError: The store does not say.
        """
        assert self._keeps is not None
        return Mark.decode(self._keeps.read_mark(_TIMEOUT_S))

    def tell(self, *, now: bool = True) -> None:
        """Have the store say the mark that the cache has just renewed; not `now`: when it answers.

        Raises:
            UnavailableError, DeadlineExceeded, ServerError: The store does not take the mark. It is
                told as soon as it answers.
        """
        assert self._keeps is not None
        self._owes = True
        if not now:
            return
        with self._asking:
            for _ in range(_WRITES_MAX):
                if not self._compare(time.monotonic()):
                    return
        raise UnavailableError(f"{self._name} does not keep the generation that is written to it")

    def delete(self, which: Callable[[bytes], bool], ready: Callable[[], bool]) -> None:
        """Delete chunks of some generations some time.

        Args:
            which: Says of a generation whether it is one of these.
            ready: Whether nothing of these is being written any more.
        """
        with self._lock:
            self._deletions.append(_Deletion(which, ready, time.monotonic()))
            self._start()
            self._wake.notify_all()

    def close(self) -> None:
        """Ask and delete nothing any more."""
        with self._lock:
            self._closed = True
            self._wake.notify_all()
            thread = self._thread
        self._newest.leave(self)
        if thread is not None:
            thread.join(_PATIENCE_S)

    # --- The thread ---

    def _start(self) -> None:
        """With the lock."""
        if self._thread is None and not self._closed:
            self._thread = Guarded(
                self._run,
                "generations",
                detail=self._name,
                failed=lambda _: self._fail(time.monotonic()),
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
        """Hear the store's mark and tell the cache's; whether to ask again at once."""
        # Dialling a store that is away would take the engine's processor. That it was away before
        # this process was stopped says nothing.
        if not self._connector.available and began - process_breaks.since() > _PATIENCE_S:
            self._fail(began)
            return False
        with self._asking:
            try:
                return self._compare(began)
            except Exception as error:  # of a plug-in it may be any
                if not isinstance(error, KVFerryError):
                    noticed("generations", error)
                _log.debug("%s does not say its generation: %s", self._name, error)
                self._fail(began)
                return False

    def _compare(self, began: float) -> bool:
        """Read the mark, and write the cache's where the cache's is newer; whether it was written.

        A mark that was written is read again before it counts: another cache may write too.
        """
        assert self._keeps is not None
        value = self._keeps.read_mark(_TIMEOUT_S)
        found, said, newest = Mark.decode(value), self._said, self._newest.mark
        damaged = value is not None and not found.counter
        lost = damaged or (said is not None and found != said and found.counter <= said.counter)
        if not damaged:
            self._said = found
        if not self._owes and found.counter >= newest.counter and (found == newest or not lost):
            self._newest.heard(found, Mark.line_of(value))
            newest = self._newest.mark
        if found == newest and not damaged:
            self._take(found, began)
            return False
        # A store that lags is told. A store whose mark did not come before the cache's was cleared
        # by somebody who did not know of the cache's.
        if lost:
            _log.info("%s has lost its generation: a new one was drawn", self._name)
            self._newest.renew(found)
        elif found.counter >= newest.counter or (
            any(found.half) and found.half not in self._newest.line
        ):
            self._newest.meet(found)
        text = self._newest.mark.encode(self._newest.line)
        self._keeps.write_mark(text, _TIMEOUT_S, absent=value is None)
        self._owes = False
        return True

    def _fail(self, began: float) -> None:
        with self._lock:
            self._failed, self._tried_at = True, began
            self._wake.notify_all()

    def _take(self, mark: Mark, began: float) -> None:
        with self._lock:
            self._said, self._owes = mark, False
            self._asked_at = self._tried_at = began
            self._failed = False
            self._wake.notify_all()

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
        """Delete the chunks of these generations that are there now; how many there were."""
        count = 0
        delete = getattr(self._connector, "delete_generations", self._deleted)
        for gone in delete(which):
            count += gone
            if self._closed:
                break
            self._ask_if_due()
        return count

    def _deleted(self, which: Callable[[bytes], bool]) -> Iterator[int]:
        for batch in self._connector.scan(_DELETE_KEYS_MAX):
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
    """Generations whose chunks are to be deleted, and when that is tried next."""

    __slots__ = ("at", "began", "ready", "wait_s", "which")

    def __init__(
        self, which: Callable[[bytes], bool], ready: Callable[[], bool], now: float
    ) -> None:
        self.which = which
        self.ready = ready
        self.began = self.at = now
        self.wait_s = _RETRY_S
