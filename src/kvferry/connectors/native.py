"""The base of the drivers in C++: jobs of a native connector, the content of its store, and room
among the chunks of other identities."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from kvferry import _native
from kvferry.base.errors import DeadlineExceeded
from kvferry.client.batch import BatchResult, Operation, Verb, from_native
from kvferry.client.handle import NativeHandle, emit_log
from kvferry.client.presence import view_of
from kvferry.client.sync import RedisClient
from kvferry.config import ClientConfig
from kvferry.connectors.base import Connector, Key, ScanBatch, Space, Ticket, Usage, job_limit_s

__all__ = ["ClientConnector", "NativeConnector"]

_log = logging.getLogger("kvferry.connectors")

HANG_GRACE_S = 2.0  # how much later than its deadline a blocking call looks for its end
QUEUED_KEYS_MAX = 1_000_000  # by default; beyond, submissions raise CapacityError
_EVICTED_TOGETHER = 16  # then the store is asked what it holds
_DELETE_TIMEOUT_S = 5.0


class _Ticket:
    """A quiet job of a native connector."""

    __slots__ = ("_id", "_native", "_result")

    def __init__(self, native: _native.Connector, job_id: int) -> None:
        self._native = native
        self._id = job_id
        self._result: BatchResult | None = None

    def wait(self, timeout_s: float) -> BatchResult | None:
        if self._result is None:
            outcome = self._native.wait(self._id, max(0.0, timeout_s))
            if outcome is not None:
                self._result = from_native(*outcome)
                emit_log(_log, self._native)
        return self._result

    def cancel(self) -> None:
        self._native.cancel(self._id)

    @property
    def done(self) -> bool:
        return self.wait(0.0) is not None

    @property
    def prefix_len(self) -> int:
        result = self._result
        return self._native.progress(self._id) if result is None else result.prefix_len

    def __del__(self) -> None:
        self._native.discard(self._id)


class NativeConnector(NativeHandle[_native.Connector], Connector):
    """Owns a native connector; a driver says how that is opened. See `Connector`."""

    _log: ClassVar = _log

    def __init__(self, space: Space) -> None:
        self.space = space
        self._begin()
        self.describe()

    @abstractmethod
    def _open(self, space: Space) -> _native.Connector: ...

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<{type(self).__name__} {self.space.prefix!r} {self._where()} {state}>"

    def _where(self) -> str:
        return ""

    def perform(self, operation: Operation) -> BatchResult:
        """See `Connector`."""
        native, job_id, limit_s = self._submit(operation, quiet=True)
        ticket = _Ticket(native, job_id)
        try:
            result = ticket.wait(limit_s + HANG_GRACE_S)
        except BaseException:
            ticket.cancel()  # the buffers are ours until the job has let go of them
            ticket.wait(limit_s + HANG_GRACE_S)
            raise
        if result is None:
            raise DeadlineExceeded(
                f"{self!r} hangs: {HANG_GRACE_S:g} s after the deadline it still uses the buffers"
            )
        return result

    def submit(self, operation: Operation) -> Ticket:
        """See `Connector`; with `pages_on_demand`, values may take their pages when they come."""
        native, job_id, _ = self._submit(operation, quiet=True)
        return _Ticket(native, job_id)

    def announce(self, operation: Operation) -> int:
        """See `Connector`."""
        return self._submit(operation, quiet=False)[1]

    def progress(self, job_id: int) -> int:
        """See `Connector`."""
        return self._handle().progress(job_id)

    # --- The store ---

    def usage(self, timeout_s: float = 1.0) -> Usage:
        """See `Connector`."""
        return Usage(*self._handle().usage())

    def scan(self, limit: int = 1000) -> Iterator[ScanBatch]:
        """See `Connector`."""
        cursor, batch = 0, []
        while True:
            entries, cursor = self._handle().scan(cursor)
            batch += [(as_key(key), age_s) for key, age_s in entries]
            while len(batch) >= limit or (batch and not cursor):
                yield batch[:limit]
                del batch[:limit]
            if not cursor:
                return

    def descriptions(self) -> Mapping[bytes, str]:
        """See `Connector`."""
        return dict(self._handle().descriptions())

    def describe(self) -> None:
        """See `Connector`; the stores of these drivers keep it when they are opened."""
        self._handle()

    def evict_others(self, size_bytes: int, timeout_s: float) -> int:
        """See `Connector`."""
        return _evict_others(self, self._open, size_bytes, timeout_s)

    @property
    def pages_on_demand(self) -> bool:
        """Whether `submit_get` takes a ``_native.OnDemandPages`` for buffers."""
        return self._handle().pages_on_demand()

    def stats(self) -> Mapping[str, int]:
        """Jobs, bytes, keys by status, and by cause the values that were refused."""
        return self._handle().stats()

    # --- Inside ---

    def _open_native(self) -> _native.Connector:
        return self._open(self.space)

    def _submit(self, operation: Operation, *, quiet: bool) -> tuple[_native.Connector, int, float]:
        arguments = self._arguments(operation)
        native = self._handle()
        return native, native.submit(*arguments, quiet), arguments[3]

    def _limit_s(self, values: int) -> float:
        return self._deadline_s(values * self.space.value_size_bytes)

    def _deadline_s(self, size_bytes: int) -> float:
        return job_limit_s(size_bytes)

    def _ttl_s(self) -> float | None:
        return None


def as_key(key: bytes) -> Key:
    """A key as callers mostly have them: text, where it is that."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def _evict_others(
    connector: Connector,
    open_native: Callable[[Space], _native.Connector],
    size_bytes: int,
    timeout_s: float,
) -> int:
    """Make room among the chunks of other identities that share a store, the least recently used
    first. A cache knows, and evicts, its own chunks only: whoever fills a store first would
    otherwise keep it. The others are found by the descriptions that the store keeps."""
    until = time.monotonic() + timeout_s
    found: list[tuple[float, _native.Connector, bytes]] = []
    others = []
    try:
        for identity in connector.descriptions():
            if identity == connector.space.identity:
                continue
            prefix = f"kvf:{identity.hex()}:"
            space = replace(connector.space, prefix=prefix, identity=identity, description="")
            others.append(open_native(space))
            found += _aged(others[-1], until)
        found.sort(key=lambda entry: entry[0])
        goal, went = connector.usage().used_bytes - size_bytes, 0
        while found and time.monotonic() < until and connector.usage().used_bytes > goal:
            oldest = [found.pop() for _ in range(min(len(found), _EVICTED_TOGETHER))]
            went += sum(_delete(other, key) for _, other, key in oldest)
        return went
    finally:
        for other in others:
            other.close()


