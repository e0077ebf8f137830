"""The settings that integrations have beside those of a client or of the cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from kvferry._shown import shown
from kvferry.config.client import ClientConfig
from kvferry.config.client_sources import client_fields
from kvferry.config.setting import Path, Settings, setting, specs
from kvferry.config.url import nearest
from kvferry.errors import ConfigError

__all__ = [
    "LmcacheSettings",
    "SglangSettings",
    "VllmConnectorSettings",
    "VllmServerSettings",
    "VllmTierSettings",
    "own_and_client",
]

S = TypeVar("S", bound=Settings)
Url = Annotated[str, setting(quoted=False, use="a URL, e.g. redis://cache-1:6379")]
Milliseconds = Annotated[float, setting(gt=0, le=600e3, unit="milliseconds")]
Limit = Annotated[float, setting(gt=0, le=3600, unit="seconds")]


class VllmConnectorSettings(Settings, frozen=True, kw_only=True):
    """Of both vLLM connectors, with ``kvferry.`` before each name.

    Attributes:
        save_generated: Save chunks with generated tokens too, when they are full.
        save_buffer_gb: Memory for what was taken out of the engine and is not saved yet; None: what
            two steps of the engine compute.
        layerwise: "auto": each layer is taken out when it is computed, where the engine runs it
            from Python, and else at the end of the step; "always": have it run so, without full
            CUDA graphs.
    """

    save_generated: bool = True
    save_buffer_gb: Annotated[float, setting(gt=0, le=1 << 20, unit="GB")] | None = None
    layerwise: Literal["auto", "always"] = "auto"


class VllmServerSettings(Settings, frozen=True, kw_only=True):
    """Of the connector to a cache server, with ``kvferry.mp.`` before each name.

    Attributes:
        host: "tcp://HOST", "HOST" or "ipc:///PATH".
        port: Of the server, with TCP.
        curve_key_file: Keys, for a server that asks for them.
    """

    guide: ClassVar = ("host", "port")

    host: Annotated[str, setting(min_length=1, use="tcp://HOST or ipc:///PATH")] = "tcp://localhost"
    port: Annotated[int, setting(ge=1, le=65535)] | None = None
    curve_key_file: Path | None = None


class VllmTierSettings(Settings, frozen=True, kw_only=True):
    """Of the vLLM tier, beside those of a client.

    Attributes:
        url: Where the store is: `redis://`, `rediss://` (TLS), `redis+cluster://`,
            `redis+sentinel://`; `valkey` and `resp` for `redis`; `unix://`; `file:///directory`.
        store: Instead of `url` all of a store, as in a configuration file.
        capacity_gb: Limit of a `file://` store, in GB of 2^30 bytes.
        config_file: Settings of the client from a file; None: that of `KVFERRY_CONFIG_FILE`.
        password_file: Holds the password; read for each connection.
        identity: A name for what vLLM does not tell.
        locality: For vLLM's filters of tiers and for its events.
        enable_kv_events: Tell vLLM of chunks that the store has acknowledged.
        lookup_timeout_ms: How long a request waits to hear what the store has. None: as long as an
            answer can save time, by what computing may take; 40 where that is not known.
        load_timeout_ms: Deadline of a load, plus its bytes at 50 MB/s; None: 1000.
        load_stall_ms: How long all loads together may get nothing. None: four times what a chunk
            mostly takes, or a quarter of computing them (half of it for the first one); 500 where
            that is not known.
        store_timeout_ms: Deadline of a store, plus its bytes at 50 MB/s; None: 5000.
        store_mb_max: What may be on its way to the store; the rest is shed. None: half of the
            pinned memory.
        drain_timeout_ms: How long a shutdown waits for stores; None: 10000.
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


class SglangSettings(Settings, frozen=True, kw_only=True):
    """Of HiCache's extra config, beside those of a client.

    Attributes:
        url: `redis://`, `rediss://`, `redis+cluster://`, `redis+sentinel://`, `unix://`.
        config_file: A file with a section `client`; None: that of `KVFERRY_CONFIG_FILE`.
        lookup_timeout_s: Limit of a question which pages are there; after it: none.
        load_timeout_s: Limit of a batch of pages that is read, beside the time that its bytes take
            at `floor_rate_bytes_s`.
        store_timeout_s: The same of a batch that is written.
        model_path: Where the weights are, if it is not where SGLang has them from.
        revision: Of the weights, instead of a fingerprint of their files.
    """

    url: Url | None = None
    config_file: Path | None = None
    lookup_timeout_s: Limit = 0.25
    load_timeout_s: Limit = 2.0
    store_timeout_s: Limit = 5.0
    model_path: str = ""
    revision: str = ""


class LmcacheSettings(Settings, frozen=True, kw_only=True):
    """Of LMCache's ``adapter_params``, beside those of a client.

    Attributes:
        url: In the place of `host` and `port`: `redis://`, `rediss://`, `redis+cluster://`,
            `redis+sentinel://`, `unix://`.
        config_file: A file of ours; None: that of `KVFERRY_CONFIG_FILE`.
        num_workers: Sockets to each server, as LMCache's own client has it; None: 8.
        deadline_s: Limit of every batch; None: 5 s and bytes at 50 MB/s, 2 s for questions.
        namespace: Goes before every key with a ":"; without it the keys are LMCache's own.
        verify: Frames with checksums; values then lie in a namespace, `kvferry` if none is named.
    """

    url: Url | None = None
    config_file: Path | None = None
    num_workers: Annotated[int, setting(ge=1)] | None = None
    deadline_s: Annotated[float, setting(gt=0, le=1e9, unit="seconds")] | None = None
    namespace: Annotated[str, setting(use="a line of text")] = ""
    verify: bool = False

    def _check(self) -> None:
        if not self.namespace.isprintable():
            raise specs(LmcacheSettings)["namespace"].error(self.namespace)


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
    theirs = [name for name, spec in specs(ClientConfig).items() if not spec.program]
    mine: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for name, value in given.items():
        if name in ignored or value is None:
            continue
        if name not in specs(own) and name not in theirs:
            raise ConfigError(
                f"{where}: unknown key {shown(name)}{nearest(str(name), [*specs(own), *theirs])}"
            )
        (mine if name in specs(own) else client)[name] = value
    try:
        return own(**mine), client_fields(client)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
