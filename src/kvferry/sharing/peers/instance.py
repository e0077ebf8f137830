"""What an instance shares: a node lends its chunks, a controller is told, and peers are read.

    join(cache)     # by a cache whose settings say so, when it is opened
    leave(cache)    # when it ends

A process is one instance, or one rank of one: it has one node and one reporter, whatever the number
of its caches. The node lends what is in memory. The reporter tells the controller what came and
went, and is told which other instances there are; each cache reads from those that have chunks of
its identity. An instance that is known is read on while the controller is away, and for a while
after a controller that has begun anew does not name it.

Threads: any; one of its own passes on what changes in memory.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from kvferry.base.errors import ConfigError, KVFerryError
from kvferry.base.local_secret import local_secret
from kvferry.base.socket_folder import node_socket
from kvferry.base.threads import Guarded, noticed
from kvferry.cache.store.store_tiers import space_of
from kvferry.cache.tiered_cache import TieredCache
from kvferry.chunks.generation import joined
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.chunks.prompt import Prompt
from kvferry.config import CacheConfig
from kvferry.config.url import parse_endpoint, show_endpoint
from kvferry.metrics import CacheMetrics
from kvferry.sharing.membership import (
    Command,
    HeldIdentity,
    MemoryUsage,
    Peer,
    Quota,
    Renewed,
    Reporter,
    Result,
    WorkDone,
)
from kvferry.sharing.membership.messages import HITS_MAX, Hits
from kvferry.sharing.peers.lending import LendingNode, OneSided
from kvferry.sharing.peers.peer_tier import Peers, PeerTier, client_of, open_peer
from kvferry.sharing.peers.shared_clears import Joined, SharedClears

__all__ = ["Sharing", "join", "leave", "work_of"]

_log = logging.getLogger("kvferry.cache")

_CHANGES_MAX = 1 << 16  # of memory, that wait to be told
_TOLD_MAX = 4096  # changes at a time
_SLOTS_MAX = 8192  # of a snapshot, in one piece
_LOOK_S = 0.05
_FOLLOW_EVERY_S = 0.5  # that it is seen who was reached, and who was named long ago
_UNNAMED_S = 60.0  # that a peer is read on which no controller names
_PREFETCH_TIMEOUT_S = 30.0
_IN_FLIGHT_BYTES_MAX = 2 << 30  # pages that are held while they are sent
_NO_WAY = "there can be no Unix socket in this user's runtime folder"
_TOLD_COUNTERS = ("tokens_requested", "prefill_saved_seconds", "tokens_hit", "bytes_hit")


class _Joined:
    """A cache that takes part."""

    def __init__(self, cache: TieredCache, peers: Peers) -> None:
        self.cache = cache
        self.peers = peers
        self.identity = cache.identity.digest
        self.clears = Joined(cache.clearing.newest, self.identity, space_of(cache.identity).prefix)
        self.told = cache.memory.cache.watch(_CHANGES_MAX)


class Sharing:
    """What this process shares: its node, its reporter, and the peers of its caches.

    Args:
        settings: Where the node listens, and where the controller is.
        rank: Of this process in the instance.

    Raises:
        KVFerryError: The node cannot listen there, or there is no secret.
    """

    actions: Collection[str] = ("clear", "delete", "pin", "prefetch", "unpin")

    def __init__(self, settings: CacheConfig, rank: int) -> None:
        self.settings = settings
        self._rank = rank
        self._secret = settings.secret
        if not self._secret:
            local_secret()  # without it no controller would know us
        self._lock = threading.Lock()
        self._joined: tuple[_Joined, ...] = ()
        self._known: dict[tuple[str, int], Peer] = {}
        self._named: dict[tuple[str, int], float] = {}  # when a controller last named it
        self._listed: frozenset[tuple[str, int]] = frozenset()
        self.quotas: Sequence[Quota] = ()
        self._closing = threading.Event()
        self.node: LendingNode | None = None
        self._one_sided: OneSided | None = None
        addresses = ["", ""]
        if settings.enable_p2p:
            self.node = self._open_node()
            self._one_sided = OneSided.open(settings, self.node)
            host = settings.p2p_host or ""
            addresses = [show_endpoint(host, port) for port in self.node.ports]
        self._reporter = Reporter(
            self,
            instance=settings.instance_id,
            pull=settings.controller_pull_url or "",
            reply=settings.controller_reply_url or "",
            rank=rank,
            address=addresses[0],
            lookup_address=addresses[-1],
            secret=self._secret,
            peers=self._meet,
        )
        self._clears = SharedClears(self.node, self._reporter, settings.controller_reply_url or "")
        self._thread = Guarded(self._run, "sharing")
        self._thread.start()
        self._reporter.start()

    def _open_node(self) -> LendingNode:
        settings = self.settings
        host = settings.p2p_bind or settings.p2p_host or "localhost"
        ports = [_of_rank("p2p_init_ports", settings.p2p_init_ports, self._rank)]
        if settings.p2p_lookup_ports:
            ports.append(_of_rank("p2p_lookup_ports", settings.p2p_lookup_ports, self._rank))
        known_by = settings.p2p_host or "localhost"
        unix_path = "" if settings.tls else node_socket(known_by)
        if not (unix_path or self._secret or settings.tls):
            _log.warning("nobody can read this instance's chunks: %s; set p2p_secret_file", _NO_WAY)
        return LendingNode(host, ports, self._secret, settings.tls, _IN_FLIGHT_BYTES_MAX, unix_path)

    # --- Caches ---

    @property
    def caches(self) -> list[TieredCache]:
        """Those that take part."""
        return [one.cache for one in self._joined]

    def join(self, cache: TieredCache) -> None:
        """Lend what this engine has in memory, and have it read from its peers."""

        def opened(name: str, address: str) -> PeerTier:
            host, port = parse_endpoint(address)
            config = client_of(self.settings, self._secret, (host, port or 0))
            agent = self._one_sided.agent if self._one_sided else None
            return open_peer(cache, name, config, agent)

        if self.node is not None:
            space = space_of(cache.identity)
            size = cache.layout.chunk_bytes
            self.node.lend(cache.memory.cache, space.prefix, space.identity, size)
            if self._one_sided is not None:
                self._one_sided.lend(cache.memory)
        one = _Joined(cache, Peers(cache, opened))
        with self._lock:
            self._joined = (*self._joined, one)
        self._clears.join(one.clears, one.peers)
        cache.clearing.sharing = partial(self._clears.cleared, one.clears)
        self._follow()

    def leave(self, cache: TieredCache) -> bool:
        """The cache ends; whether it was the last one."""
        if self.node is not None:
            self.node.recall(space_of(cache.identity).prefix)
            if self._one_sided is not None:
                self._one_sided.withdraw(cache.memory)
        self._clears.leave(cache.clearing.newest)
        with self._lock:
            self._joined = tuple(one for one in self._joined if one.cache is not cache)
            return not self._joined

    def close(self, timeout_s: float = 1.0) -> None:
        """Say goodbye to the controller, and lend nothing any more."""
        self._closing.set()
        self._reporter.close(timeout_s)
        self._thread.join(timeout_s)
        if self.node is not None:
            self.node.stop()

    # --- Peers ---

    def _meet(self, peers: Sequence[Peer]) -> None:
        """A controller has said who is there."""
        me = (self.settings.instance_id, self._rank)
        found = {(one.instance, one.rank): one for one in peers}
        found.pop(me, None)
        with self._lock:
            self._known |= found
            self._listed = frozenset(found)
        self._follow()

    def _follow(self) -> None:
        now = time.monotonic()
        with self._lock:
            for key in list(self._known):
                if key in self._listed or key not in self._named:
                    self._named[key] = now
                elif now - self._named[key] > _UNNAMED_S:
                    del self._known[key], self._named[key]
            known, joined = list(self._known.values()), self._joined
        for one in joined if self.settings.enable_p2p else ():
            one.peers.follow(
                {_name(peer): peer for peer in known if one.identity in peer.identities}
            )

    def heard(self, renewed: Sequence[Renewed], began: float) -> None:
        """See `Holdings`."""
        self._clears.heard(renewed, began)

    # --- What the controller is told: see `kvferry.sharing.membership.Holdings` ---

    def identities(self) -> Sequence[HeldIdentity]:
        """Of the caches that take part."""
        return [
            HeldIdentity(
                cache.identity.digest,
                cache.identity.model,
                cache.layout.chunk_size,
                joined(cache.clearing.own, mark.half),
                cache.memory.chunk_bytes,
                mark.counter,
            )
            for cache, mark in ((one, one.clearing.newest.mark) for one in self.caches)
        ]

    def usage(self) -> MemoryUsage:
        """Of the memory of all caches."""
        capacity = used = 0
        for cache in self.caches:
            size = cache.memory.chunk_bytes
            capacity += cache.memory.pages * size
            used += cache.memory.cache.stats()["resident"] * size
        return MemoryUsage(capacity, used)

    def limit(self, quotas: Sequence[Quota]) -> None:
        """See `Holdings`; obeyed by the thread, a moment after more was stored."""
        self.quotas = quotas

    def work(self) -> WorkDone:
        """Of all caches that take part."""
        return work_of(cache.metrics for cache in self.caches)

    def held(self, identity: bytes) -> Iterable[bytes]:
        """The hashes of all chunks in memory."""
        for cache in self.caches:
            if cache.identity.digest != identity:
                continue
            slot, more = 0, True
            while more:
                slot, hashes = cache.memory.cache.ready_from(slot, _SLOTS_MAX)
                yield hashes
                more = slot != 0

    def obey(self, command: Command) -> Result:
        """Do what the controller asks for, to memory alone."""
        chunks, wrong = 0, ""
        for cache in self.caches:
            if command.identity and cache.identity.digest != command.identity:
                continue
            try:
                chunks += self._do(cache, command)
            except (KVFerryError, TimeoutError) as error:
                wrong = str(error)
        return Result(command.job, not wrong, chunks, wrong)

    @staticmethod
    def _do(cache: TieredCache, command: Command) -> int:
        index, hashes = cache.memory.cache, command.hashes
        match command.action:
            case "clear":
                return index.clear()
            case "delete":
                return index.remove(hashes)
            case "pin":
                return index.pin(hashes)
            case "unpin":
                return index.unpin(hashes)
        size = cache.layout.chunk_size
        tokens = len(hashes) // DIGEST_BYTES * size
        prompt = Prompt(hashes, tokens, size, cache.generation)
        return (
            cache.prefetch(prompt, timeout_s=_PREFETCH_TIMEOUT_S).result(_PREFETCH_TIMEOUT_S + 1)
            // size
        )

    # --- The thread ---

    def _run(self) -> None:
        follow_at = 0.0
        while not self._closing.wait(_LOOK_S):
            try:
                for quota in self.quotas:
                    self._keep(quota)
                self._clears.look()
                for one in self._joined:
                    self._tell(one)
                if time.monotonic() >= follow_at:
                    self._follow()
                    if self._one_sided is not None:
                        self._one_sided.agent.sweep()
                    follow_at = time.monotonic() + _FOLLOW_EVERY_S
            except Exception as error:
                noticed("sharing", error)

    def _keep(self, quota: Quota) -> None:
        """Evict what a quota does not allow, of the cache that has most first."""
        held = sorted(
            (
                (cache.memory.cache.stats()["resident"] * cache.memory.chunk_bytes, index, cache)
                for index, cache in enumerate(self.caches)
                if quota.model in ("", cache.identity.model)
            ),
            reverse=True,
        )
        over = sum(used for used, _, _ in held) - quota.bytes
        for _, _, cache in held:
            if over <= 0:
                return
            size = cache.memory.chunk_bytes
            over -= len(cache.memory.cache.evict(-(-over // size))) // DIGEST_BYTES * size

    def _tell(self, one: _Joined) -> None:
        cache = one.cache.memory.cache
        while not self._closing.is_set():
            found = cache.changes(one.told, _TOLD_MAX)
            if found is None:  # too many to be told one by one
                one.told = cache.watch(_CHANGES_MAX)
                self._reporter.lost()
                return
            one.told, runs = found
            for ready, hashes in runs:
                (self._reporter.added if ready else self._reporter.removed)(one.identity, hashes)
            if sum(len(hashes) for _, hashes in runs) < _TOLD_MAX * DIGEST_BYTES:
                return


# One for each process and rank: caches of one process share a node and a reporter.
_here: dict[tuple[int, str, int], Sharing] = {}
_lock = threading.Lock()


def join(cache: TieredCache, rank: int | None = None) -> None:
    """Have a cache take part, if its settings say so.

    Args:
        cache: Which.
        rank: Of this process in the instance; default: that of the cache's layout.

    Raises:
        KVFerryError: The node cannot listen where the settings say.
    """
    settings = cache.config
    if not settings.enable_controller:
        return
    if rank is None:
        rank = cache.layout.pp_rank * cache.layout.tp_size + cache.layout.tp_rank
    with _lock:
        key = (os.getpid(), settings.instance_id, rank)
        if key not in _here:
            _here[key] = Sharing(settings, rank)
        _here[key].join(cache)


def leave(cache: TieredCache) -> None:
    """The cache ends."""
    last = None
    with _lock:
        for key, sharing in list(_here.items()):
            if cache in sharing.caches and sharing.leave(cache):
                last = _here.pop(key)
    if last is not None:
        last.close()


def _of_rank(name: str, ports: Sequence[int], rank: int) -> int:
    if rank < len(ports):
        return ports[rank]
    raise ConfigError(f"{name} has {len(ports)} ports, and there is a rank {rank}; name one more")


def _name(peer: Peer) -> str:
    return f"{peer.instance}/{peer.rank}" if peer.rank else peer.instance


def work_of(every: Iterable[CacheMetrics]) -> WorkDone:
    """What caches have done, as a controller is told it: the sum of what each has counted."""
    requested, saved_s = 0.0, 0.0
    tokens: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for metrics in every:
        wanted, saved, hit_tokens, hit_bytes = metrics.counted(*_TOLD_COUNTERS)
        requested += sum(wanted.values())
        saved_s += sum(saved.values())
        for tier, count in hit_tokens.items():
            tokens[tier] += int(count)
        for tier, count in hit_bytes.items():
            size[tier] += int(count)
    # In an order in which a tier that did not fit once never comes back: it would be counted anew.
    named = sorted((tier for tier in tokens if tokens[tier]), key=lambda t: (t[:5] == "peer ", t))
    hits = tuple(Hits(tier, tokens[tier], size[tier]) for tier in named[:HITS_MAX])
    return WorkDone(int(requested), float(saved_s), hits)
