"""What happened, for people: the last events, each with a number.

Threads: any.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any

from kvferry.base.shown import in_line

__all__ = ["Journal"]

_log = logging.getLogger("kvferry.controller")
_KEPT = 1000  # events


class Journal:
    """The last 1000 events."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._last = 0

    def write(self, kind: str, text: str, **facts: Any) -> None:
        """Something happened; `text` says it to people, in one line."""
        text = in_line(text)
        with self._lock:
            self._last += 1
            event = {"id": self._last, "time": round(time.time(), 3), "type": kind, "text": text}
            self._events.append(event | facts)
        _log.info("%s", text)

    def since(self, last: int) -> list[dict[str, Any]]:
        """Those behind an event; 0: all that are kept. A number from before a restart: all."""
        with self._lock:
            return [event for event in self._events if event["id"] > last or last > self._last]

    @property
    def last(self) -> int:
        """The number of the last event."""
        with self._lock:
            return self._last
