"""Measuring the way to the server: the round trip, then GETs over more and more connections.

Writes only keys under ``kvferry:doctor:``, with a time to live, and deletes them in the end. What
it may store, move and take is bounded; a server without room is left alone. Values are random, and
every byte is compared: a rate of wrong bytes is none.

To a server on this host both ways, TCP and its Unix socket, are measured one after the other, with
the same values. A server without a socket cannot show it, so a small one is started for that, which
has one.
"""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvferry.base.errors import CorruptError, KVFerryError
from kvferry.base.host import available_memory_bytes
from kvferry.client.batch import BatchResult
from kvferry.client.sync import RedisClient
from kvferry.config import ClientConfig
from kvferry.config.url import is_loopback
from kvferry.embedded.store import embedded_store
from kvferry_lab.doctor.facts import ClientNeed, SameHostFacts, ServerFacts, TrafficFacts
from kvferry_lab.doctor.rules_traffic import knee
from kvferry_lab.doctor.server import CommandConnection
from kvferry_lab.servers.same_host import Ways, tcp_config, ways_to

__all__ = [
    "Limits",
    "find_ways",
    "measure_rate",
    "measure_rtt",
    "measure_ways",
    "room_bytes",
]

_MIB = 1 << 20
_PREFIX = "kvferry:doctor:"
_TTL_S = 120.0
_STRIDE = 64  # values are windows into the same random bytes, this far apart
_PINGS = 31
_FLAT = 1.03  # two points in a row that add less than this end the sweep
_CONNECTIONS = 2  # one hides the other's gaps; more do not add on one host


@dataclass(frozen=True)
class Limits:
    """How far a measurement may go.

    Attributes:
        stored_bytes: At a time, in the server.
        moved_bytes: In all, both ways.
        total_s: For all points.
        point_s: For one point.
        connections: The points.
        sizes_bytes: Value sizes, tried with the best number of connections.
    """

    stored_bytes: int = 128 * _MIB
    moved_bytes: int = 16 << 30
    total_s: float = 20.0
    point_s: float = 0.25
    connections: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    sizes_bytes: tuple[int, ...] = (_MIB // 2, _MIB, 2 * _MIB, 4 * _MIB, 7 * _MIB - 65_536)

    @classmethod
    def quick(cls) -> Limits:
        """A glance: tells slow from fast, not more."""
        return cls(32 * _MIB, 2 << 30, 4.0, 0.1, (1, 4, 16), ())


def measure_rtt(config: ClientConfig) -> float:
    """The median of some PINGs, in seconds."""
    times = []
    with CommandConnection(config) as talk:
        for _ in range(_PINGS):
            started = time.perf_counter()
            talk.ask("PING")
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def room_bytes(servers: Sequence[ServerFacts]) -> tuple[int, str]:
    """The bytes that may be stored for a moment without evicting a cache's, and why not more."""
    rooms = []
    for server in servers:
        if server.info.get("role", "master") != "master":
            return 0, f"{server.address} is a replica"
        limit, used = server.count("maxmemory") or 0, server.count("used_memory") or 0
        if not limit:
            rooms.append((server.count("total_system_memory") or 8 << 30) // 32)
        elif server.info.get("maxmemory_policy") == "noeviction":
            rooms.append(max(0, limit - used) // 2)
        else:
            rooms.append(max((limit - used) // 2, limit // 32))
    room = min(rooms, default=0)
    return room, "" if room else "no room in the server's memory"


def measure_rate(
    config: ClientConfig, need: ClientNeed, limits: Limits, say: Callable[[str], None]
) -> TrafficFacts:
    """Rates by connections and by size; what failed on the way stands in `skipped`."""
    sweep = _Sweep(config, limits)
    by_connections: dict[int, float] = {}
    by_size: dict[int, float] = {}
    skipped = ""
    try:
        flat = 0
        memory = available_memory_bytes()
        for count in limits.connections:
            if flat == 2 or sweep.is_over() or 4 * count * need.chunk_bytes > memory:
                break
            say(f"GET over {count} connections")
            best = max(by_connections.values(), default=0.0)
            by_connections[count] = rate = sweep.rate(count, need.chunk_bytes)
            flat = flat + 1 if rate < best * _FLAT else 0
        for size in limits.sizes_bytes:
            if sweep.is_over():
                break
            say(f"GET of values of {size / _MIB:.3g} MiB")
            by_size[size] = sweep.rate(knee(by_connections), size)
    except KVFerryError as error:
        skipped = str(error)
    return TrafficFacts(by_connections=by_connections, by_size=by_size, skipped=skipped)


class _Sweep:
    """One point after another, within the limits."""

    def __init__(self, config: ClientConfig, limits: Limits) -> None:
        self._config, self._limits = config, limits
        self._ends = time.monotonic() + limits.total_s
        self._moved_bytes = 0
        self._prefix = f"{_PREFIX}{os.urandom(4).hex()}:"
        self._seen_bytes_s = 0.0

    def is_over(self) -> bool:
        """Whether time or bytes are used up."""
        return time.monotonic() > self._ends or self._moved_bytes > self._limits.moved_bytes

    def rate(self, connections: int, size: int) -> float:
        """GET, in bytes per second; the best batch of some."""
        # On a slow way, and before anything is known of it, a few values are enough.
        enough = max(4, int(self._seen_bytes_s * self._limits.point_s / size))
        count = max(1, min(enough, self._limits.stored_bytes // size))
        keys = [f"{self._prefix}{index}" for index in range(count)]
        noise = memoryview(os.urandom(size + _STRIDE * count))
        values = [noise[at : at + size] for at in range(0, _STRIDE * count, _STRIDE)]
        wanted = max(count, connections)  # every connection has something to do
        order = [index % count for index in range(wanted)]
        room = memoryview(mmap.mmap(-1, wanted * size))
        targets = [room[at : at + size] for at in range(0, wanted * size, size)]
        client = RedisClient.from_config(self._config.replace(connections=connections))
        try:
            started = time.monotonic()
            _check(client.batch_set(keys, values, ttl_s=_TTL_S))
            self._seen_bytes_s = max(
                self._seen_bytes_s, count * size / (time.monotonic() - started)
            )
            self._moved_bytes += count * size
            return self._read(client, [keys[index] for index in order], targets, values, order)
        finally:
            client.batch_delete(keys)
            client.close()

    def _read(
        self,
        client: RedisClient,
        keys: list[str],
        targets: list[memoryview],
        values: list[memoryview],
        order: list[int],
    ) -> float:
        size_bytes = sum(map(len, targets))
        best, ends = 0.0, time.monotonic() + self._limits.point_s
        rounds = 0
        while rounds < 2 or (time.monotonic() < ends and not self.is_over()):
            started = time.perf_counter()
            _check(client.batch_get(keys, targets))
            rate = size_bytes / (time.perf_counter() - started)
            if any(target != values[index] for target, index in zip(targets, order, strict=True)):
                raise CorruptError("a value came back with other bytes than were stored")
            best = max(best, rate if rounds else 0.0)  # the first is to warm up
            self._moved_bytes += size_bytes
            rounds += 1
        self._seen_bytes_s = max(self._seen_bytes_s, best)
        return best


def _check(result: BatchResult) -> None:
    result.raise_for_errors()
    if not result.ok:
        raise CorruptError(f"what was stored is not there: {result!r}")


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
