"""Whether blocks may be touched: they can be taken away from those who copy.

An engine that goes to sleep, or is given new tensors, unmaps its blocks. Before that it forgets
what it has cached, which is when `BlockAccess.revoke` is called: copies that run are waited for,
and none that was asked for before begins any more. What was gathered while blocks were taken away
is not to be trusted.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["BlockAccess"]


class BlockAccess:
    """Counts copies that run, and the times that blocks were taken away.

    Attributes:
        epoch: How often blocks were taken away. Whoever asks for a copy notes it.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._changed = threading.Condition()
        self._running = 0

    @contextmanager
    def touching(self, epoch: int) -> Iterator[bool]:
        """For the time of a copy: whether the blocks of that epoch may be read or written."""
        with self._changed:
            may = epoch == self.epoch
            self._running += may
        try:
            yield may
        finally:
            if may:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

    def revoke(self, until: float) -> bool:
        """Let no copy begin that was asked for before now; whether none runs any more.

        Args:
            until: How long running copies are waited for, on the clock of ``time.monotonic``.
        """
        with self._changed:
            self.epoch += 1
            left_s = max(0.0, until - time.monotonic())
            return self._changed.wait_for(lambda: not self._running, left_s)
