"""The settings that integrations have beside those of a client or of the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal, Self

from kvferry.base.credentials import Credentials
from kvferry.base.errors import ConfigError
from kvferry.config.cache import CacheConfig
from kvferry.config.client import ClientConfig, ServerUrl, load_client_config
from kvferry.config.native_words import serdes
from kvferry.config.remote_sources import AllowedHosts
from kvferry.config.removed import REMOVED
from kvferry.config.setting import Path, Serde, Settings, setting, specs
from kvferry.config.source_values import Names
from kvferry.config.tuning import SglangTuning, TierLimits

__all__ = [
    "LmcacheSettings",
    "SglangSettings",
    "VllmConnectorSettings",
    "VllmServerSettings",
    "VllmTierSettings",
]

LOOKUP_S = 2.0
NAMESPACE_BYTES_MAX = 128  # a quarter of the longest key
_FILE_URL = "file://"


class VllmConnectorSettings(Settings, frozen=True, kw_only=True):
    """Of both vLLM connectors, with ``kvferry.`` before each name.

    Attributes:
        save_generated: Save chunks with generated tokens too, when they are full.
        layerwise: The moment at which layers are taken out. With "auto" it is when each is
            computed, where the engine runs layers from Python, and else the end of the step; with
            "always" the engine is made to run them so, without full CUDA graphs.
        cache: The settings of the cache; its chunk size is a multiple of the engine's block size.
    """

    removed: ClassVar = REMOVED["vllm"]

    save_generated: bool = True
    layerwise: Literal["auto", "always"] = "auto"
    cache: Annotated[CacheConfig, setting(program=True)] = CacheConfig()


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


class _WithClient(ServerUrl, frozen=True, kw_only=True):
    """Of an integration that has one server: its own settings, and those of `ClientConfig`.

    What they leave open comes from the file and the environment, so secrets need not stand in a
    configuration that the engine logs.

    Attributes:
        config_file: A file with a section `client`. Without it that of `KVFERRY_CONFIG_FILE`.
        remote_serde: The form in which KV is written; all are read. See the guide of codecs.
        client: The settings of the client that reaches the server.
    """

    config_file: Path | None = None
    remote_serde: Serde = "naive"
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
        mine = {name: spec for name, spec in specs(cls).items() if not spec.program}
        client = {name: spec for name, spec in ClientConfig.known().items() if not spec.program}
        gone = {**ClientConfig.removed, **cls.removed}
        names = Names({**client, **mine}, aliases=cls.aliases, elsewhere=gone)
        counted = {n: value for n, value in (given or {}).items() if n not in cls.ignored}
        fields = names.checked(counted, f"{where}: ")
        try:
            made = cls(**{name: fields.pop(name) for name in mine.keys() & fields.keys()})
            return made.replace(client=made._client(fields))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    def _client(self, fields: dict[str, Any]) -> ClientConfig:
        """The client of these fields, and of what else these settings say of it."""
        return load_client_config(self.config_file, url=self.url, **fields)


class VllmTierSettings(_WithClient, frozen=True, kw_only=True):
    """Of the vLLM tier, beside those of a client.

    Attributes:
        url: The URL of the store, as of a client; or `file:///directory`.
        store: All of a store as in a configuration file, in the place of `url`.
        max_capacity_gb: The most GB of 2^30 bytes that a `file://` store holds.
        password_file: A file with the password, which is read for each connection.
        weights_version: A text that is added to the identity: engines with another one do not
            share.
        enable_kv_events: Tell vLLM of chunks that the store has acknowledged.
        lookup_timeout_s: The longest that a request waits to hear what the store has. Without it
            as long as an answer can save time, by what computing may take; 0.04 where that is not
            known.
        remote_kv_sources: The hosts, addresses and networks (10.0.0.0/8) whose nodes requests may
            name in `kv_transfer_params.remote_kv_source`. Without it requests may name none.
        tuning: Values that are no settings.
    """

    removed: ClassVar = REMOVED["tier"]
    aliases: ClassVar = {
        "capacity_gb": ("max_capacity_gb", None),
        "identity": ("weights_version", None),
        "lookup_timeout_ms": ("lookup_timeout_s", 0.001),
    }
    where: ClassVar = "KvferryTier"

    store: Annotated[Mapping[str, Any], setting(secret=True)] | None = None
    max_capacity_gb: Annotated[float, setting(gt=0, unit="GB")] | None = None
    password_file: Path | None = None
    weights_version: str = ""
    enable_kv_events: bool = False
    lookup_timeout_s: Annotated[float, setting(gt=0, le=60, unit="seconds")] | None = None
    remote_kv_sources: tuple[str, ...] = ()
    tuning: Annotated[TierLimits, setting(private=True)] = TierLimits()

    def _check(self) -> None:
        AllowedHosts(self.remote_kv_sources)

    def _client(self, fields: dict[str, Any]) -> ClientConfig:
        if self.store is not None:
            others = ("url", "max_capacity_gb", "password_file")
            beside = [name for name in others if getattr(self, name) is not None]
            for name in (*beside, *fields):
                raise ConfigError(
                    f"store says all of the store, so leave {name} out, or put it there"
                )
            return self.client
        if self.directory is not None:
            for name in (*(("password_file",) if self.password_file else ()), *fields):
                raise ConfigError(f"{name} is for servers, not for {_FILE_URL}; leave it out")
            if self.max_capacity_gb is None:
                raise ConfigError(
                    f"a {_FILE_URL} store needs max_capacity_gb, in GB of 2**30 bytes"
                )
            return self.client
        if self.max_capacity_gb is not None:
            raise ConfigError(
                "max_capacity_gb is for file://; a server has its own limit (maxmemory)"
            )
        if self.password_file is not None:
            if "password" in fields:
                raise ConfigError("password and password_file are both set; keep one")
            file = FilePath(self.password_file)
            fields["credentials"] = _credentials_of(file, fields.pop("username", None))
        return super()._client(fields)

    @property
    def directory(self) -> str | None:
        """The path of a ``file://`` URL."""
        url = self.url or ""
        return url.removeprefix(_FILE_URL) if url.startswith(_FILE_URL) else None


