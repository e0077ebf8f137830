"""Bar of checksums: GET and SET of a namespace, framed, against the same client without frames."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from benchmarks.bars import Bar, Lab, Target
from benchmarks.latency import native_client
from kvferry.chunks.keys import describe_identity, identity_digest
from kvferry_lab.bench.data import Chunks
from kvferry_lab.bench.intervals import in_turn, ratios
from kvferry_lab.bench.server_probe import ServerProbe

__all__ = ["checksum_cost"]

_COST = Target("<=", 5.0, "% of GB/s")
_ROUNDS = 3  # times as many as elsewhere: a few percent are less than two rounds differ by


def checksum_cost(lab: Lab) -> Iterator[Bar]:
    """4 MiB with frame and checksum and without, in alternating rounds of one client."""
    size_bytes = lab.size_bytes(4)
    framed, plain = (Chunks(size_bytes, lab.batch, lab.batch) for _ in range(2))
    identity = identity_digest(describe_identity(model="benchmark"))
    with (
        lab.probed("Valkey 9", 3 * lab.batch * size_bytes) as (config, probe),
        closing(native_client(config)) as client,
    ):
        pair = [
            _Side(client.namespace("", identity, size_bytes), framed),
            _Side(client, plain, probe),
        ]
        for op in ("set", "get"):
            framed_s, plain_s = in_turn(_ROUNDS * lab.rounds, *(getattr(one, op) for one in pair))
            with_gbps, without_gbps = (
                lab.batch * size_bytes / statistics.median(all_) / 1e9
                for all_ in (framed_s, plain_s)
            )
            yield Bar.of_median(
                f"checksum: cost of {op.upper()} {lab.label(4)}",
                _COST,
                [100 * (1 - ratio) for ratio in ratios(plain_s, framed_s)],
                f"{with_gbps:.2f} GB/s with, {without_gbps:.2f} GB/s without",
            )


class _Side:
    """A client or a namespace with chunks of its own."""

    def __init__(self, client: Any, chunks: Chunks, probe: ServerProbe | None = None) -> None:
        self._client, self._chunks, self._probe = client, chunks, probe
        self._batch = chunks.batches()[0]

    def set(self) -> float:
        """Seconds to store never seen bytes; the last value is read back."""
        chunks = self._chunks
        chunks.next_write(self._batch)
        wall_s = _timed(lambda: self._client.batch_set(chunks.keys, chunks.sources))
        last = len(chunks.keys) - 1
        if self._probe is not None:
            chunks.verify_one(self._batch, last, self._probe.get(chunks.keys[last]))
        else:
            self._client.get(chunks.keys[last], chunks.targets[last])
            chunks.verify_one(self._batch, last, chunks.targets[last])
        return wall_s

    def get(self) -> float:
        """Seconds to read all, into buffers that were overwritten; every byte is compared."""
        chunks = self._chunks
        chunks.poison()
        wall_s = _timed(lambda: self._client.batch_get(chunks.keys, chunks.targets))
        chunks.verify(self._batch, chunks.targets)
        return wall_s


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    result = call()
    wall_s = time.perf_counter() - start
    result.raise_for_errors()
    return wall_s
