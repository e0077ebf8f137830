"""The ways to KV that `kvferry bench engines` compares, each with what has to run beside it.

    with open_integration("mp", setting) as integration:
        integration.transfer                          # kv_transfer_config of the engine, or None

`none` has no cache. `tier`, `connector` and `mp` are ours, as their guides have them; `lmcache` is
LMCache's server with its RESP client, of the environment that has it. All use the same store.
A server that an integration needs is a process of its own, new each time, so that it brings nothing
along.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvferry.base.errors import StoreError
from kvferry_lab.servers.lab_server import HOST, free_port

__all__ = ["INTEGRATIONS", "IntegrationSetting", "OpenIntegration", "open_integration"]

INTEGRATIONS = ("none", "tier", "connector", "mp", "lmcache")
_OURS = "kvferry.integrations.vllm"
_START_S = 180.0
_STOP_S = 20.0
_GB = 1 << 30


@dataclass(frozen=True)
class IntegrationSetting:
    """What all integrations share.

    Attributes:
        store_port: Of the store, on this host.
        python: The engine's interpreter.
        environment: Variables for what runs in its environment.
        chunk_tokens: Size of a chunk. The tier's chunk is a block of the engine.
        memory_gb: What each integration may keep in memory of this host, beside the store.
        tier_spec: (spec_name, spec_module_path or None) of the tier's connector; None: its own.
    """

    store_port: int
    python: Path
    environment: Mapping[str, str]
    chunk_tokens: int = 256
    memory_gb: float = 0.5
    tier_spec: tuple[str, str | None] | None = None

    @property
    def store_url(self) -> str:
        """Of the store."""
        return f"redis://{HOST}:{self.store_port}"


@dataclass(frozen=True)
class OpenIntegration:
    """An engine's settings, and the process of the server beside it, where there is one."""

    transfer: dict[str, Any] | None
    server_pid: int | None = None


@contextmanager
def open_integration(name: str, setting: IntegrationSetting) -> Iterator[OpenIntegration]:
    """What runs beside an engine of this integration, and how the engine is told.

    Raises:
        StoreError: A server that it needs does not start.
    """
    if name == "none":
        yield OpenIntegration(None)
    elif name == "tier":
        module = f"{_OURS}.tier"
        yield OpenIntegration(_transfer("KvferryTierConnector", module, _tier(setting)))
    elif name == "connector":
        values = {
            "remote_url": setting.store_url,
            "chunk_size": setting.chunk_tokens,
            "max_local_cpu_size": setting.memory_gb,
        }
        transfer = _transfer("KvferryConnector", f"{_OURS}.connector", _prefixed(values))
        yield OpenIntegration(transfer)
    elif name == "mp":
        with _kvferry_server(setting) as (port, pid):
            values = {
                "mp.host": f"tcp://{HOST}",
                "mp.port": port,
                "chunk_size": setting.chunk_tokens,
            }
            transfer = _transfer("KvferryMPConnector", f"{_OURS}.mp", _prefixed(values))
            yield OpenIntegration(transfer, pid)
    elif name == "lmcache":
        with _lmcache_server(setting) as (port, pid):
            extra = {"lmcache.mp.host": f"tcp://{HOST}", "lmcache.mp.port": port}
            yield OpenIntegration(_transfer("LMCacheMPConnector", None, extra), pid)
    else:
        raise ValueError(f"no integration {name!r}")


def _transfer(name: str, module: str | None, extra: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "kv_connector": name,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": dict(extra),
    }
    return {**made, "kv_connector_module_path": module} if module else made


def _prefixed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"kvferry.{name}": value for name, value in values.items()}


def _tier(setting: IntegrationSetting) -> dict[str, Any]:
    tier = {"type": "KvferryTier", "module_path": f"{_OURS}.tier", "url": setting.store_url}
    name, module = setting.tier_spec or (None, None)
    given = {"spec_name": name, "spec_module_path": module}
    return {
        **{key: value for key, value in given.items() if value},
        "cpu_bytes_to_use": int(setting.memory_gb * _GB),
        "secondary_tiers": [tier],
    }


@contextmanager
def _kvferry_server(setting: IntegrationSetting) -> Iterator[tuple[int, int]]:
    """Its port and its process."""
    port = free_port()
    store = json.dumps({"type": "resp", "host": HOST, "port": setting.store_port})
    command = [
        *(sys.executable, "-m", "kvferry.cli.main", "server", "--port", str(port), "--no-http"),
        *("--l1-size-gb", str(setting.memory_gb), "--l2-adapter", store),
        *("--shm-name", f"kvferry-bench-{os.getpid()}"),
    ]
    with _running(command, None, port) as pid:
        yield port, pid


@contextmanager
def _lmcache_server(setting: IntegrationSetting) -> Iterator[tuple[int, int]]:
    port = free_port()
    store = json.dumps({"type": "resp", "host": HOST, "port": setting.store_port})
    command = [
        *(str(setting.python.with_name("lmcache")), "server", "--host", HOST),
        *("--port", str(port), "--l1-size-gb", str(setting.memory_gb)),
        *("--eviction-policy", "LRU", "--chunk-size", str(setting.chunk_tokens)),
        *("--supported-transfer-mode", "engine_driven", "--l2-adapter", store),
    ]
    with _running(command, {**setting.environment, "LMCACHE_TRACK_USAGE": "false"}, port) as pid:
        yield port, pid


@contextmanager
def _running(
    command: Sequence[str], environment: Mapping[str, str] | None, port: int
) -> Iterator[int]:
    """A server that listens, its process; it is ended, and killed if that takes long."""
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        try:
            until = time.monotonic() + _START_S
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > until:
                    raise StoreError(f"{command[0]} did not start: {log.read_text()[-800:]}")
                time.sleep(0.05)
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)  # a stopped one would not hear of its end
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as knock:
        knock.settimeout(1.0)
        return knock.connect_ex((HOST, port)) == 0
