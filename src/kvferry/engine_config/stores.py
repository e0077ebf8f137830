"""One store behind the cache: what kind, where, how large, and what goes first when it is full."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self

from kvferry._url import nearest, parse_endpoint, parse_url
from kvferry.config import ClientConfig, query_kinds
from kvferry.engine_config.fields import (
    GB,
    POLICIES,
    Choice,
    Field,
    Json,
    Number,
    Switch,
    Text,
    Whole,
)
from kvferry.errors import ConfigError

__all__ = ["EvictionConfig", "StoreConfig", "store_settings"]

TYPES = ("redis", "file", "memory", "plugin", "native_plugin")
_TYPE_ALIASES = {"resp": "redis", "valkey": "redis", "fs": "file", "fs_native": "file"}
_CLIENT = tuple(item.name for item in fields(ClientConfig))

_EVICTION: dict[str, Field] = {
    "eviction_policy": Choice(words=(*POLICIES, "none")),
    "trigger_watermark": Number(high=1.0),
    "eviction_ratio": Number(high=1.0),
}
_FIELDS: dict[str, Field] = {
    "type": Choice(words=TYPES),
    "name": Text(what="a short word"),
    "max_capacity_gb": Number(closed=True, unit="GB"),
    "path": Text(what="the path of a directory", needed=False),
    "fsync": Choice(words=("never", "data", "full")),
    "direct": Choice(words=("auto", "on", "off")),
    "io_uring": Switch(),
    "shared_name": Text(what="a short word", needed=False),
    "module_path": Text(what="the name of a module, e.g. my_package.store", needed=False),
    "class_name": Text(what="the name of a class", needed=False),
    "params": Json(kind=dict, what="a mapping of names to values"),
}
# What only some types have.
_PLUGINS = ("plugin", "native_plugin")
_OF_TYPE: dict[str, tuple[str, ...]] = {
    "path": ("file",),
    "fsync": ("file",),
    "direct": ("file",),
    "io_uring": ("file",),
    "shared_name": ("memory",),
    "module_path": _PLUGINS,
    "class_name": _PLUGINS,
    "params": _PLUGINS,
    "client": ("redis",),
}
_RENAMED = ("client", "shared_name")  # in the specification of a connector
# Names that L2 adapters of LMCache have for settings of ours; of one type, or of all ("").
_ALIASES = {
    "base_path": ("file", "path"),
    "use_odirect": ("file", "direct"),
    "num_workers": ("redis", "connections"),
    "startup_nodes": ("redis", "nodes"),
    "tls_enable": ("redis", "tls"),
    "database_id": ("redis", "db"),
    "request_timeout": ("redis", "timeout_s"),
    "connection_timeout": ("redis", "connect_timeout_s"),
    "ttl_seconds": ("redis", "ttl_s"),
}
# Theirs too, and with us possible in one way only: the values that say that way.
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "serde": ((None, "naive"), "values are stored as they are; leave it out"),
    "persist_enabled": ((None, True), "what is stored stays stored; leave it out"),
    "shared": ((None, True, False), ""),
    "affinity_tag": ((None, "_default"), "there is one L1; leave it out"),
    "key_prefix": ((None, ""), "keys begin with kvf:<identity>; use db or another server"),
    "read_ahead_size": ((None,), "files are read as a whole; leave it out"),
    "relative_tmp_dir": ((None,), "the directory of temporary files is fixed; leave it out"),
}
_NUM_WORKERS = Whole(low=1, high=1024, unit="threads")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictionConfig:
    """What leaves a store when it is nearly full.

    Attributes:
        eviction_policy: "LRU", "LFU", "FIFO", "S3-FIFO", "ARC", "W-TinyLFU"; "none" evicts nothing,
            and what does not fit is not stored.
        trigger_watermark: Part of the capacity from which on something leaves.
        eviction_ratio: Part of what is there that leaves then.
    """

    eviction_policy: str = "LRU"
    trigger_watermark: float = 0.8
    eviction_ratio: float = 0.2

    def __post_init__(self) -> None:
        for name, spec in _EVICTION.items():
            object.__setattr__(self, name, spec.check(name, getattr(self, name)))

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Read a mapping; "noop" is "none".

        Raises:
            ConfigError: A name is unknown or a value cannot be.
        """
        for name in settings:
            if name not in _EVICTION:
                raise ConfigError(f"eviction: unknown setting {name!r}{nearest(name, _EVICTION)}")
        given = {name: value for name, value in settings.items() if value is not None}
        if given.get("eviction_policy") == "noop":
            given["eviction_policy"] = "none"
        if given.get("eviction_policy") == "IsolatedLRU":
            raise ConfigError(
                "eviction_policy 'IsolatedLRU' (quotas for salts) is not here; use LRU"
            )
        return cls(**given)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class StoreConfig:
    """One L2 store.

    Attributes:
        type: "redis" (Redis, Valkey and what speaks like them), "file" (a directory), "memory" (of
            this process), "plugin" (a class of yours, docs/guides/new-connector.md),
            "native_plugin" (a client for LMCache, `kvferry.connectors.native_plugin`).
        name: What metrics and logs call it; empty: its type, with a number from the second on.
        max_capacity_gb: Limit in GB (2**30 bytes) of what the whole store holds, others' included;
            0: none. Files and memory need one.
        eviction: What leaves when it is nearly full.
        client: How to reach the server (redis).
        path: Directory (file).
        fsync: When a file is made durable before it is visible (file): "never" leaves it to the
            system; "data" syncs the file, "full" its name too. A power cut may lose chunks in any
            case and never makes a wrong one.
        direct: Past the page cache (file): "auto" where the file system allows it, "on", "off".
        io_uring: Use it where the kernel allows (file).
        shared_name: Stores of this process with the same one are one store (memory).
        module_path: Where the class is (plugin); "module:Class" names both.
        class_name: Its name (plugin).
        params: Its keywords (plugin); shown nowhere.
    """

    type: str
    name: str = ""
    max_capacity_gb: float = 0.0
    eviction: EvictionConfig = field(default_factory=EvictionConfig)
    client: ClientConfig | None = None
    path: str | None = None
    fsync: str = "never"
    direct: str = "auto"
    io_uring: bool = True
    shared_name: str | None = None
    module_path: str | None = None
    class_name: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", _type(self.type))
        for name, spec in _FIELDS.items():
            if name != "name" or self.name:
                object.__setattr__(self, name, spec.check(name, getattr(self, name)))
        object.__setattr__(self, "params", dict(self.params))
        if self.class_name is None and self.module_path and ":" in self.module_path:
            module, _, name = self.module_path.partition(":")
            object.__setattr__(self, "module_path", module)
            object.__setattr__(self, "class_name", name)
        if self.name and not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", self.name):
            raise ConfigError(f"name={self.name!r} is no short word; use letters, digits and -_.")
        self._check_type()

    def _check_type(self) -> None:
        for name, kinds in _OF_TYPE.items():
            if self.type not in kinds and getattr(self, name) != _default(name):
                kind = " or ".join(kinds)
                raise ConfigError(f"{name} is for type={kind}, not for {self.type}; leave it out")
        if self.type == "redis" and self.client is None:
            object.__setattr__(self, "client", ClientConfig())
        needed = {"file": ("path",), **dict.fromkeys(_PLUGINS, ("module_path", "class_name"))}
        for name in needed.get(self.type, ()):
            if getattr(self, name) is None:
                raise ConfigError(f"a store of type {self.type} needs {name}")
        if self.type in ("file", "memory") and not self.max_capacity_gb:
            raise ConfigError(f"a store of type {self.type} needs max_capacity_gb, in GB")

    @property
    def capacity_bytes(self) -> int | None:
        """`max_capacity_gb` in bytes; None without a limit."""
        return int(self.max_capacity_gb * GB) or None

    @property
    def address(self) -> str:
        """Where it is, for people and without secrets."""
        if self.client is not None:
            return self.client.address
        if self.type in _PLUGINS:
            return f"{self.module_path}.{self.class_name}"
        return self.path or "this process"

    def connector_spec(self) -> dict[str, Any]:
        """What `kvferry.connectors.load_connector` opens; the secrets are in it."""
        given: dict[str, Any] = {"type": self.type}
        if self.client is not None:
            for item in fields(self.client):
                if (value := getattr(self.client, item.name)) != item.default:
                    given[item.name] = value
        if self.type in ("file", "memory"):
            given["capacity_gb"] = self.max_capacity_gb
        names = [name for name, kinds in _OF_TYPE.items() if self.type in kinds]
        given |= {name: getattr(self, name) for name in names if name not in _RENAMED}
        if self.shared_name is not None:
            given["name"] = self.shared_name
        return given

    def __repr__(self) -> str:
        shown = [f"type={self.type!r}"]
        for item in fields(self)[1:]:
            value = getattr(self, item.name)
            if item.name == "params" and value:
                shown.append(f"params={dict.fromkeys(value, '***')!r}")
            elif value != _default(item.name):
                shown.append(f"{item.name}={value!r}")
        return f"StoreConfig({', '.join(shown)})"

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """Read flat settings: fields of this class; for redis `url` and those of `ClientConfig`.

        ``StoreConfig.of(type="redis", url="redis://cache-1", connections=16, max_capacity_gb=100)``

        Raises:
            ConfigError: A name is unknown or a value cannot be.
        """
        own, client = store_settings(settings)
        if client:
            own["client"] = ClientConfig(**client)
        return cls(**own)


