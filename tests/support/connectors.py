"""Every driver of the connectors, opened for tests, with a way to damage what it stored.

driver   one after the other: memory, file (with io_uring, with threads, buffered), redis on Valkey
         and on Redis 7, and the plug-in of examples/custom_connector.py
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import sys
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvferry.client.pure.client import PureRedisClient
from kvferry.connectors import Connector, Space, load_connector
from kvferry.testing.driver import PREFIX, StoreDriver, space_of, value_of
from support.native_client import stores
from support.servers import TestServer

__all__ = ["DRIVERS", "SpecDriver", "StoreDriver", "space_of", "value_of"]

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_names = itertools.count()


class SpecDriver(StoreDriver):
    """A driver that a specification opens."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """What `load_connector` needs."""

    def open(self, space: Space, **settings: Any) -> Connector:
        return load_connector({**self.spec(), **settings}, space)

    def limited(self, space: Space, capacity_bytes: int) -> Connector | None:
        return self.open(space, capacity_gb=capacity_bytes / (1 << 30))


class MemoryDriver(SpecDriver):
    persistent = False
    damages = ()

    def __init__(self) -> None:
        self._name = f"store {next(_names)}"

    def spec(self) -> dict[str, Any]:
        return {"type": "memory", "name": self._name}

    def limited(self, space: Space, capacity_bytes: int) -> Connector:
        return load_connector({"type": "memory", "capacity_gb": capacity_bytes / (1 << 30)}, space)


class FileDriver(SpecDriver):
    def __init__(self, path: Path, **settings: Any) -> None:
        self._path, self._settings = path, settings

    def spec(self) -> dict[str, Any]:
        return {"type": "file", "path": str(self._path), **self._settings}

    def damage(self, key: str, other: str, kind: str) -> None:
        path, another = self._file(key), self._file(other)
        if kind == "other key":
            path.write_bytes(another.read_bytes())
        elif kind == "not ours":
            path.write_bytes(b"a letter")
        else:
            path.write_bytes(_spoiled(path.read_bytes(), kind, 4096))

    def _file(self, key: str) -> Path:
        full = (PREFIX + key).encode()
        for path in self._path.glob("??/*"):
            if path.read_bytes()[96 : 96 + len(full) + 1] == full + b"\0":
                return path
        raise AssertionError(f"no file has {key}")


class RedisDriver(SpecDriver):
    def __init__(self, server: TestServer) -> None:
        self._server = server

    def spec(self) -> dict[str, Any]:
        place = {"host": self._server.host, "port": self._server.port}
        return {"type": "redis", **place, "presence": "off"}  # others' keys count at once

    def limited(self, space: Space, capacity_bytes: int) -> None:
        return None

    def damage(self, key: str, other: str, kind: str) -> None:
        if kind == "other key":
            spoiled = self._raw(other)
        elif kind == "not ours":
            spoiled = b"a letter"
        else:
            spoiled = _spoiled(self._raw(key), kind, 64)
        with self._client() as client:
            client.set(PREFIX + key, spoiled)

    def _raw(self, key: str) -> bytes:
        with self._client() as client:
            buffer = bytearray(self._server.cli("STRLEN", PREFIX + key))
            assert client.get(PREFIX + key, buffer)
            return bytes(buffer)

    def _client(self) -> PureRedisClient:
        return PureRedisClient(host=self._server.host, port=self._server.port)


class PluginDriver(SpecDriver):
    damages = ("payload", "truncated", "not ours")

    def __init__(self, path: Path) -> None:
        self._path = path

    def spec(self) -> dict[str, Any]:
        return self._with({"path": str(self._path)})

    def limited(self, space: Space, capacity_bytes: int) -> Connector:
        params = {"path": str(self._path), "capacity_bytes": capacity_bytes}
        return load_connector(self._with(params), space)

    def damage(self, key: str, other: str, kind: str) -> None:
        full = (PREFIX + key).encode()
        with contextlib.closing(sqlite3.connect(self._path)) as database, database:
            value = database.execute("SELECT value FROM chunks WHERE key = ?", (full,)).fetchone()
            spoiled = b"a letter" if kind == "not ours" else _spoiled(value[0], kind, 0)
            database.execute("UPDATE chunks SET value = ? WHERE key = ?", (spoiled, full))

    @staticmethod
    def _with(params: dict[str, Any]) -> dict[str, Any]:
        path = "custom_connector:SqliteConnector"
        return {"type": "plugin", "module_path": path, "params": params}


class NativeDriver(SpecDriver):
    """A client of the contract that LMCache calls native; see support/native_client.py."""

    persistent = knows_more = False
    damages = ("header", "payload", "other key")

    def __init__(self) -> None:
        self._name = f"store {next(_names)}"

    def spec(self) -> dict[str, Any]:
        path = "support.native_client:DictClient"
        return {"type": "native_plugin", "module_path": path, "params": {"name": self._name}}

    def limited(self, space: Space, capacity_bytes: int) -> None:
        return None

    def damage(self, key: str, other: str, kind: str) -> None:
        stored = stores[self._name]
        if kind == "other key":
            stored[PREFIX + key] = stored[PREFIX + other]
        else:
            stored[PREFIX + key] = _spoiled(stored[PREFIX + key], kind, 64)


class NativeRedisDriver(RedisDriver):
    """Our own client for LMCache, which is of that contract too."""

    knows_more = False
    damages = ("header", "payload", "other key")

    def spec(self) -> dict[str, Any]:
        path = "kvferry.integrations.lmcache:KvferryClient"
        params = {"host": self._server.host, "port": self._server.port}
        return {"type": "native_plugin", "module_path": path, "params": params}


def _spoiled(stored: bytes, kind: str, header_bytes: int) -> bytes:
    if kind == "truncated":
        return stored[: len(stored) // 2]
    at = 40 if kind == "header" else header_bytes
    return stored[:at] + bytes([stored[at] ^ 16]) + stored[at + 1 :]


DRIVERS = (
    *("memory", "file", "file-threads", "file-buffered", "valkey", "redis7", "plugin"),
    *("native-plugin", "native-valkey"),
)


@pytest.fixture(params=DRIVERS)
def driver(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StoreDriver]:
    made: dict[str, Any] = {
        "memory": lambda: MemoryDriver(),
        "file": lambda: FileDriver(tmp_path / "kv"),
        "file-threads": lambda: FileDriver(tmp_path / "kv", io_uring=False, fsync="data"),
        "file-buffered": lambda: FileDriver(tmp_path / "kv", direct="off", fsync="full"),
        "valkey": lambda: RedisDriver(request.getfixturevalue("valkey")),
        "redis7": lambda: RedisDriver(request.getfixturevalue("redis7")),
        "plugin": lambda: PluginDriver(tmp_path / "kv.db"),
        "native-plugin": lambda: NativeDriver(),
        "native-valkey": lambda: NativeRedisDriver(request.getfixturevalue("valkey")),
    }
    monkeypatch.syspath_prepend(_EXAMPLES)
    yield made[request.param]()
    sys.modules.pop("custom_connector", None)