def _credentials_of(file: FilePath, username: str | None) -> Callable[[], Credentials]:
    def provide() -> Credentials:
        return Credentials(username, file.read_text(encoding="utf-8").strip())

    return provide


class SglangSettings(_WithClient, frozen=True, kw_only=True):
    """Of HiCache's extra config, beside those of a client.

    Attributes:
        model_path: The path of the weights, if it is not where SGLang has them from.
        revision: The revision of the weights, in the place of a fingerprint of their files.
        extra_backend_tag: A word that separates deployments that shall not share.
        tuning: Values that are no settings.
    """

    removed: ClassVar = REMOVED["sglang"]

    where: ClassVar = "HiCache extra config"
    # What SGLang reads out of the same object, in one version or another.
    ignored: ClassVar = (
        *("backend_name", "module_path", "class_name", "interface_v1", "tp_lcm_size"),
        *("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"),
        *("hicache_storage_pass_prefix_keys", "allocator"),
    )

    model_path: str = ""
    revision: str = ""
    extra_backend_tag: str = ""
    tuning: Annotated[SglangTuning, setting(private=True)] = SglangTuning()


class LmcacheSettings(_WithClient, frozen=True, kw_only=True):
    """Of LMCache's ``adapter_params``, beside those of a client.

    Attributes:
        namespace: A word that goes before every key with a ":". Without it the keys are LMCache's
            own.
        verify: Write values in frames with checksums, in a namespace, which is `kvferry` if none is
            named.
        remote_serde: The form in which values are written; all are read. It needs `verify`: what
            has no frame is LMCache's own, whose readers decode nothing. See the guide of codecs.
    """

    removed: ClassVar = REMOVED["lmcache"]
    aliases: ClassVar = {"num_workers": ("connections", None)}  # as LMCache's own client has it
    where: ClassVar = "adapter_params"

    namespace: Annotated[str, setting(use="a line of text", bytes_max=NAMESPACE_BYTES_MAX)] = ""
    verify: bool = False

    def _check(self) -> None:
        if self.remote_serde not in ("naive", *serdes()):
            raise ConfigError(
                f"remote_serde={self.remote_serde!r} is not valid; use {' or '.join(serdes())}"
            )
        if self.remote_serde != "naive" and not self.verify:
            raise ConfigError(
                "remote_serde is set without verify; set both, or leave remote_serde out"
            )
        if not self.namespace.isprintable():
            raise specs(LmcacheSettings)["namespace"].error(self.namespace)
        if self.verify and not self.namespace:
            self._set("namespace", "kvferry")  # LMCache's own client would read frames

    def _client(self, fields: dict[str, Any]) -> ClientConfig:
        if self.url is not None and "host" in fields:
            raise ConfigError("url and host both name a server; keep one")
        return super()._client(fields)

    @property
    def lookup_s(self) -> float:
        """Limit of a question, in seconds: somebody waits who could compute."""
        return min(LOOKUP_S, self.client.timeout_s)
