"""GET and SET of the same chunks on the same server by each client that is installed here."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig
from kvferry.errors import CorruptError
from kvferry.lab.servers.same_host import ways_to

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


class _Contestant(Protocol):
    def store(self, keys: Sequence[str], values: Sequence[memoryview]) -> None: ...
    def load(self, keys: Sequence[str], targets: Sequence[memoryview]) -> Sequence[Any]: ...
    def close(self) -> None: ...


class _Batches:
    """A client of this package: one batch each way, loads land in place."""

    def __init__(self, module: str, name: str, config: ClientConfig) -> None:
        self._client = getattr(importlib.import_module(module), name).from_config(config)

    def store(self, keys: Sequence[str], values: Sequence[memoryview]) -> None:
        self._client.batch_set(keys, values).raise_for_errors()

    def load(self, keys: Sequence[str], targets: Sequence[memoryview]) -> Sequence[memoryview]:
        self._client.batch_get(keys, targets).raise_for_errors()
        return targets

    def close(self) -> None:
        self._client.close()


class _RedisPy:
    """redis-py as it is mostly used: one call per key; loads are new bytes objects."""

    def __init__(self, config: ClientConfig) -> None:
        self._client: Any = importlib.import_module("redis").Redis(
            host=config.host,
            port=config.port,
            unix_socket_path=config.unix_path,
            username=config.username,
            password=config.password,
            db=config.db,
        )

    def store(self, keys: Sequence[str], values: Sequence[memoryview]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._client.set(key, value)

    def load(self, keys: Sequence[str], targets: Sequence[memoryview]) -> Sequence[bytes | None]:
        return [self._client.get(key) for key in keys]

    def close(self) -> None:
        self._client.close()


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
    native = partial(_Batches, "kvferry.client.sync", "RedisClient")
    no_extension = "the extension was not built"
    contestants: list[tuple[str, Callable[[], _Contestant], str]] = [
        ("kvferry native", partial(native, ways.unix or ways.tcp), no_extension),
        (
            "kvferry pure Python",
            partial(_Batches, "kvferry.client.pure.client", "PureRedisClient", ways.tcp),
            "not in this installation",
        ),
        ("redis-py", partial(_RedisPy, ways.tcp), "not installed: pip install redis"),
    ]
    if ways.unix is not None:
        contestants[0] = (_OVER_UNIX, *contestants[0][1:])
        over_tcp = ("kvferry native, TCP", partial(native, ways.tcp), no_extension)
        contestants.insert(1, over_tcp)
    targets = [memoryview(bytearray(len(value))) for value in values]
    keys = [f"{prefix}{index}" for index in range(len(values))]
    try:
        for name, connect, absent in contestants:
            try:
                contestant = connect()
            except ImportError:
                yield ClientSpeed(client=name, note=absent)
                continue
            try:
                yield _measure(name, contestant, keys, values, targets)
            finally:
                contestant.close()
    finally:
        with PureRedisClient.from_config(config) as client:
            client.batch_delete(keys)


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
    contestant: _Contestant,
    keys: Sequence[str],
    values: Sequence[memoryview],
    targets: Sequence[memoryview],
) -> ClientSpeed:
    size_gb = sum(len(value) for value in values) / 1e9
    set_s, get_s = [], []
    for _ in range(_ROUNDS):
        for target in targets:
            target[:] = bytes(len(target))  # so that only this round's bytes can pass the check
        start = time.perf_counter()
        contestant.store(keys, values)
        stored = time.perf_counter()
        loaded = contestant.load(keys, targets)
        get_s.append(time.perf_counter() - stored)
        set_s.append(stored - start)
        for index, (value, got) in enumerate(zip(values, loaded, strict=True)):
            if got is None or bytes(got) != bytes(value):
                raise CorruptError(f"{name} returned other bytes for chunk {index} than it stored")
        del loaded
    return ClientSpeed(
        client=name, set_gb_per_s=size_gb / min(set_s), get_gb_per_s=size_gb / min(get_s)
    )
