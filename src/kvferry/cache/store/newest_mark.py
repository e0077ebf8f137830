"""The newest mark that a cache has heard, whoever said it: a store, a controller, a peer.

All sources say marks of one order, and a cache takes the newest. Where two marks differ that are
equally new, two clears met that did not know of each other: both are over, and a newer mark
follows. A source that has an older mark is told the newest; see `kvferry.cache.store.generations`
and `kvferry.sharing.peers.shared_clears`.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from kvferry.cache.steps import Polled, Steps, Wait
from kvferry.cache.store import process_breaks
from kvferry.chunks.generation import Mark

__all__ = ["MarkSource", "NewestMark"]

# A process that was stopped may have missed a clear: it finds nothing until all sources have
# answered or failed, for so long at most. Whoever asks waits for less.
_PATIENCE_S = 3.0
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
        late = time.monotonic() - since > _PATIENCE_S
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
