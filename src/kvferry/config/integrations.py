"""The settings that integrations have beside those of a client or of the cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from kvferry.base.errors import ConfigError
from kvferry.config.cache import CacheConfig
from kvferry.config.client import WORKERS_DEFAULT, ClientConfig, load_client_config
from kvferry.config.setting import GB, FixedSerde, Path, Serde, Settings, Url, setting, specs
from kvferry.config.source_values import Findings, Names, SourceValues

__all__ = [
    "LmcacheSettings",
    "SglangSettings",
    "VllmConnectorSettings",
    "VllmServerSettings",
    "VllmTierSettings",
    "own_and_client",
]

S = TypeVar("S", bound=Settings)
LOOKUP_S = 2.0
NAMESPACE_BYTES_MAX = 128  # a quarter of the longest key
Milliseconds = Annotated[float, setting(gt=0, le=600e3, unit="milliseconds")]
Limit = Annotated[float, setting(gt=0, le=3600, unit="seconds")]


class VllmConnectorSettings(Settings, frozen=True, kw_only=True):
    """Of both vLLM connectors, with ``kvferry.`` before each name.

    Attributes:
        save_generated: Save chunks with generated tokens too, when they are full.
        save_buffer_gb: The memory for what was taken out of the engine and is not saved yet.
            Without it what two steps of the engine compute.
        layerwise: The moment at which layers are taken out. With "auto" it is when each is
            computed, where the engine runs layers from Python, and else the end of the step; with
            "always" the engine is made to run them so, without full CUDA graphs.
        cache: The settings of the cache; its chunk size is a multiple of the engine's block size.
    """

    save_generated: bool = True
    save_buffer_gb: Annotated[float, setting(gt=0, le=1 << 20, unit="GB")] | None = None
    layerwise: Literal["auto", "always"] = "auto"
    cache: Annotated[CacheConfig, setting(program=True)] = CacheConfig()

    @property
    def save_bytes_max(self) -> int | None:
        """`save_buffer_gb` in bytes."""
        return None if self.save_buffer_gb is None else int(self.save_buffer_gb * GB)


class VllmServerSettings(Settings, frozen=True, kw_only=True):
    """Of the connector to a cache server, with ``kvferry.mp.`` before each name.

    Attributes:
        host: The address of the server: "tcp://HOST", "HOST" or "ipc:///PATH".
        port: The TCP port of the server.
        token_file: A file with the token, for a server that asks for one.
    """

    guide: ClassVar = ("host", "port")

    host: Annotated[str, setting(min_length=1, use="tcp://HOST or ipc:///PATH")] = "tcp://localhost"
    port: Annotated[int, setting(ge=1, le=65535)] | None = None
    token_file: Path | None = None


class VllmTierSettings(Settings, frozen=True, kw_only=True):
    """Of the vLLM tier, beside those of a client.

    Attributes:
        url: The URL of the store: `redis://`, `rediss://` (TLS), `redis+cluster://`,
            `redis+sentinel://`; `valkey` and `resp` for `redis`; `unix://`; `file:///directory`.
        store: All of a store as in a configuration file, in the place of `url`.
        capacity_gb: The most GB of 2^30 bytes that a `file://` store holds.
        config_file: A file with the settings of the client. Without it that of
            `KVFERRY_CONFIG_FILE`.
        password_file: A file with the password, which is read for each connection.
        identity: A text that is added to the identity: engines with another one do not share.
        locality: The locality that vLLM's filters of tiers and its events see.
        enable_kv_events: Tell vLLM of chunks that the store has acknowledged.
        lookup_timeout_ms: The longest that a request waits to hear what the store has. Without it
            as long as an answer can save time, by what computing may take; 40 where that is not
            known.
        load_timeout_ms: The longest that a load may take, beside its bytes at 50 MB/s. Without it
            1000.
        load_stall_ms: The longest that all loads together may get nothing. Without it four times
            what a chunk mostly takes, or a quarter of computing them (half of it for the first
            one); 500 where that is not known.
        store_timeout_ms: The longest that a store may take, beside its bytes at 50 MB/s. Without it
            5000.
        store_mb_max: The most MB that may be on their way to the store; the rest is shed. Without
            it half of the pinned memory.
        drain_timeout_ms: The longest that a shutdown waits for stores. Without it 10000.
        remote_kv_sources: The hosts, addresses and networks (10.0.0.0/8) whose nodes requests may
            name in `kv_transfer_params.remote_kv_source`. Without it requests may name none.
        remote_serde: The form in which chunks are written to a server; all are read. See the guide
            of codecs.
    """

    url: Url | None = None
    store: Annotated[Mapping[str, Any], setting(secret=True)] | None = None
    capacity_gb: Annotated[float, setting(gt=0, unit="GB")] | None = None
    config_file: Path | None = None
    password_file: Path | None = None
    identity: str = ""
    locality: Literal["LOCAL", "REMOTE"] | None = None
    enable_kv_events: bool = False
    lookup_timeout_ms: Annotated[float, setting(gt=0, le=60e3, unit="milliseconds")] | None = None
    load_timeout_ms: Milliseconds | None = None
    load_stall_ms: Milliseconds | None = None
    store_timeout_ms: Milliseconds | None = None
    store_mb_max: Annotated[float, setting(gt=0, le=1e9, unit="MB")] | None = None
    drain_timeout_ms: Milliseconds | None = None
    remote_kv_sources: tuple[str, ...] = ()
    remote_serde: Serde = "naive"


class _WithClient(Settings, frozen=True, kw_only=True):
    """Of an integration that has one server: its own settings, and those of `ClientConfig`.

    What they leave open comes from the file and the environment, so secrets need not stand in a
    configuration that the engine logs.

    Attributes:
        url: The URL of the server: `redis://`, `rediss://`, `redis+cluster://`,
            `redis+sentinel://`, `unix://`.
        config_file: A file with a section `client`. Without it that of `KVFERRY_CONFIG_FILE`.
        client: The settings of the client that reaches the server.
    """

    url: Url | None = None
    config_file: Path | None = None
    client: Annotated[ClientConfig, setting(program=True)] = ClientConfig()

    where: ClassVar[str]  # what holds them, for errors
    ignored: ClassVar[tuple[str, ...]] = ()  # names beside them that the engine reads

    @classmethod
    def read(cls, given: Mapping[Any, Any] | None, where: str = "") -> Self:
        """The settings that a mapping has, and the client that they are for.

        Raises:
            ConfigError: A name is unknown, or a value cannot be; no secret is quoted.
        """
        where = where or cls.where
        made, fields = own_and_client(cls, given or {}, where, cls.ignored)
        try:
            fields = made._fields(fields)
            client = load_client_config(made.config_file, url=made.url, **fields)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        return made.replace(client=client)

    def _fields(self, client: dict[str, Any]) -> dict[str, Any]:
        """Fields of the client, with what else these settings say of them."""
        return client


class SglangSettings(_WithClient, frozen=True, kw_only=True):
    """Of HiCache's extra config, beside those of a client.

    Attributes:
        lookup_timeout_s: The longest that a question which pages are there may take; after it
            there are none.
        load_timeout_s: The longest that reading a batch of pages may take, beside the time that its
            bytes take at `floor_rate_bytes_s`.
        store_timeout_s: The longest that writing a batch of pages may take, beside the time that
            its bytes take at `floor_rate_bytes_s`.
        model_path: The path of the weights, if it is not where SGLang has them from.
        revision: The revision of the weights, in the place of a fingerprint of their files.
        extra_backend_tag: A word that separates deployments that shall not share.
        remote_serde: The form in which pages are written; all are read. See the guide of codecs.
    """

    where: ClassVar = "HiCache extra config"
    # What SGLang reads out of the same object, in one version or another.
    ignored: ClassVar = (
        *("backend_name", "module_path", "class_name", "interface_v1", "tp_lcm_size"),
        *("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"),
        *("hicache_storage_pass_prefix_keys", "allocator"),
    )

    lookup_timeout_s: Limit = 0.25
    load_timeout_s: Limit = 2.0
    store_timeout_s: Limit = 5.0
    model_path: str = ""
    revision: str = ""
    extra_backend_tag: str = ""
    remote_serde: Serde = "naive"


class LmcacheSettings(_WithClient, frozen=True, kw_only=True):
    """Of LMCache's ``adapter_params``, beside those of a client.

    Attributes:
        num_workers: The number of sockets to each server, as LMCache's own client has it. Without
            it 8.
        deadline_s: The longest that a batch may take. Without it 5 s and bytes at 50 MB/s, 2 s for
            questions.
        namespace: A word that goes before every key with a ":". Without it the keys are LMCache's
            own.
        verify: Write values in frames with checksums, in a namespace, which is `kvferry` if none is
            named.
        remote_serde: The form in which values are written; all are read. It needs `verify`: what
            has no frame is LMCache's own, whose readers decode nothing. See the guide of codecs.
    """

    where: ClassVar = "adapter_params"

    num_workers: Annotated[int, setting(ge=1)] | None = None
    deadline_s: Annotated[float, setting(gt=0, le=1e9, unit="seconds")] | None = None
    namespace: Annotated[str, setting(use="a line of text", bytes_max=NAMESPACE_BYTES_MAX)] = ""
    verify: bool = False
    remote_serde: Annotated[FixedSerde, setting(needs=("verify",))] = "naive"

    def _check(self) -> None:
        if not self.namespace.isprintable():
            raise specs(LmcacheSettings)["namespace"].error(self.namespace)
        if self.verify and not self.namespace:
            self._set("namespace", "kvferry")  # LMCache's own client would read frames

    def _fields(self, client: dict[str, Any]) -> dict[str, Any]:
        if self.url is not None and "host" in client:
            raise ConfigError("url and host both name a server; keep one")
        if self.num_workers is None:
            return client
        most = {"connections": 1024, "workers": WORKERS_DEFAULT}
        return {**{name: min(self.num_workers, each) for name, each in most.items()}, **client}

    @property
    def lookup_s(self) -> float:
        """Limit of a question, in seconds: somebody waits who could compute."""
        return min(LOOKUP_S, self.deadline_s or LOOKUP_S)


def own_and_client(
    own: type[S], given: Mapping[Any, Any], where: str, ignored: Iterable[str] = ()
) -> tuple[S, dict[str, Any]]:
    """The settings of `own`, and checked fields of a client with the `url` of `own`.

    Args:
        given: Both by name; None is not given.
        where: What holds them, for errors.
        ignored: Names that somebody else reads.

    Raises:
        ConfigError: A name is unknown, or a value cannot be; no secret is quoted.
    """
    mine = {name for name, spec in specs(own).items() if not spec.program}
    known = {name: spec for name, spec in ClientConfig.known().items() if not spec.program}
    names = Names(
        {**known, **{name: specs(own)[name] for name in mine}},
        elsewhere={**ClientConfig.removed, **own.removed},
    )
    found, place = Findings(), SourceValues("call", f"{where}: ")
    names.take(place, {n: value for n, value in given.items() if n not in ignored}, found)
    found.raise_first()
    try:
        made = own(**{name: place.values.pop(name) for name in mine & place.values.keys()})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return made, place.values
