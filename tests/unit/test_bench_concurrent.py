"""Concurrent writes, reads and probes of a client that has no time to lose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from kvferry_lab.bench.data import Chunks
from kvferry_lab.bench.measure import measure_concurrent
from kvferry_lab.bench.server_probe import ServerProbe


class Instant:
    """A client that is done at once; what was written is in a dictionary of all of them."""

    name = "instant"
    connections = 1
    counts_itself = False
    wall_s: float | None = None
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
    def set(self, key: str, value: memoryview) -> None:
        Instant.values[key] = bytes(value)

    def delete(self, keys: Sequence[str]) -> None:
        pass


def test_each_operation_has_a_row_however_soon_the_others_are_done() -> None:
    rows = measure_concurrent(Instant, Chunks(64, 1, 1), cast(ServerProbe, Probe()), rounds=200)
    assert [(row.op, row.error) for row in rows] == [
        ("concurrent-set", None),
        ("concurrent-get", None),
        ("concurrent-exists", None),
    ]


class Forgetful(Instant):
    """One value is another one."""

    def get_batch(self, keys: Sequence[str], targets: Sequence[Any]) -> Sequence[Any]:
        found = super().get_batch(keys, targets)
        memoryview(found[0])[-1] ^= 1
        return found


def test_one_that_fails_leaves_the_others_their_figures() -> None:
    rows = measure_concurrent(Forgetful, Chunks(64, 2, 2), cast(ServerProbe, Probe()), rounds=3)
    errors = {row.op: row.error or "" for row in rows}
    assert "wrong from byte" in errors["concurrent-get"]
    assert errors["concurrent-set"] == errors["concurrent-exists"] == ""
    assert rows[0].gbps
    assert rows[0].client_cpu_s_per_gb is None
