"""Bars of the file connector: its rate against plain sequential reads and writes of the same disk.

In the directory for temporary files, which is removed at the end. Nothing is synced on either side;
where the connector goes past the page cache, so does the reference.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.bars import Bar, Lab, Target
from benchmarks.disk import SequentialFile
from kvferry.chunks.keys import describe_identity, identity_digest
from kvferry.connectors.base import Space
from kvferry.connectors.file import FileConnector
from kvferry_lab.bench.data import Chunks

__all__ = ["file_rates"]

_OF_DISK = Target(">=", 0.90, "x sequential")
_THREADS = (1, 4)  # dd, and fio with some depth
_CALL_S = 120.0


def file_rates(lab: Lab) -> Iterator[Bar]:
    """SET and GET of 64 x 4 MiB in files, against sequential writes and reads of 4 MiB."""
    chunks = Chunks(lab.size_bytes(4), lab.batch, lab.batch)
    batch = chunks.batches()[0]
    chunks.next_write(batch)
    space = Space(
        prefix="bench:",
        identity=identity_digest(describe_identity(model="benchmark")),
        value_size_bytes=chunks.size_bytes,
    )
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvferry-bench-")))
        store = stack.enter_context(FileConnector(space, home / "store"))
        mode = store.mode
        disks = {
            threads: stack.enter_context(
                SequentialFile(
                    home / f"sequential-{threads}", direct="direct" in mode, threads=threads
                )
            )
            for threads in _THREADS
        }

        def ours_write() -> float:
            chunks.next_write(batch)
            store.batch_delete(chunks.keys)  # as the reference's file, which is new each time
            os.sync()
            start = time.perf_counter()
            result = store.batch_set(chunks.keys, chunks.sources, timeout_s=_CALL_S)
            wall_s = time.perf_counter() - start
            result.raise_for_errors()
            return wall_s

        def ours_read() -> float:
            chunks.poison()
            start = time.perf_counter()
            result = store.batch_get(chunks.keys, chunks.targets, timeout_s=_CALL_S)
            wall_s = time.perf_counter() - start
            result.raise_for_errors()
            chunks.verify(batch, chunks.targets)
            return wall_s

        def theirs_read(disk: SequentialFile) -> float:
            chunks.poison()
            wall_s = disk.read(chunks.targets)
            chunks.verify(batch, chunks.targets)
            return wall_s

        def theirs_write(disk: SequentialFile) -> float:
            chunks.expect(batch)
            return disk.write(chunks.sources)

        kinds: tuple[tuple[str, Callable[[], float], Callable[[SequentialFile], float]], ...] = (
            ("SET", ours_write, theirs_write),
            ("GET", ours_read, theirs_read),
        )
        for op, ours, theirs in kinds:
            if op == "GET":  # both have to hold the last write
                for disk in disks.values():
                    theirs_write(disk)
            yield _against(
                f"files: {op} {lab.batch} x {lab.label(4)}", lab, mode, ours, theirs, disks
            )


def _against(
    name: str,
    lab: Lab,
    mode: str,
    ours: Callable[[], float],
    theirs: Callable[[SequentialFile], float],
    disks: dict[int, SequentialFile],
) -> Bar:
    """Rounds of us and the disk; the reference is the number of threads with the best median."""
    mine: list[float] = []
    disk: dict[int, list[float]] = {threads: [] for threads in disks}
    for number in range(lab.rounds + 1):
        os.sync()  # what an earlier round left to be written is not this one's
        walls = {threads: theirs(one) for threads, one in disks.items()}
        os.sync()
        mine_s = ours()
        if number:  # the first round warmed up
            mine.append(mine_s)
            for threads, wall_s in walls.items():
                disk[threads].append(wall_s)
    best = min(disk, key=lambda threads: statistics.median(disk[threads]))
    ratios = [their / our for our, their in zip(mine, disk[best], strict=True)]
    size_bytes = lab.batch * lab.size_bytes(4)
    rates = ", ".join(
        f"{threads} at a time {size_bytes / statistics.median(walls) / 1e9:.2f} GB/s"
        for threads, walls in disk.items()
    )
    return Bar(
        name=name,
        target=_OF_DISK,
        value=statistics.median(ratios),
        detail=f"{size_bytes / statistics.median(mine) / 1e9:.2f} GB/s ({mode}); sequential, "
        f"{rates}; ratios {min(ratios):.2f} to {max(ratios):.2f}",
    )
