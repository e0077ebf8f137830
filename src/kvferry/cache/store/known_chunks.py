"""What is known of the chunks of one store: which it had, and which of them were corrupt.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeAlias

from kvferry.chunks.prompt import Prompt

__all__ = ["Known", "Refusals"]

# How many chunks are remembered that a store had, and that were corrupt.
_KNOWN_MAX = 100_000
_REFUSALS_MAX = 4096


# A chunk of a prompt, and since when the store had it. A plain tuple: one is made for each chunk of
# a load.
_Seen: TypeAlias = tuple[Prompt, int, float]


class Known:
    """Chunks that a store had: by their hashes a prompt that they belong to, and since when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: OrderedDict[bytes, _Seen] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, prompt: Prompt, chunks: Iterable[int]) -> None:
        """These chunks were written now, or found there."""
        now = time.monotonic()
        with self._lock:
            for chunk in chunks:
                digest = prompt.digest(chunk)
                self._chunks[digest] = (prompt, chunk, now)
                self._chunks.move_to_end(digest)
            while len(self._chunks) > _KNOWN_MAX:
                self._chunks.popitem(last=False)

    def discard(self, prompt: Prompt, chunks: Iterable[int]) -> None:
        """These chunks are of no interest any more."""
        with self._lock:
            for chunk in chunks:
                self._chunks.pop(prompt.digest(chunk), None)

    def of(self, prompt: Prompt, end: int) -> dict[int, float]:
        """Which of the first `end` chunks of a prompt the store had, and since when."""
        with self._lock:
            found = ((i, self._chunks.get(prompt.digest(i))) for i in range(end))
            return {i: seen[2] for i, seen in found if seen is not None}

    def prompts(self) -> list[tuple[Prompt, list[int]]]:
        """All chunks, as they came."""
        with self._lock:
            all_seen = list(self._chunks.values())
        groups = groupby(all_seen, key=lambda seen: id(seen[0]))
        listed = [list(group) for _, group in groups]
        return [(group[0][0], sorted(chunk for _, chunk, _ in group)) for group in listed]

    def forget(self, which: Callable[[bytes], bool]) -> None:
        """Nothing of these generations is wanted there any more."""
        with self._lock:
            seen = self._chunks.items()
            kept = ((digest, one) for digest, one in seen if not which(one[0].generation))
            self._chunks = OrderedDict(kept)


class Refusals:
    """Why chunks of one store were refused lately, by hash."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._why: OrderedDict[bytes, str] = OrderedDict()

    def add(self, digest: bytes, why: str) -> None:
        """It is refused; the oldest ones are forgotten."""
        with self._lock:
            self._why[digest] = why
            while len(self._why) > _REFUSALS_MAX:
                self._why.popitem(last=False)

    def why(self, digest: bytes) -> str | None:
        """Why the chunk with this hash was refused lately."""
        with self._lock:
            return self._why.get(digest)

    def stored(self, digests: Sequence[bytes]) -> None:
        """These chunks were written anew: what was wrong with them is history."""
        with self._lock:
            if self._why:
                for digest in digests:
                    self._why.pop(digest, None)
