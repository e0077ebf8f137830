"""Clears for everybody, as instances say them when they register: the newest mark of each identity.

A controller passes marks on and draws none. One that begins anew hears them again. Threads: one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from kvferry.chunks.generation import Mark
from kvferry.sharing.membership.messages import HeldIdentity, Renewed

__all__ = ["Marks"]

_KEPT = 4096  # identities


class Marks:
    """See the module."""

    def __init__(self) -> None:
        self._newest: OrderedDict[bytes, Mark] = OrderedDict()

    def hear(self, identities: Iterable[HeldIdentity]) -> None:
        """An instance says these."""
        for one in identities:
            known = self._newest.get(one.digest)
            if one.clears and (known is None or one.clears > known.counter):
                self._newest[one.digest] = one.mark
                self._newest.move_to_end(one.digest)
        while len(self._newest) > _KEPT:
            self._newest.popitem(last=False)

    def of(self, identities: Iterable[HeldIdentity]) -> tuple[Renewed, ...]:
        """What an instance that says these is to hear.

        A mark that is as new as its own, and another one, too: then it draws a newer one.
        """
        found = ((one, self._newest.get(one.digest)) for one in identities)
        return tuple(
            Renewed(one.digest, *mark)
            for one, mark in found
            if mark is not None and mark != one.mark and mark.counter >= one.clears
        )
