"""What happened in a run: the last calls, every blow, every fault found. Threads: any.

A fault is something that must not happen; the first one ends the run. The journal is written as
JSON when there was one.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

__all__ = ["Journal"]

EVENTS_MAX = 4000  # full after some seconds, so that it does not look like a leak


class Journal:
    """See the module."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.faults: list[dict[str, Any]] = []
        self.failed = threading.Event()
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._blows: list[dict[str, Any]] = []

    def now_s(self) -> float:
        return round(time.monotonic() - self.started, 4)

    def note(self, kind: str, **what: Any) -> None:
        """Something that may explain a fault later."""
        self._events.append({"at_s": self.now_s(), "kind": kind, **what})

    def blow(self, **what: Any) -> None:
        """A step of the schedule; all of these are kept."""
        self._blows.append({"at_s": self.now_s(), **what})

    def fault(self, kind: str, text: str) -> None:
        """Something that must not happen."""
        self.faults.append({"at_s": self.now_s(), "kind": kind, "text": text})
        self.failed.set()

    def kinds(self) -> set[str]:
        """The kinds of the faults so far."""
        return {fault["kind"] for fault in self.faults}

    def write(self, path: Path, **head: Any) -> None:
        """Everything, as one JSON object."""
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = {**head, "faults": self.faults, "blows": self._blows, "events": [*self._events]}
        path.write_text(json.dumps(whole, indent=1, default=str) + "\n")
