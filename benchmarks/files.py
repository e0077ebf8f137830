"""Bars of the file connector: its rate against plain sequential reads and writes of the same disk.

In the directory that `--directory` names, or that for temporary files; nothing is left there.
Nothing is synced on either side; where the connector goes past the page cache, so does the
reference. That is `SequentialFile`, as `dd` and fio ask a disk: one file, blocks of one size,
`pwrite` and `preadv` past the page cache or through it, by one thread or by several that take the
next block in turn.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Self

from benchmarks.bars import Bar, Lab, Target
from kvferry.base.errors import CorruptError
from kvferry.chunks.keys import describe_identity, identity_digest
from kvferry.connectors.base import Space
from kvferry.connectors.file import FileConnector
from kvferry_lab.bench.data import Chunks
from kvferry_lab.bench.intervals import in_turn

__all__ = ["SequentialFile", "file_rates"]

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
        home = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="kvferry-bench-", dir=lab.directory)
            )
        )
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
    """Pairs of us and the disk; the reference is the number of threads with the best median."""

    def settled(move: Callable[[], float]) -> float:
        os.sync()  # what an earlier turn left to be written is not this one's
        return move()

    moves: list[Callable[[], float]] = [ours]
    moves += [partial(theirs, disk) for disk in disks.values()]
    mine, *others = in_turn(lab.pairs, *(partial(settled, move) for move in moves))
    size_bytes = lab.batch * lab.size_bytes(4)
    rates = [f"{size_bytes / median(walls) / 1e9:.2f} GB/s" for walls in (mine, *others)]
    said = ", ".join(
        f"{threads} at a time {rate}" for threads, rate in zip(disks, rates[1:], strict=True)
    )
    detail = f"{rates[0]} ({mode}); sequential, {said}"
    return Bar.of_pairs(name, _OF_DISK, min(others, key=median), mine, detail)


class SequentialFile:
    """One file of equal blocks.

    Args:
        path: Is made, and removed at the end.
        direct: O_DIRECT; memory then has to begin on a page.
        threads: Blocks under way at a time.
    """

    def __init__(self, path: Path, *, direct: bool, threads: int) -> None:
        self._path = path
        self._flags = os.O_DIRECT if direct else 0
        self._threads = threads
        self._workers = ThreadPoolExecutor(threads)

    def write(self, blocks: Sequence[memoryview]) -> float:
        """Seconds to write all of them to a new file."""
        self._path.unlink(missing_ok=True)
        start = time.perf_counter()
        self._each(os.O_WRONLY | os.O_CREAT, blocks, os.pwrite)
        return time.perf_counter() - start

    def read(self, blocks: Sequence[memoryview]) -> float:
        """Seconds to read all of them."""
        start = time.perf_counter()
        self._each(os.O_RDONLY, blocks, lambda fd, block, at: os.preadv(fd, [block], at))
        return time.perf_counter() - start

    def close(self) -> None:
        """Remove the file."""
        self._workers.shutdown()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _each(
        self,
        flags: int,
        blocks: Sequence[memoryview],
        move: Callable[[int, memoryview, int], int],
    ) -> None:
        fd = os.open(self._path, flags | self._flags, 0o600)
        turn, lock = itertools.count(), threading.Lock()

        def work(_: int) -> None:
            while True:
                with lock:
                    index = next(turn)
                if index >= len(blocks):
                    return
                block = blocks[index]
                if move(fd, block, index * len(block)) != len(block):
                    raise CorruptError("a block was not moved whole")

        try:
            list(self._workers.map(work, range(self._threads)))
        finally:
            os.close(fd)
