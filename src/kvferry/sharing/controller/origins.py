"""Who makes room where there is none left: the origin that has most, for one that has less.

An origin is the address that somebody comes from, and of IPv6 its network of 64 bits, which is what
one host has to choose from. So nobody fills a table for all, and one host alone may have all of it.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable

__all__ = ["greediest", "origin_of"]

_NETWORK_BYTES = 8


def origin_of(host: str) -> str:
    """Of an address as the system has it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or address.packed[:_NETWORK_BYTES].hex())


def greediest(held: Iterable[str], newcomer: str) -> str | None:
    """The origin that has to make room for a newcomer's; None: his has as much as any other."""
    counts = Counter(held)
    origin, most = counts.most_common(1)[0]
    return origin if counts[newcomer] + 1 < most else None
