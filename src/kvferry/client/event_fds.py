"""The event descriptors of a process that forked, in its child.

A child has them under the same numbers. One that polls such a number would wait for its parent's
batches, and one that reads it would take a wake-up of the parent's. So in the child the numbers
become its own: nothing of the parent's moves them any more, and what wakes the child's own client
wakes them as well, wherever they were noted down.
"""

from __future__ import annotations

import os

__all__ = ["InheritedEventFds"]


class InheritedEventFds:
    """The numbers that one client or connector had in the processes before this one."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def take(self, number: int | None) -> None:
        """In a child, first of all: the parent's numbers, and this one, are ours from now on."""
        if number is not None:
            self._numbers.append(number)
        if not self._numbers:
            return
        try:
            own = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:  # no descriptor is left: then the numbers are nobody's
            for each in self._numbers:
                os.close(each)
            self._numbers.clear()
            return
        for each in self._numbers:
            os.dup2(own, each, inheritable=False)
        os.close(own)

    def wake_with(self, number: int) -> None:
        """Signals of `number`, a new eventfd, signal the inherited numbers from now on."""
        if self._numbers:
            os.dup2(self._numbers[0], number, inheritable=False)
