"""What a disk does for plain sequential reads and writes, as `dd` and fio ask it: the reference.

One file, blocks of one size, `pwrite` and `preadv` past the page cache or through it, by one thread
or by several that take the next block in turn.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from kvferry.base.errors import CorruptError

__all__ = ["SequentialFile"]


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
