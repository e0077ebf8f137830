"""How fast the file connector is, against what the disk does for anybody.

    python -m kvferry.lab.bench_file DIRECTORY [--size-mib 4] [--count 256] [--rounds 5]

Prints GB/s of write and read, in one run and one directory, of

    dd      one block at a time into one file, with direct I/O, where dd is installed
    raw     the same blocks with direct I/O by eight threads, which is what the connector
            has under way of 4 MiB, into one file that exists already: what fio measures
    store   the connector: a file a value, with headers, checksums and renames

in the median of the rounds, and the ratio of store to the better of the other two, which is taken
round by round, because disks change their minds. Every value that is read is compared with what
was written, outside of the times.
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
from functools import partial
from operator import truediv
from pathlib import Path
from statistics import median

from kvferry.client.batch import BatchResult
from kvferry.connectors import Space
from kvferry.connectors.file import FileConnector

__all__ = ["main"]

_THREADS = 8
_MIB = 1 << 20


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description="Measure the file connector against its disk.")
    parser.add_argument("directory", type=Path, help="on the disk that is meant")
    parser.add_argument("--size-mib", type=int, default=4, help="of a block or value")
    parser.add_argument("--count", type=int, default=256, help="blocks in each round")
    parser.add_argument("--rounds", type=int, default=5, help="each way once, in turn")
    chosen = parser.parse_args()
    size, count = chosen.size_mib * _MIB, chosen.count
    found: dict[str, list[list[float]]] = {"dd": [], "raw": [], "store": []}
    with tempfile.TemporaryDirectory(dir=chosen.directory) as name:
        for _ in range(chosen.rounds):  # in turn, so that all see the same disk
            for way, measure in (("dd", _dd), ("raw", _raw), ("store", _store)):
                seconds = measure(Path(name), size, count)
                found[way].append([size * count / each / 1e9 for each in seconds])
    print(f"{f'{count} x {chosen.size_mib} MiB, GB/s':26}   write    read")
    for way, rounds in found.items():
        print(f"{way:26}{_medians(rounds)}")
    floors = [list(map(max, *others)) for others in zip(found["dd"], found["raw"], strict=True)]
    pairs = zip(found["store"], floors, strict=True)
    print(f"{'store / better of them':26}{_medians([list(map(truediv, *p)) for p in pairs])}")


def _medians(rounds: list[list[float]]) -> str:
    return "".join(f"{median(column):8.2f}" for column in zip(*rounds, strict=True))


def _dd(directory: Path, size: int, count: int) -> list[float]:
    if shutil.which("dd") is None:
        return [float("inf")] * 2  # a rate of nothing
    path, times = directory / "dd", []
    for source, target, flag in (("/dev/zero", path, "oflag"), (path, "/dev/null", "iflag")):
        blocks = (f"bs={size}", f"count={count}", f"{flag}=direct")
        times.append(_timed(partial(_run, ["dd", f"if={source}", f"of={target}", *blocks])))
    path.unlink()
    return times


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=600)


def _raw(directory: Path, size: int, count: int) -> list[float]:
    path, times = directory / "raw", []
    memory = [mmap.mmap(-1, size) for _ in range(_THREADS)]
    for block in memory:
        block.write(os.urandom(size))
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    try:
        os.posix_fallocate(file, 0, size * count)
        for move in (os.pwritev, os.preadv):

            def work(thread: int, move: Callable[..., int] = move) -> None:
                for index in range(thread, count, _THREADS):
                    if move(file, [memory[thread]], index * size) != size:
                        raise OSError("the disk moved less than a block")

            with ThreadPoolExecutor(_THREADS) as pool:
                times.append(_timed(lambda: list(pool.map(work, range(_THREADS)))))
    finally:
        os.close(file)
        path.unlink()
    return times


def _store(directory: Path, size: int, count: int) -> list[float]:
    at_a_time = 64
    keys = [f"k{index}" for index in range(count)]
    pages = [mmap.mmap(-1, size) for _ in range(at_a_time)]
    written = [os.urandom(size) for _ in range(at_a_time)]
    with FileConnector(Space("bench:", bytes(16), size), directory / "store") as store:
        seconds = [0.0, 0.0]
        moves: tuple[Callable[..., BatchResult], ...] = (store.batch_set, store.batch_get)
        for index, move in enumerate(moves):
            for start in range(0, count, at_a_time):
                batch = keys[start : start + at_a_time]
                used = list(zip(pages, written, strict=True))[: len(batch)]
                for page, content in used:
                    page[:] = content if index == 0 else bytes(size)
                begun = time.perf_counter()
                result = move(batch, pages[: len(batch)])
                seconds[index] += time.perf_counter() - begun
                if not result.ok:
                    raise OSError(f"{result}: {result.error}")
                if any(page[:] != content for page, content in used):
                    raise OSError("bytes that were not stored")
        store.batch_delete(keys)
    return seconds


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
