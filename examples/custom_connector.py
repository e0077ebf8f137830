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
from collections.abc import Iterator, Mapping
from pathlib import Path

from kvferry.base.errors import ClosedError, UnavailableError
from kvferry.chunks.keys import describe_identity, identity_digest
from kvferry.client.batch import Status
from kvferry.connectors import BlockingConnector, Space, Usage, load_connector
from kvferry.connectors.base import ScanBatch
from kvferry.connectors.blocking import Outcome

TABLES = """
CREATE TABLE IF NOT EXISTS chunks (
    key BLOB PRIMARY KEY, identity BLOB, size INTEGER, checksum INTEGER,
    used REAL, expires REAL, value BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS identities (identity BLOB PRIMARY KEY, description TEXT);
"""


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

    def get_one(self, name: bytes, target: memoryview, left_s: float) -> Outcome:
        """Read a value; only what is exactly what was stored becomes OK."""
        database = self._database(left_s)
        row = database.execute(
            "SELECT identity, size, checksum, expires, value FROM chunks WHERE key = ?", (name,)
        ).fetchone()
        if row is None:
            return Status.MISS
        identity, size, checksum, expires, value = row
        if expires is not None and expires <= time.time():
            self.delete_one(name, left_s)
            return Status.MISS
        if identity != self.space.identity:
            return self._refuse(name, left_s, "identity", Status.CORRUPT)
        if not isinstance(value, bytes) or len(value) != size or zlib.crc32(value) != checksum:
            return self._refuse(name, left_s, "checksum", Status.CORRUPT)
        if size != len(target):
            return self._refuse(name, left_s, "size", Status.SIZE_MISMATCH), size
        target[:] = value
        return Status.OK

    def set_one(
        self, name: bytes, value: memoryview, ttl_s: float | None, left_s: float
    ) -> Outcome:
        """Store a value, as long as there is room."""
        now, limit = time.time(), self._capacity_bytes
        with self._database(left_s) as database:  # a transaction: all of a value or nothing
            database.execute("DELETE FROM chunks WHERE key = ?", (name,))
            if limit is not None and self._used(database) + len(value) > limit:
                raise OSError(f"OOM the store is full: its limit is {limit} bytes")
            row = (name, self.space.identity, len(value), zlib.crc32(value), now)
            expires = None if ttl_s is None else now + ttl_s
            database.execute(
                "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, expires, value)
            )
        return Status.OK

    def exists_one(self, name: bytes, touch: bool, left_s: float) -> Outcome:
        """Ask for a value without reading it."""
        where, now = "WHERE key = ? AND (expires IS NULL OR expires > ?)", time.time()
        with self._database(left_s) as database:
            if touch:
                database.execute(f"UPDATE chunks SET used = {now} {where}", (name, now))
            found = database.execute(f"SELECT 1 FROM chunks {where}", (name, now)).fetchone()
        return Status.MISS if found is None else Status.OK

    def delete_one(self, name: bytes, left_s: float) -> Outcome:
        """Delete a value."""
        with self._database(left_s) as database:
            gone = database.execute("DELETE FROM chunks WHERE key = ?", (name,)).rowcount > 0
        return Status.OK if gone else Status.MISS

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

    def _refuse(self, name: bytes, left_s: float, cause: str, status: Status) -> Status:
        self._counts[f"refused_{cause}"] = self._counts.get(f"refused_{cause}", 0) + 1
        self.delete_one(name, left_s)
        return status

    def _used(self, database: sqlite3.Connection) -> int:
        used: int = database.execute("SELECT ifnull(sum(size), 0) FROM chunks").fetchone()[0]
        return used

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
