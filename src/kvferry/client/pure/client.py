"""The client in pure Python: the same interface as the native one, the standard library alone.

    with PureRedisClient(host="localhost", port=6379) as client:
        client.set("key", buffer)    # sent without a copy
        client.get("key", buffer)    # True: filled in place; False: no such key

For hosts without the extension, and the oracle that tests compare the native client with. One
connection to one server, over TCP, TLS or a Unix socket, made at the first use; values go straight
between the socket and the caller's memory. Clusters and Sentinels are for `kvferry.RedisClient`.

- A batch ends by its deadline and has one status per key; a missing key is MISS, never an error.
- A connection with an unfinished or surprising reply is reset and never used again. What it left
  open is asked for again on a new one (all commands are idempotent; a repeated DEL may answer MISS
  for a key that its first try deleted), at most `attempts_max` times without progress.
- While the server is away, calls answer UNAVAILABLE at once and dial again after a random wait.
- A server that stalls costs its batch TIMEOUT; the content of the targets is then undefined.
- Threads may share a client: batches wait for each other. A forked child dials for itself.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, Self, cast

from kvferry.base.errors import BadBufferError, ClosedError, ConfigError, ServerError
from kvferry.client import buffers as _buffers
from kvferry.client.batch import (
    LIMIT_S_MAX,
    BatchResult,
    Operation,
    Status,
    Verb,
    checked_timeout,
    only,
    ttl_ms,
)
from kvferry.client.buffers import BufferLike
from kvferry.client.methods import KeyMethods
from kvferry.client.pure.batch import (
    GET_WINDOW_BYTES,
    Batch,
    Call,
    CountBatch,
    GetBatch,
    SetBatch,
    exchange,
)
from kvferry.client.pure.connection import Connection, Disconnected, ReplyTimedOut
from kvferry.client.pure.dial import Backoff, DialRefused, dial
from kvferry.client.pure.resp import ProtocolError
from kvferry.config import ClientConfig

__all__ = ["PureRedisClient"]

_log = logging.getLogger("kvferry.client.pure.client")

_CLOSE_WAIT_S = 1.0
_COUNTING = {Verb.EXISTS: b"EXISTS", Verb.TOUCH: b"TOUCH", Verb.DELETE: b"DEL"}
_COUNTERS = (
    "batches",
    "keys",
    "bytes_received",
    "bytes_sent",
    "connects",
    "connect_failures",
    "disconnects",
    *(status.name.lower() for status in Status),
)


class PureRedisClient(KeyMethods):
    """A client of one Redis or Valkey server.

    Args:
        host: Server; else ``KVFERRY_RESP_HOST``, ``LMCACHE_RESP_HOST``, "localhost".
        port: TCP port; else from the environment likewise, or 6379.
        settings: Fields of `ClientConfig`.

    Raises:
        ConfigError: A setting is unknown, malformed, contradicts another one, or names a cluster
            or Sentinels.
    """

    def __init__(self, host: str | None = None, port: int | None = None, **settings: Any) -> None:
        self._start(ClientConfig.from_env(host=host, port=port, **settings))

    @classmethod
    def from_url(cls, url: str, **overrides: Any) -> Self:
        """A client of the server that a URL names; see `ClientConfig.from_url`."""
        return cls.from_config(ClientConfig.from_url(url, **overrides))

    @classmethod
    def from_config(cls, config: ClientConfig) -> Self:
        """A client with these settings; the environment is not read."""
        client = cls.__new__(cls)
        client._start(config)
        return client

    def _start(self, config: ClientConfig) -> None:
        self.config, self._closed = config, False
        if config.topology != "standalone":
            raise ConfigError(
                f"topology={config.topology}: the pure client speaks to one server; "
                "use kvferry.RedisClient"
            )
        self._lock = threading.Lock()  # held while a batch uses the connection
        self._stats = dict.fromkeys(_COUNTERS, 0)
        self._connection: Connection | None = None
        self._refusal = ""  # what was said of the server last, until it connects
        self._backoff = Backoff(config.tuning.reconnect_min_s, config.tuning.reconnect_max_s)
        _clients.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PureRedisClient {self.config.address}{' closed' if self._closed else ''}>"

    def perform(self, operation: Operation) -> BatchResult:
        """See `BatchMethods`."""
        if operation.verb not in _COUNTING:
            return self._move(operation)
        keys = _buffers.encode_keys(operation.keys)
        batch = CountBatch(_COUNTING[operation.verb], keys, prefix=operation.prefix)
        return self._execute(batch, 0, operation.timeout_s)

    def _move(self, operation: Operation) -> BatchResult:
        buffers = list(cast("Sequence[BufferLike]", operation.buffers))
        keys = _buffers.check_batch(operation.keys, buffers)
        batch: Batch
        if operation.verb is Verb.GET:
            views = [_buffers.writable(buffer) for buffer in buffers]
            _buffers.check_targets(views)
            batch = GetBatch(
                keys,
                views,
                window_bytes=self.config.tuning.window_bytes or GET_WINDOW_BYTES,
                drain_bytes_max=self.config.tuning.drain_bytes_max,
                prefix=operation.prefix,
            )
        else:
            views = [_buffers.readable(buffer) for buffer in buffers]
            self._check_sizes(views)
            ttl_s = self.config.ttl_s if operation.ttl_s is None else operation.ttl_s
            batch = SetBatch(keys, views, ttl_ms(ttl_s))
        result = self._execute(batch, sum(map(len, views)), operation.timeout_s)
        moved = "bytes_received" if operation.verb is Verb.GET else "bytes_sent"
        self._stats[moved] += _ok_bytes(result)
        return result

    def _check_sizes(self, values: list[memoryview]) -> None:
        limit = self.config.tuning.value_size_bytes_max
        for index, value in enumerate(values):
            if len(value) > limit:
                raise BadBufferError(
                    f"value {index} has {len(value)} bytes, more than value_size_bytes_max={limit}"
                )

    # The server.

    def ping(self) -> float:
        """The time of a PING and its answer, in seconds; at first use, with connecting."""
        call = Call(b"PING")
        result = self._execute(call, 0, None)
        only(result)
        return result.elapsed_s

    def server_info(self) -> dict[str, str]:
        """INFO of the server, e.g. ``redis_version``, ``maxmemory_policy``."""
        call = Call(b"INFO")
        only(self._execute(call, 0, None))
        if not isinstance(call.reply, bytes):
            raise ServerError("INFO was answered with something else than text")
        lines = call.reply.decode(errors="replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and line[0] != "#")

    # The client itself.

    def stats(self) -> dict[str, int]:
        """Counters since the start: batches, connections, bytes, and keys by their status."""
        return dict(self._stats)

    def close(self) -> None:
        """End the connections; a batch in another thread ends as CANCELLED. Idempotent."""
        self._closed = True
        if (connection := self._connection) is not None:
            connection.abort()
        if self._lock.acquire(timeout=_CLOSE_WAIT_S):  # else its holder will clean up
            try:
                self._disconnect()
            finally:
                self._lock.release()

    def _execute(self, batch: Batch, size_bytes: int, timeout_s: float | None) -> BatchResult:
        if self._closed:
            raise ClosedError(f"{self!r} cannot be used any more")
        limit_s = _limit_s(self.config, size_bytes, timeout_s)
        started = time.monotonic()
        if self._lock.acquire(timeout=limit_s):
            try:
                self._run(batch, started + limit_s)
            finally:
                if self._closed:
                    self._disconnect()
                self._lock.release()
        else:
            batch.finish(Status.TIMEOUT, f"other batches used the connection for {limit_s:g} s")
        elapsed_s = time.monotonic() - started
        result = BatchResult(bytes(batch.statuses), batch.sizes, elapsed_s, batch.error, batch.kind)
        self._count(result)
        return result

    def _run(self, batch: Batch, deadline: float) -> None:
        try:
            self._ask(batch, deadline)
        except DialRefused as error:
            batch.finish(Status.UNAVAILABLE, str(error), error.kind)
        except ReplyTimedOut as error:
            batch.finish(Status.TIMEOUT, str(error))
        batch.finish(Status.CANCELLED, "the client was closed" if self._closed else None)

    def _ask(self, batch: Batch, deadline: float) -> None:
        """Ask for every key that has no outcome; afterwards all up to the batch's end have one.

        Raises:
            DialRefused: The server is away, or refuses us.
            ReplyTimedOut: The deadline passed, or the server stalled.
        """
        tries = 0
        while not self._closed and (todo := batch.pending()):
            if time.monotonic() >= deadline:
                raise ReplyTimedOut("the deadline passed")
            try:
                connection = self._connect(deadline)
                exchange(batch, connection, deadline)
            except DialRefused:
                raise
            except (Disconnected, ProtocolError) as error:
                self._disconnect(str(error))
                tries = tries + 1 if len(batch.pending()) == len(todo) else 1
                if tries >= self.config.tuning.attempts_max and not self._closed:
                    raise DialRefused(str(error), error.kind) from error
            except BaseException as error:  # e.g. KeyboardInterrupt in the middle of a reply
                self._disconnect(str(error) if isinstance(error, ReplyTimedOut) else "interrupted")
                raise
            else:
                if connection.worn_out:
                    self._disconnect("the server asked for a new connection")
                return

    def _connect(self, deadline: float) -> Connection:
        """The connection, ready for a request.

        Raises:
            DialRefused, ReplyTimedOut: There is none to be had.
        """
        if self._connection is not None:
            if self._connection.is_clean():
                return self._connection
            self._disconnect("it ended while idle, or its time was over")
        self._backoff.check()
        try:
            self._connection = dial(self.config, deadline)
        except (DialRefused, ReplyTimedOut) as error:
            self._stats["connect_failures"] += 1
            self._backoff.failed(
                error if isinstance(error, DialRefused) else DialRefused(str(error))
            )
            if str(error) != self._refusal:  # once, however often it is tried
                text = str(error)
                here = self.config.address
                _log.warning("%s", text if here in text else f"{here}: {text}")
            self._refusal = str(error)
            raise
        self._refusal = ""
        self._stats["connects"] += 1
        self._backoff.reset()
        _log.info("connected to %s", self.config.address)
        return self._connection

    def _disconnect(self, why: str | None = None) -> None:
        """End the connection, if there is one.

        `why`: it is of no use any more, and may owe answers: it is reset. ``None``: it is closed,
        by a client that is done, or by a forked child that has a copy.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if why is None:
            connection.close()
            return
        connection.reset()
        self._stats["disconnects"] += 1
        _log.info("closed the connection to %s: %s", self.config.address, why)

    def _count(self, result: BatchResult) -> None:
        self._stats["batches"] += 1
        self._stats["keys"] += len(result)
        for status in Status:
            self._stats[status.name.lower()] += result.count(status)

    def _after_fork(self) -> None:
        # In the child: the lock may be held by a thread that is not here, and the connection
        # belongs to the parent; closing our descriptor of it leaves the parent's alone.
        self._lock = threading.Lock()
        self._disconnect()


_clients: weakref.WeakSet[PureRedisClient] = weakref.WeakSet()


def _forget_connections() -> None:
    for client in _clients:
        client._after_fork()


os.register_at_fork(after_in_child=_forget_connections)


def _ok_bytes(result: BatchResult) -> int:
    return sum(size for size, status in zip(result.sizes, result, strict=True) if not status)


def _limit_s(config: ClientConfig, size_bytes: int, timeout_s: float | None) -> float:
    limit_s = checked_timeout(timeout_s)
    return min(config.deadline_s(size_bytes), LIMIT_S_MAX) if limit_s is None else limit_s
