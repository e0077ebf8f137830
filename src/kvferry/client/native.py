"""What the blocking and the asyncio client share: one native client and its life.

The native client's threads never take the GIL. After ``fork()`` the child opens connections of its
own on first use; batches that were in flight stay the parent's. At interpreter exit every open
client is closed, so that no thread can touch memory that Python is about to free.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Self

from kvferry import _native
from kvferry._shown import shown
from kvferry.client.batch import BatchResult, from_native
from kvferry.client.buffers import BufferLike, Key, encode_keys
from kvferry.client.inherited import Inherited
from kvferry.client.presence import Presence
from kvferry.client.provider import provide_to
from kvferry.client.pure.client import PureRedisClient
from kvferry.client.times import checked_timeout, ttl_ms
from kvferry.config import CONNECTIONS_DEFAULT, WORKERS_DEFAULT, ClientConfig, load_client_config
from kvferry.errors import ClosedError, UsageError

__all__ = ["NativeClient", "ValueFrame", "Verb"]

_log = logging.getLogger("kvferry.client")
_open_clients: weakref.WeakSet[NativeClient] = weakref.WeakSet()
_parents: list[object] = []  # native clients of the process that forked us: never destroyed
_reopening = threading.Lock()

_PYTHON_ONLY = ("ttl_s", "credentials", "nodes", "presence")
PING_KEY = b"kvferry:ping"
FRAMED_SIZE_BYTES_MAX = 65_535 * (4 << 20)  # stripes times what one holds: native/codec/stripe.hpp


class Verb(IntEnum):
    """What a batch does. The numbers are those of native/redis/batch.hpp."""

    GET = 0
    SET = 1
    EXISTS = 2
    TOUCH = 3
    DELETE = 4
    PING = 5  # of the node that has the key


class ValueFrame:
    """How the values of a cache namespace are framed; see docs/formats/frame.md.

    Args:
        identity: What the bytes must be comparable with; its first 8 bytes enter every frame.
        value_size_bytes: Length of every value of the namespace.
        codec: How values are sent, where that pays: a number of native/codec/frame.hpp.

    Raises:
        UsageError: The identity is no digest, or no value can have that length.
    """

    __slots__ = ("codec", "identity", "value_size_bytes")

    def __init__(self, identity: bytes, value_size_bytes: int, codec: int = 0) -> None:
        if not isinstance(identity, bytes) or len(identity) < 8:
            raise UsageError("an identity digest has at least 8 bytes; see kvferry.chunks.keys")
        whole = isinstance(value_size_bytes, int) and not isinstance(value_size_bytes, bool)
        if not whole or not 1 <= value_size_bytes <= FRAMED_SIZE_BYTES_MAX:
            raise UsageError(
                f"value_size_bytes={shown(value_size_bytes)} is the length of every value; "
                f"use a whole number from 1 to {FRAMED_SIZE_BYTES_MAX}"
            )
        self.identity = int.from_bytes(identity[:8], "little")
        self.value_size_bytes = value_size_bytes
        self.codec = codec


class NativeClient(Presence):
    """Owns the native client; the public clients are thin faces over it."""

    def __init__(self, host: str | None = None, port: int | None = None, **settings: Any) -> None:
        self._start(ClientConfig.from_env(host=host, port=port, **settings))

    @classmethod
    def from_url(cls, url: str, **overrides: Any) -> Self:
        """A client of ``redis://``, ``resp://``, ``valkey://`` or ``unix://``, see ClientConfig."""
        return cls.from_config(ClientConfig.from_url(url, **overrides))

    @classmethod
    def from_file(cls, path: str | None = None, **overrides: Any) -> Self:
        """A client as a configuration file says: `path`, or what ``KVFERRY_CONFIG_FILE`` names.

        The environment and `overrides` win over the file; see docs/guides/configuration.md.
        """
        return cls.from_config(load_client_config(path, **overrides))

    @classmethod
    def from_config(cls, config: ClientConfig) -> Self:
        """A client with these settings."""
        client = cls.__new__(cls)
        client._start(config)
        return client

    def _start(self, config: ClientConfig) -> None:
        self.config = config
        self._closed = False
        self._inherited = Inherited()
        self._native: _native.Client | None = _open(config)
        _open_clients.add(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<{type(self).__name__} {self.config.address} {state}>"

    # --- The raw interface: submit, wait for the descriptor, drain ---

    def submit_batch_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> int:
        """Start to read values into `buffers`; returns the batch's id at once.

        The buffers belong to the batch until `drain_completions` has returned its id.

        Raises:
            UsageError, BadBufferError: The call cannot be right; nothing was sent.
            CapacityError: Too many commands are waiting; nothing was sent.
            ClosedError: The client is closed.
        """
        return self._submit(Verb.GET, keys, buffers, timeout_s=timeout_s, prefix=prefix)

    def submit_batch_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Start to store `buffers`; otherwise as `submit_batch_get`."""
        return self._submit(Verb.SET, keys, buffers, timeout_s=timeout_s, ttl_s=ttl_s)

    def submit_batch_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> int:
        """Start to ask which keys exist; `touch` also protects them from eviction for a while."""
        verb = Verb.TOUCH if touch else Verb.EXISTS
        return self._submit(verb, keys, None, timeout_s=timeout_s, prefix=prefix)

    def submit_batch_delete(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> int:
        """Start to delete keys: OK = was there, MISS = was not."""
        return self._submit(Verb.DELETE, keys, None, timeout_s=timeout_s)

    def event_fd(self) -> int:
        """A descriptor that is readable while completions wait. It belongs to the client.

        In a forked child the number that the parent had works too, for the child's batches alone.
        """
        return self._handle().event_fd()

    def drain_completions(self) -> list[tuple[int, BatchResult]]:
        """Take every finished batch, oldest first: its id and its result. Never blocks."""
        native = self._handle()
        completions = [(batch_id, from_native(*outcome)) for batch_id, outcome in native.drain()]
        self._emit_log(native)
        return completions

    def cancel(self, batch_id: int) -> None:
        """Withdraw a batch. It still completes, soon: once nothing can touch its buffers."""
        self._handle().cancel(batch_id)

    # --- Life ---

    def stats(self) -> dict[str, int | str]:
        """Counters since the client was opened, and what the server says of itself."""
        return self._handle().stats()

    def nodes(self) -> list[dict[str, Any]]:
        """The servers behind this client, a row each: ``address``, ``role`` ("primary" or
        "replica"), ``available``, ``availability_zone`` and the counters of `stats`."""
        return self._handle().nodes()

    @property
    def available(self) -> bool:
        """False while no server can be reached: then every batch is UNAVAILABLE at once."""
        return self._handle().available()

    def close(self) -> None:
        """Cancel what is in flight and end the I/O threads. May be called twice."""
        self._closed = True
        if self._native is not None:
            self._native.close()
            self._emit_log(self._native)

    # --- Inside ---

    def _handle(self) -> _native.Client:
        native = self._native
        if native is not None:
            return native
        with _reopening:  # this process was forked
            if self._closed:
                raise ClosedError("the client is closed")
            if self._native is None:
                opened = _open(self.config)
                self._inherited.wake_with(opened.event_fd())
                self._native = opened
            return self._native

    def _after_fork(self) -> None:
        parents, self._native = self._native, None
        if parents is not None:
            parents.forked_away()
            _parents.append(parents)
        self._inherited.take(None if parents is None else parents.event_fd())

    def _submit(
        self,
        verb: Verb,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike] | None,
        *,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
        prefix: bool = False,
        frame: ValueFrame | None = None,
    ) -> int:
        call = self._call(verb, keys, buffers, timeout_s, ttl_s, prefix, frame)
        return self._handle().submit(*call)

    def _run(
        self,
        verb: Verb,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike] | None,
        *,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
        prefix: bool = False,
        frame: ValueFrame | None = None,
    ) -> BatchResult:
        native = self._handle()
        outcome = native.run(*self._call(verb, keys, buffers, timeout_s, ttl_s, prefix, frame))
        self._emit_log(native)
        return from_native(*outcome)

    def _call(
        self,
        verb: Verb,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike] | None,
        timeout_s: float | None,
        ttl_s: float | None,
        prefix: bool,
        frame: ValueFrame | None,
    ) -> tuple[Any, ...]:
        if isinstance(keys, str | bytes):
            encode_keys(keys)  # raises: a single key is not a batch
        if buffers is None and verb in (Verb.GET, Verb.SET):
            raise TypeError("buffers is not a sequence")
        limit_s = checked_timeout(timeout_s)
        return (
            int(verb),
            tuple(keys),  # of our own: an exporter is code, and may change the caller's lists
            None if buffers is None else tuple(buffers),
            -1.0 if limit_s is None else limit_s,
            ttl_ms(self.config.ttl_s if ttl_s is None else ttl_s) or 0,
            prefix,
            None if frame is None else frame.identity,
            0 if frame is None else frame.value_size_bytes,
            0 if frame is None else frame.codec,
        )

    def _emit_log(self, native: _native.Client) -> None:
        for level, text in native.drain_log():
            _log.log(level, "%s", text)


def server_info(config: ClientConfig) -> dict[str, str]:
    """What ``INFO`` says, over a connection of its own."""
    with PureRedisClient.from_config(config) as client:
        return client.server_info()


def _open(config: ClientConfig) -> _native.Client:
    settings = {name: getattr(config, name) for name in _native_fields()}
    settings["connections"] = config.connections or CONNECTIONS_DEFAULT
    settings["workers"] = config.workers or WORKERS_DEFAULT
    settings["endpoints"] = config.seeds[1:]
    if config.credentials is None:
        return _native.Client(settings)
    source = _native.CredentialSource()
    native = _native.Client(settings, source)
    provide_to(source, config.credentials)
    return native


def _native_fields() -> tuple[str, ...]:
    return tuple(name for name in ClientConfig.__struct_fields__ if name not in _PYTHON_ONLY)


def _after_fork_in_child() -> None:
    global _reopening
    _reopening = threading.Lock()  # a thread that is not here may have held it
    for client in list(_open_clients):
        client._after_fork()


def _close_all() -> None:
    _native.begin_exit()
    for client in list(_open_clients):
        client.close()
    _native.await_parked()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close_all)
