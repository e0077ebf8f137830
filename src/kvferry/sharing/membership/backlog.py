"""Changes that a cache has told its reporter and the controller does not know yet, bounded.

Putting a change in costs an append under a lock, whatever the state of the controller. When the
changes become too many, all of them are forgotten: a snapshot says the same.
"""

from __future__ import annotations

import threading
from collections import deque

from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.sharing.membership.messages import HASHES_MAX

__all__ = ["Backlog", "Change"]

# Identity, hashes that came, hashes that went: in this order.
Change = tuple[bytes, bytes, bytes]
_PIECE_BYTES_MAX = HASHES_MAX * DIGEST_BYTES  # of one message


class Backlog:
    """The changes of one process. Threads: any for `put`, `lose` and `wake`; one for the others.

    Args:
        bytes_max: Of hashes that wait.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._told: deque[tuple[bytes, bool, bytes]] = deque()
        self._changed = threading.Condition()
        self._lost = False
        self._woken = False

    def put(self, identity: bytes, came: bool, hashes: bytes) -> None:
        """Hashes that came, or went."""
        if not hashes:
            return
        with self._changed:
            if self._bytes + len(hashes) > self._bytes_max:
                self._forget()
            elif not self._lost:
                self._told.append((identity, came, hashes))
                self._bytes += len(hashes)
            self._changed.notify()

    def lose(self) -> None:
        """Chunks came or went whose hashes are not known."""
        with self._changed:
            self._forget()
            self._changed.notify()

    def _forget(self) -> None:
        self._told.clear()
        self._bytes, self._lost = 0, True

    def wake(self) -> None:
        """End `wait` now."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def wait(self, timeout_s: float) -> None:
        """Wait until there is a change, or one was lost, or for `wake`."""
        with self._changed:
            self._changed.wait_for(lambda: self._told or self._lost or self._woken, timeout_s)
            self._woken = False

    @property
    def lost(self) -> bool:
        """Whether changes were forgotten since `restart`."""
        with self._changed:
            return self._lost

    def restart(self) -> None:
        """Forget all changes: a snapshot begins now, and says them."""
        with self._changed:
            self._told.clear()
            self._bytes, self._lost = 0, False

    def take(self) -> list[Change]:
        """Take all changes, in as few as keep the order."""
        with self._changed:
            told, self._told, self._bytes = self._told, deque(), 0
        changes: list[tuple[bytes, list[bytes], list[bytes]]] = []
        size = 0
        for identity, came, hashes in told:
            for at in range(0, len(hashes), _PIECE_BYTES_MAX):
                piece = hashes[at : at + _PIECE_BYTES_MAX]
                last = changes[-1] if changes else None
                size += len(piece)
                # A chunk that went and came again needs a change of its own.
                if (
                    last is None
                    or last[0] != identity
                    or (came and last[2])
                    or size > _PIECE_BYTES_MAX
                ):
                    changes.append((identity, [], []))
                    size = len(piece)
                _, added, removed = changes[-1]
                (added if came else removed).append(piece)
        return [(identity, b"".join(a), b"".join(r)) for identity, a, r in changes]
