"""What the measurements advise: connections, the size of a chunk, and what limits the rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from kvferry_lab.doctor.facts import (
    BareFacts,
    Facts,
    Finding,
    HostFacts,
    TrafficFacts,
    info,
    ok,
    size_text,
    warn,
)

__all__ = ["best_chunk_bytes", "connections_for", "examine_traffic", "knee"]

_ENOUGH = 0.95  # of the best
_GAIN = 1.1  # less is noise
_WINDOW_BYTES = 4 << 20  # where the kernel does not say: what a Linux server sends ahead
# Round trips up to so long are those of ...; the last ones delay each look-up.
_DISTANCES_S = ((0.0001, "one host"), (0.0005, "one zone"), (0.002, "one region"))
_RTT_NEAR_S = 0.0005
_SLOW_BYTES_S = 2e9
_SHARE_LOW = 0.5  # of bare TCP


def examine_traffic(facts: Facts) -> Iterator[Finding]:
    """Every measurement that was made."""
    traffic = facts.traffic
    if traffic.skipped:
        yield replace(info("bandwidth", f"not measured: {traffic.skipped}"), scope="network")
    found = (rtt(facts), bandwidth(facts), bare(facts), connections(facts), chunk(traffic))
    for finding in found:
        if finding is not None:
            yield replace(finding, scope="network")


def knee(by_connections: Mapping[int, float]) -> int:
    """The least number of connections that reaches 95 % of the best rate."""
    best = max(by_connections.values())
    return min(count for count, rate in by_connections.items() if rate >= _ENOUGH * best)


def connections_for(rate_bytes_s: float, rtt_s: float, host: HostFacts) -> int:
    """ceil(bandwidth x round trip / window): how many connections hide the distance.

    The window is half of what the kernel lets a socket buffer, because the other half is overhead.
    """
    words = host.sysctls.get("net.ipv4.tcp_rmem", "").split()
    window = int(words[2]) // 2 if len(words) == 3 and words[2].isdigit() else _WINDOW_BYTES
    return max(1, math.ceil(rate_bytes_s * rtt_s / window))


def best_chunk_bytes(by_size: Mapping[int, float]) -> int:
    """The smallest value size that reaches 95 % of the best rate."""
    best = max(by_size.values())
    return min(size for size, rate in by_size.items() if rate >= _ENOUGH * best)


def rtt(facts: Facts) -> Finding | None:
    """How far away it is."""
    rtt_s = facts.traffic.rtt_s
    if rtt_s is None:
        return None
    seen = f"{rtt_s * 1e3:.3g} ms, {_distance(rtt_s)}"
    if rtt_s <= _RTT_NEAR_S:
        return ok("rtt", seen)
    why = "each look-up waits for that at least once; in one zone it is below 0.5 ms"
    if not facts.host.is_remote and facts.host.interface is not None:
        seen = f"{rtt_s * 1e3:.3g} ms, although the server is on this host"
        why = "each look-up waits for that at least once: server or host are busy"
    return info("rtt", seen, why)


def bandwidth(facts: Facts) -> Finding | None:
    """The rate, and where it stops to grow."""
    best, curve = facts.traffic.best_bytes_s, facts.traffic.by_connections
    if best is None:
        return None
    points = ", ".join(f"{count}: {rate / 1e9:.2f}" for count, rate in sorted(curve.items()))
    seen = f"{best / 1e9:.2f} GB/s; by connections: {points}"
    even = facts.need.prefill_bytes_s
    if best >= (even or _SLOW_BYTES_S):
        return ok("bandwidth", seen)
    why = "below 2 GB/s it only beats the prefill of small GPUs"
    if even:
        why = f"the engine computes this model's KV at {even / 1e9:.2f} GB/s: loading is slower"
    fix = "a larger instance (network share), a server in the same zone, or more shards"
    return warn("bandwidth", seen, why, fix)


def bare(facts: Facts) -> Finding | None:
    """What the way gives without a store on it, and how much of that the store gives."""
    found = facts.bare
    if found is None:
        return None
    if not found.by_connections:
        start = "kvferry doctor --serve ADDRESS   (on the peer's host)"
        if found.rtt_s is not None and not found.skipped:
            return info("bare-tcp", f"{_round_trip(found)}; no rate was asked for")
        return info("bare-tcp", f"not measured: {found.skipped}", "", start)
    points = ", ".join(f"{n}: {rate / 1e9:.2f}" for n, rate in sorted(found.by_connections.items()))
    wire = max(found.by_connections.values())
    seen = (
        f"{wire / 1e9:.2f} GB/s from {found.peer}; by connections: {points}; {_round_trip(found)}"
    )
    if found.skipped:
        seen += f"; then {found.skipped}"
    best = facts.traffic.best_bytes_s
    if best is None:
        return info("bare-tcp", f"{seen}; the store's rate was not measured")
    seen += f"; the store gives {best / wire:.0%} of that"
    if best < _SHARE_LOW * wire:
        why = "the way gives more: what holds the store back is the server or this client"
        return warn("bare-tcp", seen, why, "see `io-threads`, `copy-avoidance` and `connections`")
    return ok("bare-tcp", seen)


def _round_trip(found: BareFacts) -> str:
    return f"round trip {(found.rtt_s or 0.0) * 1e3:.3g} ms, {_distance(found.rtt_s or 0.0)}"


def _distance(rtt_s: float) -> str:
    """Whose round trip that is, in words."""
    for limit_s, words in _DISTANCES_S:
        if rtt_s <= limit_s:
            return f"as within {words}"
    return "as between regions"


def connections(facts: Facts) -> Finding | None:
    """How many connections to open."""
    traffic = facts.traffic
    if not traffic.by_connections or traffic.best_bytes_s is None:
        return None
    measured = knee(traffic.by_connections)
    far = connections_for(traffic.best_bytes_s, traffic.rtt_s or 0.0, facts.host)
    advised = max(measured, far)
    seen = (
        f"{advised}: measured {measured}, bandwidth x round trip / window gives {far}; "
        f"{facts.need.connections} are set"
    )
    curve, count = traffic.by_connections, facts.need.connections
    now = max((rate for tried, rate in curve.items() if tried <= count), default=0.0)
    gains = max(curve.values()) > _GAIN * now or advised > max(curve)
    if advised > count and gains:
        why = "with fewer the wire is idle for a part of each round trip"
        return warn("connections", seen, why, f"?connections={advised}   (in the client's URL)")
    return ok("connections", seen)


def chunk(traffic: TrafficFacts) -> Finding | None:
    """How large a value should be."""
    if not traffic.by_size:
        return None
    points = ", ".join(
        f"{size_text(size)}: {rate / 1e9:.2f}" for size, rate in sorted(traffic.by_size.items())
    )
    best = best_chunk_bytes(traffic.by_size)
    return ok("chunk-size", f"best from {size_text(best)} on; GB/s by size: {points}")
