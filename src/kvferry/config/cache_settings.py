"""What is cached, where, and how long it may take: each setting once, and what goes together."""

from __future__ import annotations

import os
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal

from kvferry.base.errors import ConfigError
from kvferry.base.shown import shown
from kvferry.config.file import read_small
from kvferry.config.peers import PeerSettings
from kvferry.config.setting import GB, Path, PolicyName, Settings, Text, setting, specs
from kvferry.config.spec import parsed_json
from kvferry.config.stores import StoreConfig

__all__ = ["CacheSettings", "named_stores", "read_calibration"]


_MIB = 1 << 20
_DAY_S = 86_400.0
Coefficient = Annotated[float, setting(ge=0, unit="seconds")]


class CacheSettings(PeerSettings, frozen=True, kw_only=True):
    """What is cached, where, and how long it may take.

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
        load_threads: The number of threads that run loads.
        write_queue_bytes_max: The most bytes that may wait to be written to the stores. A chunk
            beyond it is not stored, and counted.
        recompute: The choice between loading and computing: "auto" loads what is predicted to be
            quicker than computing it; "never" loads whatever is there.
        weights_version: The name of weights that were changed in place. Caches on the same stores
            share where they have the same name, or none.
        prefill_calibration_file: A JSON file that says what computing n tokens takes, which is
            ``a + c n + d n**2`` seconds: {"a_s": ..., "c_s_per_token": ..., "d_s_per_token2": ...}.
            Without it that is learned.
        remote_serde: The form of chunks in stores of type redis: "naive": as they are;
            "split12": bf16 numbers in three quarters of their bytes, without loss; "zstd": in
            fewer still, of other types too, by more computing; "auto": one of these, as loads have
            shown the link to be; "fp8": in a byte a number, which loses something, so a cache with
            it shares only with others that have it. All are read.
        stores: The stores of chunks beside L1 (L2), in the order in which they are asked.

    Raises:
        ConfigError: A setting cannot be, or contradicts another one.
    """

    guide: ClassVar = (
        *("chunk_size", "max_local_cpu_size", "eviction_policy", "retrieve_timeout_s"),
        *("lookup_timeout_s", "weights_version", "remote_serde"),
    )

    chunk_size: Annotated[int, setting(ge=1, le=1 << 20, unit="tokens")] = 256
    local_cpu: bool = True
    max_local_cpu_size: Annotated[float, setting(gt=0, le=1 << 20, unit="GB")] = 5.0
    eviction_policy: PolicyName = "LRU"
    hugetlb: bool = False
    prefault: bool = True
    enable_async_loading: bool = False
    retrieve_timeout_s: Annotated[float, setting(gt=0, le=_DAY_S, unit="seconds")] = 10.0
    lookup_timeout_s: Annotated[float, setting(gt=0, le=_DAY_S, unit="seconds")] | None = None
    load_threads: Annotated[int, setting(ge=1, le=256, unit="threads")] = 4
    write_queue_bytes_max: Annotated[int, setting(ge=0, le=1 << 50, unit="bytes")] = 1024 * _MIB
    recompute: Literal["auto", "never"] = "auto"
    weights_version: Text | None = None
    prefill_calibration_file: Path | None = None
    remote_serde: Literal["naive", "split12", "zstd", "fp8", "auto"] = "naive"
    stores: Annotated[tuple[StoreConfig, ...], setting(program=True)] = ()

    def _check(self) -> None:
        super()._check()
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
        if self.prefill_calibration_file is None:
            return None
        return read_calibration(self.prefill_calibration_file)


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


class _Calibration(Settings, frozen=True, kw_only=True):
    a_s: Coefficient
    c_s_per_token: Coefficient
    d_s_per_token2: Coefficient


def read_calibration(path: str | os.PathLike[str]) -> tuple[float, float, float]:
    """The coefficients of ``a + c n + d n**2`` seconds; other names in the file are left alone.

    Raises:
        ConfigError: The file is missing or malformed; the text names it.
    """
    where = f"prefill_calibration_file {path}"
    raw = read_small(FilePath(path), "prefill_calibration_file")
    found, problem = parsed_json(raw.decode(errors="replace"))
    known = specs(_Calibration)
    if problem is None and not isinstance(found, dict):
        problem = f"holds no object with {', '.join(known)}"
    if problem is not None:
        raise ConfigError(f"{where} {problem}")
    a, c, d = (spec.check(found.get(name), f"{where}: {name}") for name, spec in known.items())
    return a, c, d
