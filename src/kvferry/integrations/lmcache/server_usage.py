"""What the servers behind a client hold and may hold, as they say themselves, asked rarely."""

from __future__ import annotations

import threading
import time

from kvferry.base.errors import KVFerryError
from kvferry.config import ClientConfig
from kvferry.connectors.control import Control, ControlNode

__all__ = ["ServerUsage"]

TIMEOUT_S = 1.0
AGE_S = 1.0  # how old an answer may be


class ServerUsage:
    """The sum over all primaries. Any thread; a call waits `TIMEOUT_S` at most for each server."""

    def __init__(self, config: ClientConfig) -> None:
        self._control = Control(config)
        self._lock = threading.Lock()
        self._asked = float("-inf")
        self._used: int | None = None
        self._capacity = 0

    def used_bytes(self) -> int | None:
        """Bytes of data; None: they do not say."""
        self._refresh()
        return self._used

    def capacity_bytes(self) -> int:
        """Their ``maxmemory`` together; 0: they have none, or do not say."""
        self._refresh()
        return self._capacity

    def close(self) -> None:
        """End the connection."""
        self._control.close()

    def _refresh(self) -> None:
        with self._lock:
            if time.monotonic() - self._asked < AGE_S:
                return
            try:
                told = list(self._control.each(TIMEOUT_S, _memory_of))
            except KVFerryError:
                self._used = None
            else:
                self._used = sum(used for used, _ in told)
                limits = [limit for _, limit in told]
                self._capacity = sum(limits) if all(limits) else 0
            self._asked = time.monotonic()


def _memory_of(node: ControlNode, left_s: float) -> tuple[int, int]:
    text = node.ask(b"INFO", b"memory", timeout_s=left_s)
    lines = text.decode(errors="replace").splitlines() if isinstance(text, bytes) else []
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    used = told.get("used_memory_dataset") or told.get("used_memory", "0")
    return int(used), int(told.get("maxmemory", "0"))
