"""Bar of what a batch costs its caller: CPU of the Python thread."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from benchmarks.bars import Bar, Lab, Target
from benchmarks.latency import native_client
from kvferry.base.errors import CorruptError, DeadlineExceeded

__all__ = ["python_cost"]

_KEYS = 1000
_VALUE_BYTES = 64
_WAIT_S = 30.0


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
