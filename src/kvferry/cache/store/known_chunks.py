"""Which chunks a store is known to have, by what was written there and found there."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import groupby

from kvferry.chunks.prompt import Prompt

__all__ = ["Known"]

_REMEMBERED_MAX = 100_000


class Known:
    """Chunks that a store had: by their hashes a prompt that they belong to, and since when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: OrderedDict[bytes, tuple[Prompt, int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, prompt: Prompt, chunks: Iterable[int]) -> None:
        """They were written now, or found there."""
        now = time.monotonic()
        with self._lock:
            for chunk in chunks:
                digest = prompt.digest(chunk)
                self._chunks[digest] = (prompt, chunk, now)
                self._chunks.move_to_end(digest)
            while len(self._chunks) > _REMEMBERED_MAX:
                self._chunks.popitem(last=False)

    def discard(self, prompt: Prompt, chunks: Iterable[int]) -> None:
        """They are of no interest any more."""
        with self._lock:
            for chunk in chunks:
                self._chunks.pop(prompt.digest(chunk), None)

    def of(self, prompt: Prompt, end: int) -> dict[int, float]:
        """Which of the first `end` chunks of a prompt it had, and since when."""
        with self._lock:
            found = ((i, self._chunks.get(prompt.digest(i))) for i in range(end))
            return {i: entry[2] for i, entry in found if entry is not None}

    def prompts(self) -> list[tuple[Prompt, list[int]]]:
        """All chunks, as they came."""
        with self._lock:
            entries = list(self._chunks.values())
        groups = groupby(entries, key=lambda entry: id(entry[0]))
        listed = [list(group) for _, group in groups]
        return [(group[0][0], sorted(entry[1] for entry in group)) for group in listed]

    def forget(self, which: Callable[[bytes], bool]) -> None:
        """Nothing of these generations is wanted there any more."""
        with self._lock:
            kept = ((d, e) for d, e in self._chunks.items() if not which(e[0].generation))
            self._chunks = OrderedDict(kept)