def _type(given: Any) -> str:
    kind = _TYPE_ALIASES.get(given.lower(), given) if isinstance(given, str) else given
    return str(_FIELDS["type"].check("type", kind))


def store_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Flat settings as those of a `StoreConfig` and those of its client, aliases translated.

    Values are checked where they end up. None means that a setting is not given, and so does an
    empty host, user or password.

    Raises:
        ConfigError: A name is unknown, does not go with the type, or stands there twice.
    """
    if settings.get("type") is None:
        raise ConfigError(f"a store needs a type: {_FIELDS['type'].wanted}")
    kind = _type(settings["type"])
    own: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for given, value in settings.items():
        if value is None or given in ("type", "url"):
            continue
        if value == "" and kind == "redis" and given in ("host", "username", "password"):
            continue
        if given in _FIXED:
            _check_fixed(given, value)
            continue
        if given == "num_workers" and kind != "redis":
            _NUM_WORKERS.check(given, value)  # these drivers know best; it has no effect
            continue
        if given == "adapter_params" and kind in _PLUGINS:
            given = "params"
        of_type, name = _ALIASES.get(given, ("", given))
        name = name if of_type == kind else given
        if name == "direct" and isinstance(value, bool):  # use_odirect; YAML's on and off
            value = ("auto" if given == "use_odirect" else "on") if value else "off"
        if given == "cluster_mode" and kind == "redis":
            name, value = "topology", "cluster" if value else "standalone"
        target = client if kind == "redis" and name in _CLIENT else own
        if target is own and name not in _FIELDS and name not in ("eviction", "client"):
            known = [*_FIELDS, "eviction", *(("url", *_CLIENT) if kind == "redis" else ())]
            raise ConfigError(f"unknown setting {given!r}{nearest(given, known)}")
        if name in target:
            raise ConfigError(f"{given} says {name} a second time; keep one")
        target[name] = value
    if isinstance(own.get("eviction"), Mapping):
        own["eviction"] = EvictionConfig.of(own["eviction"])
    elif not isinstance(own.get("eviction", EvictionConfig()), EvictionConfig):
        raise ConfigError("eviction is no mapping; it holds eviction_policy and others")
    if kind == "redis":
        client = _with_url(settings.get("url"), client)
    elif settings.get("url") is not None:
        raise ConfigError(f"url is for type=redis, not for {kind}; leave it out")
    return {**own, "type": kind}, client


def _with_url(url: Any, client: dict[str, Any]) -> dict[str, Any]:
    """Client settings over those of a URL; a list of nodes without a host gives the host."""
    if url is not None:
        if not isinstance(url, str):
            raise ConfigError("url is no text; it begins with e.g. redis://")
        client = {**parse_url(url, query_kinds()), **client}
    if isinstance(client.get("nodes"), list | tuple):
        nodes = tuple(client["nodes"])
        if "host" not in client and nodes:
            try:
                host, port = parse_endpoint(nodes[0])
            except (AttributeError, TypeError, ValueError):
                raise ConfigError("nodes[0] is no host:port") from None
            client = {**client, "host": host, **({"port": port} if port else {})}
            nodes = nodes[1:]
        client = {**client, "nodes": nodes}
    if isinstance(client.get("tls_min_version"), float):
        client = {**client, "tls_min_version": str(client["tls_min_version"])}
    return client


def _check_fixed(name: str, value: Any) -> None:
    allowed, advice = _FIXED[name]
    if isinstance(value, Mapping):
        value = value.get("type", value)
    if not any(type(value) is type(one) and value == one for one in allowed):
        raise ConfigError(f"{name}: {advice}")


def _default(name: str) -> Any:
    found = next(item for item in fields(StoreConfig) if item.name == name)
    if found.default_factory is not MISSING:
        return found.default_factory()
    return found.default
