"""How fast the file connector is, against what the disk does for anybody.

    python -m benchmarks.disk_ways DIRECTORY [--size-mib 4] [--count 64] [--rounds 15]

Prints GB/s of write and read, in one run and one directory, of

    dd      one block after another of one new file, with direct I/O; where there is a dd
    raw     the same by eight threads, as many as the connector has under way: what fio measures
    store   the connector: a file a value, with headers, checksums and renames

and the ratio of store to the better of the other two. Disks change their minds, so the ways take
turns, and medians are compared. Every value that the connector reads is compared with what was
written, outside of the times.
"""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from kvferry.connectors import Space
from kvferry.connectors.file import FileConnector

__all__ = ["main"]

_THREADS = 8
_MIB = 1 << 20


class _Disk:
    """One file, memory for all of its blocks, and the ways to move them."""

    def __init__(self, directory: Path, size: int, count: int) -> None:
        self.size, self.count = size, count
        self.memory = [mmap.mmap(-1, size) for _ in range(count)]
        self.written = [os.urandom(size) for _ in range(min(count, 16))]
        self._path = directory / "raw"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        self._pool = ThreadPoolExecutor(_THREADS)

    def empty(self) -> None:
        """Forget the blocks of the file: nobody's writes find blocks that are there already."""
        os.ftruncate(self._file, 0)

    def fill(self, content: bool) -> None:
        """Put what is written into the memory, or nothing."""
        for index, page in enumerate(self.memory):
            page[:] = self.written[index % len(self.written)] if content else bytes(self.size)

    def check(self) -> None:
        """Raise if the memory has something else than what was written."""
        for index, page in enumerate(self.memory):
            if page[:] != self.written[index % len(self.written)]:
                raise OSError("bytes that were not stored")

    def dd(self, write: bool) -> None:
        """By one process, a block at a time."""
        source, target = ("/dev/zero", self._path) if write else (self._path, "/dev/null")
        flags = ["oflag=direct"] if write else ["iflag=direct"]
        blocks = [f"bs={self.size}", f"count={self.count}"]
        command = ["dd", f"if={source}", f"of={target}", *blocks, *flags]
        subprocess.run(command, check=True, capture_output=True, timeout=600)

    def raw(self, write: bool) -> None:
        """By threads, each with blocks of its own."""
        move = os.pwritev if write else os.preadv

        def work(thread: int) -> None:
            for index in range(thread, self.count, _THREADS):
                if move(self._file, [self.memory[index]], index * self.size) != self.size:
                    raise OSError("the disk moved less than a block")

        list(self._pool.map(work, range(_THREADS)))


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description="Measure the file connector against its disk.")
    parser.add_argument("directory", type=Path, help="on the disk that is meant")
    parser.add_argument("--size-mib", type=int, default=4, help="of a block or value")
    parser.add_argument("--count", type=int, default=64, help="blocks in each round")
    parser.add_argument("--rounds", type=int, default=15, help="each way once, in turn")
    chosen = parser.parse_args()
    size, count = chosen.size_mib * _MIB, chosen.count
    with tempfile.TemporaryDirectory(dir=chosen.directory) as name:
        disk = _Disk(Path(name), size, count)
        with FileConnector(Space("bench:", bytes(16), size), Path(name) / "store") as store:
            rates = [_measure(disk, store, chosen.rounds, write) for write in (True, False)]
            mode = store.mode
    print(f"{count} x {chosen.size_mib} MiB, {mode:20}   write    read   GB/s, medians")
    for way in rates[0]:
        print(f"{way:36}{rates[0][way]:8.2f}{rates[1][way]:8.2f}")
    ratios = [each["store"] / max(each[way] for way in each if way != "store") for each in rates]
    print(f"{'store / better of the others':36}{ratios[0]:8.2f}{ratios[1]:8.2f}")


def _measure(disk: _Disk, store: FileConnector, rounds: int, write: bool) -> dict[str, float]:
    keys = [f"k{index}" for index in range(disk.count)]
    disk.fill(content=True)

    def move() -> None:
        result = (store.batch_set if write else store.batch_get)(keys, disk.memory)
        if not result.ok:
            raise OSError(f"{result}: {result.error}")

    ways: dict[str, Callable[[], None]] = {"raw": lambda: disk.raw(write), "store": move}
    if shutil.which("dd") is not None:
        ways = {"dd": lambda: disk.dd(write), **ways}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            if not write:
                disk.fill(content=False)
            elif way == "raw":
                disk.empty()
            elif way == "store":
                store.batch_delete(keys)
            begun = time.perf_counter()
            run()
            times[way].append(time.perf_counter() - begun)
        if not write:
            disk.check()
    total = disk.size * disk.count / 1e9
    return {way: total / median(seconds) for way, seconds in times.items()}


if __name__ == "__main__":
    main()
