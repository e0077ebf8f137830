"""What vLLM's tier costs the scheduler: the time of its calls in each step, at full rate.

    python tools/tier_steps.py redis://localhost:6379 [--steps 2000] [--chunk-kb 256] [--rest-ms 5]

Drives `TierCore` as vLLM's manager drives the tier. In each step: the jobs that ended are taken; a
new request asks for 128 chunks, half of which are there, and those before it are answered; loads
and stores are begun so that 16 jobs of 16 chunks are always on their way in each direction; the
step ends. Between steps the thread rests, as it does while the GPU computes. Prints the time that
all calls of a step took together: wall time (what the step is longer), and CPU time of the thread
(the same on a machine that has nothing else to do). Deletes what it has stored.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import time
from collections.abc import Sequence

from kvferry.chunks.keys import describe_identity, identity_digest
from kvferry.config import ClientConfig
from kvferry.config.tuning import TierLimits
from kvferry.connectors.base import Space
from kvferry.connectors.redis import RedisConnector
from kvferry.integrations.vllm.tier.core import TierCore
from kvferry.integrations.vllm.tier.store_channel import in_the_background

REQUEST_CHUNKS = 128
JOB_CHUNKS = 16
JOBS = 16
ASKING = 4  # requests that wait for an answer, at most


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the tier costs a step of the scheduler.")
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--chunk-kb", type=int, default=256)
    parser.add_argument("--rest-ms", type=float, default=5.0)
    options = parser.parse_args(arguments)
    size = options.chunk_kb << 10
    description = describe_identity(model="tier-steps", process=os.getpid())
    identity = identity_digest(description)
    space = Space(f"kvf:{identity.hex()}:", identity, size, "")
    rows = 2 * JOBS * JOB_CHUNKS
    memory = mmap.mmap(-1, size * rows)
    with in_the_background():
        connector = RedisConnector(space, ClientConfig.from_url(options.url))
    core = TierCore(connector, memoryview(memory), TierLimits(lookup_timeout_s=1.0))
    load = Load(core, memory, size)
    wall, cpu = [], []
    try:
        load.prepare()
        began = time.perf_counter()
        for _ in range(options.steps):
            spent = load.step()
            wall.append(spent[0])
            cpu.append(spent[1])
            time.sleep(options.rest_ms / 1e3)
        took_s = time.perf_counter() - began
        counts = dict(core.counts)
    finally:
        with RedisConnector(space, ClientConfig.from_url(options.url)) as other:
            core.close()
            for batch in other.scan():
                other.batch_delete([key for key, _ in batch])
    moved = (counts.get("load_bytes", 0) + counts.get("store_bytes", 0)) / took_s / 1e9
    _say(f"{options.steps} steps, {moved:.2f} GB/s moved, {counts.get('lookup_hit', 0)} hits")
    for name, times in (("wall", wall), ("cpu", cpu)):
        times.sort()
        shown = "  ".join(f"{q:g}%: {times[int(len(times) * q / 100)] * 1e6:.0f}" for q in (50, 99))
        _say(f"{name:5} us of a step   {shown}  max: {times[-1] * 1e6:.0f}")
    return 0


class Load:
    """Work that never ends."""

    def __init__(self, core: TierCore, memory: mmap.mmap, size: int) -> None:
        self.core, self.memory, self.size = core, memory, size
        self.stored = [_key(b"there", index) for index in range(JOBS * JOB_CHUNKS)]
        self.free = {True: list(range(JOBS)), False: list(range(JOBS))}
        self.places: dict[int, tuple[bool, int]] = {}
        self.asking: list[tuple[str, list[bytes]]] = []
        self.number = 0

    def prepare(self) -> None:
        """Store what is loaded later."""
        for slot in range(JOBS):
            self._begin(False, slot, self._keys_of(slot))
        while self.core.busy:
            self._take()
            time.sleep(0.001)

    def step(self) -> tuple[float, float]:
        """One step of the scheduler: seconds of wall and of CPU time in the calls."""
        self.number += 1
        there = self.stored[: REQUEST_CHUNKS // 2]
        new = [_key(b"new", self.number * REQUEST_CHUNKS + i) for i in range(REQUEST_CHUNKS // 2)]
        if len(self.asking) < ASKING:
            self.asking.append((f"request-{self.number}", there + new))
        first = self.number << 20
        fresh = [_key(b"new", first + i) for i in range(2 * JOB_CHUNKS)]
        wall, cpu = time.perf_counter(), time.thread_time()
        self._take()
        open_ones = []
        for request, keys in self.asking:
            if None in [self.core.lookup(request, key) for key in keys]:
                open_ones.append((request, keys))
            else:
                self.core.forget(request)
        self.asking = open_ones
        for slot in self.free[True][:2]:
            self._begin(True, slot, self._keys_of(slot))
        for half, slot in enumerate(self.free[False][:2]):
            self._begin(False, slot, fresh[half * JOB_CHUNKS : (half + 1) * JOB_CHUNKS])
        self.core.touch(there)
        self.core.end_step()
        return time.perf_counter() - wall, time.thread_time() - cpu

    def _keys_of(self, slot: int) -> list[bytes]:
        return self.stored[slot * JOB_CHUNKS : (slot + 1) * JOB_CHUNKS]

    def _begin(self, is_load: bool, slot: int, keys: list[bytes]) -> None:
        self.free[is_load].remove(slot)
        job = len(self.places) + self.number * 1000
        first = (slot + (JOBS if is_load else 0)) * JOB_CHUNKS
        self.places[job] = (is_load, slot)
        begin = self.core.load if is_load else self.core.store
        begin(job, keys, range(first, first + JOB_CHUNKS))

    def _take(self) -> None:
        for job in self.core.finished():
            is_load, slot = self.places.pop(job.job)
            self.free[is_load].append(slot)


def _key(kind: bytes, number: int) -> bytes:
    return identity_digest(f"{kind!r} {number}") * 2 + bytes(4)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
