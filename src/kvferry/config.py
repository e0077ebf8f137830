"""The settings of a client: one frozen object, checked when it is made.

    ClientConfig(host="cache-1", password="...", connections=8)
    ClientConfig.from_url("redis://:secret@cache-1:6379/0?connections=8&timeout_s=2")
    ClientConfig.from_url("rediss+cluster://seed-1,seed-2", tls_ca_file="ca.pem")
    ClientConfig.from_env()     # KVFERRY_RESP_*, then LMCACHE_RESP_*, then the defaults

Secrets never enter a repr, a log line or an error: what is wrong with a URL is said without
repeating the URL. Files of certificates are not opened here: they may come later, and change.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self, get_args, get_origin, get_type_hints

from kvferry._config_checks import check_settings
from kvferry._shown import shown
from kvferry._url import (
    PORT,
    SECRETS,
    SENTINEL_PORT,
    Setting,
    nearest,
    parse_endpoint,
    parse_url,
    show_endpoint,
)
from kvferry.credentials import CredentialsProvider
from kvferry.errors import ConfigError

__all__ = [
    "CONNECTIONS_DEFAULT",
    "ENV_URL",
    "WORKERS_DEFAULT",
    "ClientConfig",
    "check_known",
    "env_settings",
    "query_kinds",
]

# More sockets than one flow needs: clouds cap each flow, and the client uses as many of them at a
# time as it finds to be best.
CONNECTIONS_DEFAULT = 8
# One thread moves 5-10 GB/s; several senders keep a server from falling asleep between segments.
WORKERS_DEFAULT = 4

_MIB = 1 << 20
_ENV_PREFIXES = ("KVFERRY_RESP_", "LMCACHE_RESP_")
_ENV_FIELDS = ("host", "port", "username", "password")
ENV_URL = "KVFERRY_RESP_URL"
_USER = ("username", "password")
# These make up the address of a URL, which a query parameter may not contradict, or are functions.
_NOT_IN_QUERY = ("host", "port", "unix_path", "credentials")
# Its repr could hold what it is a function of.
_HIDDEN = (*SECRETS, "credentials")


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ClientConfig:
    """What a client connects to, and its limits.

    Attributes:
        host: Name or address; every address of a name is tried. Of a cluster the first seed, of
            Sentinels the first of them.
        port: TCP port. (URLs have 26379 for Sentinels where they give none.)
        unix_path: Path of a Unix socket; wins over `host` and `port`.
        same_host: What becomes of a loopback address of one server without TLS. "auto": the native
            client asks the server whether it has a Unix socket that this process may use, and moves
            there; "tcp": it stays; "unix": without such a socket everything is UNAVAILABLE.
        username: ACL user; ``None`` is the server's default user. Needs `password`.
        password: A secret; shown nowhere.
        credentials: A function that gives user and password, in their stead; asked before every
            connection and before what it gave expires. See `kvferry.Credentials`.
        db: Database number; a cluster has only 0.
        topology: "standalone", "cluster" or "sentinel".
        nodes: Further seeds of a cluster, or further Sentinels: "host:port", "[v6]:port", "host".
        sentinel_master: The name that the Sentinels watch our server under.
        sentinel_username: ACL user at the Sentinels, which have users of their own.
        sentinel_password: A secret; shown nowhere. ``None``: the Sentinels want none.
        read_from: "primary"; "replica" reads from replicas where there are some, "az" from those
            in `availability_zone` first. Values may then be older than the last write.
        availability_zone: The zone of this host, as the servers name theirs.
        topology_refresh_s: How often the map of a cluster, or what Sentinels say, is asked for
            without a reason.
        nodes_max: How many nodes a cluster or its redirects may make us connect to; a map with
            more is refused. They may cost `nodes_max` x (`connections` + 1) descriptors.
        tls: Encrypt; ``rediss://`` in URLs.
        tls_ca_file: PEM file of the authorities that we trust; without it and
        tls_ca_dir: a directory of such (hashed as OpenSSL wants it), those of the system.
        tls_cert_file: PEM file of our certificate and its chain, where the server asks for one.
        tls_key_file: PEM file of its key.
        tls_key_password: A secret; shown nowhere. Opens the key file.
        tls_server_name: The name that the certificate must have and that is asked for (SNI), if
            that is not `host`; holds for all nodes of a cluster.
        tls_verify: "full" checks chain and name; "ca" the chain alone; "none" nothing, so that
            anybody in between can read and answer.
        tls_min_version: "1.2" or "1.3".
        tls_ciphers: OpenSSL's names with ":" between; those of TLS 1.3 begin with "TLS_", and the
            client in pure Python has no say in them.
        ktls: Let the kernel encrypt, where it and OpenSSL can.
        connections: Sockets to each server; ``None`` lets the client choose.
        workers: I/O threads that share the sockets; ``None`` lets the client choose.
        timeout_s: Base of a batch's deadline, which is `timeout_s` + bytes / `floor_rate_bytes_s`,
            so that the limit of 40 MB differs from that of 4 KB.
        floor_rate_bytes_s: The slowest transfer that still counts as alive.
        connect_timeout_s: Limit for connecting, including TLS and the greeting.
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
        presence_prefix: Keep a view of which keys with this prefix exist, told by the server;
            ``None`` keeps none.
        presence_keys_max: How many keys that view may hold.
        presence: Whether the store of a cache keeps such a view of its own keys, so that a miss
            costs no question: "auto" while that costs the server little, "on" always, "off" never.
    """

    host: str = "localhost"
    port: int = PORT
    unix_path: str | None = None
    same_host: str = "auto"
    username: str | None = None
    password: str | None = None
    credentials: CredentialsProvider | None = None
    db: int = 0
    topology: str = "standalone"
    nodes: tuple[str, ...] = ()
    sentinel_master: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    read_from: str = "primary"
    availability_zone: str | None = None
    topology_refresh_s: float = 60.0
    nodes_max: int = 128
    tls: bool = False
    tls_ca_file: str | None = None
    tls_ca_dir: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_key_password: str | None = None
    tls_server_name: str | None = None
    tls_verify: str = "full"
    tls_min_version: str = "1.2"
    tls_ciphers: str | None = None
    ktls: bool = True
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
    presence_prefix: str | None = None
    presence_keys_max: int = 4_000_000
    presence: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", self._checked_nodes())
        if isinstance(self.presence, bool):  # YAML's on and off
            object.__setattr__(self, "presence", "on" if self.presence else "off")
        check_settings({field.name: getattr(self, field.name) for field in fields(self)})

    def _checked_nodes(self) -> tuple[str, ...]:
        """The further hosts, each with its port."""
        if not isinstance(self.nodes, tuple | list):
            raise ConfigError('nodes is no list of hosts; use e.g. ("cache-2:6379", "[::1]:6380")')
        port_default = SENTINEL_PORT if self.topology == "sentinel" else PORT
        shown: list[str] = []
        for node in self.nodes:
            try:
                host, port = parse_endpoint(node)
                if not 1 <= len(host) <= 255 or any(
                    char.isspace() or char in "/@,\0" for char in host
                ):
                    raise ValueError("no name")
            except (AttributeError, TypeError, ValueError):
                raise ConfigError(
                    f"nodes[{len(shown)}] is no host:port; an IPv6 address stands in brackets"
                ) from None
            shown.append(show_endpoint(host, port or port_default))
        return tuple(shown)

    def __repr__(self) -> str:
        shown = []
        for field in fields(self):
            value = getattr(self, field.name)
            secret = field.name in _HIDDEN and value is not None
            if value != field.default:
                shown.append(f"{field.name}={'***' if secret else value!r}")
        return f"ClientConfig({', '.join(shown)})"

    @property
    def address(self) -> str:
        """Where the server is, for people.

        ``host:port``, ``[v6]:port``, ``unix:path``; ``cluster host:port,host:port``;
        ``master at host:port,host:port`` with the name of the master and the Sentinels' addresses.
        """
        if self.unix_path is not None:
            return f"unix:{self.unix_path}"
        hosts = ",".join((show_endpoint(self.host, self.port), *self.nodes))
        if self.topology == "cluster":
            return f"cluster {hosts}"
        return hosts if self.topology == "standalone" else f"{self.sentinel_master} at {hosts}"

    @property
    def seeds(self) -> tuple[tuple[str, int], ...]:
        """Host and port of the server, or of all seeds or Sentinels that are known beforehand."""
        others = (parse_endpoint(node) for node in self.nodes)
        return ((self.host, self.port), *((host, port or PORT) for host, port in others))

    def for_node(self, host: str, port: int) -> Self:
        """The settings for one server of a cluster, or one that Sentinels named."""
        return replace(self, **_ONE_SERVER, host=host, port=port)

    def for_sentinel(self, host: str, port: int) -> Self:
        """The settings for one Sentinel: its own user, no database."""
        return replace(
            self,
            **_ONE_SERVER,
            host=host,
            port=port,
            username=self.sentinel_username,
            password=self.sentinel_password,
            credentials=None,
            db=0,
        )

    def deadline_s(self, size_bytes: int) -> float:
        """The time limit of a request that moves this many bytes, in seconds."""
        return self.timeout_s + size_bytes / self.floor_rate_bytes_s

    @classmethod
    def from_url(cls, url: str, **overrides: Any) -> Self:
        """Read a URL; `overrides` (fields of this class, where not None) win over it.

        ``redis://user:password@host:port/db?field=value``; ``rediss://`` for TLS;
        ``redis+cluster://`` and ``redis+sentinel://host,host/master/db`` (``rediss+...`` with TLS);
        ``valkey`` and ``resp`` instead of ``redis``; ``unix://user:password@/path?db=1``. User,
        password and path are percent-encoded; an IPv6 address stands in brackets.

        Raises:
            ConfigError: The URL or a field is malformed or unknown.
        """
        settings: dict[str, Any] = dict(parse_url(url, query_kinds()))
        settings.update((name, value) for name, value in overrides.items() if value is not None)
        check_known(settings)
        return cls(**settings)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **explicit: Any) -> Self:
        """Read the environment; `explicit` (fields of this class, where not None) win over it.

        ``KVFERRY_RESP_URL``, which is not read if the caller names a `host` or a `unix_path`. Then
        ``KVFERRY_RESP_HOST``, ``_PORT``, ``_USERNAME``, ``_PASSWORD``, then the same with
        ``LMCACHE_RESP_``: host and port if there was no URL, user and password if it has neither.
        An empty variable counts as unset. Each of these stands alone: a host given by the caller is
        still sent the password of the environment.

        Raises:
            ConfigError: A variable or field is malformed or unknown.
        """
        environ = os.environ if environ is None else environ
        given = {name: value for name, value in explicit.items() if value is not None}
        settings = {**env_settings(environ, given), **given}
        check_known(settings)
        return cls(**settings)


_ONE_SERVER: dict[str, Any] = {
    "topology": "standalone",
    "nodes": (),
    "read_from": "primary",
    "sentinel_master": None,
    "sentinel_username": None,
    "sentinel_password": None,
}


def check_known(settings: Mapping[str, object]) -> None:
    """Refuse names that are no fields of `ClientConfig`, with the nearest one that is.

    Raises:
        ConfigError: There is one.
    """
    known = [field.name for field in fields(ClientConfig)]
    for name in settings:
        if name not in known:
            raise ConfigError(f"unknown setting {shown(name)}{nearest(name, known)}")


def query_kinds() -> dict[str, type[Setting]]:
    """The fields that may stand in the query of a URL, and the type of each."""
    # The annotations are the table: "int | None" takes an int.
    return {
        name: tuple if get_origin(hint) is tuple else (get_args(hint) or (hint,))[0]
        for name, hint in get_type_hints(ClientConfig).items()
        if name not in _NOT_IN_QUERY
    }


def env_settings(environ: Mapping[str, str], given: Mapping[str, object]) -> dict[str, Any]:
    """What the environment says about the fields that the caller left open; see `from_env`.

    Args:
        given: The fields that the caller names.

    Raises:
        ConfigError: A variable is malformed.
    """
    settings: dict[str, Any] = {}
    single = list(_ENV_FIELDS)
    if environ.get(ENV_URL) and not ("host" in given or "unix_path" in given):
        try:
            settings.update(parse_url(environ[ENV_URL], query_kinds()))
        except ConfigError as error:
            raise ConfigError(f"{ENV_URL}: {error}") from None
        single = [] if settings.keys() & set(_USER) else list(_USER)
    if "credentials" in given:  # they stand for both
        single = [name for name in single if name not in _USER]
        settings = {name: value for name, value in settings.items() if name not in _USER}
    for name in single:
        variables = (prefix + name.upper() for prefix in _ENV_PREFIXES)
        variable = next((v for v in variables if environ.get(v)), None)
        if variable is not None and name not in given:
            text = environ[variable]
            settings[name] = _env_port(variable, text) if name == "port" else text
    return settings


def _env_port(variable: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ConfigError(
            f"{variable}={shown(text)} is not a port; set it to a number from 1 to 65535"
        )
    return int(text)
