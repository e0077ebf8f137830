"""GET and SET of the same chunks on the same server by each client that is installed here."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvferry.client.pure import PureRedisClient
from kvferry.config import ClientConfig
from kvferry.errors import CorruptError

__all__ = ["ClientSpeed", "compare_clients"]

_ROUNDS = 3


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

    def __init__(self, module: str, name: str, url: str) -> None:
        self._client = getattr(importlib.import_module(module), name).from_url(url)

    def store(self, keys: Sequence[str], values: Sequence[memoryview]) -> None:
        self._client.batch_set(keys, values).raise_for_errors()

    def load(self, keys: Sequence[str], targets: Sequence[memoryview]) -> Sequence[memoryview]:
        self._client.batch_get(keys, targets).raise_for_errors()
        return targets

    def close(self) -> None:
        self._client.close()


class _RedisPy:
    """redis-py as it is mostly used: one call per key; loads are new bytes objects."""

    def __init__(self, url: str) -> None:
        config = ClientConfig.from_url(url)
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


def compare_clients(url: str, prefix: str, values: Sequence[memoryview]) -> Iterator[ClientSpeed]:
    """Store and load all values with each client, check the bytes, and keep the best round.

    Keys begin with `prefix`, and are deleted at the end.

    Raises:
        CorruptError: A client returned other bytes than were stored.
    """
    contestants: list[tuple[str, Callable[[], _Contestant], str]] = [
        (
            "kvferry native",
            lambda: _Batches("kvferry.client.sync", "RedisClient", url),
            "the extension was not built",
        ),
        (
            "kvferry pure Python",
            lambda: _Batches("kvferry.client.pure", "PureRedisClient", url),
            "not in this installation",
        ),
        ("redis-py", lambda: _RedisPy(url), "not installed: pip install redis"),
    ]
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
        with PureRedisClient.from_url(url) as client:
            client.batch_delete(keys)


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
