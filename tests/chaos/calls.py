"""What each client thread asks for: an endless row of calls that follows from seed and thread.

Nothing of it depends on what came of earlier calls, so the same seed asks for the same things.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from support.history import Verb
from support.stamps import MIB

__all__ = ["Call", "Shape", "calls"]

CALL_BYTES_MAX = 12 * MIB
VERBS: tuple[Verb, ...] = ("get", "set", "exists", "touch", "delete")
WEIGHTS = (10, 7, 2, 1, 2)
TINY_DEADLINES, CANCELS, PREFIXES = 0.1, 0.1, 0.25  # how often


@dataclass(frozen=True)
class Shape:
    """The keys of a lane: the length of each one's values, in bytes."""

    sizes: tuple[int, ...]
    cancels: bool = False  # its calls can be withdrawn


@dataclass(frozen=True)
class Call:
    """One batch. Keys are numbers within the lane."""

    lane: int
    verb: Verb
    keys: tuple[int, ...]
    prefix: bool = False
    timeout_s: float | None = None
    cancel_after_s: float | None = None


def calls(seed: int, thread: int, lanes: Sequence[Shape]) -> Iterator[Call]:
    """The calls of one thread."""
    rng = random.Random(f"calls {seed} {thread}")
    while True:
        lane = rng.randrange(len(lanes))
        shape = lanes[lane]
        verb = rng.choices(VERBS, WEIGHTS)[0]
        count = min(rng.choice([1, 2, 3, 5, 8]), len(shape.sizes))
        keys = rng.sample(range(len(shape.sizes)), count)
        if verb in ("get", "set"):
            while sum(shape.sizes[key] for key in keys) > CALL_BYTES_MAX:
                keys.pop()
        tiny, cancel = rng.random() < TINY_DEADLINES, rng.random() < CANCELS
        at_s = rng.uniform(0.0005, 0.05)
        yield Call(
            lane,
            verb,
            tuple(keys),
            prefix=verb in ("get", "exists", "touch") and rng.random() < PREFIXES,
            timeout_s=at_s if tiny else None,
            cancel_after_s=at_s if cancel and not tiny and shape.cancels else None,
        )
