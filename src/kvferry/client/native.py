"""What the blocking and the asyncio client share: settings, servers, presence and credentials.

A user's function that provides credentials runs in a thread of its own, so that I/O threads never
call it. The thread waits in native code until a connection asks, or until the last credentials are
about to expire; then connections that are up authenticate again with the new ones. It ends with its
client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from kvferry import _native
from kvferry.base.credentials import CredentialsProvider, provided
from kvferry.base.errors import UnavailableError
from kvferry.base.threads import Guarded, noticed
from kvferry.client.batch import BatchResult, Operation, from_native
from kvferry.client.buffers import Key, encode_keys
from kvferry.client.handle import NativeHandle, emit_log
from kvferry.client.presence import view_of
from kvferry.config import CONNECTIONS_DEFAULT, WORKERS_DEFAULT, ClientConfig, load_client_config

__all__ = ["NativeClient", "provide_to"]

_PYTHON_ONLY = ("ttl_s", "credentials", "nodes", "presence", "tuning")
PING_KEY = b"kvferry:ping"
_BY_THE_SETTINGS = -1.0  # a deadline that native code takes from the settings
_PLAIN = (None, 0, 0)  # values without frames
# Credentials that expire are renewed at this part of their life, early enough for a second try.
_RENEW_AT = 0.8
_RENEW_AGAIN_S = 5.0  # after a function that failed
_WAIT_S = 60.0  # for a connection that asks, at a time
_CLOSED = -1


class NativeClient(NativeHandle[_native.Client]):
    """Owns the native client; the public clients are thin faces over it."""

    _log: ClassVar = logging.getLogger("kvferry.client")

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
        self._begin()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<{type(self).__name__} {self.config.address} {state}>"

    def announce(self, operation: Operation) -> int:
        """See `RawMethods`."""
        return self._handle().submit(*self._request(operation))

    def stats(self) -> dict[str, int | str]:
        """Counters since the client was opened, and what the server says of itself."""
        return self._handle().stats()

    def nodes(self) -> list[dict[str, Any]]:
        """The servers behind this client, a row each: ``address``, ``role`` ("primary" or
        "replica"), ``available``, ``availability_zone`` and the counters of `stats`."""
        return self._handle().nodes()

    # --- The presence view ---

    def presence(self, keys: Sequence[Key]) -> list[bool | None]:
        """What is known of each key: True probably there, False certainly absent, None unknown.

        Asks nobody and never blocks. Keys without the `presence_prefix` are unknown; so are all
        while no such prefix is set.

        Raises:
            UsageError: The keys are none.
            ClosedError: The client is closed, in a forked child.
        """
        if isinstance(keys, str | bytes):
            encode_keys(keys)  # raises: a single key is not a batch
        return self._handle().presence(tuple(keys))

    def presence_stats(self) -> dict[str, int]:
        """Counters of the view: ``nodes`` that it watches and ``nodes_synced`` it can speak for,
        ``keys`` known to be there, ``changing`` ones, changes that servers ``announced``, keys that
        were ``asked`` about, ``snapshots``, ``forgotten`` (times that a node's keys became unknown)
        and ``memory_bytes``."""
        return self._handle().presence_stats()

    # --- Inside ---

    def _watch(self, config: ClientConfig, prefix: str) -> None:
        """Keep the view that the settings say, unless they name another one."""
        view = view_of(config, prefix)
        if view is not None and config.presence_prefix is None:
            self._handle().watch(prefix, *view)

    def _leading(self, keys: Sequence[Key]) -> int:
        """How many keys are before the first that is certainly absent."""
        known = self.presence(keys)
        return known.index(False) if False in known else len(known)

    def _open_native(self) -> _native.Client:
        config = self.config
        settings = {name: getattr(config, name) for name in _native_fields()}
        settings["connections"] = config.connections or CONNECTIONS_DEFAULT
        settings["workers"] = config.workers or WORKERS_DEFAULT
        settings["endpoints"] = config.seeds[1:]
        settings |= config.tuning.changed()
        if config.credentials is None:
            return _native.Client(settings)
        source = _native.CredentialSource()
        native = _native.Client(settings, source)
        provide_to(source, config.credentials)
        return native

    def _run(self, operation: Operation) -> BatchResult:
        """See `BatchMethods.perform`."""
        native = self._handle()
        outcome = native.run(*self._request(operation))
        emit_log(self._log, native)
        return from_native(*outcome)

    def _request(self, operation: Operation) -> tuple[Any, ...]:
        frame = operation.frame
        if frame is None:
            return self._arguments(operation) + _PLAIN
        framed = frame.identity, frame.value_size_bytes, frame.codec
        return self._arguments(operation) + framed

    def _limit_s(self, values: int) -> float:
        return _BY_THE_SETTINGS

    def _ttl_s(self) -> float | None:
        return self.config.ttl_s

    def _after_fork(self) -> None:
        if self._native is not None:
            self._native.forked_away()
        super()._after_fork()


def _native_fields() -> tuple[str, ...]:
    return tuple(name for name in ClientConfig.__struct_fields__ if name not in _PYTHON_ONLY)


# --- Credentials from a function of the user ---


def provide_to(source: _native.CredentialSource, provider: CredentialsProvider) -> None:
    """Answer the source from a thread of its own until its client is closed."""
    Guarded(_serve, "credentials", source, provider).start()


def _serve(source: _native.CredentialSource, provider: CredentialsProvider) -> None:
    renew_at: float | None = None  # on the monotonic clock; None: what is known does not expire
    while True:
        now = time.monotonic()
        limit_s = _WAIT_S if renew_at is None else max(0.0, min(_WAIT_S, renew_at - now))
        asked = source.wait(limit_s)
        if asked == _CLOSED:
            return
        due = renew_at is not None and time.monotonic() >= renew_at
        if not asked and not due:
            continue
        try:
            credentials = provided(provider)
            source.provide(credentials.username or "", credentials.password)
        except BaseException as error:  # not even a SystemExit leaves who asked without an answer
            if isinstance(error, UnavailableError):
                why = str(error)
            else:  # nothing else of it is told: it may have a secret
                why = f"the function that provides credentials raised {type(error).__name__}"
                noticed("credentials", UnavailableError(why))
            source.refuse(why)
            renew_at = None if renew_at is None else time.monotonic() + _RENEW_AGAIN_S
            continue
        life_s = credentials.expires_in_s
        renew_at = None if life_s is None else time.monotonic() + _RENEW_AT * life_s
