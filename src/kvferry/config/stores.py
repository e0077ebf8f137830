"""One store behind the cache: what kind, where, how large, and what goes first when it is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec

from kvferry.base.errors import ConfigError
from kvferry.config.client import ClientConfig
from kvferry.config.setting import GB, PolicyName, Settings, Text, setting, specs
from kvferry.config.source_values import Findings, Names, SourceValues
from kvferry.config.url import parse_endpoint

__all__ = ["EvictionConfig", "StoreConfig", "store_settings"]

_TYPE_ALIASES = {"resp": "redis", "valkey": "redis", "fs": "file", "fs_native": "file"}
_PLUGINS = ("plugin", "native_plugin")
_OF_FILE, _OF_PLUGIN = ("type=file",), ("type=plugin|native_plugin",)  # what only some types have
_WORD = "a short word of letters, digits and -_."
Part = Annotated[float, setting(gt=0, le=1)]
# Names that L2 adapters of LMCache have for settings of ours, by type.
_ALIASES: dict[str, dict[str, str]] = {
    "file": {"base_path": "path", "use_odirect": "direct"},
    "redis": {
        "num_workers": "connections",
        "startup_nodes": "nodes",
        "cluster_mode": "topology",
        "tls_enable": "tls",
        "database_id": "db",
        "request_timeout": "timeout_s",
        "connection_timeout": "connect_timeout_s",
        "ttl_seconds": "ttl_s",
    },
    **{kind: {"adapter_params": "params"} for kind in _PLUGINS},
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


class EvictionConfig(Settings, frozen=True, kw_only=True):
    """What leaves a store when it is nearly full.

    Attributes:
        eviction_policy: The policy that chooses what leaves first. With "none" nothing is evicted,
            and what does not fit is not stored.
        trigger_watermark: The part of the capacity from which on values are evicted.
        eviction_ratio: The part of the values that an eviction removes.
    """

    eviction_policy: Literal[PolicyName, "none"] = "LRU"
    trigger_watermark: Part = 0.8
    eviction_ratio: Part = 0.2

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Read a mapping; "noop" is "none".

        Raises:
            ConfigError: A name is unknown or a value cannot be.
        """
        found = Findings()
        if settings.get("eviction_policy") == "noop":
            settings = {**settings, "eviction_policy": "none"}
        place = Names(specs(cls)).take(SourceValues("call", "eviction: "), settings, found)
        found.raise_first()
        return cls(**place.values)


class StoreConfig(Settings, frozen=True, kw_only=True):
    """One L2 store.

    Attributes:
        type: The kind of store: "redis" (Redis, Valkey and what speaks like them), "file" (a
            directory), "memory" (of this process), "plugin" (a class of yours,
            docs/guides/new-connector.md), "native_plugin" (a client for LMCache,
            `kvferry.connectors.native_plugin`).
        name: The name of the store in metrics and logs. Without it its type, with a number from the
            second store on.
        max_capacity_gb: The most GB (2**30 bytes) that the whole store holds, others' values
            included; 0 is no limit. Files and memory need one.
        eviction: The rules by which values leave a store that is nearly full.
        client: The settings of the client that reaches the server (redis).
        path: The directory of the files (file).
        fsync: The moment from which a file is durable (file): "never" leaves it to the system;
            "data" syncs the file before it is visible, "full" its name too. A power cut may lose
            chunks in any case and never makes a wrong one.
        direct: The way past the page cache (file): "auto" where the file system allows it, "on",
            "off".
        io_uring: Use io_uring where the kernel allows it (file).
        shared_name: A name; stores of this process that have the same one are one store (memory).
        module_path: The module of the class (plugin); "module:Class" names both.
        class_name: The name of the class (plugin).
        params: The keywords of the class (plugin), which are shown nowhere.
    """

    guide: ClassVar = ("type", "max_capacity_gb", "eviction", "path")

    type: Literal["redis", "file", "memory", "plugin", "native_plugin"]
    name: Annotated[str, setting(pattern=r"^[A-Za-z0-9_.-]{0,40}\Z", use=_WORD)] = ""
    max_capacity_gb: Annotated[float, setting(ge=0, unit="GB")] = 0.0
    eviction: Annotated[EvictionConfig, setting(program=True, use="a mapping")] = EvictionConfig()
    client: Annotated[ClientConfig | None, setting(program=True, needs=("type=redis",))] = None
    path: (
        Annotated[str, setting(min_length=1, use="the path of a directory", needs=_OF_FILE)] | None
    ) = None
    fsync: Annotated[Literal["never", "data", "full"], setting(needs=_OF_FILE)] = "never"
    direct: Annotated[Literal["auto", "on", "off"], setting(needs=_OF_FILE)] = "auto"
    io_uring: Annotated[bool, setting(needs=_OF_FILE)] = True
    shared_name: Annotated[Text, setting(needs=("type=memory",))] | None = None
    module_path: Annotated[Text, setting(needs=_OF_PLUGIN)] | None = None
    class_name: Annotated[Text, setting(needs=_OF_PLUGIN)] | None = None
    params: Annotated[Mapping[str, Any], setting(secret=True, needs=_OF_PLUGIN)] = msgspec.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self._set("type", _type(self.type))
        super().__post_init__()

    def _check(self) -> None:
        self._set("params", dict(self.params))
        if self.class_name is None and self.module_path and ":" in self.module_path:
            module, _, name = self.module_path.partition(":")
            self._set("module_path", module)
            self._set("class_name", name)
        if self.type == "redis" and self.client is None:
            self._set("client", ClientConfig())
        needed = {"file": ("path",), **dict.fromkeys(_PLUGINS, ("module_path", "class_name"))}
        for name in needed.get(self.type, ()):
            if getattr(self, name) is None:
                raise ConfigError(f"a store of type {self.type} needs {name}")
        if self.type in ("file", "memory") and not self.max_capacity_gb:
            raise ConfigError(f"a store of type {self.type} needs max_capacity_gb, in GB")

    def __hash__(self) -> int:
        return hash((self.type, self.name, self.client, self.path))  # params are no part of it

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
            given |= {name: getattr(self.client, name) for name, _ in self.client.changed()}
        if self.type in ("file", "memory"):
            given["capacity_gb"] = self.max_capacity_gb
        if self.type == "file" or self.type in _PLUGINS:
            needs = _OF_FILE if self.type == "file" else _OF_PLUGIN
            names = (name for name, spec in specs(type(self)).items() if spec.needs == needs)
            given |= {name: getattr(self, name) for name in names}
        if self.shared_name is not None:
            given["name"] = self.shared_name
        return given

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """Read flat settings: fields of this class; for redis `url` and those of `ClientConfig`.

        ``StoreConfig.of(type="redis", url="redis://cache-1", connections=16, max_capacity_gb=100)``

        Raises:
            ConfigError: A name is unknown or a value cannot be.
        """
        own, client = store_settings(settings)
        if client:
            own["client"] = ClientConfig(**ClientConfig.fields(client))
        return cls(**own)


