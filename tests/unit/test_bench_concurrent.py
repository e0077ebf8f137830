"""Concurrent writes, reads and probes of a client that has no time to lose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from kvferry_lab.bench.concurrent import measure_concurrent
from kvferry_lab.bench.data import Chunks
from kvferry_lab.bench.server_probe import ServerProbe


class Instant:
    """A client that is done at once; what was written is in a dictionary of all of them."""

    name = "instant"
    connections = 1
    counts_itself = False
    wall_s: float | None = None
    times: float = 1
    values: ClassVar[dict[str, bytes]] = {}

    def set_batch(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        self.values.update(zip(keys, map(bytes, values), strict=True))

    def get_batch(self, keys: Sequence[str], targets: Sequence[Any]) -> Sequence[Any]:
        for key, target in zip(keys, targets, strict=True):
            memoryview(target)[:] = self.values[key]
        return targets

    def exists_batch(self, keys: Sequence[str]) -> int:
        return sum(key in self.values for key in keys)

    def cpu_s(self) -> float:
        return 0.0

    def close(self) -> None:
        pass


class Probe:
    def delete(self, keys: Sequence[str]) -> None:
        pass


def test_nobody_is_thrown_out_of_the_start_by_those_who_are_done() -> None:
    """The probes woke up late, and found the barrier broken: "this is a bug"."""
    rows = measure_concurrent(Instant, Chunks(64, 1, 1), cast(ServerProbe, Probe()), rounds=200)
    assert [(row.op, row.error) for row in rows] == [
        ("concurrent-set", None),
        ("concurrent-get", None),
        ("concurrent-exists", None),
    ]
