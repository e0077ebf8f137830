"""What a client connects to, and its limits: each setting, where it comes from, what goes together.

    ClientConfig(host="cache-1", password="...", connections=8)
    ClientConfig.from_url("redis://:secret@cache-1:6379/0?connections=8&timeout_s=2")
    ClientConfig.from_env()     # KVFERRY_RESP_*, then LMCACHE_RESP_*, then the defaults
    ClientConfig.load("kvferry.yaml", timeout_s=2)

The section of a file holds a `url`, fields of `ClientConfig`, or both: fields win over the URL, and
one that is ``null`` has its default. Of a file of LMCache, which has no sections, it is
`remote_url`. The places are ordered as in `kvferry.config`, field by field, except that

- a URL replaces all that a weaker file says of where the server is and how to be let in: address,
  TLS, user. Only limits and sizes of that file are left;
- `host` replaces a socket path and other nodes, `credentials` replaces user and password.

Of the environment ``KVFERRY_RESP_URL`` is read where nothing else names a server. Then
``KVFERRY_RESP_HOST``, ``_PORT``, ``_USERNAME`` and ``_PASSWORD``, and the same with
``LMCACHE_RESP_``, fill what is still open, one by one. An empty host, port, user or password is
open.

Certificate files are not opened here: they may come later, and change.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal, Self

from kvferry.base.credentials import CredentialsProvider
from kvferry.base.errors import ConfigError
from kvferry.config.file import (
    find_config_file,
    open_with_secret,
    read_document,
    section_of,
    write_sections,
)
from kvferry.config.foreign import EXTRA
from kvferry.config.removed import REMOVED
from kvferry.config.setting import (
    Host,
    Path,
    Port,
    Seconds,
    Secret,
    Settings,
    Text,
    Url,
    Word,
    setting,
    specs,
)
from kvferry.config.spec import Spec
from kvferry.config.tuning import ClientTuning
from kvferry.config.url import (
    PORT,
    SENTINEL_PORT,
    is_loopback,
    parse_endpoint,
    parse_url,
    show_endpoint,
    unknown,
)

__all__ = [
    "CONNECTIONS_DEFAULT",
    "TTL_S_MAX",
    "WORKERS_DEFAULT",
    "ClientConfig",
    "ServerUrl",
    "limits_of",
    "load_client_config",
    "save_client_settings",
]

_log = logging.getLogger("kvferry.config")

_TLS = ("tls",)
TTL_S_MAX = 10**12  # servers add it to their clock, in milliseconds of 64 bits
_SENTINEL = ("topology=sentinel",)
_SEVERAL = ("topology=cluster|sentinel",)
# More sockets than one flow needs: clouds cap each flow, and the client uses as many of them at a
# time as it finds to be best.
CONNECTIONS_DEFAULT = 8
# One thread moves 5-10 GB/s; several senders keep a server from falling asleep between segments.
WORKERS_DEFAULT = 4

_MIB = 1 << 20
_NODES = 'a list of hosts, e.g. ["cache-2:6379", "[::1]:6380"]'

ENV_URL = "KVFERRY_RESP_URL"
_PREFIXES = ("KVFERRY_RESP_", "LMCACHE_RESP_")
_ADDRESS = ("host", "port")
_USER = ("username", "password")
# Fields that only mean something for one server; so do those that begin with "tls" and "sentinel".
_SERVER = (
    *(*_ADDRESS, *_USER, "credentials", "unix_path", "db"),
    *("topology", "nodes", "read_from", "availability_zone"),
)


class ServerUrl(Settings, frozen=True, kw_only=True):
    """Where a server is, in one word.

    Attributes:
        url: The URL of the server: `redis://`, `rediss://` (TLS), `redis+cluster://`,
            `redis+sentinel://`; `valkey` and `resp` for `redis`; `unix://`.
    """

    url: Url | None = None


class ClientConfig(Settings, frozen=True, kw_only=True):
    """What a client connects to, and its limits.

    Attributes:
        host: The name or address of the server; every address of a name is tried. In a cluster it
            is the first seed, with Sentinels the first of them.
        port: The TCP port of the server. URLs have 26379 for Sentinels where they give none.
        unix_path: The path of a Unix socket, in the place of `host` and `port`.
        same_host: The way to a loopback address of one server without TLS. "auto": the native
            client asks the server whether it has a Unix socket that this process may use, and moves
            there; "tcp": it stays; "unix": without such a socket everything is UNAVAILABLE.
        username: The ACL user, with its `password`. Without it the server's default user.
        password: The password at the server, which is shown nowhere.
        credentials: A function that gives user and password. It is asked before every connection
            and before what it gave expires. See `kvferry.Credentials`.
        db: The number of the database; a cluster has only 0.
        topology: The kind of deployment: one server, the slots of a cluster, or a server that
            Sentinels watch.
        nodes: Further seeds of a cluster, or further Sentinels: "host:port", "[v6]:port", "host".
        sentinel_master: The name under which the Sentinels watch the server.
        sentinel_username: The ACL user at the Sentinels, which have users of their own.
        sentinel_password: The password at the Sentinels, which is shown nowhere.
        read_from: The servers that are read. "replica" reads from replicas where there are some,
            "az" from those in `availability_zone` first. Values may then be older than the last
            write.
        availability_zone: The zone of this host, as the servers name theirs.
        tls: Encrypt, as ``rediss://`` does in URLs.
        tls_ca_file: The PEM file of the authorities that the client trusts. Without it
            those of the system.
        tls_cert_file: The PEM file of the client's certificate and its chain, where the server asks
            for one.
        tls_key_file: The PEM file of the key of the client's certificate.
        tls_server_name: The name that the server's certificate must have and that is asked for
            (SNI), if that is not `host`. It holds for all nodes of a cluster.
        tls_verify: The check of the server's certificate. "full" checks chain and name; "ca" the
            chain alone; "none" nothing, so that anybody in between can read and answer.
        connections: The number of sockets to each server. Without it the client chooses.
        workers: The number of I/O threads that share the sockets. Without it the client chooses.
        timeout_s: The base of a batch's deadline, which is `timeout_s` + bytes at 50 MB/s, so that
            the limit of 40 MB differs from that of 4 KB.
        connect_timeout_s: The longest that connecting may take, with TLS and the greeting.
        ttl_s: The time to live of values that are set without one. Without it they stay.
        presence_prefix: A prefix of keys. The client keeps a view of which of these keys exist,
            told by the server. Without it there is none.
        presence: The choice whether the store of a cache keeps a view of its own keys, so that a
            miss costs no question: "auto" while that costs the server little, "on" always, "off"
            never.
        tuning: Values that are no settings.

    Raises:
        ConfigError: A setting cannot be, or contradicts another one.
    """

    removed: ClassVar = REMOVED["client"]
    guide: ClassVar = (
        *("host", "port", "username", "password", "db", "topology"),
        *("tls", "tls_ca_file", "connections", "timeout_s", "ttl_s"),
    )

    host: Host = "localhost"
    port: Port = PORT
    unix_path: Path | None = None
    same_host: Literal["auto", "tcp", "unix"] = "auto"
    username: Annotated[Word, setting(needs=("password",))] | None = None
    password: Secret | None = None
    credentials: Annotated[
        CredentialsProvider | None, setting(program=True, secret=True, use="from a program")
    ] = None
    db: Annotated[int, setting(ge=0, le=2**31 - 1)] = 0
    topology: Literal["standalone", "cluster", "sentinel"] = "standalone"
    nodes: Annotated[tuple[str, ...], setting(use=_NODES, quoted=False, needs=_SEVERAL)] = ()
    sentinel_master: Annotated[Text, setting(needs=_SENTINEL)] | None = None
    sentinel_username: Annotated[Word, setting(needs=("sentinel_password",))] | None = None
    sentinel_password: Annotated[Secret, setting(needs=_SENTINEL)] | None = None
    read_from: Annotated[Literal["primary", "replica", "az"], setting(needs=_SEVERAL)] = "primary"
    availability_zone: Text | None = None
    tls: bool = False
    tls_ca_file: Annotated[Path, setting(needs=_TLS)] | None = None
    tls_cert_file: Annotated[Path, setting(needs=("tls", "tls_key_file"))] | None = None
    tls_key_file: Annotated[Path, setting(needs=("tls", "tls_cert_file"))] | None = None
    tls_server_name: Annotated[Host, setting(needs=_TLS)] | None = None
    tls_verify: Annotated[Literal["full", "ca", "none"], setting(needs=_TLS)] = "full"
    connections: Annotated[int, setting(ge=1, le=1024)] | None = None
    workers: Annotated[int, setting(ge=1, le=256)] | None = None
    timeout_s: Seconds = 5.0
    connect_timeout_s: Seconds = 2.0
    ttl_s: Annotated[float, setting(ge=0.001, le=TTL_S_MAX, unit="seconds")] | None = None
    presence_prefix: Annotated[str, setting(quoted=False, bytes_max=512)] | None = None
    presence: Literal["auto", "on", "off"] = "auto"
    tuning: Annotated[ClientTuning, setting(private=True)] = ClientTuning()

    def _check(self) -> None:
        self._set("nodes", self._checked_nodes())
        for check in (_check_user, _check_topology, _check_same_host):
            check(self)

    def _checked_nodes(self) -> tuple[str, ...]:
        """The further hosts, each with its port."""
        port_default = SENTINEL_PORT if self.topology == "sentinel" else PORT
        told: list[str] = []
        for node in self.nodes:
            try:
                host, port = parse_endpoint(node)
                if not 1 <= len(host) <= 255 or any(c.isspace() or c in "/@,\0" for c in host):
                    raise ValueError("no name")
            except ValueError:
                raise ConfigError(
                    f"nodes[{len(told)}] is no host:port; an IPv6 address stands in brackets"
                ) from None
            told.append(show_endpoint(host, port or port_default))
        return tuple(told)

    @classmethod
    def known(cls) -> dict[str, Spec]:
        """The names that a place may have: `url` and the fields."""
        return {**specs(ServerUrl), **specs(cls)}

    @classmethod
    def from_url(
        cls, url: str, *, environ: Mapping[str, str] | None = None, **overrides: Any
    ) -> Self:
        """Read a URL; `overrides` (fields of this class, where not None) win over it.

        ``redis://user:password@host:port/db?field=value``, and what else `kvferry.config.url`
        has. User and password that neither gives are those of the environment, as with `from_env`.

        Raises:
            ConfigError: The URL or a field is malformed or unknown.
        """
        return cls.from_env(environ, url=url, **overrides)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **explicit: Any) -> Self:
        """Read the environment; `explicit` (`url` and fields, where not None) wins over it.

        Each variable stands alone: a host of the caller is still sent the password of the
        environment.

        Raises:
            ConfigError: A variable or field is malformed or unknown.
        """
        given = {name: value for name, value in explicit.items() if value is not None}
        return cls(**cls.merged(given, environ=environ))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        section: str = "client",
        environ: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> Self:
        """The settings of this call, of a section of the file, and of the environment.

        Args:
            path: The file; default: ``KVFERRY_CONFIG_FILE``, or none.
            section: Where in the file.
            environ: Default: of this process.
            **overrides: `url` and fields, where not None.

        Raises:
            ConfigError: The file is missing or malformed, or a setting is.
        """
        environ = os.environ if environ is None else environ
        file = find_config_file(path, environ)
        if file is None:
            return cls.from_env(environ, **overrides)
        found = cls.of_file(file, read_document(file), section)
        call = {name: value for name, value in overrides.items() if value is not None}
        for text in open_with_secret(file, found):
            _log.warning("%s", text)
        try:
            return cls(**cls.merged(call, found, environ=environ))
        except ConfigError as error:
            if not found:
                raise
            text = f"{error} (the settings of {file} took part)"
        raise ConfigError(text)

    @classmethod
    def merged(
        cls, *places: Mapping[str, Any], environ: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Fields of this class from several places; see the head of the module.

        Args:
            places: `url` and fields as for `fields`; the strongest place first.
            environ: The weakest; default: of this process.

        Raises:
            ConfigError: A name is unknown, or a URL or a variable malformed.
        """
        environ = os.environ if environ is None else environ
        known = specs(cls)
        found: dict[str, Any] = {}
        by_url = False
        for place in places:
            fields = cls.fields(place)
            found = _over(limits_of(fields) if by_url else fields, found)
            by_url |= place.get("url") is not None
        if environ.get(ENV_URL) and not by_url and not {"host", "unix_path"} & found.keys():
            found = _over(cls.fields({"url": environ[ENV_URL]}, f"{ENV_URL}: "), found)
        for name in (*_ADDRESS, *_USER):
            variables = (prefix + name.upper() for prefix in _PREFIXES)
            variable = next((each for each in variables if environ.get(each)), None)
            # What is not needed may be malformed: Kubernetes sets such ports.
            if variable is not None and name not in found and name not in _replaced(found):
                found[name] = known[name].parse(environ[variable], variable)
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def fields(cls, given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
        """Checked fields of what holds `url` and fields, the URL taken apart.

        Args:
            given: None takes back what the URL says.
            where: Before the name of a setting in an error.

        Raises:
            ConfigError: A name is unknown, or a value cannot be.
        """
        known = cls.known()
        for name, value in given.items():
            if name not in known and not (name in cls.removed and value is None):
                raise ConfigError(f"{where}{unknown(name, known, cls.removed)}")
        found: dict[str, Any] = {}
        if (url := given.get("url")) is not None:
            try:
                found = parse_url(known["url"].check(url), specs(cls), cls.removed)
            except ConfigError as error:
                raise ConfigError(f"{where}{error}") from None
            if "password" in found:  # without a user it is that of the default user
                found.setdefault("username", None)
        for name, value in given.items():
            if value is None:
                if found.get(name) is not None:
                    del found[name]
            elif name != "url" and not (value == "" and known[name].blank):
                found[name] = known[name].check(value, f"{where}{name}")
        return found

    @classmethod
    def of_file(cls, file: FilePath, document: Mapping[str, Any], section: str) -> dict[str, Any]:
        """What a file says of a client: its section, or the remote store of a file of LMCache.

        Returns:
            Checked fields, and `url` where the file has one.

        Raises:
            ConfigError: A name is unknown, or a value cannot be.
        """
        given = section_of(file, document, section)
        where = f"{file}: {section}: "
        for name, spec in specs(cls).items():
            if spec.program and name in given:
                raise ConfigError(f"{where}{name} is a function; pass it in the program")
        cls.fields(given, where)
        if not document.get("remote_url") or "url" in given or "host" in given:
            return dict(given)
        extra = document.get("extra_config")
        found = {**document, **(extra if isinstance(extra, dict) else {})}
        brought = {ours: found[theirs] for theirs, ours in EXTRA.items() if theirs in found}
        brought["url"] = document["remote_url"]
        cls.fields(brought, f"{file}: ")
        return {**brought, **given}

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
        """The settings for one server: of a cluster, that Sentinels named, or that a caller has."""
        return self.replace(**_ONE_SERVER, host=host, port=port)

    def for_sentinel(self, host: str, port: int) -> Self:
        """The settings for one Sentinel: its own user, no database."""
        return self.replace(
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
        return self.timeout_s + size_bytes / self.tuning.floor_rate_bytes_s


load_client_config = ClientConfig.load


def save_client_settings(
    path: str | os.PathLike[str],
    settings: Mapping[str, Any],
    *,
    section: str = "client",
    others: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Set these fields of a section and all of the `others`, in one step; keep the rest.

    The file is made where there is none, and has mode 0600 afterwards. Comments in it are lost.

    Raises:
        ConfigError: A setting is malformed, or what is there is; nothing was written.
        OSError: The file cannot be written; it is as it was.
    """
    file = FilePath(path)
    ClientConfig(**ClientConfig.fields(settings))
    before = section_of(file, read_document(file), section) if file.exists() else {}
    after = {**before, **settings}
    ClientConfig.fields(after, f"{file}: {section}: ")
    write_sections(file, {section: after, **(others or {})})


def limits_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that hold for any server: limits and sizes."""
    return {
        name: value
        for name, value in settings.items()
        if name not in ("url", *_SERVER) and not name.startswith(("tls", "sentinel"))
    }


def _over(weaker: Mapping[str, Any], stronger: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two places, without fields of the weaker one that the stronger one replaces."""
    gone = _replaced(stronger)
    return {**{name: weaker[name] for name in weaker if name not in gone}, **stronger}


def _replaced(stronger: Mapping[str, Any]) -> set[str]:
    """The fields of weaker places that these replace."""
    gone: set[str] = set()
    if "credentials" in stronger:
        gone |= set(_USER)
    if "host" in stronger:
        gone |= {"unix_path", "nodes"}
    if "unix_path" in stronger:
        gone |= set(_ADDRESS)
    return gone


_ONE_SERVER: dict[str, Any] = {
    "unix_path": None,
    "topology": "standalone",
    "nodes": (),
    "read_from": "primary",
    "sentinel_master": None,
    "sentinel_username": None,
    "sentinel_password": None,
}


def _check_user(config: ClientConfig) -> None:
    if config.credentials is None:
        return
    if not callable(config.credentials):
        raise ConfigError(
            f"credentials is a {type(config.credentials).__name__}; "
            "pass a function that returns kvferry.Credentials"
        )
    if config.password is not None:
        raise ConfigError("credentials stands for username and password; keep one or the other")


def _check_topology(config: ClientConfig) -> None:
    topology, alone = config.topology, config.topology == "standalone"
    if config.unix_path is not None and (config.tls or not alone):
        what = "tls" if config.tls else f"topology={topology!r}"
        raise ConfigError(f"{what} does not go over a Unix socket; drop it or unix_path")
    if topology == "cluster" and config.db != 0:
        raise ConfigError(f"db={config.db} does not exist in a cluster; drop it")
    if topology == "sentinel" and config.sentinel_master is None:
        raise ConfigError(
            "topology='sentinel' needs sentinel_master, the name that the Sentinels watch: "
            "redis+sentinel://host:26379/mymaster"
        )
    if config.read_from == "az" and config.availability_zone is None:
        raise ConfigError("read_from='az' needs availability_zone, the one of this host; set it")


def _check_same_host(config: ClientConfig) -> None:
    near = config.topology == "standalone" and not config.tls and is_loopback(config.host)
    if config.same_host == "unix" and config.unix_path is None and not near:
        raise ConfigError(
            "same_host='unix' is for one server without tls at an address of this host; use "
            "localhost, 127.0.0.1, ::1 or unix_path"
        )
