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
_CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1"
_METRICS = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics"
OURS = {
    "tier": "kvferry.integrations.vllm.tier.secondary_tier",
    "spec": "kvferry.integrations.vllm.spec",
    "tier_connector": "kvferry.integrations.vllm.tier.tier_connector",
}


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


class Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


@dataclass
class OffloadState:
    """What the connector's scheduler has of a request; 0.22.1 has no limit of what it offloads."""

    req: Any
    group_states: list[Any] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)


@dataclass
class NewOffloadState(OffloadState):
    max_offload_tokens: int | None = None


class Connector:
    """An ``OffloadingConnector``: names the blocks of requests when it is asked what matches."""

    state: Any = OffloadState

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self.given = vllm_config
        self.connector_scheduler = SimpleNamespace(_req_status={})

    def on_new_request(self, request: Any) -> None:
        self._state(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        state = self._state(request)
        if not request.skip_reading_prefix_cache:
            state.keys += state.req.block_hashes[len(state.keys) :]
        return len(state.keys), False

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return scheduler_output

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, *more: Any) -> Any:
        return vllm_config.kv_transfer_config.kv_connector_extra_config, more

    def _max_loadable_tokens(self, request: Any, num_computed_tokens: int) -> int | None:
        return len(request.block_hashes)

    def _state(self, request: Any) -> Any:
        made = self.state(request, [SimpleNamespace(next_stored_block_idx=0)])
        return self.connector_scheduler._req_status.setdefault(request.request_id, made)


class NewConnector(Connector):
    state = NewOffloadState


class TieringSpec:
    """A spec whose manager is `manager`."""

    manager: Any = None

    def get_manager(self) -> Any:
        return self.manager


class VllmShape:
    """What a test needs of a version that is being imitated.

    Attributes:
        tier, spec, tier_connector: Our modules, imported against it.
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
            f"{_TIERING}.manager": {"TieringOffloadingManager": _manager(new)},
            f"{_CONNECTORS}.base": {"KVConnectorRole": Role},
            f"{_CONNECTORS}.offloading_connector": {
                "OffloadingConnector": NewConnector if new else Connector
            },
            "vllm.v1.engine.core": {"EngineCore": type("EngineCore", (), _core())},
            _METRICS: {"OffloadingConnectorStats": Stats},
            "vllm.platforms": {
                "current_platform": SimpleNamespace(
                    device_type="cuda", get_device_name=lambda: "Fast GPU"
                )
            },
        }
        self.tier: Any = None
        self.spec: Any = None
        self.tier_connector: Any = None

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
        for path in OURS.values():
            monkeypatch.delitem(sys.modules, path, raising=False)
        for name, path in OURS.items():
            setattr(self, name, importlib.import_module(path))
        for path in OURS.values():  # so that they are forgotten when the test is over
            monkeypatch.setitem(sys.modules, path, sys.modules.pop(path))


def _manager(ends_steps: bool) -> type:
    members = {"on_schedule_end": lambda self, context: None} if ends_steps else {}
    return type("TieringOffloadingManager", (), members)


def _core() -> dict[str, Any]:
    return {"add_lora": lambda self, lora: True, "remove_lora": lambda self, number: True}


def _definition(kind: str) -> Callable[..., Any]:
    def made(**members: Any) -> Any:
        return SimpleNamespace(kind=kind, **members)

    return made
