"""What instances share: nodes, peers, membership and the controller, above the cache.

    node.py      a cache server for chunks, over RESP
    peers/       what one instance lends, and the instances that it reads
    membership/  what instances and their controller tell each other
    controller/  the process that knows which instance holds what

Importing this package sets `TieredCache.sharing`: from then on caches take part where their
settings say so.
"""

from __future__ import annotations

from kvferry.cache.tiered_cache import NamedSources, TieredCache

__all__ = ["TieredCache"]


class _Hooks:
    """Imports the rest for the caches that share, and for no others."""

    def join(self, cache: TieredCache, rank: int | None) -> None:
        from kvferry.sharing.peers.instance import join

        join(cache, rank)

    def leave(self, cache: TieredCache) -> None:
        from kvferry.sharing.peers.instance import leave

        leave(cache)

    def named_nodes(self, cache: TieredCache) -> NamedSources:
        from kvferry.sharing.peers.named_nodes import NamedNodes

        return NamedNodes(cache)


TieredCache.sharing = _Hooks()
