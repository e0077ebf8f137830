"""The settings of a cache: each once, where they come from, which wins, and all that is wrong."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal, Self

from kvferry.base.errors import ConfigError, UsageError
from kvferry.config.client import ClientConfig
from kvferry.config.file import (
    FILE_VARIABLES,
    find_config_file,
    open_with_secret,
    read_document,
    read_token,
    section_of,
)
from kvferry.config.foreign import (
    ALIASES,
    ENGINE,
    EXTRA,
    FOREIGN,
    OFF,
    ZERO_COUNTS,
)
from kvferry.config.remote_sources import AllowedHosts
from kvferry.config.removed import REMOVED
from kvferry.config.setting import (
    GB,
    AnySerde,
    Host,
    Path,
    PolicyName,
    Secret,
    Settings,
    Text,
    setting,
    specs,
)
from kvferry.config.source_values import Findings, Names, SourceValues
from kvferry.config.stores import StoreConfig, StoreSettings, named_stores, stores_of
from kvferry.config.tuning import CacheTuning
from kvferry.config.url import is_loopback, parse_endpoint

__all__ = [
    "CACHE",
    "SECTION",
    "CacheConfig",
    "Examined",
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
)  # beginnings of variables that other sections read
# Other sections, which a file without a section for the cache may have too.
_SECTIONS = ("client", "controller", "server", "tuned")
_DAY_S = 86_400.0
_Ports = Annotated[
    tuple[Annotated[int, setting(ge=0, le=65535)], ...],
    setting(use="a port, or a list with one for each rank"),
]
_Endpoints = Annotated[str, setting(min_length=1, use="HOST:PORT", quoted=False)]


class CacheConfig(Settings, frozen=True, kw_only=True):
    """What is cached, where, how long it may take, and what is shared with other instances.

    Settings of sharing have the names of LMCache's P2P guide.

    Attributes:
        chunk_size: The tokens of a chunk, the unit of caching.
        local_cpu: Keep chunks in memory of this host (L1). Without it that memory is a way through.
        max_local_cpu_size: The memory of this host for chunks (L1), in GB of 2^30 bytes.
        eviction_policy: The policy that chooses which chunk leaves memory (L1).
        hugetlb: Take memory from the system's huge pages, which must have been set aside.
        prefault: Touch all memory at the start, so that no request pays for its first use.
        enable_async_loading: Let `lookup` begin to load, so that `retrieve` finds chunks in memory.
        retrieve_timeout_s: The longest that a retrieve may take; what has arrived by then counts.
        lookup_timeout_s: The longest that a lookup may wait for stores. Without it as long as an
            answer can pay; where nobody knows what computing takes, for 3 seconds.
        recompute: The choice between loading and computing: "auto" loads what is predicted to be
            quicker than computing it; "never" loads whatever is there.
        weights_version: The name of weights that were changed in place. Caches on the same stores
            share where they have the same name, or none.
        remote_serde: The form of chunks in stores of type redis: "naive": as they are;
            "split12": bf16 numbers in three quarters of their bytes, without loss; "zstd": in
            fewer still, of other types too, by more computing; "auto": one of these, as loads have
            shown the link to be; "fp8": in a byte a number, which loses something, so a cache with
            it shares only with others that have it. All are read.
        stores: The stores of chunks beside L1 (L2), in the order in which they are asked.
        enable_p2p: Lend the chunks in memory to other instances, and read theirs. The controller
            says who they are.
        p2p_host: The address where other instances reach this one. It listens there too, unless
            `p2p_bind` names another address.
        p2p_bind: The address of this host to listen on, e.g. "0.0.0.0" in a pod.
        p2p_init_ports: The port at which other instances read; a list has one for each rank. 0
            takes any that is free.
        p2p_lookup_ports: A second port of the same service, for whoever was told both.
        p2p_secret: The word that instances and their controller must know. It is needed where other
            hosts can connect, unless instances have certificates and the controller is on this
            host. Without one, processes of this user on this host make one.
        p2p_secret_file: A file with the word that instances and their controller must know.
        tls_cert_file: The PEM file of this instance's certificate for `p2p_host`, and its chain.
            With it instances read each other over TLS, and show each other their certificates.
        tls_key_file: The PEM file of the key of this instance's certificate.
        tls_ca_file: The PEM file of the authorities whose certificates instances have.
        transfer_channel: The way of chunks between instances: "nixl" is NIXL where both sides have
            it; elsewhere, and with "tcp", memory of the other process on one host, and sockets.
        enable_controller: Register with a controller, and tell it what memory holds.
        lmcache_instance_id: The name of this instance, the same over restarts. Without it that of
            the host.
        controller_pull_url: The HOST:PORT of the controller that takes updates; those of several
            controllers with one directory have commas between.
        controller_reply_url: The HOST:PORT of the controller that answers questions; those of
            several have commas between.
        lookup_backoff_time: The seconds for which a peer that failed is not asked, at first.
        remote_kv_sources: The hosts, addresses and networks (10.0.0.0/8) whose nodes requests may
            name in `kv_transfer_params.remote_kv_source`. Without it requests may name none.
        tuning: Values that are no settings.

    Raises:
        ConfigError: A setting cannot be, or contradicts another one.
    """

    removed: ClassVar = REMOVED["cache"]
    aliases: ClassVar = ALIASES
    guide: ClassVar = (
        *("chunk_size", "max_local_cpu_size", "eviction_policy", "retrieve_timeout_s"),
        *("lookup_timeout_s", "weights_version", "remote_serde"),
    )

    chunk_size: Annotated[int, setting(ge=1, le=1 << 20, unit="tokens")] = 256
    local_cpu: bool = True
    max_local_cpu_size: Annotated[
        float, setting(gt=0, le=1 << 20, unit="GB", flag="l1-size-gb")
    ] = 5.0
    eviction_policy: PolicyName = "LRU"
    hugetlb: Annotated[bool, setting(flag="l1-use-hugepages")] = False
    prefault: bool = True
    enable_async_loading: bool = False
    retrieve_timeout_s: Annotated[float, setting(gt=0, le=_DAY_S, unit="seconds")] = 10.0
    lookup_timeout_s: Annotated[float, setting(gt=0, le=_DAY_S, unit="seconds")] | None = None
    recompute: Literal["auto", "never"] = "auto"
    weights_version: Text | None = None
    remote_serde: AnySerde = "naive"
    stores: Annotated[tuple[StoreConfig, ...], setting(program=True)] = ()
    # Sharing between instances.
    enable_p2p: Annotated[
        bool, setting(needs=("p2p_host", "p2p_init_ports", "enable_controller"))
    ] = False
    p2p_host: Host | None = None
    p2p_bind: Host | None = None
    p2p_init_ports: _Ports = ()
    p2p_lookup_ports: _Ports = ()
    p2p_secret: Secret | None = None
    p2p_secret_file: Path | None = None
    tls_cert_file: Annotated[Path, setting(needs=("tls_key_file",))] | None = None
    tls_key_file: Annotated[Path, setting(needs=("tls_ca_file",))] | None = None
    tls_ca_file: Annotated[Path, setting(needs=("tls_cert_file",))] | None = None
    transfer_channel: Literal["tcp", "nixl"] = "tcp"
    enable_controller: Annotated[
        bool, setting(needs=("controller_pull_url", "controller_reply_url"))
    ] = False
    lmcache_instance_id: Text | None = None
    controller_pull_url: _Endpoints | None = None
    controller_reply_url: _Endpoints | None = None
    lookup_backoff_time: Annotated[float, setting(ge=0, le=3600, unit="seconds")] = 0.01
    remote_kv_sources: tuple[str, ...] = ()
    tuning: Annotated[CacheTuning, setting(private=True)] = CacheTuning()

    def _check(self) -> None:
        self._set("stores", named_stores(self.stores))
        AllowedHosts(self.remote_kv_sources)
        self._check_sharing()

    def _check_sharing(self) -> None:
        if self.enable_p2p:
            bound = self.p2p_bind or self.p2p_host or ""
            if not is_loopback(bound) and not (
                self.p2p_secret or self.p2p_secret_file or self.tls_ca_file
            ):
                raise ConfigError(
                    f"{bound!r} is reachable from other hosts, which needs a secret; set "
                    "p2p_secret_file or tls_ca_file, or listen on localhost"
                )
        if self.p2p_secret and self.p2p_secret_file:
            raise ConfigError("p2p_secret and p2p_secret_file are the same; keep one")
        if self.enable_controller:
            counts = {
                _count_endpoints(name, getattr(self, name) or "")
                for name in ("controller_pull_url", "controller_reply_url")
            }
            if len(counts) > 1:
                raise ConfigError(
                    "controller_pull_url and controller_reply_url name the same controllers, in "
                    "one order"
                )

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

    @property
    def l1_bytes(self) -> int:
        """`max_local_cpu_size` in bytes."""
        return int(self.max_local_cpu_size * GB)

    @property
    def instance_id(self) -> str:
        """`lmcache_instance_id`; without, a name of this host and the port."""
        if self.lmcache_instance_id is not None:
            return self.lmcache_instance_id
        port = self.p2p_init_ports[0] if self.p2p_init_ports else 0
        return f"{socket.gethostname()}:{port}" if port else socket.gethostname()

    @property
    def tls(self) -> dict[str, Any]:
        """The settings of TLS between instances, for both ends, by the names of `ClientConfig`."""
        if self.tls_cert_file is None:
            return {}
        return {
            "tls": True,
            "tls_cert_file": self.tls_cert_file,
            "tls_key_file": self.tls_key_file,
            "tls_ca_file": self.tls_ca_file,
        }

    @property
    def secret(self) -> str:
        """The shared secret of instances and controller; "": none is needed.

        Raises:
            ConfigError: `p2p_secret_file` is missing, or holds something else.
        """
        if self.p2p_secret_file is None:
            return self.p2p_secret or ""
        return read_token(FilePath(self.p2p_secret_file), "p2p_secret_file")


def _count_endpoints(name: str, value: str) -> int:
    for one in value.split(","):
        try:
            host, port = parse_endpoint(one)
        except ValueError:
            host, port = "", None
        if not host or port is None:
            raise ConfigError(f"{name} is not valid; use HOST:PORT")
    return value.count(",") + 1


# Of the store at `remote_url`, by the names that LMCache has.
_OF_REMOTE = {
    theirs: replace(specs(ClientConfig)[ours], name=theirs) for theirs, ours in EXTRA.items()
}
_SPECIAL = {**specs(StoreSettings), **_OF_REMOTE}
_PLAIN = {name: spec for name, spec in specs(CacheConfig).items() if not spec.program}
_ENGINE = {name: replace(_PLAIN["local_cpu"], name=name) for name in ENGINE}  # switches, too
_GONE = {**CacheConfig.removed, **REMOVED["vllm"]}  # the connectors' stand beside the cache's
CACHE = Names(
    *({**_PLAIN, **_SPECIAL, **_ENGINE}, SECTION, _PREFIX, ALIASES, FOREIGN, _GONE, OFF),
    zero_counts=ZERO_COUNTS,
)
_BESIDE = "lookup_backoff_time"  # of peers, and LMCache has it there as well
_OF_EXTRA = {_BESIDE: _PLAIN[_BESIDE], **_OF_REMOTE}
_EXTRA = Names(_OF_EXTRA, foreign=FOREIGN, zero_counts=ZERO_COUNTS)


@dataclass
class Examined(Findings):
    """All settings with their sources, and what is wrong.

    Attributes:
        file: The file that was read, if any.
        values: Setting: value and source ("default", "file", a variable, "call").
        stores: Each with its source.
        engine: Those of `kvferry.config.foreign.ENGINE` that are given: value and source.
        client: The file's section `client`.
    """

    file: FilePath | None = None
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
    remote = _extra(special, found)
    found.stores = list(stores_of(special, remote, found.client, environ, found))
    try:
        named = named_stores(tuple(store for store, _ in found.stores))
    except ConfigError as error:
        found.problems.append(str(error))
    else:
        found.stores = [(s, source) for s, (_, source) in zip(named, found.stores, strict=True)]
    return found


def _of_file(file: FilePath, section: str, found: Examined) -> SourceValues:
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


def _extra(special: Mapping[str, SourceValues], found: Examined) -> dict[str, Any]:
    """Settings of the remote store from `extra_config`, or from its keys beside it."""
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
