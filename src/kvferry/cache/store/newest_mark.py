"""The newest mark that a cache has heard, whoever said it: a store, a controller, a peer.

All of them say marks of one order, and a cache takes the newest. Where two differ that are equally
new, two clears met that did not know of each other: both are over, and a newer one follows. What a
cache has taken it says to those that have an older one; see `kvferry.cache.store.generations` and
`kvferry.sharing.peers.instance`.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from kvferry.cache.steps import Polled, Steps, Wait
from kvferry.cache.store import awake
from kvferry.chunks.generation import Mark

__all__ = ["MarkSource", "NewestMark"]

# So long nothing is found where it is not known what a process that was stopped has missed; whoever
# asks waits for less.
_PATIENCE_S = 3.0
_WAIT_S = 1.0
_LINE = 12


class MarkSource(Protocol):
    """Who says marks, and is told those that it does not have."""

    def heard_since(self, moment: float) -> bool:
        """Whether it was asked behind that moment of ``time.monotonic``, and has answered or
        failed."""

    def ask_soon(self) -> None:
        """Ask it, and tell it, in the background."""


class NewestMark:
    """See the module.

    Args:
        changed: Called behind each new mark; says how many chunks that ended.

    Attributes:
        mark: The newest.
        line: Halves that came before it, the last one first. Who says one of them lags; who says
            another one was cleared by somebody who did not know of ours.
    """

    def __init__(self, changed: Callable[[], int]) -> None:
        self.mark = Mark()
        self.line: tuple[bytes, ...] = ()
        self._changed = changed
        self._lock = threading.Lock()
        self._sources: tuple[MarkSource, ...] = ()
        self._heard_since = time.monotonic()

    def follow(self, source: MarkSource) -> None:
        """Ask this one too."""
        awake.keep_awake()
        with self._lock:
            self._sources = (*self._sources, source)

    def leave(self, source: MarkSource) -> None:
        """It is not there any more."""
        with self._lock:
            self._sources = tuple(one for one in self._sources if one is not source)

    def heard(self, mark: Mark, line: tuple[bytes, ...] = ()) -> int:
        """Somebody has this mark; how many chunks ended with the one before."""
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
        """Somebody has cleared who did not know of ours, whatever the counters: both are over."""
        with self._lock:
            self._take(self.mark.met(mark), (mark.half,))
        return self._told()

    def renew(self, *others: Mark) -> int:
        """Clear for everybody: a mark that is newer than all, these too; as `heard`."""
        with self._lock:
            self._take(self.mark.renewed(*others), tuple(each.half for each in others))
        return self._told()

    def _take(self, mark: Mark, line: tuple[bytes, ...]) -> None:
        self._remember((self.mark.half, *line))
        self.mark = mark

    def _remember(self, line: tuple[bytes, ...]) -> None:
        halves = dict.fromkeys((*line, *self.line))
        self.line = tuple(half for half in halves if any(half))[:_LINE]

    def _told(self) -> int:
        count = self._changed()
        for source in self._sources:
            source.ask_soon()
        return count

    # --- Behind a break ---

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was missed: this process was not stopped, or has asked since then."""
        since = awake.since()
        if since <= self._heard_since:
            return True
        late = time.monotonic() - since > _PATIENCE_S
        if late or all(source.heard_since(since) for source in self._sources):
            self._heard_since = since
            return True
        return False

    def refreshing(self, until: float) -> Steps[bool]:
        """Wait until nothing is missed, up to a moment of ``time.monotonic``; whether so."""
        if self.is_fresh:
            return True
        for source in self._sources:
            source.ask_soon()
        until = min(until, time.monotonic() + _WAIT_S)
        while not self.is_fresh and (left_s := until - time.monotonic()) > 0:
            yield Wait(Polled(lambda: self.is_fresh), left_s)
        return self.is_fresh
