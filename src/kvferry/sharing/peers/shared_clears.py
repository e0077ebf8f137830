"""Clears for everybody among instances that share.

Each instance says its marks when it registers and through its node, and hears the marks of others
from the controller, with each heartbeat, and from the nodes of its peers. So one way is enough, and
a controller that begins anew, or an instance that was away, has the newest mark within a second.

A node lends for a few seconds at a time, as long as this process is known to have missed no clear:
a process that was stopped lends nothing of before a clear that it did not hear of.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from kvferry.cache.store.generations import NewestMark
from kvferry.chunks.generation import MARK_BYTES, Mark
from kvferry.sharing.membership import Renewed, Reporter
from kvferry.sharing.peers.lending import LendingNode
from kvferry.sharing.peers.peer_tier import Peers

__all__ = ["Joined", "SharedClears"]

_SAY_EVERY_S = 0.5  # that the node is told the mark, and lends anew
_LENT_S = 3.0  # that a node lends at a time
_LISTEN_EVERY_S = 0.2
_LOOK_S = 0.02
_TELL_S, _TELL_S_MAX = 2.0, 5.0  # that a clear waits for all to hear of it, and for anybody at all


class Joined:
    """A cache that takes part.

    Args:
        newest: Of the cache.
        identity, prefix: Of its chunks.
    """

    def __init__(self, newest: NewestMark, identity: bytes, prefix: str) -> None:
        self.newest = newest
        self.identity = identity
        self.prefix = prefix
        self.peers: Peers | None = None
        self.lock = threading.Lock()
        self.said: Mark | None = None  # by the node
        self.say_at = 0.0


class SharedClears:
    """The clears of the caches of this process; to each of them the `MarkSource` of the controller.

    Args:
        node: Lends what the caches have; None: nothing is lent.
        reporter: Speaks with the controller.
        controller: Its address, for people.
    """

    def __init__(self, node: LendingNode | None, reporter: Reporter, controller: str) -> None:
        self._node = node
        self._reporter = reporter
        self._controller = controller
        self._joined: tuple[Joined, ...] = ()
        self._heard_at = float("-inf")  # when a heartbeat began that was answered
        self._listen_at = 0.0

    def join(self, one: Joined, peers: Peers) -> None:
        """A cache takes part; it is lent already."""
        one.peers = peers
        self._joined = (*self._joined, one)
        one.newest.follow(self)
        self._say(one)

    def leave(self, newest: NewestMark) -> None:
        """A cache ends."""
        newest.leave(self)
        self._joined = tuple(one for one in self._joined if one.newest is not newest)

    def heard_since(self, moment: float) -> bool:
        """See `MarkSource`."""
        return self._heard_at >= moment

    def ask_soon(self) -> None:
        """See `MarkSource`."""
        for one in self._joined:
            self._say(one)
        self._reporter.tell_soon()

    def heard(self, renewed: Sequence[Renewed], began: float) -> None:
        """See `kvferry.sharing.membership.Holdings`."""
        for each in renewed:
            for one in self._joined:
                if one.identity == each.identity:
                    one.newest.heard(each.mark)
        self._heard_at = began

    def look(self) -> None:
        """To be called several times a second."""
        now = time.monotonic()
        listens = now >= self._listen_at
        if listens:
            self._listen_at = now + _LISTEN_EVERY_S
        for one in self._joined:
            self._say(one)
            for mark in one.peers.marks() if listens and one.peers is not None else ():
                mark.listen()

    def cleared(self, one: Joined) -> str:
        """Wait until others have heard of a clear, for some time at most; who has not, if nobody
        has. An instance that is away hears of it when it is back."""
        began = time.monotonic()
        while True:
            newest = one.newest.mark
            peers = one.peers.marks(up=True) if one.peers is not None else []
            late = [each for each in peers if (each.said or Mark()) < newest]
            told = any(
                each.digest == one.identity and each.mark >= newest for each in self._reporter.told
            )
            heard, took_s = told or len(late) < len(peers), time.monotonic() - began
            if (told and not late) or took_s > (_TELL_S if heard else _TELL_S_MAX):
                break
            for each in late:
                each.ask_soon()
            time.sleep(_LOOK_S)
        return "" if heard else f"the controller at {self._controller}, nor any instance"

    def _say(self, one: Joined) -> None:
        """Have the node say the newest mark, and lend for another while if none was missed."""
        if self._node is None:
            return
        fresh = one.newest.is_fresh
        with one.lock:
            now, newest = time.monotonic(), one.newest.mark
            if newest == one.said and (now < one.say_at or not fresh):
                return
            one.said, one.say_at = newest, now + _SAY_EVERY_S
            text = newest.encode().ljust(MARK_BYTES)
            self._node.mark(one.prefix, text, _LENT_S if fresh else 0.0)
