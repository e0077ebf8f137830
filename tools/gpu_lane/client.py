"""Part (a): the client on many cores, beside bare sockets.

Values of 4 MiB: GET and SET, by 1, 4 and 16 connections, over TCP and the Unix socket of one
server, and over a cluster of four. Every byte is verified by `kvferry_lab.bench.measure`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from gpu_lane.sheet import Sheet
from gpu_lane.stores import SERVERS, Stores
from kvferry.config import ClientConfig
from kvferry.embedded.program import ServerBinary
from kvferry_lab.bench.clients import open_client
from kvferry_lab.bench.data import Chunks
from kvferry_lab.bench.measure import Row, floors, measure
from kvferry_lab.bench.server_probe import open_probe
from kvferry_lab.servers.lab_server import LabServer

__all__ = ["client"]

_CONNECTIONS = (4, 16, 1)  # what says most first
_ROUNDS = 3
_FLOOR_DIGITS = 10  # kvferry-floor makes its keys: a prefix and so many digits
_POINT_S = 4.0  # what one row takes at most


def client(sheet: Sheet, binaries: Sequence[ServerBinary], size_bytes: int, count: int) -> None:
    """Measure, server by server; see the module."""
    for binary in binaries:
        with tempfile.TemporaryDirectory(prefix="gpu-lane-") as folder:
            settings = ["maxmemory 8gb", f"unixsocket {folder}/socket", "unixsocketperm 700"]
            with LabServer(binary, settings) as server:
                tcp = server.config.replace(same_host="tcp")
                unix = ClientConfig(unix_path=str(Path(folder, "socket")))
                for way, config in (("TCP", tcp), ("Unix socket", unix)):
                    _points(sheet, f"one {binary.kind}, {way}", config, size_bytes, count)
        if sheet.is_over(3 * _POINT_S):
            return
        with Stores(binary) as stores:
            name = f"{SERVERS} {binary.kind}"
            tcp = stores.config.replace(same_host="tcp")
            _points(sheet, f"{name}, TCP", tcp, size_bytes, 2 * count)


def _points(sheet: Sheet, name: str, config: ClientConfig, size_bytes: int, count: int) -> None:
    chunks = Chunks(size_bytes, count, count)
    prefix = chunks.keys[0].rpartition(":")[0] + ":"
    chunks.keys = [f"{prefix}{index:0{_FLOOR_DIGITS}d}" for index in range(count)]
    with open_probe(config) as probe:
        for connections in _CONNECTIONS:
            with ExitStack() as stack:
                found = stack.enter_context(closing(open_client("native", config, connections)))
                for op in ("set", "get"):
                    if sheet.is_over(_POINT_S):
                        return
                    what = f"{op.upper()} {size_bytes >> 10} KiB, {name}, {found.connections} conn"
                    beside = floors(
                        config, op, size_bytes, count, (found.connections,), shared_prefix=prefix
                    )
                    with beside as floor:
                        row = measure(op, [found], chunks, probe, floor=floor, rounds=_ROUNDS)[0]
                    _say(sheet, what, row)
        probe.delete(chunks.keys)


def _say(sheet: Sheet, what: str, row: Row) -> None:
    if row.error:
        sheet.row(what, error=row.error)
        return
    sheet.row(
        what,
        gbps=row.gbps,
        gbps_least=row.gbps_min,
        gbps_most=row.gbps_max,
        of_floor=row.floor_ratio,
        floor_gbps=row.floor_gbps,
        floor=row.floor,
        client_cpu_s_per_gb=row.client_cpu_s_per_gb,
        floor_cpu_s_per_gb=row.floor_cpu_s_per_gb,
        server_cpu_s_per_gb=row.server_cpu_s_per_gb,
        wake_ups_a_value=row.wake_ups,
    )
