"""Bars beside LMCache's native client, which lies in an environment of its own: both clients run as
processes of the same program, on the same server, in turn."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.bars import Bar, Lab, Target
from benchmarks.throughput import rate
from kvferry.base.errors import CorruptError, UsageError
from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import BenchClient
from kvferry_lab.bench.clients import config_url
from kvferry_lab.bench.data import Chunks, Value
from kvferry_lab.bench.measure import Row, measure
from kvferry_lab.bench.programs import LineProcess

__all__ = ["ClientProcess", "rival_bars", "rival_client"]

_ROOT = Path(__file__).resolve().parents[1]
_COUNT = 32
_SPEED = Target(">=", 1.05, "x its GB/s")
_CPU = Target("<=", 0.8, "x its CPU")
_STOP_S = 20.0


def rival_client(lab: Lab) -> Iterator[Bar]:
    """4 MiB, each number of connections, against LMCache's native client, in pairs."""
    python = _python()
    if python is None:
        yield Bar(
            name=f"GET {lab.label(4)} beside lmcache",
            target=_SPEED,
            value=None,
            skipped=True,
            reason="install it: PYTHONPATH=tools python -m engine_lane vllm-lmcache",
        )
    else:
        yield from rival_bars(lab, "lmcache", python)


def rival_bars(lab: Lab, kind: str, python: str) -> Iterator[Bar]:
    """The bars beside a kind of client that another interpreter has."""
    size_bytes = lab.size_bytes(4)
    unused = Chunks(size_bytes, _COUNT, _COUNT, warm_bytes=1)  # the processes have theirs
    for server in lab.servers()[:1] if lab.quick else lab.servers():  # it takes long to load
        with (
            lab.probed(server, 3 * _COUNT * size_bytes) as (config, probe),
            ClientProcess("native", sys.executable, config, size_bytes) as ours,
            ClientProcess(kind, python, config, size_bytes) as theirs,
        ):
            for op in ("set", "get"):
                clients: list[BenchClient] = []
                for connections in lab.connections:
                    clients += [each.client(connections) for each in (ours, theirs)]
                rows = measure(op, clients, unused, probe, rounds=lab.pairs)
                for mine, other in zip(rows[::2], rows[1::2], strict=True):
                    name = f"{op.upper()} {lab.label(4)}, {mine.connections} conn, {server}, {kind}"
                    yield from _pair(name, mine, other)


class ClientProcess(LineProcess):
    """A process with clients of a kind; see `benchmarks.rival_process`."""

    def __init__(self, kind: str, python: str, config: ClientConfig, size_bytes: int) -> None:
        self.kind = kind
        self._size_bytes = size_bytes
        paths = [str(_ROOT), str(_ROOT / "src")]
        if python == sys.executable:  # it has kvferry with its native module
            paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        super().__init__(
            [python, "-m", "benchmarks.rival_process", kind],
            {"PYTHONPATH": os.pathsep.join(paths)},
            name=f"the process of {kind}",
            stop_s=_STOP_S,
        )
        self.tell(config_url(config))

    def client(self, connections: int) -> _Elsewhere:
        """One of its clients."""
        return _Elsewhere(self, connections)

    def turn(self, op: str, connections: int, count: int) -> dict[str, float]:
        """Have one batch done; seconds by the clock and of CPU.

        Raises:
            CorruptError: A value was wrong, or the client failed.
        """
        asked = {"op": op, "connections": connections, "count": count}
        line = self.ask(json.dumps({**asked, "size_bytes": self._size_bytes}))
        found: dict[str, float] = json.loads(line)
        if "error" in found:
            raise CorruptError(f"{self.kind}: {found['error']}")
        return found


class _Elsewhere:
    """A client of such a process, as `measure` wants it: it has keys and buffers of its own."""

    counts_itself = True

    def __init__(self, process: ClientProcess, connections: int) -> None:
        self.name = process.kind
        self.connections = connections
        self.wall_s: float | None = None
        self._process = process
        self._cpu_s = 0.0

    def set_batch(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        self._turn("set", len(keys))

    def get_batch(self, keys: Sequence[str], targets: Sequence[Value]) -> Sequence[Value | None]:
        self._turn("get", len(keys))
        return []

    def exists_batch(self, keys: Sequence[str]) -> int:
        raise UsageError("EXISTS is not measured elsewhere")

    def cpu_s(self) -> float:
        return self._cpu_s

    def close(self) -> None:
        """Nothing: the process ends with its owner."""

    def _turn(self, op: str, count: int) -> None:
        found = self._process.turn(op, self.connections, count)
        self.wall_s = found["wall_s"]
        self._cpu_s += found["cpu_s"]


def _python() -> str | None:
    """The interpreter that has LMCache: this one, or that of the engine lane."""
    if importlib.util.find_spec("lmcache") is not None:
        return sys.executable
    home = Path(os.environ.get("KVFERRY_ENGINES_DIR") or _ROOT / "build" / "engines")
    python = home / "vllm-lmcache" / "bin" / "python"
    return str(python) if python.exists() else None


def _pair(name: str, mine: Row, other: Row) -> Iterator[Bar]:
    for label, target, ours, theirs in (
        (name, _SPEED, mine.rates, other.rates),
        (f"CPU: {name}", _CPU, mine.costs, other.costs),
    ):
        if reason := mine.error or other.error or "":
            yield Bar(name=label, target=target, value=None, reason=reason)
            continue
        detail = f"{rate(mine)}; {other.client} {rate(other)}"
        if target is _CPU:
            detail = f"{mine.client_cpu_s_per_gb:.3f} s/GB; {other.client_cpu_s_per_gb:.3f} s/GB"
        yield Bar.of_pairs(label, target, ours, theirs, detail)
