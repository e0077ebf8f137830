"""Nodes that prompts name (`Prompt.source`), asked for those prompts and no others.

A node that is named is reached as peers are, and what it lends is checked like what they lend. It
is asked at the same moment as peers and stores, within the same limits; there is no presence view
of it, because few prompts name it. The first prompt waits a moment for the connection. A wrong
address is a shorter prefix.

There are `NODES_MAX` nodes at a time; the one that was named longest ago makes room. All have one
name in metrics and in the log: whoever sends requests chooses the addresses, and could choose any
number.

Threads: any.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict

from kvferry.base.errors import KVFerryError
from kvferry.base.threads import Guarded
from kvferry.cache.store.store_tiers import StoreTier
from kvferry.cache.tiered_cache import TieredCache
from kvferry.chunks.prompt import Prompt
from kvferry.config.remote_sources import Address, AllowedHosts
from kvferry.sharing.peers.peer_tier import PeerTier, client_of, open_peer

__all__ = ["NAME", "NODES_MAX", "NamedNodes"]

_log = logging.getLogger("kvferry.cache")

NAME = "remote_kv_source"
NODES_MAX = 16
_CONTACT_S = 0.25  # that all prompts together wait for the connection to a new node


class NamedNodes:
    """The nodes that prompts of one cache name.

    Args:
        cache: Whose prompts name them; its settings say which hosts may be asked.
    """

    def __init__(self, cache: TieredCache) -> None:
        self._cache = cache
        self._hosts = AllowedHosts(cache.config.remote_kv_sources)
        self._lock = threading.Lock()
        self._nodes: OrderedDict[Address, PeerTier | None] = OrderedDict()  # named last is last
        self._closed = False

    def of(self, prompt: Prompt) -> list[StoreTier]:
        """The node that a prompt names; none where it may not be asked, or is a peer already."""
        address = prompt.source
        if address is None or not self._hosts.allows(address[0]):
            return []
        for tier in list(self._cache.tiers):
            if isinstance(tier, PeerTier) and tier.address == address:
                return []
        with self._lock:
            if self._closed:
                return []
            if address not in self._nodes:
                if len(self._nodes) >= NODES_MAX:
                    _close_some_time(self._nodes.popitem(last=False)[1])
                self._nodes[address] = self._opened(address)
            self._nodes.move_to_end(address)
            found = self._nodes[address]
        if found is not None:
            found.mark.listen()
        return [found] if found is not None else []

    def close(self) -> None:
        """Ask no node any more."""
        with self._lock:
            self._closed = True
            nodes, self._nodes = self._nodes, OrderedDict()
        for node in nodes.values():
            if node is not None:
                node.close(0.0)

    def _opened(self, address: Address) -> PeerTier | None:
        settings = self._cache.config
        try:
            config = client_of(settings, settings.secret, address).replace(presence="off")
            node = open_peer(self._cache, NAME, config)
        except (KVFerryError, OSError) as error:
            _log.warning("%s:%d cannot be asked: %s", *address, error)
            return None
        node.tier.contact_until = time.monotonic() + _CONTACT_S
        _log.info("%s:%d is asked, as requests say", *address)
        return node


def _close_some_time(node: PeerTier | None) -> None:
    """In a thread: whoever names another node does not wait for the end of this one."""
    if node is not None:
        Guarded(node.close, "named", 0.0, errand=True).start()
