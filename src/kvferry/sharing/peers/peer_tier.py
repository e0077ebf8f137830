"""The memory of other instances, as tiers of a cache: read in front of the stores.

    peers = Peers(cache, open_peer)
    peers.follow({"instance_1": peer})    # these, from now on, and no others

A peer is one more store to the cache: it is asked at the same moment as the others, a presence
view knows what it has, and the cost model says whether its copy is worth its way. What it lends is
checked like what a store answers. A peer that is slow, dead or lies is a shorter prefix.

The node of a peer has the mark of clears for everybody of each identity that it lends
(`PeerMark`): it is asked for the mark twice a second, without anybody waiting. Nothing is written
there: a peer that has an older mark reads ours.

Threads: any.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from kvferry.base.errors import KVFerryError
from kvferry.base.socket_folder import node_address
from kvferry.cache.store.generations import NewestMark
from kvferry.cache.store.store_tiers import StoreTier, space_of
from kvferry.cache.tiered_cache import TieredCache
from kvferry.chunks.generation import Mark
from kvferry.client.batch import Status
from kvferry.config import CacheConfig, ClientConfig
from kvferry.config.remote_sources import Address
from kvferry.config.tuning import ClientTuning
from kvferry.config.url import is_loopback
from kvferry.connectors.one_sided.agent import Agent
from kvferry.connectors.one_sided.reads import OneSidedConnector
from kvferry.connectors.peer import PeerConnector
from kvferry.sharing.membership import Peer
from kvferry.sharing.peers.lending import USER

__all__ = ["PeerMark", "PeerTier", "Peers", "client_of", "open_peer"]

_log = logging.getLogger("kvferry.cache")

_BACKOFF_S_MAX = 1.0  # of a peer that failed again and again
_MARK_EVERY_S = 0.5
_MARK_TIMEOUT_S = 1.0
_DEAF_S = 3.0  # a node that says no mark for so long knows of none


class PeerMark:
    """What one peer says of clears for everybody: a `MarkSource`; no call waits.

    Args:
        connector: To the peer.
        newest: Of the cache.

    Attributes:
        said: What it said last; None: nothing yet.
    """

    def __init__(self, connector: PeerConnector, newest: NewestMark) -> None:
        self.said: Mark | None = None
        self._connector = connector
        self._newest = newest
        self._lock = threading.Lock()
        self._asked: float | None = None  # since when an answer is owed
        self._ask_at = 0.0
        self._tried_at = float("-inf")
        self._nothing_since = float("inf")  # since when its node says no mark
        newest.follow(self)

    @property
    def is_deaf(self) -> bool:
        """Whether its node has said for seconds that there is no mark. (One that begins or ends has
        none for a moment.)"""
        return time.monotonic() - self._nothing_since > _DEAF_S

    def heard_since(self, moment: float) -> bool:
        """See `MarkSource`."""
        self.listen()
        return self._tried_at >= moment

    def ask_soon(self) -> None:
        """See `MarkSource`."""
        self._ask_at = 0.0
        self.listen()

    def listen(self) -> None:
        """Hear what was answered, and ask when it is time."""
        if not self._lock.acquire(blocking=False):
            return  # somebody does it
        heard: Mark | None = None
        try:
            with suppress(KVFerryError):  # it is being closed, or has too much to do
                heard = self._heard()
                now = time.monotonic()
                if self._asked is None and now >= self._ask_at:
                    self._ask_at = now + _MARK_EVERY_S
                    self._connector.ask_mark(_MARK_TIMEOUT_S)
                    self._asked = now
        finally:
            self._lock.release()
        if heard is not None:
            self._newest.heard(heard)

    def close(self) -> None:
        """Hear nothing any more."""
        self._newest.leave(self)

    def _heard(self) -> Mark | None:
        found = self._connector.said_mark() if self._asked is not None else None
        if found is None or self._asked is None:
            return None
        self._tried_at, self._asked = self._asked, None
        status, value = found
        nothing = status is Status.MISS
        self._nothing_since = min(self._nothing_since, self._tried_at) if nothing else float("inf")
        if status is not Status.OK:
            return None
        self.said = Mark.decode(value)
        return self.said


class PeerTier(StoreTier):
    """The memory of another instance: its owner alone writes there, and deletes.

    Attributes:
        address: Of its node.
        mark: What it says of clears for everybody.
    """

    writes = False
    address: Address
    mark: PeerMark

    @property
    def is_deaf(self) -> bool:
        """See `StoreTier`."""
        return self.mark.is_deaf

    def forget(self, which: Callable[[bytes], bool], *, delete: bool) -> None:
        """See `StoreTier`; the owner deletes what is there."""
        self.tier.known.forget(which)

    def close(self, timeout_s: float) -> bool:
        """See `StoreTier`."""
        self.mark.close()
        return super().close(timeout_s)


def open_peer(
    cache: TieredCache, name: str, config: ClientConfig, agent: Agent | None = None
) -> PeerTier:
    """The memory behind a node, as a tier.

    Args:
        name: Of the instance.
        config: How its node is reached.
        agent: Reads the memory of its process by one-sided reads, where it lends it so.

    Raises:
        KVFerryError: It cannot be opened. (A node that is away can: it may come.)
    """
    space = space_of(cache.identity)
    connector = OneSidedConnector(space, config, agent) if agent else PeerConnector(space, config)
    tier = PeerTier(
        f"peer {name}",
        connector,
        cache.layout.chunk_bytes,
        0,
        cache.metrics,
        cache.clearing,
        lets_go=True,
        wraps=cache.wraps,
    )
    tier.address = config.host.lower(), config.port
    tier.mark = PeerMark(connector, cache.clearing.newest)
    return tier


def client_of(settings: CacheConfig, secret: str, address: Address) -> ClientConfig:
    """How the node of another instance is reached.

    Without a secret and certificates a port of this host may be anybody's, who would be believed.
    So it is read over the socket in a folder where only this user's processes can have one.

    Raises:
        OSError: There is no such folder.
    """
    near = not secret and not settings.tls and is_loopback(address[0])
    return ClientConfig(
        host=address[0],
        port=address[1],
        unix_path=node_address(*address) if near else None,
        tuning=ClientTuning(
            reconnect_min_s=min(max(settings.lookup_backoff_time, 0.001), _BACKOFF_S_MAX),
            reconnect_max_s=_BACKOFF_S_MAX,
        ),
        username=USER if secret else None,
        password=secret or None,
        **settings.tls,
    )


class Peers:
    """Which peers a cache reads from.

    Args:
        cache: Whose tiers they become; it closes them at its end.
        opened: Opens the tier of a peer, of its name and address.
    """

    def __init__(self, cache: TieredCache, opened: Callable[[str, str], PeerTier]) -> None:
        self._cache = cache
        self._opened = opened
        self._lock = threading.Lock()
        self._tiers: dict[str, tuple[Peer, PeerTier]] = {}  # by name
        self._unmet: list[str] = []  # names of peers that nothing was heard of yet
        self._refused: dict[str, str] = {}  # name: address of what could not be opened

    def marks(self, *, up: bool = False) -> list[PeerMark]:
        """What the peers say of clears; `up`: of connected peers alone."""
        with self._lock:
            tiers = [tier for _, tier in self._tiers.values()]
        return [tier.mark for tier in tiers if not up or _is_up(tier)]

    def follow(self, peers: Mapping[str, Peer]) -> None:
        """Read from these peers from now on, by their names, and from no others."""
        gone: list[PeerTier] = []
        with self._lock:
            for name, (peer, tier) in list(self._tiers.items()):
                if name not in peers or peers[name].address != peer.address:
                    del self._tiers[name]
                    self._cache.tiers.remove(tier)
                    gone.append(tier)
            for name, peer in peers.items():
                if name not in self._tiers and self._cache.available:
                    self._join(name, peer)
            self._unmet = [name for name in self._unmet if not self._met(name)]
        for tier in gone:
            tier.close(0.0)

    def _join(self, name: str, peer: Peer) -> None:
        try:
            tier = self._opened(name, peer.address)
        except (KVFerryError, OSError, ValueError) as error:
            if self._refused.get(name) != peer.address:
                _log.warning("peer %s at %s cannot be read from: %s", name, peer.address, error)
            self._refused[name] = peer.address
            return
        self._refused.pop(name, None)
        self._tiers[name] = (peer, tier)
        self._unmet.append(name)
        self._cache.tiers.insert(len(self._tiers) - 1, tier)

    def _met(self, name: str) -> bool:
        """Whether a peer was reached, which is logged once, or has gone."""
        found = self._tiers.get(name)
        if found is None:
            return True
        peer, tier = found
        if not _is_up(tier):
            return False
        _log.info(
            "Established connection to peer_init_url %s. The peer_lookup_url: %s",
            peer.address,
            peer.lookup_address or peer.address,
        )
        return True


def _is_up(tier: PeerTier) -> bool:
    return bool(tier.tier.counted().get("client_connections_up"))
