"""Clients under test that few hosts have: GLIDE, LMCache's RESP client, memtier_benchmark."""

from __future__ import annotations

import json
import resource
import select
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvferry.config import ClientConfig
from kvferry.errors import CorruptError, UnavailableError, UsageError
from kvferry.lab.bench_adapters import InProcess, NotInstalled, ThreadedClient, load
from kvferry.lab.bench_data import Value
from kvferry.lab.bench_server import ServerProbe

__all__ = ["GlideClient", "LMCacheClient", "MemtierClient"]

_TIMEOUT_MS = 60_000


class GlideClient(ThreadedClient):
    """valkey-glide-sync: N clients, one thread each; GET fills the caller's buffer."""

    def __init__(self, config: ClientConfig, connections: int) -> None:
        glide = load("glide_sync", "valkey-glide-sync")
        if config.unix_path is not None:
            raise UsageError("glide speaks TCP only; give --host and --port")
        credentials = None
        if config.password is not None:
            credentials = glide.ServerCredentials(config.password, config.username)
        settings = glide.GlideClientConfiguration(
            [glide.NodeAddress(config.host, config.port)],
            credentials=credentials,
            database_id=config.db,
            request_timeout=_TIMEOUT_MS,
        )
        super().__init__("glide", lambda: glide.GlideClient.create(settings), connections)

    def exists_batch(self, keys: Sequence[str]) -> int:
        return sum(self._each(lambda link, i: int(link.exists([keys[i]])), len(keys)))

    def _get(self, link: Any, key: str, target: Value) -> Value | None:
        size = link.get(key, memoryview(target))
        return None if size is None else memoryview(target)[: int(size)]


class LMCacheClient(InProcess):
    """LMCache's native RESP client, as its own connector drives it: submit, wait, drain."""

    name = "lmcache"

    def __init__(self, config: ClientConfig, connections: int) -> None:
        module = load("lmcache.lmcache_redis", "lmcache")
        if config.unix_path is not None:
            raise UsageError("lmcache speaks TCP only; give --host and --port")
        self.connections = connections
        self._client = module.LMCacheRedisClient(
            config.host, config.port, connections, config.username or "", config.password or ""
        )
        self._event_fd = self._client.event_fd()

    def set_batch(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        self._wait(self._client.submit_batch_set(list(keys), list(values)))

    def get_batch(self, keys: Sequence[str], targets: Sequence[Value]) -> Sequence[Value | None]:
        found = self._wait(self._client.submit_batch_get(list(keys), list(targets)))
        return [target if hit else None for target, hit in zip(targets, found, strict=True)]

    def exists_batch(self, keys: Sequence[str]) -> int:
        return sum(self._wait(self._client.submit_batch_exists(list(keys))))

    def close(self) -> None:
        self._client.close()

    def _wait(self, wanted: int) -> list[bool]:
        while True:
            if not select.select([self._event_fd], [], [], _TIMEOUT_MS / 1e3)[0]:
                raise UnavailableError("lmcache's client did not complete a batch")
            for future_id, ok, error, found in self._client.drain_completions():
                if future_id == wanted:
                    if not ok:
                        raise UnavailableError(f"lmcache's client failed: {error}")
                    return found or []


class MemtierClient:
    """memtier_benchmark as a child: it makes, counts and times its own commands.

    What it reads cannot be seen from here, so its rows have 0 verified bytes: they say what
    memtier counted, and only when it missed nothing. `wall_s` is its own account of the last
    batch; `connections` are threads with one connection each.
    """

    name = "memtier"

    def __init__(self, config: ClientConfig, connections: int) -> None:
        program = shutil.which("memtier_benchmark")
        if program is None:
            raise NotInstalled("memtier_benchmark is not on PATH; see its project's page")
        if config.password is not None:
            raise UsageError("memtier takes a password on its command line only; it gets none")
        where = ["-s", config.host, "-p", str(config.port)]
        if config.unix_path is not None:
            where = ["-S", config.unix_path]
        self.connections = connections
        self.wall_s: float | None = None
        self._config = config
        self._keys: set[str] = set()
        self._base = [program, *where, "-c", "1", "-t", str(connections), "--hide-histogram"]

    def set_batch(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        self._run("1:0", keys, len(values[0]), "Sets")

    def get_batch(self, keys: Sequence[str], targets: Sequence[Value]) -> Sequence[Value | None]:
        self._run("0:1", keys, len(targets[0]), "Gets")
        return []

    def exists_batch(self, keys: Sequence[str]) -> int:
        raise UsageError("memtier has no EXISTS")

    def cpu_s(self) -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def close(self) -> None:
        """Remove its keys; nothing else is left between batches."""
        with ServerProbe(self._config) as probe:
            probe.delete(sorted(self._keys))

    def _run(self, ratio: str, keys: Sequence[str], size_bytes: int, kind: str) -> None:
        each = len(keys) // self.connections
        if each * self.connections != len(keys):
            raise UsageError("memtier needs a batch that its connections divide evenly")
        prefix = f"{keys[0].rpartition(':')[0]}:memtier-"
        self._keys.update(f"{prefix}{number}" for number in range(len(keys) + 1))
        with tempfile.TemporaryDirectory(prefix="kvferry-") as directory:
            report = Path(directory, "memtier.json")
            command = [
                *self._base,
                f"--ratio={ratio}",
                f"--data-size={size_bytes}",
                f"--requests={each}",
                "--key-pattern=P:P",
                "--key-minimum=1",
                f"--key-maximum={len(keys)}",
                f"--key-prefix={prefix}",
                f"--json-out-file={report}",
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise UnavailableError(f"memtier_benchmark failed: {done.stderr.strip()[-300:]}")
            stats = json.loads(report.read_text())["ALL STATS"][kind]
        if stats.get("Misses/sec"):
            raise CorruptError("memtier did not find every key")
        self.wall_s = len(keys) / stats["Ops/sec"]
