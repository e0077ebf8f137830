"""All settings of an engine, as one frozen object that is checked when it is made."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from msgspec.structs import asdict

from kvferry.config.setting import GB, Path, PolicyName, Settings, Text, setting
from kvferry.config.stores import StoreConfig
from kvferry.errors import ConfigError, UsageError

__all__ = ["EngineConfig", "chosen_config", "named_stores"]

_log = logging.getLogger("kvferry.config")

_MIB = 1 << 20
_DAY_S = 86_400.0
COEFFICIENTS = ("prefill_a_s", "prefill_c_s_per_token", "prefill_d_s_per_token2")
Coefficient = Annotated[float, setting(ge=0, unit="seconds")]


class EngineConfig(Settings, frozen=True, kw_only=True):
    """What an engine caches, where, and how long it may take.

    Attributes:
        chunk_size: Tokens of a chunk, the unit of caching.
        local_cpu: Keep chunks in memory of this host (L1). Without, that memory is a way through.
        max_local_cpu_size: Size of that memory in GB (2**30 bytes, as LMCache counts them).
        eviction_policy: What leaves it first: "LRU", "LFU", "FIFO", "S3-FIFO", "ARC", "W-TinyLFU".
        hugetlb: Take it from the system's huge pages, which must have been set aside.
        prefault: Touch it at the start, so that no request pays for its first use.
        save_unfull_chunk: False: what is behind the last full chunk is computed again.
        remote_serde: "naive": bytes are stored as they are.
        enable_async_loading: `lookup` begins to load, so that `retrieve` finds it in memory.
        retrieve_timeout_s: The longest that a retrieve may take; what has arrived by then counts.
        lookup_timeout_s: The longest that a lookup may wait for stores. None: as long as an answer
            can pay; where nobody knows what computing takes, for 3 seconds.
        load_threads: Threads that run loads.
        write_queue_bytes_max: Bytes that may wait to be written to the stores; beyond it a chunk
            is not stored, and counted.
        recompute: "auto" loads what is predicted to be quicker than computing it; "never" loads
            whatever is there.
        weights_version: Of engines on the same stores, those with the same name share; for weights
            that were changed in place. None: those that have none either.
        prefill_a_s: The fixed part of the time that computing n tokens takes, which is
            ``a + c n + d n**2``; without `prefill_c_s_per_token` all of it is learned.
        prefill_c_s_per_token: Its part of each token.
        prefill_d_s_per_token2: Its part of each pair of tokens.
        prefill_calibration_file: A JSON file with these three: {"a_s": ..., "c_s_per_token": ...,
            "d_s_per_token2": ...}. See `prefill`.
        stores: Where chunks are beside L1 (L2), in the order in which they are asked.

    Raises:
        ConfigError: A setting cannot be, or contradicts another one.
    """

    guide: ClassVar = (
        *("chunk_size", "local_cpu", "max_local_cpu_size", "eviction_policy", "hugetlb"),
        *("retrieve_timeout_s", "lookup_timeout_s", "recompute", "weights_version", "stores"),
    )

    chunk_size: Annotated[int, setting(ge=1, le=1 << 20, unit="tokens")] = 256
    local_cpu: bool = True
    max_local_cpu_size: Annotated[float, setting(gt=0, le=1 << 20, unit="GB")] = 5.0
    eviction_policy: PolicyName = "LRU"
    hugetlb: bool = False
    prefault: bool = True
    save_unfull_chunk: bool = False
    remote_serde: Text | None = "naive"
    enable_async_loading: bool = False
    retrieve_timeout_s: Annotated[float, setting(gt=0, le=_DAY_S, unit="seconds")] = 10.0
    lookup_timeout_s: Annotated[float, setting(gt=0, le=_DAY_S, unit="seconds")] | None = None
    load_threads: Annotated[int, setting(ge=1, le=256, unit="threads")] = 4
    write_queue_bytes_max: Annotated[int, setting(ge=0, le=1 << 50, unit="bytes")] = 1024 * _MIB
    recompute: Literal["auto", "never"] = "auto"
    weights_version: Text | None = None
    prefill_a_s: Coefficient | None = None
    prefill_c_s_per_token: Coefficient | None = None
    prefill_d_s_per_token2: Coefficient | None = None
    prefill_calibration_file: Path | None = None
    stores: Annotated[tuple[StoreConfig, ...], setting(program=True)] = ()

    def _check(self) -> None:
        for problem in contradictions(asdict(self)):
            raise ConfigError(problem)
        self._set("stores", named_stores(self.stores))

    @property
    def l1_bytes(self) -> int:
        """`max_local_cpu_size` in bytes."""
        return int(self.max_local_cpu_size * GB)

    @property
    def prefill(self) -> tuple[float, float, float] | None:
        """The coefficients a, c and d of prefill, in seconds; None if they are to be learned.

        Raises:
            ConfigError: `prefill_calibration_file` is missing or malformed.
        """
        if self.prefill_calibration_file is not None:
            from kvferry.config.calibration import read_calibration

            return read_calibration(self.prefill_calibration_file)
        if self.prefill_c_s_per_token is None:
            return None
        return (
            self.prefill_a_s or 0.0,
            self.prefill_c_s_per_token,
            self.prefill_d_s_per_token2 or 0.0,
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        section: str = "engine",
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
        from kvferry.config.sources import examine

        found = examine(path, section=section, environ=environ, **overrides)
        config = cls(**found.settings())
        for text in found.warnings:
            _log.warning("%s", text)
        for text in found.notes:
            _log.info("%s", text)
        return config


def chosen_config(
    chunk_size: int, config: EngineConfig | None, settings: dict[str, Any]
) -> EngineConfig:
    """The settings of an engine with such chunks: those given, or single ones from all sources.

    Raises:
        ConfigError: They name another chunk size, or one cannot be.
        UsageError: Both are given.
    """
    if config is None:
        config = EngineConfig.load(**{"chunk_size": chunk_size, **settings})
    elif settings:
        raise UsageError("pass either config or single settings, not both")
    if config.chunk_size not in (chunk_size, EngineConfig().chunk_size):
        raise ConfigError(
            f"chunk_size is {config.chunk_size} in the settings and {chunk_size} in the layout; "
            "make them equal"
        )
    return config


def contradictions(settings: Mapping[str, Any]) -> list[str]:
    """What does not go together, or not with us, in a full set of checked settings."""
    problems = []
    if settings["save_unfull_chunk"]:
        problems.append(
            "save_unfull_chunk=True is not possible: values of one length need full chunks, and "
            "the rest of a prompt is computed again; set it to false"
        )
    if settings["remote_serde"] not in (None, "naive"):
        problems.append(
            f"remote_serde={settings['remote_serde']!r} is not here: bytes are stored as they are; "
            "use naive"
        )
    given = [name for name in COEFFICIENTS if settings[name] is not None]
    if given and settings["prefill_c_s_per_token"] is None:
        problems.append(f"{given[0]} is set without prefill_c_s_per_token; set both")
    if given and settings["prefill_calibration_file"] is not None:
        problems.append(f"{given[0]} and prefill_calibration_file are the same; keep one")
    return problems


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
            raise ConfigError(f"name={name!r} is {why}; rename one")
    named: list[StoreConfig] = []
    for store in stores:
        if not store.name:
            free = (f"{store.type}{'' if n == 1 else f'-{n}'}" for n in range(1, len(stores) + 2))
            store = store.replace(name=next(name for name in free if name not in taken))
            taken.append(store.name)
        named.append(store)
    return tuple(named)
