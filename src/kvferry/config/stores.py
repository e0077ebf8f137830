"""Stores behind the cache: kind, place, size, what is evicted first, and who names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec

from kvferry.base.errors import ConfigError
from kvferry.base.shown import shown
from kvferry.config.client import ClientConfig, limits_of
from kvferry.config.removed import REMOVED
from kvferry.config.setting import GB, PolicyOrNone, Settings, Text, setting, specs
from kvferry.config.source_values import Findings, Names, SourceValues
from kvferry.config.url import parse_endpoint

__all__ = [
    "EvictionConfig",
    "StoreConfig",
    "StoreSettings",
    "named_stores",
    "store_settings",
    "stores_of",
]

_TYPE_ALIASES = {"resp": "redis", "valkey": "redis", "fs": "file", "fs_native": "file"}
_PLUGINS = ("plugin", "native_plugin")
_OF_FILE, _OF_PLUGIN = ("type=file",), ("type=plugin|native_plugin",)  # what only some types have
_MAPPINGS = "a list of mappings, each with a type"
_OF_REDIS = "is for type=redis, not for"
_WORD = "a short word of letters, digits and -_."
Part = Annotated[float, setting(gt=0, le=1)]
# Names that L2 adapters of LMCache have for settings of ours, by type.
_ALIASES: dict[str, dict[str, str]] = {
    "file": {"base_path": "path"},
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
# Settings of LMCache's adapters for which kvferry has one behaviour: the values that ask for it.
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "serde": ((None, "naive"), "values are stored as they are; leave it out"),
    "persist_enabled": ((None, True), "what is stored stays stored; leave it out"),
    "shared": ((None, True, False), ""),
    "use_odirect": ((None, True, False), ""),
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

    eviction_policy: PolicyOrNone = "LRU"
    trigger_watermark: Part = 0.8
    eviction_ratio: Part = 0.2

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Read a mapping; "noop" is "none".

        Raises:
            ConfigError: A name is unknown or a value cannot be.
        """
        if settings.get("eviction_policy") == "noop":
            settings = {**settings, "eviction_policy": "none"}
        return cls(**Names(specs(cls)).checked(settings, "eviction: "))


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
        module_path: The class (plugin), as "module:Class". LMCache has `class_name` beside it.
        params: The keywords of the class (plugin), which are shown nowhere.
    """

    removed: ClassVar = REMOVED["store"]
    guide: ClassVar = ("type", "max_capacity_gb", "eviction", "path")

    type: Literal["redis", "file", "memory", "plugin", "native_plugin"]
    name: Annotated[str, setting(pattern=r"^[A-Za-z0-9_.-]{0,40}\Z", use=_WORD)] = ""
    max_capacity_gb: Annotated[float, setting(ge=0, unit="GB")] = 0.0
    eviction: Annotated[EvictionConfig, setting(program=True, use="a mapping")] = EvictionConfig()
    client: Annotated[ClientConfig | None, setting(program=True, needs=("type=redis",))] = None
    path: (
        Annotated[str, setting(min_length=1, use="the path of a directory", needs=_OF_FILE)] | None
    ) = None
    module_path: Annotated[Text, setting(needs=_OF_PLUGIN)] | None = None
    params: Annotated[Mapping[str, Any], setting(secret=True, needs=_OF_PLUGIN)] = msgspec.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self._set("type", _type(self.type))
        super().__post_init__()

    def _check(self) -> None:
        self._set("params", dict(self.params))
        if self.type == "redis" and self.client is None:
            self._set("client", ClientConfig())
        if self.type == "file" and self.path is None:
            raise ConfigError("a store of type file needs path")
        if self.type in _PLUGINS and ":" not in (self.module_path or ""):
            raise ConfigError(f"a store of type {self.type} needs module_path, with class_name")
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
            return (self.module_path or "").replace(":", ".")
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


class StoreSettings(Settings, frozen=True, kw_only=True):
    """Settings of a file, the environment or a call that become stores.

    Attributes:
        stores: The stores of chunks beside L1 (L2), in the order in which they are asked.
        remote_url: The URL of a store of type redis.
        local_disk: The directory of a store of type file.
        max_local_disk_size: The capacity of `local_disk`, in GB of 2^30 bytes.
        extra_config: A mapping in which LMCache has `username`, `password` and `resp_num_threads`
            of the store at `remote_url`, and `lookup_backoff_time`.
    """

    guide: ClassVar = ("stores", "remote_url", "local_disk", "max_local_disk_size")

    stores: Annotated[tuple[Any, ...], setting(use=_MAPPINGS, quoted=False, flag="l2-adapter")] = ()
    remote_url: Annotated[str, setting(use="e.g. redis://host:port", quoted=False)] | None = None
    local_disk: Text | None = None
    max_local_disk_size: Annotated[float, setting(ge=0, unit="GB")] = 0.0
    extra_config: Annotated[Mapping[str, Any], setting(quoted=False)] | None = None


def named_stores(stores: Any) -> tuple[StoreConfig, ...]:
    """The stores, each with a name of its own.

    Raises:
        ConfigError: One is no `StoreConfig`, or two have the same name.
    """
    if not isinstance(stores, tuple | list) or not all(isinstance(s, StoreConfig) for s in stores):
        raise ConfigError("stores is no list of StoreConfig; make each with StoreConfig.of(...)")
    taken = [store.name for store in stores if store.name]
    for name in taken:
        if taken.count(name) > 1 or name == "l1":
            why = "the name of the pool" if name == "l1" else "the name of two stores"
            raise ConfigError(f"name={shown(name)} is {why}; rename one")
    named: list[StoreConfig] = []
    for store in stores:
        if not store.name:
            free = (f"{store.type}{'' if n == 1 else f'-{n}'}" for n in range(1, len(stores) + 2))
            store = store.replace(name=next(name for name in free if name not in taken))
            taken.append(store.name)
        named.append(store)
    return tuple(named)


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
        elsewhere={
            **StoreConfig.removed,
            **(
                ClientConfig.removed
                if of_client
                else {"url": f"is for type=redis, not for {kind}; leave it out"}
            ),
        },
    )
    if kind in _PLUGINS and isinstance(settings.get("class_name"), str):
        settings = {
            **settings,
            "module_path": f"{settings.get('module_path')}:{settings['class_name']}",
        }
        del settings["class_name"]
    for name in _FIXED.keys() & settings.keys():
        _check_fixed(name, settings[name])
    given = {name: _translated(name, settings[name]) for name in settings if name not in _FIXED}
    client = names.checked({**given, "type": kind})
    own = {name: client.pop(name) for name in specs(StoreConfig) if name in client}
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
    if name == "cluster_mode":
        return "cluster" if value else "standalone"
    return value


def _eviction(own: Mapping[str, Any]) -> EvictionConfig:
    """The block `eviction`, which has a meaning only beside a capacity."""
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


Special = Mapping[str, SourceValues]  # a setting of `StoreSettings`: the place that gives it


@dataclass
class _Entry:
    """A store whose settings are not checked yet."""

    shown: str
    source: str
    settings: Any


def stores_of(
    special: Special,
    extra: Mapping[str, Any],
    section: Mapping[str, Any],
    environ: Mapping[str, str],
    found: Findings,
) -> Iterator[tuple[StoreConfig, str]]:
    """Every store that a cache's settings name, and its source.

    Args:
        special: The place that gives each of `StoreSettings`.
        extra: Settings of the store at `remote_url` from `extra_config`.
        section: The file's section of clients.
        environ: The weakest place, of the first redis store.
        found: Gets a problem for each store that cannot be.
    """
    entries = list(_entries(special, extra, found))
    redis = [entry for entry in entries if _is_redis(entry.settings)]
    if not redis and not ("stores" in special and special["stores"].kind == "call"):
        try:
            named = ClientConfig.merged(environ=environ)
        except ConfigError as error:
            found.problems.append(str(error))
            named = {}
        if "host" in named or "unix_path" in named:
            source = "KVFERRY_RESP_*"
            redis = [_Entry(source, source, {"type": "redis", **extra})]
            entries += redis
    for entry in entries:
        try:
            if isinstance(entry.settings, StoreConfig):
                yield entry.settings, entry.source
                continue
            own, client = store_settings(entry.settings)
            if own["type"] == "redis" and "client" not in own:
                named_there = {"url", "host", "unix_path"} & {n for n, v in client.items() if v}
                base = limits_of(section) if named_there else section
                # The environment speaks of one server: the first.
                mine = environ if entry is redis[0] else {}
                own["client"] = ClientConfig(**ClientConfig.merged(client, base, environ=mine))
            yield StoreConfig(**own), entry.source
        except ConfigError as error:
            found.problems.append(f"{entry.shown}: {error}")


def _entries(special: Special, extra: Mapping[str, Any], found: Findings) -> Iterator[_Entry]:
    def entry(name: str, settings: dict[str, Any]) -> _Entry:
        place = special[name]
        return _Entry(f"{place.where}{place.spelled[name]}", place.source(name), settings)

    if "local_disk" in special:
        path = special["local_disk"].values["local_disk"].removeprefix("file://")
        at = special.get("max_local_disk_size")
        size = 0.0 if at is None else at.values["max_local_disk_size"]
        made = entry("local_disk", {"type": "file", "path": path, "max_capacity_gb": size})
        if size:
            yield made
        else:
            found.problems.append(f"{made.shown} needs max_local_disk_size, in GB")
    if "remote_url" in special:
        url = special["remote_url"].values["remote_url"]
        yield entry("remote_url", {"type": "redis", "url": url, **extra})
    for index, item in enumerate(special["stores"].values["stores"] if "stores" in special else ()):
        made = entry("stores", item)
        made.shown += f"[{index}]"
        if not isinstance(item, Mapping | StoreConfig):
            found.problems.append(f"{made.shown} is no mapping; it begins with e.g. type: redis")
        elif isinstance(item, Mapping) and not all(isinstance(name, str) for name in item):
            found.problems.append(f"{made.shown}: a name is not a word; quote it")
        else:
            yield made


def _is_redis(settings: Any) -> bool:
    """Whether it is a redis store that is not complete already."""
    if not isinstance(settings, Mapping):
        return False
    return str(settings.get("type")).lower() in ("redis", "resp", "valkey")
