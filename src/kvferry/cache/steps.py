"""Work that waits, in steps: whoever has it done decides what waits with it.

A function that waits for a store is a generator here. It yields a `Wait`: what for, and how long;
and it is sent what came of that. `finish` waits on the spot, in the thread that calls it. The cache
server lets hundreds of them wait without a thread; see `kvferry.server.wait_queue`.

Whoever does not go on with one closes it: it lets go of what it holds, within moments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

__all__ = ["Awaited", "Polled", "Steps", "Wait", "finish"]

T = TypeVar("T")
_LOOK_S = 0.002


class Awaited(Protocol):
    """What can be waited for; a `Ticket` is. It may have ``tell``: calls a function, once, from any
    thread, when it is worth looking whether it is done."""

    def wait(self, timeout_s: float) -> Any:
        """What came, or None."""

    @property
    def done(self) -> bool:
        """Whether `wait` would return at once."""


class Polled:
    """That something is so which nobody announces: it is looked at again and again."""

    def __init__(self, is_so: Callable[[], bool]) -> None:
        self._is_so = is_so

    def wait(self, timeout_s: float) -> None:
        """Until it is so, or the time is over."""
        until = time.monotonic() + timeout_s
        while not self.done and time.monotonic() < until:
            time.sleep(_LOOK_S)

    @property
    def done(self) -> bool:
        """See `Awaited`."""
        return self._is_so()


class Wait(NamedTuple):
    """What a step yields: it wants what ``of.wait(timeout_s)`` returns."""

    of: Awaited
    timeout_s: float


Steps: TypeAlias = Generator[Wait, Any, T]


def finish(steps: Steps[T]) -> T:
    """Do all steps in this thread, which waits where they do."""
    try:
        wait = next(steps)
        while True:
            wait = steps.send(wait.of.wait(wait.timeout_s))
    except StopIteration as end:
        found: T = end.value
        return found
    finally:
        steps.close()  # where waiting was interrupted
