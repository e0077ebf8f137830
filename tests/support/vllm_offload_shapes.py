"""Stand-ins for the parts of vLLM that our tier touches, in the shapes of two versions.

    old_vllm, new_vllm    fixtures: modules named ``vllm...`` that look like 0.22.1 or 0.32.0 for as
                          long as a test runs; the value has what the test needs of them

Only names, arguments and enumerations are like vLLM's. What it really does is tested on the real
one, in tests/engines.
"""

from __future__ import annotations

import enum
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

_BASE = "vllm.v1.kv_offload.base"
_TIERING = "vllm.v1.kv_offload.tiering"
_METRICS = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics"
OURS = ("tier", "spec")


class Lookup(enum.Enum):
    MISS = 1
    HIT = 2
    HIT_PENDING = 3
    RETRY = 4


class Medium(enum.Enum):
    CPU = "CPU"
    STORAGE = "STORAGE"


class Locality(enum.Enum):
    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


@dataclass
class Request:
    req_id: str
    kv_transfer_params: Any = None


@dataclass
class NewJob:
    job_id: int
    keys: list[bytes]
    chunk_ids: list[int]


@dataclass
class OldJob:
    job_id: int
    keys: list[bytes]
    block_ids: list[int]


@dataclass
class NewResult:
    job_id: int
    success: bool
    successful_keys: Any = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


@dataclass
class OldResult:
    job_id: int
    success: bool


class NewBase:
    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
    ) -> None:
        self._primary_kv_view = primary_kv_view
        self.tier_type = tier_type
        self.locality: Any = None
        self.bp_detector = backpressure_detector

    def submit_load(self, job_metadata: Any) -> None: ...

    def get_finished_jobs(self) -> Any: ...


class OldBase:
    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str) -> None:
        self._primary_kv_view = primary_kv_view
        self.tier_type = tier_type

    def submit_load(self, job_metadata: Any) -> None: ...

    def get_finished(self) -> Any: ...


@dataclass
class Stats:
    """What a tier reports: name, labels, value of each observation."""

    seen: list[tuple[str, tuple[str, ...], float]] = field(default_factory=list)

    def _add(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        self.seen.append((name, labels, value))

    increase_counter = set_gauge = observe_histogram = _add


class Registry:
    def __init__(self) -> None:
        self._registry: dict[str, tuple[str, str]] = {}

    def register_tier(self, name: str, module: str, class_name: str) -> None:
        if name in self._registry:
            raise ValueError(f"{name} is registered")
        self._registry[name] = (module, class_name)


class TieringSpec:
    """A spec whose manager is `manager`."""

    manager: Any = None

    def get_manager(self) -> Any:
        return self.manager


class VllmShape:
    """What a test needs of a version that is being imitated.

    Attributes:
        tier: Our module `tier`, imported against it.
        spec: Our module `spec`.
        job: ``job(job_id, keys, rows)``.
        hit, miss, retry: Answers to lookups.
    """

    def __init__(self, version: str) -> None:
        new = version != "0.22.1"
        self.version = version
        self.job: Callable[[int, list[bytes], list[int]], Any] = NewJob if new else OldJob
        self.hit: Any = Lookup.HIT if new else True
        self.miss: Any = Lookup.MISS if new else False
        self.retry: Any = Lookup.RETRY if new else None
        self.registry = Registry()
        base = SimpleNamespace()
        if new:
            base = SimpleNamespace(
                LookupResult=Lookup, Medium=Medium, Locality=Locality, RequestOffloadingContext=dict
            )
            for kind in ("Counter", "Gauge", "Histogram"):
                setattr(base, f"Offloading{kind}Metadata", _definition(kind))
            base.OffloadingEvent = SimpleNamespace
        tiering = {
            "SecondaryTierManager": NewBase if new else OldBase,
            "JobResult": NewResult if new else OldResult,
        }
        self.modules = {
            "vllm.logger": {"init_logger": importlib.import_module("logging").getLogger},
            _BASE: vars(base),
            f"{_TIERING}.base": tiering,
            f"{_TIERING}.factory": {"SecondaryTierFactory": self.registry},
            f"{_TIERING}.spec": {"TieringOffloadingSpec": TieringSpec},
            _METRICS: {"OffloadingConnectorStats": Stats},
            "vllm.platforms": {
                "current_platform": SimpleNamespace(
                    device_type="cuda", get_device_name=lambda: "Fast GPU"
                )
            },
        }
        self.tier: Any = None
        self.spec: Any = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put the modules where imports find them, and import ours anew."""
        for name, members in self.modules.items():
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                path = ".".join(parts[:length])
                if path not in sys.modules or path == name:
                    monkeypatch.setitem(sys.modules, path, ModuleType(path))
                if length > 1:
                    parent = sys.modules[".".join(parts[: length - 1])]
                    setattr(parent, parts[length - 1], sys.modules[path])
            vars(sys.modules[name]).update(members)
        for name in OURS:
            monkeypatch.delitem(sys.modules, f"kvferry.integrations.vllm.{name}", raising=False)
        self.tier = importlib.import_module("kvferry.integrations.vllm.tier")
        self.spec = importlib.import_module("kvferry.integrations.vllm.spec")
        for name in OURS:  # so that they are forgotten when the test is over
            module = sys.modules.pop(f"kvferry.integrations.vllm.{name}")
            monkeypatch.setitem(sys.modules, f"kvferry.integrations.vllm.{name}", module)


def _definition(kind: str) -> Callable[..., Any]:
    def made(**members: Any) -> Any:
        return SimpleNamespace(kind=kind, **members)

    return made
