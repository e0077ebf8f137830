"""Engines behind each door to KV, several at a time on one device.

    with Engines(lane, [Door("connector", memory_gb=10, store=url), Door("vllm", memory_gb=10)],
                 kv_gb=6.5, longest=40_000) as engines:
        engines["connector"].generate(...)

A door is a way to KV that is compared: `none`; `vllm`, its own tier in host memory; `connector`,
`mp` and `tier`, ours. The engines start at the same time, each in a process of its own; one that
does not start is left out, with the reason in the sheet. Weights are dummies: no time depends on
what they are, and equal answers prove little.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from engine_lane.model_maker import SHAPES

from gpu_lane.sheet import Sheet
from kvferry_lab.engines.engine_process import EngineChild, EngineProcess
from kvferry_lab.servers.lab_server import HOST, free_port

__all__ = ["Door", "Engines", "Lane", "shortened", "write_model"]

_OURS = "kvferry.integrations.vllm"
_GB = 1 << 30
_START_S, _SERVER_START_S, _STOP_S = 100.0, 40.0, 10.0
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "deepseek_v2": "DeepseekV2ForCausalLM"}
_BATCHED = 8192
_STARTED = itertools.count(1)
_FIRST, _LAST = 600, 1500  # characters of an error: what, and the end of where
_WEIGHTS_GB, _SPARE_GB = 18.0, 4.0  # with what a step needs beside them


@dataclass(frozen=True)
class Lane:
    """What all engines of a run share.

    Attributes:
        python: Their interpreter.
        device: "cuda" or "cpu".
        device_gb: Its memory, GB of 2^30 bytes.
        environment: Their variables.
        model: A folder.
        block_size: Tokens of a block of the engine.
        logs: A folder, for what they print.
        slow: How many times longer one may take to start.
    """

    python: Path
    device: str
    device_gb: float
    environment: Mapping[str, str]
    model: Path
    block_size: int
    logs: Path
    slow: float = 1.0

    def room(self, kv_gb: float) -> int:
        """How many engines fit, each with the weights of 8 billion parameters and such a KV."""
        return max(1, int((self.device_gb - _SPARE_GB) / (_WEIGHTS_GB + kv_gb)))


@dataclass(frozen=True)
class Door:
    """One way to KV.

    Attributes:
        kind: See the module.
        memory_gb: Of the host, for chunks.
        store: The URL of a store behind it; empty: none.
        name: What the sheet calls it; default: its kind.
        settings: More of the engine.
    """

    kind: str
    memory_gb: float = 0.0
    store: str = ""
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def write_model(folder: Path, shape: str, longest: int) -> Path:
    """The configuration of a model without weights, of a shape of `SHAPES`."""
    kind, _, values = SHAPES[shape]
    if kind == "deepseek_v2":  # FlashAttention 3 has kernels for no smaller heads
        values = {**values, "qk_nope_head_dim": 128, "v_head_dim": 128}
    config = {
        "model_type": kind,
        "architectures": [_ARCHITECTURES[kind]],
        "vocab_size": 32_000,
        "max_position_embeddings": longest,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **values,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


class Engines:
    """See the module. A mapping of names to engines while it is open.

    Args:
        kv_gb: Of the device's memory for KV, each.
        longest: The longest prompt with its answer, tokens.
    """

    def __init__(
        self, lane: Lane, doors: Sequence[Door], sheet: Sheet, *, kv_gb: float, longest: int
    ) -> None:
        self._lane, self._doors, self._sheet = lane, doors, sheet
        self._kv_gb, self._longest = kv_gb, longest
        self._stack = contextlib.ExitStack()
        self.open: dict[str, EngineProcess] = {}

    def __enter__(self) -> Self:
        began = time.monotonic()
        with ThreadPoolExecutor(max(1, len(self._doors))) as pool:
            started = [(door, pool.submit(self._start, door)) for door in self._doors]
        for door, future in started:
            name = door.name or door.kind
            try:
                self.open[name] = future.result()
            except Exception as error:
                self._sheet.row(f"{name} did not start", error=shortened(error))
        self._sheet.row("engines are open", names=" ".join(self.open), s=time.monotonic() - began)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end = EngineProcess.close if kind is None else EngineProcess.kill
        with ThreadPoolExecutor(max(1, len(self.open))) as pool:
            list(pool.map(end, self.open.values()))
        self._stack.close()

    def each(self, turn: int) -> Iterator[tuple[str, EngineProcess]]:
        """All that are open, in an order that turns by one with each turn."""
        names = list(self.open)
        for name in names[turn % max(1, len(names)) :] + names[: turn % max(1, len(names))]:
            if name in self.open:
                yield name, self.open[name]

    def give_up(self, name: str, error: Exception) -> None:
        """One that failed takes no further part."""
        self.open.pop(name).kill()
        self._sheet.row(f"{name} failed", error=shortened(error))

    def _start(self, door: Door) -> EngineProcess:
        lane, name = self._lane, door.name or door.kind
        engine: dict[str, Any] = {
            "model": str(lane.model),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "dtype": "bfloat16",
            "enforce_eager": True,
            "block_size": lane.block_size,
            "max_model_len": self._longest,
            "max_num_seqs": 16,
            "max_num_batched_tokens": _BATCHED,
            "enable_prefix_caching": True,
            # vLLM 0.22.1 in one process fails at the first statistics of its own tier.
            "disable_log_stats": door.kind in ("vllm", "tier"),
            "seed": 0,
            **door.settings,
        }
        if lane.device == "cuda":
            engine |= {
                "gpu_memory_utilization": 0.05,
                "kv_cache_memory_bytes": int(self._kv_gb * _GB),
            }
        transfer = self._transfer(door)
        if transfer:
            engine["kv_transfer_config"] = {"kv_role": "kv_both", **transfer}
        log = lane.logs / f"{os.getpid()}-{name}-{next(_STARTED)}.log"
        environment = {
            **lane.environment,
            "PYTHONFAULTHANDLER": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(max(1, round(self._kv_gb))),
        }
        return EngineProcess(
            lane.python,
            engine,
            environment,
            one_process=True,
            threads=2,
            limit_s=_START_S * max(1.0, lane.slow),
            log=log,
        )

    def _transfer(self, door: Door) -> dict[str, Any]:
        memory = int(door.memory_gb * _GB)
        if door.kind == "none":
            return {}
        if door.kind in ("vllm", "tier"):
            extra: dict[str, Any] = {"cpu_bytes_to_use": memory}
            if self._lane.device == "cpu":  # vLLM's own worker wants a GPU
                extra |= {"spec_name": "CpuTieringSpec", "spec_module_path": "cpu_tiering"}
            if door.kind == "vllm":
                return {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}
            tier = {"type": "KvferryTier", "module_path": f"{_OURS}.tier", "url": door.store}
            extra["secondary_tiers"] = [tier] if door.store else []
            return _ours("KvferryTierConnector", "tier", extra)
        if door.kind == "mp":
            server = self._stack.enter_context(_CacheServer(self._lane, door))
            where = {"kvferry.mp.host": f"tcp://{HOST}", "kvferry.mp.port": server.port}
            return _ours("KvferryMPConnector", "mp", where)
        values: dict[str, Any] = {
            "kvferry.max_local_cpu_size": door.memory_gb,
            "kvferry.recompute": "never",
        }
        if door.store:
            values["kvferry.remote_url"] = door.store
        return _ours("KvferryConnector", "connector", values)


def _ours(name: str, module: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kv_connector": name,
        "kv_connector_module_path": f"{_OURS}.{module}",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": dict(extra),
    }


class _CacheServer(EngineChild):
    """`kvferry server`, which listens on `port`."""

    def __init__(self, lane: Lane, door: Door) -> None:
        self.port = free_port()
        words = ["--port", str(self.port), "--no-http", "--l1-size-gb", str(door.memory_gb)]
        words += ["--shm-name", f"gpu-lane-{os.getpid()}-{self.port}"]
        if door.store:
            words += ["--l2-adapter", json.dumps({"type": "valkey", "url": door.store})]
        command = [sys.executable, "-m", "kvferry.cli.main", "server", *words]
        super().__init__(command, lane.logs / f"{os.getpid()}-server-{self.port}.log")
        until = time.monotonic() + _SERVER_START_S * max(1.0, lane.slow)
        while not _listens(self.port):
            if self._process.poll() is not None or time.monotonic() > until:
                failed = self._failed("the cache server does not listen")
                self.kill()
                raise failed
            time.sleep(0.05)

    def close(self) -> None:
        """SIGTERM, and some seconds."""
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        self.kill()


def shortened(error: Exception) -> str:
    """The exception, which comes first, and the end of the log."""
    what, _, log = str(error).partition("\n")
    return f"{type(error).__name__}: {what[:_FIRST]}\n{log[-_LAST:]}"


def _listens(port: int) -> bool:
    with socket.socket() as knock:
        knock.settimeout(1.0)
        return knock.connect_ex((HOST, port)) == 0
