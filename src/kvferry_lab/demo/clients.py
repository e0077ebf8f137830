"""GET and SET of the same chunks on the same server by each client that is installed here."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from kvferry.base.errors import CorruptError
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import BenchClient, NotInstalled
from kvferry_lab.bench.clients import open_client
from kvferry_lab.bench.intervals import in_turn
from kvferry_lab.servers.same_host import ways_to

__all__ = ["ClientSpeed", "compare_clients", "socket_gain"]

_ROUNDS = 3
_OVER_UNIX = "kvferry native, Unix socket"


@dataclass(frozen=True, kw_only=True)
class ClientSpeed:
    """Decimal gigabytes per second, the best of the rounds; or `note`: why there is no number."""

    client: str
    set_gb_per_s: float | None = None
    get_gb_per_s: float | None = None
    note: str = ""


def compare_clients(
    config: ClientConfig, prefix: str, values: Sequence[memoryview]
) -> Iterator[ClientSpeed]:
    """Store and load all values with each client, check the bytes, and keep the best round.

    Where the server is on this host and has a Unix socket for us, the native client goes there,
    and is measured over TCP too, as the others are. Keys begin with `prefix`, and are deleted at
    the end.

    Raises:
        CorruptError: A client returned other bytes than were stored.
    """
    ways = ways_to(config)
    contestants = [
        ("kvferry native", "native", ways.tcp),
        ("kvferry pure Python", "pure", ways.tcp),
        ("redis-py", "redis-py", ways.tcp),
    ]
    if ways.unix is not None:
        contestants[0] = ("kvferry native, TCP", "native", ways.tcp)
        contestants.insert(0, (_OVER_UNIX, "native", ways.unix))
    targets = [memoryview(bytearray(len(value))) for value in values]
    keys = [f"{prefix}{index}" for index in range(len(values))]
    try:
        for name, kind, way in contestants:
            try:
                # redis-py as it is mostly used: one call per key.
                client = open_client(kind, way, 1 if kind == "redis-py" else None)
            except NotInstalled as error:
                yield ClientSpeed(client=name, note=str(error))
                continue
            with closing(client):
                yield _measure(name, client, keys, values, targets)
    finally:
        with PureRedisClient.from_config(config) as pure:
            pure.batch_delete(keys)


def socket_gain(clients: Sequence[ClientSpeed]) -> tuple[float, float] | None:
    """SET and GET over the Unix socket, as multiples of the best over TCP; None without both."""
    there = next((c for c in clients if c.client == _OVER_UNIX), None)
    others = [c for c in clients if c.client != _OVER_UNIX]
    best_set = max((c.set_gb_per_s or 0.0 for c in others), default=0.0)
    best_get = max((c.get_gb_per_s or 0.0 for c in others), default=0.0)
    if there is None or not there.set_gb_per_s or not there.get_gb_per_s:
        return None
    if not best_set or not best_get:
        return None
    return there.set_gb_per_s / best_set, there.get_gb_per_s / best_get


def _measure(
    name: str,
    client: BenchClient,
    keys: Sequence[str],
    values: Sequence[memoryview],
    targets: Sequence[memoryview],
) -> ClientSpeed:
    def moved() -> tuple[float, float]:
        for target in targets:
            target[:] = bytes(len(target))  # so that only this round's bytes can pass the check
        start = time.perf_counter()
        client.set_batch(keys, values)
        stored = time.perf_counter()
        loaded = client.get_batch(keys, targets)
        seconds = stored - start, time.perf_counter() - stored
        for index, (value, got) in enumerate(zip(values, loaded, strict=True)):
            if got is None or bytes(got) != bytes(value):
                raise CorruptError(f"{name} returned other bytes for chunk {index} than it stored")
        return seconds

    (rounds,) = in_turn(_ROUNDS, moved, warm_ups=0)
    size_gb = sum(map(len, values)) / 1e9
    set_s, get_s = map(min, zip(*rounds, strict=True))
    return ClientSpeed(client=name, set_gb_per_s=size_gb / set_s, get_gb_per_s=size_gb / get_s)
