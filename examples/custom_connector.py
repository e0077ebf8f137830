"""A connector of your own: values in an SQLite file, behind the interface of all others.

A configuration names it by its module path, and an engine uses it like any other store:

    {"type": "plugin", "module_path": "custom_connector:SqliteConnector",
     "params": {"path": "kv.db", "capacity_bytes": 1000000000}}

What makes it safe to use: a value carries its key, identity, length and checksum, all of them are
checked before a byte is given out, and what fails is counted, deleted, and told as a status.
docs/guides/new-connector.md goes through it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kvferry.chunks.keys import describe_identity, identity_digest
from kvferry.client.batch import BatchResult, Status
from kvferry.connectors import BlockingConnector, Space, Usage, load_connector
from kvferry.connectors.base import BufferLike, Key, ScanBatch
from kvferry.errors import ClosedError, UnavailableError

TABLES = """
CREATE TABLE IF NOT EXISTS chunks (
    key BLOB PRIMARY KEY, identity BLOB, size INTEGER, checksum INTEGER,
    used REAL, expires REAL, value BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS identities (identity BLOB PRIMARY KEY, description TEXT);
"""
Outcome = tuple[Status, int]


class SqliteConnector(BlockingConnector):
    """Values in an SQLite file; see `kvferry.connectors.Connector`.

    Args:
        space: What it is opened with.
        path: The file.
        capacity_bytes: What all spaces in it may take together.
    """

    def __init__(self, space: Space, path: str, capacity_bytes: int | None = None) -> None:
        super().__init__(space, threads=2)
        self._path, self._capacity_bytes = path, capacity_bytes
        self._local = threading.local()  # a connection for each thread
        self._connections: list[sqlite3.Connection] = []
        self._counts: dict[str, int] = {}
        with self._database() as database:
            database.executescript("PRAGMA journal_mode = WAL;" + TABLES)
        self.describe()

    # --- The five that every connector must have ---

    def batch_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """Read values; only what is exactly what was stored becomes OK."""
        names, targets = self.names(keys), self.targets(keys, buffers)

        def get(database: sqlite3.Connection, index: int) -> Outcome:
            return self._get(database, names[index], targets[index])

        return self._each(names, get, prefix, timeout_s)

    def batch_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """Store values, as long as there is room."""
        names, values = self.names(keys), self.values(keys, buffers)

        def put(database: sqlite3.Connection, index: int) -> Outcome:
            value, now = values[index], time.time()
            with database:  # a transaction: all of a value or nothing
                key = names[index]
                database.execute("DELETE FROM chunks WHERE key = ?", (key,))
                limit = self._capacity_bytes
                if limit is not None and self._used(database) + len(value) > limit:
                    raise OSError(f"OOM the store is full: its limit is {limit} bytes")
                row = (key, self.space.identity, len(value), zlib.crc32(value), now)
                expires = None if ttl_s is None else now + ttl_s
                database.execute(
                    "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, expires, value)
                )
            return Status.OK, len(value)

        return self._each(names, put, False, timeout_s)

    def batch_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """Ask for values without reading them."""
        names, now = self.names(keys), time.time()

        def exists(database: sqlite3.Connection, index: int) -> Outcome:
            where = "WHERE key = ? AND (expires IS NULL OR expires > ?)"
            arguments = (names[index], now)
            if database.execute(f"SELECT 1 FROM chunks {where}", arguments).fetchone() is None:
                return Status.MISS, 0
            if touch:
                with database:
                    database.execute(f"UPDATE chunks SET used = {now} {where}", arguments)
            return Status.OK, 0

        return self._each(names, exists, prefix, timeout_s)

    def batch_delete(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> BatchResult:
        """Delete values."""
        names = self.names(keys)

        def delete(database: sqlite3.Connection, index: int) -> Outcome:
            gone = self._delete(database, names[index])
            return (Status.OK if gone else Status.MISS), 0

        return self._each(names, delete, False, timeout_s)

    def usage(self, timeout_s: float = 1.0) -> Usage:
        """What the file holds, whoever stored it."""
        with self._database(timeout_s) as database:
            count = database.execute("SELECT count(*) FROM chunks").fetchone()[0]
            return Usage(self._used(database), self._capacity_bytes, count)

    # --- What makes it complete ---

    def scan(self, limit: int = 1000) -> Iterator[ScanBatch]:
        """Keys and ages of this space."""
        prefix = self.space.prefix.encode()
        last = b""
        while True:
            rows = self._database().execute(
                "SELECT key, used FROM chunks WHERE key > ? AND identity = ? ORDER BY key LIMIT ?",
                (last, self.space.identity, limit),
            )
            found = list(rows)
            if not found:
                return
            last, now = found[-1][0], time.time()
            mine = [(key, used) for key, used in found if key.startswith(prefix)]
            yield [(key[len(prefix) :].decode(), max(0.0, now - used)) for key, used in mine]

    def describe(self) -> None:
        """Keep what this identity is in words."""
        if self.space.description:
            with self._database() as database:
                database.execute(
                    "INSERT OR REPLACE INTO identities VALUES (?, ?)",
                    (self.space.identity, self.space.description),
                )

    def descriptions(self) -> Mapping[bytes, str]:
        """All identities that have used the file."""
        return dict(self._database().execute("SELECT * FROM identities").fetchall())

    def stats(self) -> Mapping[str, int]:
        """Values that were refused, by cause."""
        return dict(self._counts)

    def close(self) -> None:
        """End the threads, then their connections."""
        super().close()
        while self._connections:
            self._connections.pop().close()

    # --- Inside ---

    def _get(self, database: sqlite3.Connection, key: bytes, target: memoryview) -> Outcome:
        row = database.execute(
            "SELECT identity, size, checksum, expires, value FROM chunks WHERE key = ?", (key,)
        ).fetchone()
        if row is None:
            return Status.MISS, 0
        identity, size, checksum, expires, value = row
        if expires is not None and expires <= time.time():
            self._delete(database, key)
            return Status.MISS, 0
        if identity != self.space.identity:
            return self._refuse(database, key, "identity", Status.CORRUPT)
        if not isinstance(value, bytes) or len(value) != size or zlib.crc32(value) != checksum:
            return self._refuse(database, key, "checksum", Status.CORRUPT)
        if size != len(target):
            return self._refuse(database, key, "size", Status.SIZE_MISMATCH, size)
        target[:] = value
        return Status.OK, size

    def _refuse(
        self, database: sqlite3.Connection, key: bytes, cause: str, status: Status, size: int = 0
    ) -> Outcome:
        self._counts[f"refused_{cause}"] = self._counts.get(f"refused_{cause}", 0) + 1
        self._delete(database, key)
        return status, size

    def _delete(self, database: sqlite3.Connection, key: bytes) -> bool:
        with database:
            return database.execute("DELETE FROM chunks WHERE key = ?", (key,)).rowcount > 0

    def _used(self, database: sqlite3.Connection) -> int:
        used: int = database.execute("SELECT ifnull(sum(size), 0) FROM chunks").fetchone()[0]
        return used

    def _each(
        self,
        names: list[bytes],
        one: Callable[[sqlite3.Connection, int], Outcome],
        prefix: bool,
        timeout_s: float | None,
    ) -> BatchResult:
        """One key after another, until the time is over or the prefix ends."""
        started, count = time.monotonic(), len(names)
        deadline = self.deadline(count * self.space.value_size_bytes, timeout_s)
        statuses, sizes, error = bytearray([Status.CANCELLED]) * count, [0] * count, None
        for index in range(count):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                statuses[index:] = bytes([Status.TIMEOUT]) * (count - index)
                break
            try:
                statuses[index], sizes[index] = one(self._database(left_s), index)
            except (sqlite3.Error, OSError) as problem:
                statuses[index] = Status.SERVER_ERROR
                error = error or str(problem)
            if prefix and statuses[index] != Status.OK:
                break
        return BatchResult(bytes(statuses), sizes, time.monotonic() - started, error)

    def _database(self, timeout_s: float = 1.0) -> sqlite3.Connection:
        if self._closed:
            raise ClosedError("the connector is closed")
        database: sqlite3.Connection | None = getattr(self._local, "database", None)
        if database is None:
            try:
                database = sqlite3.connect(self._path, timeout=timeout_s, check_same_thread=False)
            except sqlite3.Error as problem:
                raise UnavailableError(str(problem)) from problem
            self._local.database = database
            self._connections.append(database)  # closed by another thread, at the end
        database.execute(f"PRAGMA busy_timeout = {max(1, int(timeout_s * 1000))}")
        return database


def main() -> None:
    """Store a chunk, and show what becomes of one that was damaged."""
    description = describe_identity(model="tiny", dtype="float32")
    space = Space("kv:", identity_digest(description), 1 << 20, description)
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "kv.db")
        spec = {"type": "plugin", "module_path": f"{__name__}:SqliteConnector"}
        with load_connector({**spec, "params": {"path": path}}, space) as store:
            page, target = bytes(range(256)) * 4096, bytearray(1 << 20)
            ticket = store.submit_set(["chunk"], [page])
            stored = ticket.wait(10)
            print(f"stored: {stored is not None and stored.ok}")
            found = store.batch_get(["chunk", "other"], [target, bytearray(1 << 20)])
            print(f"found: {[status.name for status in found]} - equal: {target == page}")
            with contextlib.closing(sqlite3.connect(path)) as database, database:
                database.execute("UPDATE chunks SET value = zeroblob(size)")
            print(f"damaged: {store.batch_get(['chunk'], [target])[0].name}")
            print(f"afterwards: {store.batch_get(['chunk'], [target])[0].name}")


if __name__ == "__main__":
    main()
