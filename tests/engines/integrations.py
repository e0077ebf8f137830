"""The ways by which a vLLM gets its KV from us, for scenarios that are written once for all.

    integration = INTEGRATIONS["connector"]
    with integration.behind(store_url, folder, vllm.version) as transfer:   # kv_transfer_config

none        no cache: what all others are compared with
tier        KvferryTierConnector: a secondary tier under vLLM's own OffloadingConnector
connector   KvferryConnector, in the engine's process
mp          KvferryMPConnector, over a `kvferry server` of its own, which ends with the ``with``

Chunks are of 32 tokens, one block of these engines. Each integration's own memory is 64 MiB and
new, so a first load comes from the store. What is there is loaded even where so small a model
computes it sooner. `behind(..., **settings)` adds settings of kvferry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.cache_server import CacheServerProcess

CHUNK = 32  # tokens
MIB = 1 << 20
PATIENCE_S = 5  # a lookup may take so long: other tests may be at work on the same cores
Transfer = dict[str, Any] | None
Behind = Callable[..., AbstractContextManager[Transfer]]


@dataclass(frozen=True)
class Integration:
    """One way.

    Attributes:
        behind: ``behind(url, folder, version, **settings)``: a context with its kv_transfer_config.
    """

    name: str
    behind: Behind


def connector(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A kv_transfer_config as users write it: vLLM knows the name by our entry point."""
    return {
        "kv_connector": name,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": dict(settings),
    }


@contextmanager
def _none(url: str, folder: Path, version: str, **settings: Any) -> Iterator[Transfer]:
    yield None


@contextmanager
def _tier(url: str, folder: Path, version: str, **settings: Any) -> Iterator[Transfer]:
    limits = {"lookup_timeout_ms": 1000 * PATIENCE_S, "tuning": {"load_stall_s": PATIENCE_S}}
    extra = {
        "spec_name": "CpuTieringSpec",  # vLLM's own wants a GPU
        "spec_module_path": "cpu_tiering",
        "cpu_bytes_to_use": 64 * MIB,
        "secondary_tiers": [{"type": "KvferryTier", "url": url, **limits, **settings}],
    }
    yield connector("KvferryTierConnector", extra)


@contextmanager
def _connector(url: str, folder: Path, version: str, **settings: Any) -> Iterator[Transfer]:
    chosen = {
        "remote_url": url,
        "chunk_size": CHUNK,
        "max_local_cpu_size": 0.0625,
        "lookup_timeout_s": PATIENCE_S,
        "recompute": "never",
        **settings,
    }
    extra = {f"kvferry.{name}": value for name, value in chosen.items()}
    yield connector("KvferryConnector", extra)


@contextmanager
def _mp(url: str, folder: Path, version: str, **settings: Any) -> Iterator[Transfer]:
    store = json.dumps({"type": "resp", "url": url})
    never = {"KVFERRY_RECOMPUTE": "never"}
    with CacheServerProcess(folder, "--l2-adapter", store, mib=64, **never) as server:
        chosen = {"mp.host": server.endpoint, "chunk_size": CHUNK, "lookup_timeout_s": PATIENCE_S}
        extra = {f"kvferry.{name}": value for name, value in (chosen | settings).items()}
        yield connector("KvferryMPConnector", extra)


INTEGRATIONS = {
    integration.name: integration
    for integration in (
        Integration("none", _none),
        Integration("tier", _tier),
        Integration("connector", _connector),
        Integration("mp", _mp),
    )
}
