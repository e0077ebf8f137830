"""`KvferryTier` as the connector of a vLLM makes it, over rows of the test's own.

with Tier(shape, server.url, model) as one:
    one.look(KEYS), one.tier.submit_load(...), one.finished()
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from kvferry.integrations.vllm.tier.tier_identity import TierEngine
from support import clock
from support.vllm_offload_shapes import Request, VllmShape

__all__ = [
    "KEYS",
    "LIMIT_S",
    "PATIENT",
    "ROW",
    "ROWS",
    "Tier",
    "spec_of",
    "tiny_model",
    "vllm_config",
]

ROW, ROWS = 16 << 10, 8
LIMIT_S = 20.0
KEYS = [bytes([number]) * 32 + bytes(4) for number in range(1, ROWS + 1)]
PATIENT = {"lookup_timeout_ms": 10_000, "tuning": {"load_stall_s": 10}}


def tiny_model(directory: Path) -> Path:
    """The files of a model, as an identity reads them."""
    model = directory / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["Tiny"]}))
    (model / "model.safetensors").write_bytes(os.urandom(100))
    return model


def vllm_config(model: Path, **changes: Any) -> SimpleNamespace:
    """As much of a configuration as an identity reads."""
    made = SimpleNamespace(
        model_config=SimpleNamespace(model=str(model), revision=None, dtype="torch.float16"),
        cache_config=SimpleNamespace(
            cache_dtype="auto", block_size=16, prefix_caching_hash_algo="sha256"
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=2, pipeline_parallel_size=1, world_size=2
        ),
    )
    for path, value in changes.items():
        part, _, name = path.partition("__")
        setattr(getattr(made, part), name, value)
    return made


def spec_of(shape: VllmShape, config: Any, **changes: Any) -> Any:
    """An offloading spec of that version; `changes` are of its excerpt of the configuration."""
    if shape.version == "0.22.1":
        group = SimpleNamespace(
            kv_cache_spec=SimpleNamespace(block_size=16), layer_names=["0", "1"]
        )
        return SimpleNamespace(
            vllm_config=config,
            kv_cache_config=SimpleNamespace(kv_cache_groups=[group]),
            hash_block_size=16,
            block_size_factor=changes.get("blocks_per_chunk", 1),
        )
    excerpt = SimpleNamespace(
        groups=[SimpleNamespace(tokens_per_block=16, layer_names=("0", "1"))],
        model=SimpleNamespace(name=config.model_config.model, dtype="float16"),
        cache=SimpleNamespace(
            tokens_per_hash=16, blocks_per_chunk=changes.get("blocks_per_chunk", 1)
        ),
        parallel=SimpleNamespace(
            world_size=2, tp_size=2, pp_size=1, pcp_size=1, dcp_size=1, rank=0
        ),
        replicated_layout=changes.get("replicated_layout", False),
        canonical_layout=changes.get("canonical_layout", False),
        kv_cache_layout=changes.get("kv_cache_layout", "LBHNC"),
    )
    events = SimpleNamespace(enable_kv_cache_events=changes.get("events", False))
    return SimpleNamespace(config=excerpt, kv_events_config=events)


class Tier:
    """A tier as our connector makes it; `engine=None`: as vLLM's own does."""

    def __init__(self, shape: VllmShape, url: str, model: Path, **options: Any) -> None:
        self.shape = shape
        self.memory = mmap.mmap(-1, ROW * ROWS)
        changes, config = options.pop("changes", {}), options.pop("config", vllm_config(model))
        options.setdefault("engine", TierEngine(config))
        self.tier = shape.tier.KvferryTier(
            offloading_spec=spec_of(shape, config, **changes),
            primary_kv_view=memoryview(self.memory).cast("b").cast("B").cast("b", (ROWS, ROW)),
            tier_type="KvferryTier",
            url=url,
            **{**PATIENT, **options},
        )

    def row(self, index: int) -> bytes:
        """The bytes of a row."""
        return self.memory[index * ROW : (index + 1) * ROW]

    def finished(self) -> Any:
        """The next job that is over."""
        until = clock.now_s() + LIMIT_S
        while not (done := list(self.tier.get_finished_jobs())):
            assert clock.now_s() < until
        return done[0]

    def look(self, keys: list[bytes], request: Request | None = None) -> list[Any]:
        """What is there of these, for a request; "r" unless told."""
        until = clock.now_s() + LIMIT_S
        while True:
            self.tier.get_finished_jobs()
            answers = [self.tier.lookup(key, request or Request("r")) for key in keys]
            self.tier.on_schedule_end()
            if self.shape.retry not in answers:
                return answers
            assert clock.now_s() < until

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tier.shutdown()
        self.memory.close()
