"""What a client of the cache server counts, replies that are none among it.

Threads: any.
"""

from __future__ import annotations

import threading
from typing import Final

import msgspec

from kvferry.server.protocol import Reply, decode_reply

__all__ = ["Counters", "read_reply"]

_COUNTED: Final = (
    "requests",  # sent to the server
    "unavailable",  # calls that were answered without it, because it is away
    "timeouts",  # requests without an answer in time
    "failures",  # requests that the server refused
    "nonsense",  # replies that cannot be right; what they say was not done
    "reconnects",  # sessions after the first one
    "lost_leases",  # leases and reservations that had ended before their use did
    "bytes_stored",  # copied into shared pages, and committed
    "bytes_retrieved",  # copied out of shared pages, or shown in them
    "socket_bytes_sent",  # of all messages
    "socket_bytes_received",
)


class Counters:
    """Numbers that only grow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values = dict.fromkeys(_COUNTED, 0)

    def add(self, name: str, count: int = 1) -> None:
        """Add to one of them."""
        with self._lock:
            self._values[name] += count

    def asked(self, sent: int) -> None:
        """A request of so many bytes was sent."""
        with self._lock:
            self._values["requests"] += 1
            self._values["socket_bytes_sent"] += sent

    def exchanged(self, sent: int, received: int) -> None:
        """Bytes went over a socket."""
        with self._lock:
            self._values["socket_bytes_sent"] += sent
            self._values["socket_bytes_received"] += received

    def read(self) -> dict[str, int]:
        """All of them, at one moment."""
        with self._lock:
            return dict(self._values)


def read_reply(counters: Counters, frame: bytes) -> Reply | None:
    """A reply as it came, counted; None: it is none."""
    counters.exchanged(0, len(frame))
    try:
        reply: Reply = decode_reply(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        counters.add("nonsense")
        return None
    return reply
