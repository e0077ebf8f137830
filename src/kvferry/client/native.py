"""What the blocking and the asyncio client share: settings, and what they say of their servers."""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Self

from kvferry import _native
from kvferry.client.batch import BatchResult, from_native
from kvferry.client.handle import NativeHandle, emit_log
from kvferry.client.operation import Operation
from kvferry.client.presence import Presence
from kvferry.client.provider import provide_to
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import CONNECTIONS_DEFAULT, WORKERS_DEFAULT, ClientConfig, load_client_config

__all__ = ["NativeClient"]

_PYTHON_ONLY = ("ttl_s", "credentials", "nodes", "presence")
PING_KEY = b"kvferry:ping"
_BY_THE_SETTINGS = -1.0
_PLAIN = (None, 0, 0)


class NativeClient(NativeHandle[_native.Client], Presence):
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

    # --- Inside ---

    def _open_native(self) -> _native.Client:
        config = self.config
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


def server_info(config: ClientConfig) -> dict[str, str]:
    """What ``INFO`` says, over a connection of its own."""
    with PureRedisClient.from_config(config) as client:
        return client.server_info()


def _native_fields() -> tuple[str, ...]:
    return tuple(name for name in ClientConfig.__struct_fields__ if name not in _PYTHON_ONLY)
