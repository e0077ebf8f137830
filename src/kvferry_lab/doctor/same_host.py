"""A server on this host: whether its Unix socket can be used, and what that brings.

Both ways are measured one after the other, with the same values. A server without a socket cannot
show it, so a small one is started for that, which has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvferry.base.errors import KVFerryError
from kvferry.config import ClientConfig
from kvferry.config.url import is_loopback
from kvferry.embedded.store import embedded_store
from kvferry_lab.doctor.facts import ClientNeed, SameHostFacts
from kvferry_lab.doctor.traffic import Limits, measure_rate
from kvferry_lab.servers.same_host import Ways, tcp_config, ways_to

__all__ = ["find_ways", "measure_ways"]

_MIB = 1 << 20
_CONNECTIONS = 2  # one hides the other's gaps; more do not add on one host


def find_ways(config: ClientConfig, is_alone: bool) -> Ways | None:
    """The ways to a server of this host; ``None`` where there is nothing to choose."""
    near = config.unix_path is not None or is_loopback(config.host)
    if not is_alone or not near or config.tls or config.same_host == "tcp":
        return None
    return ways_to(config)


def measure_ways(
    ways: Ways, need: ClientNeed, limits: Limits, say: Callable[[str], None]
) -> SameHostFacts:
    """GET over each way, or over those of a server that is started for it.

    Raises:
        KVFerryError: There was no figure.
    """
    points = replace(limits, connections=(_CONNECTIONS,), sizes_bytes=())

    def rate(config: ClientConfig) -> float:
        found = measure_rate(config, need, points, say)
        if found.best_bytes_s is None:
            raise KVFerryError(found.skipped)
        return found.best_bytes_s

    facts = SameHostFacts(unix_path=None if ways.unix is None else ways.unix.unix_path)
    if ways.unix is not None:
        return replace(facts, tcp_bytes_s=rate(ways.tcp), unix_bytes_s=rate(ways.unix))
    room_mb = 256 + 2 * limits.stored_bytes // _MIB
    with embedded_store(maxmemory_mb=room_mb) as store:
        there = tcp_config(store).replace(same_host="tcp")
        facts = replace(facts, why=ways.why, is_other_server=True)
        over_unix = there.replace(unix_path=store.unix_path)
        return replace(facts, tcp_bytes_s=rate(there), unix_bytes_s=rate(over_unix))
