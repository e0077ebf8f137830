"""Bars of what a batch costs its caller: CPU of the Python thread, and memory over many batches.

Memory is that of a process of its own, so that nothing else grows or frees some meanwhile:
`python -m benchmarks.cost BATCHES`, with the URL on stdin, where no secret is seen.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, Lab, Target
from benchmarks.latency import native_client
from kvferry.base.errors import CorruptError, DeadlineExceeded
from kvferry.config import ClientConfig
from kvferry_lab.bench.clients import config_url
from kvferry_lab.bench.programs import figures_of_module

__all__ = ["memory_growth", "python_cost"]

_KEYS = 1000
_VALUE_BYTES = 64
_WAIT_S = 30.0
_GROWTH_KEYS, _GROWTH_BYTES = 16, 4096


def python_cost(lab: Lab) -> Iterator[Bar]:
    """CPU of the calling thread for submit and drain of 1,000 keys."""
    keys = [f"cost:{index:07d}" for index in range(_KEYS)]
    values = [os.urandom(_VALUE_BYTES) for _ in keys]
    targets = [bytearray(_VALUE_BYTES) for _ in keys]
    with lab.server() as config, closing(native_client(config)) as client:
        client.batch_set(keys, values).raise_for_errors()
        for op, arguments in (("exists", (keys,)), ("get", (keys, targets))):
            submit = getattr(client, f"submit_batch_{op}")
            costs = [_submit_and_drain(client, submit, arguments) for _ in range(lab.count(200))]
            yield Bar.of_median(
                f"Python cost of {op.upper()}, batch of 1,000 keys",
                Target("<=", 1.0, "us per key"),
                [cost_s / _KEYS * 1e6 for cost_s in costs],
                "submit + drain",
            )
        if targets != values:
            raise CorruptError("a value came back wrong")


def _submit_and_drain(client: Any, submit: Any, arguments: tuple[Any, ...]) -> float:
    """CPU of this thread inside the two calls; the wait between them is not counted."""
    start = time.thread_time()
    wanted = submit(*arguments)
    cost_s = time.thread_time() - start
    while True:
        if not select.select([client.event_fd()], [], [], _WAIT_S)[0]:
            raise DeadlineExceeded("a batch did not complete")
        start = time.thread_time()
        done = client.drain_completions()
        cost_s += time.thread_time() - start
        for number, result in done:
            if number == wanted:
                result.raise_for_errors()
                return cost_s


def memory_growth(lab: Lab) -> Iterator[Bar]:
    """Growth of a process's resident memory over 10,000 batches."""
    batches = lab.count(10_000)
    with lab.server() as config:
        native_client(config).close()  # says so when there is none
        found = figures_of_module(__name__, batches, said=config_url(config))
    yield Bar(
        name=f"memory growth over {batches:,} batches",
        target=Target("<=", 2.0, "MiB"),
        value=(found["after_bytes"] - found["before_bytes"]) / (1 << 20),
        detail=f"from {found['before_bytes'] / 1e6:.1f} MB",
    )


def main(batches: int, url: str) -> None:
    """Run the batches against a server, after a tenth as many, and print the bytes around them."""
    client = native_client(ClientConfig.from_url(url, environ={}))
    keys = [f"memory:{index}" for index in range(_GROWTH_KEYS)]
    values = [os.urandom(_GROWTH_BYTES) for _ in keys]
    targets = [bytearray(_GROWTH_BYTES) for _ in keys]
    _run(client, max(1, batches // 10), keys, values, targets)
    before = _resident_bytes()
    _run(client, batches, keys, values, targets)
    after = _resident_bytes()
    client.close()
    print(json.dumps({"before_bytes": before, "after_bytes": after}))


def _run(
    client: Any, batches: int, keys: list[str], values: list[bytes], targets: list[bytearray]
) -> None:
    """SET, GET and EXISTS in turn; every GET is checked."""
    for number in range(batches):
        if number % 3 == 0:
            client.batch_set(keys, values).raise_for_errors()
        elif number % 3 == 1:
            client.batch_get(keys, targets).raise_for_errors()
            if targets != values:
                raise CorruptError("a value came back wrong")
        elif not client.batch_exists(keys).ok:
            raise CorruptError("a key that exists is said not to")


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.stdin.read().strip())