def store_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Flat settings as those of a `StoreConfig` and those of its client, aliases translated.

    The latter are a place for `ClientConfig.merged`, with their `url`. None means that a setting is
    not given.

    Raises:
        ConfigError: A name is unknown, does not go with the type, or stands there twice.
    """
    if settings.get("type") is None:
        raise ConfigError(f"a store needs a type: {specs(StoreConfig)['type'].wanted}")
    kind = specs(StoreConfig)["type"].check(_type(settings["type"]))
    of_client = ClientConfig.known() if kind == "redis" else {}
    names = Names(
        {**of_client, **specs(StoreConfig)},
        aliases={theirs: (ours, None) for theirs, ours in _ALIASES.get(kind, {}).items()},
        # Drivers without a server know themselves how many workers are best.
        foreign={} if of_client else {"num_workers": None},
        elsewhere={} if of_client else {"url": f"is for type=redis, not for {kind}; leave it out"},
    )
    for name in _FIXED.keys() & settings.keys():
        _check_fixed(name, settings[name])
    given = {name: _translated(name, settings[name]) for name in settings if name not in _FIXED}
    found, place = Findings(), SourceValues("call")
    names.take(place, {**given, "type": kind}, found)
    found.raise_first()
    own = {name: value for name, value in place.values.items() if name in specs(StoreConfig)}
    client = {name: value for name, value in place.values.items() if name not in own}
    if "eviction" in own:
        own["eviction"] = _eviction(own)
    if client.get("nodes") and not ("host" in client or "url" in client):
        client |= _first_of(client["nodes"])
    return own, client


def _type(given: Any) -> Any:
    """A type by our name for it."""
    return _TYPE_ALIASES.get(given.lower(), given) if isinstance(given, str) else given


def _translated(name: str, value: Any) -> Any:
    """A value of LMCache's adapters as ours."""
    if name == "use_odirect" and isinstance(value, bool):
        return "auto" if value else "off"
    if name == "cluster_mode":
        return "cluster" if value else "standalone"
    return value


def _eviction(own: Mapping[str, Any]) -> EvictionConfig:
    """The block, which means something beside a capacity only."""
    given = own["eviction"]
    if not isinstance(given, Mapping | EvictionConfig):
        raise ConfigError("eviction is no mapping; it holds eviction_policy and others")
    eviction = EvictionConfig.of(given) if isinstance(given, Mapping) else given
    if not own.get("max_capacity_gb") and eviction.eviction_policy != "none":
        raise ConfigError(
            "eviction is set without max_capacity_gb, the GB that it keeps to; set both"
        )
    return eviction


def _first_of(nodes: Sequence[Any]) -> dict[str, Any]:
    """A list of nodes without a host: the first is the host."""
    try:
        first, *others = nodes
        host, port = parse_endpoint(first)
    except ValueError:
        raise ConfigError("nodes[0] is no host:port") from None
    return {"host": host, "nodes": tuple(others), **({"port": port} if port else {})}


def _check_fixed(name: str, value: Any) -> None:
    allowed, advice = _FIXED[name]
    if isinstance(value, Mapping):
        value = value.get("type", value)
    if not any(type(value) is type(one) and value == one for one in allowed):
        raise ConfigError(f"{name}: {advice}")
