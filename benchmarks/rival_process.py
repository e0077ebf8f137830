"""A client in an interpreter of its own, turn by turn: `python -m benchmarks.rival_process KIND`.

The first line on stdin is the server's URL; each further one asks for a turn of an operation, as
JSON, and gets a line on stdout: {"wall_s": ..., "cpu_s": ...}, or {"error": ...}. A turn is a batch
that is warmed up, timed and verified as `kvferry bench client` does it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from kvferry.base.errors import KVFerryError
from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import BenchClient
from kvferry_lab.bench.clients import open_client
from kvferry_lab.bench.data import Chunks, fill
from kvferry_lab.bench.measure import measure
from kvferry_lab.bench.server_probe import ServerProbe

__all__ = ["turns"]


def turns(kind: str, config: ClientConfig, asked: Iterator[dict[str, Any]]) -> Iterator[Any]:
    """Answer after answer. Clients and buffers stay for the next turn; keys go at the end."""
    clients: dict[int, BenchClient] = {}
    held: dict[tuple[int, int], Chunks] = {}
    with ServerProbe(config) as probe, ExitStack() as stack:
        for turn in asked:
            shape = (turn["size_bytes"], turn["count"])
            if shape not in held:
                chunks = held[shape] = Chunks(*shape, shape[1])
                stack.callback(probe.delete, chunks.keys)
                fill(chunks, probe)
            connections = turn["connections"]
            if connections not in clients:
                clients[connections] = open_client(kind, config, connections)
                stack.callback(clients[connections].close)
            (row,) = measure(
                turn["op"], [clients[connections]], held[shape], probe, rounds=1, warm_ups=0
            )
            gigabytes = shape[0] * shape[1] / 1e9
            if row.error is not None:
                yield {"error": row.error}
            else:
                yield {"wall_s": gigabytes / row.rates[0], "cpu_s": gigabytes * row.costs[0]}


def main() -> None:
    """The program."""
    config = ClientConfig.from_url(sys.stdin.readline().strip(), environ={})
    try:
        for answer in turns(sys.argv[1], config, map(json.loads, sys.stdin)):
            print(json.dumps(answer), flush=True)
    except KVFerryError as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


if __name__ == "__main__":
    main()
