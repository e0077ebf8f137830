"""The settings of a client: one frozen object, checked when it is made.

    ClientConfig(host="cache-1", password="...", connections=8)
    ClientConfig.from_url("redis://:secret@cache-1:6379/0?connections=8&timeout_s=2")
    ClientConfig.from_env()     # KVFERRY_RESP_*, then LMCACHE_RESP_*, then the defaults

The password never enters a repr, a log line or an error: what is wrong with a URL is said without
repeating the URL. TLS, Sentinel and cluster addresses are refused until the release that has them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, get_args, get_type_hints

from kvferry._url import Setting, nearest, parse_url
from kvferry.errors import ConfigError

__all__ = ["CONNECTIONS_DEFAULT", "WORKERS_DEFAULT", "ClientConfig"]

# More sockets than one flow needs: clouds cap each flow, and the client uses as many of them at a
# time as it finds to be best.
CONNECTIONS_DEFAULT = 8
# One thread moves 5-10 GB/s; several senders keep a server from falling asleep between segments.
WORKERS_DEFAULT = 4

_MIB = 1 << 20
_ENV_PREFIXES = ("KVFERRY_RESP_", "LMCACHE_RESP_")
_ENV_FIELDS = ("host", "port", "username", "password")
# These make up the address of a URL; a query parameter may not contradict them.
_NOT_IN_QUERY = ("host", "port", "unix_path")


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ClientConfig:
    """What a client connects to, and its limits.

    Attributes:
        host: Name or address; every address of a name is tried.
        port: TCP port.
        unix_path: Path of a Unix socket; wins over `host` and `port`.
        username: ACL user; ``None`` is the server's default user. Needs `password`.
        password: A secret; shown nowhere.
        db: Database number.
        connections: Sockets to the server; ``None`` lets the client choose.
        workers: I/O threads that share the sockets; ``None`` lets the client choose.
        timeout_s: Base of a batch's deadline, which is `timeout_s` + bytes / `floor_rate_bytes_s`,
            so that the limit of 40 MB differs from that of 4 KB.
        floor_rate_bytes_s: The slowest transfer that still counts as alive.
        connect_timeout_s: Limit for connecting, including the handshake.
        stall_timeout_s: How long a connection that owes us bytes may send none.
        reconnect_min_s: First bound of the random wait before dialling again; it doubles up to
        reconnect_max_s: the last one.
        window_bytes: Bytes asked for ahead, per connection; ``None`` lets the client adapt.
        protocol: 3 speaks RESP3 where the server does; 2 insists on RESP2.
        ttl_s: Time to live of values that are set without one; ``None`` keeps them.
        client_name: Shown in the server's ``CLIENT LIST``; empty sends none.
        value_size_bytes_max: A longer value is refused, in both directions (the default is
            the server's ``proto-max-bulk-len``).
        drain_bytes_max: An unwanted reply up to this length is read to its end; a longer one costs
            the connection.
        attempts_max: How often a request is tried, each time on a new connection.
    """

    host: str = "localhost"
    port: int = 6379
    unix_path: str | None = None
    username: str | None = None
    password: str | None = None
    db: int = 0
    connections: int | None = None
    workers: int | None = None
    timeout_s: float = 5.0
    floor_rate_bytes_s: float = 50e6
    connect_timeout_s: float = 2.0
    stall_timeout_s: float = 2.0
    reconnect_min_s: float = 0.05
    reconnect_max_s: float = 1.0
    window_bytes: int | None = None
    protocol: int = 3
    ttl_s: float | None = None
    client_name: str = "kvferry"
    value_size_bytes_max: int = 512 * _MIB
    drain_bytes_max: int = 8 * _MIB
    attempts_max: int = 3

    def __post_init__(self) -> None:
        _check_text("host", self.host)
        if self.unix_path is not None:
            _check_text("unix_path", self.unix_path)
        self._check_credentials()
        for name, low, high in _WHOLE_RANGES:
            _check_whole(name, getattr(self, name), low, high)
        for name in _SECONDS_AND_RATES:
            _check_positive(name, getattr(self, name))
        if self.reconnect_max_s < self.reconnect_min_s:
            raise ConfigError(
                "reconnect_max_s is below reconnect_min_s; raise it or lower the other"
            )
        if self.ttl_s is not None and self.ttl_s < 0.001:
            raise ConfigError(
                f"ttl_s={self.ttl_s} is below a millisecond; use a longer time or None"
            )
        if self.protocol not in (2, 3):
            raise ConfigError(f"protocol={self.protocol!r} is unknown; use 3 (RESP3) or 2 (RESP2)")
        name = self.client_name
        if not isinstance(name, str) or not all("!" <= char <= "~" for char in name):
            raise ConfigError("client_name may hold printable ASCII without spaces only; rename it")

    def _check_credentials(self) -> None:
        for name in ("username", "password"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{name} is a {type(value).__name__}; pass a str or None")
            if value is not None and _is_not_utf8(value):
                raise ConfigError(
                    f"{name} holds a lone surrogate and has no UTF-8 form; correct it"
                )
        if self.username is not None and self.password is None:
            raise ConfigError(
                "username is set without password; set both "
                "(a password alone, redis://:password@host, belongs to the default user)"
            )

    def __repr__(self) -> str:
        shown = []
        for field in fields(self):
            value = getattr(self, field.name)
            secret = field.name == "password" and value is not None
            if value != field.default:
                shown.append(f"{field.name}={'***' if secret else value!r}")
        return f"ClientConfig({', '.join(shown)})"

    @property
    def address(self) -> str:
        """Where the server is, for people: ``host:port``, ``[v6]:port`` or ``unix:path``."""
        if self.unix_path is not None:
            return f"unix:{self.unix_path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def deadline_s(self, size_bytes: int) -> float:
        """The time limit of a request that moves this many bytes, in seconds."""
        return self.timeout_s + size_bytes / self.floor_rate_bytes_s

    @classmethod
    def from_url(cls, url: str, **overrides: Any) -> Self:
        """Read a URL; `overrides` (fields of this class, where not None) win over it.

        ``redis://user:password@host:port/db?field=value``, with ``resp`` or ``valkey`` as well, and
        ``unix://user:password@/path?db=1``. User, password and path are percent-encoded; an IPv6
        address stands in brackets.

        Raises:
            ConfigError: The URL or a field is malformed, unknown, or not supported yet.
        """
        settings: dict[str, Any] = dict(parse_url(url, _query_kinds()))
        settings.update((name, value) for name, value in overrides.items() if value is not None)
        _check_known(settings)
        return cls(**settings)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **explicit: Any) -> Self:
        """Read the environment; `explicit` (fields of this class, where not None) win over it.

        ``KVFERRY_RESP_HOST``, ``_PORT``, ``_USERNAME``, ``_PASSWORD``, then the same with
        ``LMCACHE_RESP_``. An empty variable counts as unset. Each variable stands alone: a host
        given by the caller is still sent the password of the environment.

        Raises:
            ConfigError: A variable or field is malformed or unknown.
        """
        environ = os.environ if environ is None else environ
        settings = {name: value for name, value in explicit.items() if value is not None}
        for name in _ENV_FIELDS:
            variables = (prefix + name.upper() for prefix in _ENV_PREFIXES)
            variable = next((v for v in variables if environ.get(v)), None)
            if variable is not None and name not in settings:
                text = environ[variable]
                settings[name] = _env_port(variable, text) if name == "port" else text
        _check_known(settings)
        return cls(**settings)


_WHOLE_RANGES = (
    ("port", 1, 65535),
    ("db", 0, 2**31 - 1),
    ("connections", 1, 1024),
    ("workers", 1, 256),
    ("window_bytes", 1, 2**40),
    ("value_size_bytes_max", 1, 2**40),
    ("drain_bytes_max", 0, 2**40),
    ("attempts_max", 1, 100),
)
_MAY_BE_NONE = ("connections", "workers", "window_bytes", "ttl_s")
_SECONDS_AND_RATES = (
    "timeout_s",
    "floor_rate_bytes_s",
    "connect_timeout_s",
    "stall_timeout_s",
    "reconnect_min_s",
    "reconnect_max_s",
    "ttl_s",
)


def _is_not_utf8(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value or "\0" in value or _is_not_utf8(value):
        raise ConfigError(f"{name}={value!r} is not a name; pass a non-empty str")
    if name == "host" and any(char.isspace() or char in "/@" for char in value):
        raise ConfigError("host is not a host name; a URL goes to from_url()")


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    if value is None and name in _MAY_BE_NONE:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name}={value!r} is not valid; use a whole number from {low} to {high}")


def _check_positive(name: str, value: object) -> None:
    if value is None and name in _MAY_BE_NONE:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:  # type: ignore[operator,arg-type]
        raise ConfigError(f"{name}={value!r} is not valid; use a number above 0")


def _check_known(settings: Mapping[str, object]) -> None:
    known = [field.name for field in fields(ClientConfig)]
    for name in settings:
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}{nearest(name, known)}")


def _query_kinds() -> dict[str, type[Setting]]:
    # The annotations are the table: "int | None" takes an int.
    return {
        name: (get_args(hint) or (hint,))[0]
        for name, hint in get_type_hints(ClientConfig).items()
        if name not in _NOT_IN_QUERY
    }


def _env_port(variable: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ConfigError(f"{variable}={text!r} is not a port; set it to a number from 1 to 65535")
    return int(text)