def _aged(other: _native.Connector, until: float) -> list[tuple[float, _native.Connector, bytes]]:
    """The keys of a space and how long ago they were used."""
    found, cursor = [], 0
    while time.monotonic() < until:
        entries, cursor = other.scan(cursor)
        found += [(age_s, other, key) for key, age_s in entries]
        if not cursor:
            break
    return found


def _delete(other: _native.Connector, key: bytes) -> bool:
    """Whether it was there."""
    job_id = other.submit(int(Verb.DELETE), (key,), None, _DELETE_TIMEOUT_S, 0, False, True)
    outcome = other.wait(job_id, 2 * _DELETE_TIMEOUT_S)
    return outcome is not None and not outcome[0][0]


class ClientConnector(NativeConnector):
    """Values on servers that a client reaches; see `Connector`.

    Args:
        space: What it is opened with.
        config: How the servers are reached.
        client: A client to share instead; the connector then leaves it open.

    Attributes:
        owns: Whether it deletes values that are of no use.
    """

    owns: ClassVar[bool] = True

    def __init__(
        self, space: Space, config: ClientConfig, *, client: RedisClient | None = None
    ) -> None:
        self.config = config
        self._owns_client = client is None
        self._client = client or RedisClient.from_config(config)
        super().__init__(space)

    def _where(self) -> str:
        return self.config.address

    def _open(self, space: Space) -> _native.Connector:
        view = view_of(self.config, space.prefix)
        seat, keys_max, load_max, optional = view or (None, 0, 0, True)
        return _native.open_redis_connector(
            self._client._handle(),
            space.prefix.encode(),
            space.identity,
            space.value_size_bytes,
            space.description,
            seat,
            keys_max,
            load_max,
            optional,
            self.owns,
        )

    @property
    def presence(self) -> str:
        """What the presence view can say: "synced", "syncing", or "off: " and why."""
        found = self._handle().presence()
        if found is None:
            return "off: the setting says so" if self.config.presence == "off" else "off"
        counts, why = found
        synced = counts["nodes"] == counts["nodes_synced"] > 0
        return "synced" if synced else f"off: {why}" if why else "syncing"

    def absent(self, key: Key) -> bool:
        """Whether the presence view knows that a key is absent; it asks nobody."""
        return self._handle().absent(key)

    def leading(self, keys: Sequence[Key]) -> int | None:
        """How many leading keys are there in all likelihood, where the presence view knows it; else
        None. It asks nobody."""
        return self._handle().leading(tuple(keys))

    @property
    def available(self) -> bool:
        """See `Connector`. What the client has to say is logged on the way."""
        emit_log(self._client._log, self._client._handle())
        return super().available

    def close(self) -> None:
        """See `Connector`."""
        super().close()
        if self._owns_client:
            self._client.close()

    def stats(self) -> Mapping[str, int]:
        """Those of all drivers, and those of the client as ``client_<name>``."""
        client = {f"client_{k}": v for k, v in self._client.stats().items() if isinstance(v, int)}
        found = self._handle().presence()
        view = {f"presence_{k}": v for k, v in found[0].items()} if found is not None else {}
        return {**super().stats(), **client, **view}

    def _deadline_s(self, size_bytes: int) -> float:
        return self.config.deadline_s(size_bytes)

    def _ttl_s(self) -> float | None:
        return self.config.ttl_s
