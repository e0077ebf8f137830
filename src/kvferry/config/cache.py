"""The settings of a cache: where they come from, which wins, and all that is wrong with them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from kvferry.base.errors import ConfigError, UsageError
from kvferry.config.cache_settings import CacheSettings, named_stores
from kvferry.config.client import ClientConfig
from kvferry.config.client_sources import limits_of
from kvferry.config.file import (
    FILE_VARIABLES,
    find_config_file,
    open_with_secret,
    read_document,
    section_of,
)
from kvferry.config.foreign import (
    ALIASES,
    EXTRA,
    FOREIGN,
    GONE,
    OFF,
    ZERO_COUNTS,
    EngineSettings,
)
from kvferry.config.setting import Secret, Settings, Text, Word, setting, specs
from kvferry.config.source_values import Findings, Names, SourceValues
from kvferry.config.stores import StoreConfig, store_settings

__all__ = [
    "CACHE",
    "SECTION",
    "CacheConfig",
    "Examined",
    "StoreSettings",
    "cache_values",
    "chosen_config",
    "examine",
    "resolved",
]

_log = logging.getLogger("kvferry.config")

SECTION = "cache"
_PREFIX, _THEIRS = "KVFERRY_", "LMCACHE_"
_OTHERS = (
    "KVFERRY_RESP_",
    "KVFERRY_SERVER_",
    "KVFERRY_CONTROLLER_",
    *FILE_VARIABLES,
)  # variables that others read
# Sections of others, also in a file whose other settings have none.
_SECTIONS = ("client", "controller", "server", "tuned")
_MAPPINGS = "a list of mappings, each with a type"


class StoreSettings(Settings, frozen=True, kw_only=True):
    """Settings of a file, the environment or a call that become stores.

    Attributes:
        stores: The stores of chunks beside L1 (L2), in the order in which they are asked.
        remote_url: The URL of a store of type redis.
        local_disk: The directory of a store of type file.
        max_local_disk_size: The capacity of `local_disk`, in GB of 2^30 bytes.
        username: The ACL user at `remote_url`.
        password: The password at `remote_url`, which is shown nowhere.
        resp_num_threads: The number of connections to `remote_url`.
        extra_config: A mapping in which LMCache has these three, and `lookup_backoff_time`.
    """

    guide: ClassVar = ("stores", "remote_url", "local_disk", "max_local_disk_size")

    stores: Annotated[tuple[Any, ...], setting(use=_MAPPINGS, quoted=False)] = ()
    remote_url: Annotated[str, setting(use="e.g. redis://host:port", quoted=False)] | None = None
    local_disk: Text | None = None
    max_local_disk_size: Annotated[float, setting(ge=0, unit="GB")] = 0.0
    username: Word | None = None
    password: Secret | None = None
    resp_num_threads: Annotated[int, setting(ge=1, le=1024)] | None = None
    extra_config: Annotated[Mapping[str, Any], setting(quoted=False)] | None = None


_SPECIAL = specs(StoreSettings)
_PLAIN = {name: spec for name, spec in specs(CacheSettings).items() if not spec.program}
_ENGINE = specs(EngineSettings)
CACHE = Names(
    *({**_PLAIN, **_SPECIAL, **_ENGINE}, SECTION, _PREFIX, ALIASES, FOREIGN, GONE, OFF),
    zero_counts=ZERO_COUNTS,
)
_BESIDE = "lookup_backoff_time"  # of peers, and LMCache has it there as well
_OF_EXTRA = {_BESIDE: _PLAIN[_BESIDE], **{name: _SPECIAL[name] for name in EXTRA}}
_EXTRA = Names(_OF_EXTRA, foreign=FOREIGN, zero_counts=ZERO_COUNTS)


@dataclass
class Examined(Findings):
    """All settings with their sources, and what is wrong.

    Attributes:
        file: The file that was read, if any.
        values: Setting: value and source ("default", "file", a variable, "call").
        stores: Each with its source.
        engine: What is said of `EngineSettings`: value and source.
        client: What the file's section of clients says.
    """

    file: Path | None = None
    values: dict[str, tuple[Any, str]] = field(default_factory=dict)
    stores: list[tuple[StoreConfig, str]] = field(default_factory=list)
    engine: dict[str, tuple[bool, str]] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """The keywords of `CacheConfig`.

        Raises:
            ConfigError: There is a problem; the text is the first one.
        """
        self.raise_first()
        values = {name: value for name, (value, _) in self.values.items()}
        return {**values, "stores": tuple(store for store, _ in self.stores)}


def examine(
    path: str | os.PathLike[str] | None = None,
    *,
    section: str = SECTION,
    environ: Mapping[str, str] | None = None,
    **overrides: Any,
) -> Examined:
    """Read all sources and find all problems; the arguments are those of `CacheConfig.load`.

    Raises:
        ConfigError: The file is missing, unreadable or no YAML.
    """
    environ = os.environ if environ is None else environ
    found = Examined(file=find_config_file(path, environ, FILE_VARIABLES))
    call = CACHE.take(SourceValues("call"), overrides, found)
    return resolved([call, *cache_values(section, environ, found)], environ, found)


class CacheConfig(CacheSettings, frozen=True, kw_only=True):
    """What is cached, where, and how long it may take, by the settings of `CacheSettings`."""

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        section: str = SECTION,
        environ: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> Self:
        """The settings of this call, of a file and of the environment; see the package.

        Args:
            path: The file; default: ``KVFERRY_CONFIG_FILE``, then ``LMCACHE_CONFIG_FILE``, or none.
            section: Where in the file.
            environ: Default: of this process.
            **overrides: Settings, where not None. `remote_url` and the other names that LMCache
                uses are understood here as well.

        Raises:
            ConfigError: The file is missing or malformed, or a setting is.
        """
        found = examine(path, section=section, environ=environ, **overrides)
        config = cls(**found.settings())
        found.log(_log)
        return config


def chosen_config(
    chunk_size: int, config: CacheConfig | None, settings: dict[str, Any]
) -> CacheConfig:
    """The settings of a cache with such chunks: those given, or single ones from all sources.

    Raises:
        ConfigError: They name another chunk size, or one cannot be.
        UsageError: Both are given.
    """
    if config is None:
        config = CacheConfig.load(**{"chunk_size": chunk_size, **settings})
    elif settings:
        raise UsageError("pass either config or single settings, not both")
    if config.chunk_size not in (chunk_size, CacheConfig().chunk_size):
        raise ConfigError(
            f"chunk_size is {config.chunk_size} in the settings and {chunk_size} in the layout; "
            "make them equal"
        )
    return config


def cache_values(
    section: str, environ: Mapping[str, str], found: Examined
) -> Iterator[SourceValues]:
    """What `found.file` and the environment say, the stronger place first.

    LMCache's own variables are read where no file is named, as LMCache does.
    """
    if found.file is not None:
        yield _of_file(found.file, section, found)
    yield CACHE.take_environ(environ, _PREFIX, found)
    if found.file is None:
        yield CACHE.take_environ(environ, _THEIRS, found)
    found.warnings += CACHE.misspelt(environ, _PREFIX, _OTHERS)


def resolved(
    places: Sequence[SourceValues], environ: Mapping[str, str], found: Examined
) -> Examined:
    """What places say together, the strongest one first; the result is in `found`."""
    strongest = {name: place for place in reversed(places) for name in place.values}
    for name, spec in _PLAIN.items():
        place = strongest.get(name)
        value = (spec.default, "default")
        found.values[name] = value if place is None else (place.values[name], place.source(name))
    for name in _ENGINE.keys() & strongest.keys():
        found.engine[name] = (strongest[name].values[name], strongest[name].source(name))
    special = {name: place for name, place in strongest.items() if name in _SPECIAL}
    found.stores = list(_stores(special, environ, found))
    try:
        named = named_stores(tuple(store for store, _ in found.stores))
    except ConfigError as error:
        found.problems.append(str(error))
    else:
        found.stores = [(s, source) for s, (_, source) in zip(named, found.stores, strict=True)]
    return found


def _of_file(file: Path, section: str, found: Examined) -> SourceValues:
    """A section, or all of a file that has none; and the section of clients."""
    document = read_document(file)
    flat = section not in document and any(
        name in (*CACHE.known, *ALIASES, *FOREIGN, *EXTRA) or not isinstance(value, dict | None)
        for name, value in document.items()
    )
    where = f"{file}: " if flat else f"{file}: {section}: "
    place = SourceValues("file", where)
    try:
        found.client = section_of(file, document, "client")
        ClientConfig.fields(found.client, f"{file}: client: ")
    except ConfigError as error:
        found.problems.append(str(error))
        found.client = {}
    try:
        if flat:
            settings = {name: value for name, value in document.items() if name not in _SECTIONS}
        else:
            settings = section_of(file, document, section)
    except ConfigError as error:
        found.problems.append(str(error))
        return place
    CACHE.take(place, settings, found)
    found.warnings += open_with_secret(file, [found.client, settings])
    return place


Special = Mapping[str, SourceValues]  # setting: where it is said


@dataclass
class _Entry:
    """A store in the making."""

    shown: str
    source: str
    settings: Any


def _stores(
    special: Special, environ: Mapping[str, str], found: Examined
) -> Iterator[tuple[StoreConfig, str]]:
    """Every store and its source; what is wrong with the others is a problem."""
    extra = _extra(special, found)
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
                base = limits_of(found.client) if named_there else found.client
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


def _extra(special: Special, found: Examined) -> dict[str, Any]:
    """What extra_config, or its keys beside it, say of the remote store."""
    given: dict[str, Any] = {}
    if "extra_config" in special:
        place = special["extra_config"]
        inside = SourceValues(place.kind, f"{place.where}{place.spelled['extra_config']}: ")
        given = _EXTRA.take(inside, place.values["extra_config"], found).values
        beside = given.pop(_BESIDE, None)
        if beside is not None and found.values[_BESIDE][1] == "default":
            found.values[_BESIDE] = (beside, place.source("extra_config"))
    given |= {name: special[name].values[name] for name in EXTRA if name in special}
    return {EXTRA[name]: value for name, value in given.items() if value != ""}
