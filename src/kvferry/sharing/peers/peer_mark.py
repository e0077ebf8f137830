"""What one peer says of clears for everybody.

Its node has the mark of each identity that it lends, and is asked for it twice a second, without
anybody waiting. Nothing is written there: a peer that has an older mark reads ours.

Threads: any; no call waits.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from kvferry.base.errors import KVFerryError
from kvferry.cache.store.newest import Newest
from kvferry.chunks.generation import Mark
from kvferry.client.batch import Status
from kvferry.connectors.peer import PeerConnector

__all__ = ["PeerMark"]

_EVERY_S = 0.5
_TIMEOUT_S = 1.0
_DEAF_S = 3.0


class PeerMark:
    """See the module, and `kvferry.cache.store.newest.MarkSource`.

    Args:
        connector: To the peer.
        newest: Of the cache.

    Attributes:
        said: What it said last; None: nothing yet.
    """

    def __init__(self, connector: PeerConnector, newest: Newest) -> None:
        self.said: Mark | None = None
        self._connector = connector
        self._newest = newest
        self._lock = threading.Lock()
        self._asked: float | None = None  # since when an answer is owed
        self._ask_at = 0.0
        self._tried_at = float("-inf")
        self._nothing_since = float("inf")  # since when its node says no mark
        newest.follow(self)

    @property
    def is_deaf(self) -> bool:
        """Whether it knows of no marks: its node, which one that begins or ends lacks for a moment,
        has none for seconds."""
        return time.monotonic() - self._nothing_since > _DEAF_S

    def heard_since(self, moment: float) -> bool:
        """See `MarkSource`."""
        self.listen()
        return self._tried_at >= moment

    def ask_soon(self) -> None:
        """See `MarkSource`."""
        self._ask_at = 0.0
        self.listen()

    def listen(self) -> None:
        """Hear what was answered, and ask when it is time."""
        if not self._lock.acquire(blocking=False):
            return  # somebody does it
        heard: Mark | None = None
        try:
            with suppress(KVFerryError):  # it is being closed, or has too much to do
                heard = self._heard()
                now = time.monotonic()
                if self._asked is None and now >= self._ask_at:
                    self._ask_at = now + _EVERY_S
                    self._connector.ask_mark(_TIMEOUT_S)
                    self._asked = now
        finally:
            self._lock.release()
        if heard is not None:
            self._newest.heard(heard)

    def close(self) -> None:
        """Hear nothing any more."""
        self._newest.leave(self)

    def _heard(self) -> Mark | None:
        found = self._connector.said_mark() if self._asked is not None else None
        if found is None or self._asked is None:
            return None
        self._tried_at, self._asked = self._asked, None
        status, value = found
        nothing = status is Status.MISS
        self._nothing_since = min(self._nothing_since, self._tried_at) if nothing else float("inf")
        if status is not Status.OK:
            return None
        self.said = Mark.decode(value)
        return self.said
