"""The meter of `kvferry tune`: one turn writes and reads some values with one point's settings.

A turn makes new bytes, stores them, overwrites the buffers, reads them back and compares every
byte; only the two batch calls are inside the clock. Clients stay open from turn to turn, because
they adapt to the server and connections start slowly; the one that was idle longest is closed when
there are too many. What runs first on a new client, or after a pause on a distant server, is not
counted.

The keys are `kvferry:tune:<random>:...`, carry a time to live, and are deleted by `close()`. The
server holds `size_bytes` for each size of value that was measured, and no more.

Threads: one. Not for clients of other processes: the machine should have nothing else to do.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Self

from kvferry.base.errors import CapacityError, KVFerryError, UnavailableError
from kvferry.client.batch import BatchResult
from kvferry.client.sync import RedisClient
from kvferry.config import ClientConfig
from kvferry_lab.bench.data import Chunks
from kvferry_lab.tune.points import TunePoint, TuneSample

__all__ = ["KEY_PREFIX", "TuneMeter"]

KEY_PREFIX = "kvferry:tune:"
_TTL_S = 900.0  # for when we are killed; each turn renews it
_CLIENTS_MAX = 12
_FAR_S = 0.0005  # as native/redis/server.hpp
_PINGS = 5
_CLEANUP_TIMEOUT_S = 5.0


class TuneMeter:
    """Measures points on one server; a context manager that leaves nothing behind.

    Args:
        config: The server, and every setting that is not measured.
        size_bytes: What a turn writes, and reads.

    Attributes:
        verified_bytes: How many bytes were compared.
        round_trip_s: The shortest of a few, at the start.
    """

    def __init__(self, config: ClientConfig, size_bytes: int) -> None:
        self._config = config.replace(
            tuning=config.tuning.replace(client_name="kvferry-tune"), ttl_s=None
        )
        self._size_bytes = size_bytes
        self._prefix = f"{KEY_PREFIX}{os.urandom(4).hex()}:"
        self._chunks: dict[int, Chunks] = {}
        self._clients: dict[tuple[object, ...], RedisClient] = {}  # the last used is the last
        self.verified_bytes = 0
        self._admin = RedisClient.from_config(self._config.replace(connections=1, workers=1))
        try:
            self.round_trip_s = min(self._admin.ping() for _ in range(_PINGS))
        except BaseException:
            self._admin.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the keys and close the clients. Keys that cannot be deleted expire."""
        try:
            for client in self._clients.values():
                client.close()
            self._clients.clear()
            for chunks in self._chunks.values():
                self._admin.batch_delete(chunks.keys, timeout_s=_CLEANUP_TIMEOUT_S)
            self._chunks.clear()
        except KVFerryError:
            pass
        finally:
            self._admin.close()

    def info(self) -> dict[str, str]:
        """The server's own facts; empty where it gives none."""
        try:
            return self._admin.server_info()
        except KVFerryError:
            return {}

    def turn(self, point: TunePoint) -> TuneSample:
        """Measure a point.

        Raises:
            CorruptError: A byte is wrong.
            CapacityError: The server did not keep what was just stored.
            KVFerryError: What else failed; the point may be at fault.
        """
        try:
            return self._turn(point)
        except KVFerryError:
            self._drop(point)  # it would go on dialling, and disturb the others
            raise

    def _turn(self, point: TunePoint) -> TuneSample:
        chunks = self._chunks_of(point.chunk_bytes)
        client, is_new = self._client_of(point)
        batch = range(len(chunks.keys))
        times = 2 if is_new or self.round_trip_s > _FAR_S else 1
        chunks.next_write(batch)
        for _ in range(times):  # the last one counts
            set_s = _timed(lambda: client.batch_set(chunks.keys, chunks.sources, ttl_s=_TTL_S))
        for _ in range(times):
            chunks.poison()
            get_s = _timed(lambda: client.batch_get(chunks.keys, chunks.targets))
            self.verified_bytes += chunks.verify(batch, chunks.targets)
        gigabytes = len(batch) * chunks.size_bytes / 1e9
        return TuneSample(get_gbps=gigabytes / get_s, set_gbps=gigabytes / set_s)

    def _client_of(self, point: TunePoint) -> tuple[RedisClient, bool]:
        client = self._clients.pop(_settings(point), None)
        is_new = client is None
        if client is None:
            while len(self._clients) >= _CLIENTS_MAX:
                self._clients.pop(next(iter(self._clients))).close()
            client = RedisClient.from_config(
                self._config.replace(
                    connections=point.connections,
                    workers=point.workers,
                )
            )
        self._clients[_settings(point)] = client
        if is_new:
            self._await_connections(client, point.connections)
        return client, is_new

    def _await_connections(self, client: RedisClient, wanted: int) -> None:
        """A client would do with fewer, but then it is another point that is measured."""
        deadline = time.monotonic() + 2 * self._config.connect_timeout_s
        while (there := int(client.stats()["connections_up"])) < wanted:
            if time.monotonic() > deadline:
                raise UnavailableError(f"only {there} of {wanted} connections could be opened")
            time.sleep(0.005)

    def _drop(self, point: TunePoint) -> None:
        client = self._clients.pop(_settings(point), None)
        if client is not None:
            client.close()

    def _chunks_of(self, size_bytes: int) -> Chunks:
        if size_bytes not in self._chunks:
            count = max(1, self._size_bytes // size_bytes)
            chunks = Chunks(size_bytes, count, count, warm_bytes=1)
            chunks.keys = [f"{self._prefix}{size_bytes}:{index}" for index in range(count)]
            self._chunks[size_bytes] = chunks
        return self._chunks[size_bytes]


def _settings(point: TunePoint) -> tuple[object, ...]:
    return tuple(point.client.values())


def _timed(call: Callable[[], BatchResult]) -> float:
    gc.collect(0)
    gc.disable()
    try:
        start = time.perf_counter()
        result = call()
        elapsed_s = time.perf_counter() - start
    finally:
        gc.enable()
    _all(result)
    return elapsed_s


def _all(result: BatchResult) -> None:
    """Every key, or an error."""
    result.raise_for_errors()
    if not result.ok:
        raise CapacityError(
            "the server evicted what was just stored; give it more maxmemory, or measure "
            "with fewer bytes (--mib)"
        )
