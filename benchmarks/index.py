"""Bars of the index and of hashing: time per lookup and chunk, and memory beside the payload.

Time is CPU of the calling thread: nothing here waits, and what others do on the same core is not
counted.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.bars import Bar, Lab, Target
from kvferry import _native
from kvferry.base.errors import CorruptError
from kvferry.chunks.keys import chunk_hashes
from kvferry_lab.bench.programs import ProgramError
from kvferry_lab.trace.replay import POLICIES

__all__ = ["hash_cost", "index_cost"]

_RESIDENT = 1_000_000
_PREFIX = 10_000
_TOKENS = 40_000
_CHUNK_TOKENS = 16
_CHILD_S = 300.0

_LOOKUP = Target("<=", 1.5, "ms")
_MEMORY = Target("<=", 160.0, "bytes per chunk")
_REPLACE = Target("<=", 2.0, "us per chunk")
_HASHING = Target("<=", 3.0, "ms")


def index_cost(lab: Lab) -> Iterator[Bar]:
    """Lookup, memory, insert and evict of a full index, the worst policy of all."""
    resident, prefix = lab.count(_RESIDENT), lab.count(_PREFIX)
    found = {policy: _child(policy, resident, prefix, lab.count(100)) for policy in POLICIES}

    def worst(name: str, target: Target, figure: Callable[[dict[str, Any]], float]) -> Bar:
        values = {policy: figure(figures) for policy, figures in found.items()}
        shown = ", ".join(f"{policy} {value:.3g}" for policy, value in values.items())
        return Bar(name=name, target=target, value=max(values.values()), detail=shown)

    where = f"{resident:,} resident chunks"
    look = f"lookup of {prefix:,} chunks, {where}"
    yield worst(look, _LOOKUP, lambda figures: figures["lookup_warm_s"] * 1e3)
    yield worst(f"{look}, cold", _LOOKUP, lambda figures: figures["lookup_cold_s"] * 1e3)
    yield worst(
        f"memory beside the payload, {where}", _MEMORY, lambda figures: figures["bytes_per_chunk"]
    )
    yield worst(
        f"insert + evict in batches of 256, {where}",
        _REPLACE,
        lambda figures: figures["alone_s"] * 1e6,
    )
    yield worst(
        f"reserve + evict + commit with pages in batches of 256, {where}",
        _REPLACE,
        lambda figures: figures["replace_s"] * 1e6,
    )


def hash_cost(lab: Lab) -> Iterator[Bar]:
    """Hashes of 40,000 tokens in chunks of 16, from a list."""
    tokens = random.Random(16).choices(range(152_064), k=_TOKENS)
    wanted = b"".join(chunk_hashes(tokens, _CHUNK_TOKENS))
    costs = []
    for _ in range(lab.count(50)):
        start = time.thread_time()
        hashes = _native.hash_chunks(tokens, _CHUNK_TOKENS)
        costs.append(time.thread_time() - start)
        if hashes != wanted:
            raise CorruptError("the native hashes are not those of kvferry.chunks.keys")
    yield Bar(
        name=f"hashing of {_TOKENS:,} tokens in chunks of {_CHUNK_TOKENS}, from a list",
        target=_HASHING,
        value=statistics.median(costs) * 1e3,
        detail=f"{min(costs) * 1e3:.2f} to {max(costs) * 1e3:.2f} ms",
    )


def _child(policy: str, resident: int, prefix: int, rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.index_process", policy]
    command += [str(number) for number in (resident, prefix, rounds)]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_CHILD_S
        )
    except subprocess.TimeoutExpired:
        raise ProgramError(f"the child that fills an index took {_CHILD_S:g} s") from None
    if child.returncode:
        raise ProgramError(f"the child that fills an index failed: {child.stderr.strip()[-300:]}")
    figures: dict[str, Any] = json.loads(child.stdout)
    return figures
