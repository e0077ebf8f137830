"""When what goes wrong: an endless row of blows that follows from the seed.

A blow is one or two troubles at a time, one of the servers and one of the way, held for a while.
After some of them the runner waits until every lane is served again, and after some of these come
seconds of peace in which every answer is held against the history strictly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Blow", "schedule"]

HOLDS_S = (0.05, 0.2, 0.6, 1.2)
WAITS_S = (0.0, 0.05, 0.3, 0.8)
PEACE_S = 1.5


@dataclass(frozen=True)
class Blow:
    """One moment of the run. Times in seconds."""

    number: int
    wait_s: float  # before it
    troubles: tuple[str, ...]
    seed: int  # of what the troubles choose themselves
    hold_s: float
    recovers: bool  # then wait for every lane
    peace_s: float  # and then this long nothing goes wrong

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def schedule(seed: int, server: Sequence[str], way: Sequence[str]) -> Iterator[Blow]:
    """The blows of a run with these troubles of its servers and of the way to them."""
    rng = random.Random(f"schedule {seed}")
    bags: dict[str, list[str]] = {"server": [], "way": []}
    number = 0
    while True:
        number += 1
        kinds = rng.choices([("server",), ("way",), ("server", "way")], [4, 3, 2])[0]
        troubles = []
        for kind in kinds:
            names = server if kind == "server" else way
            if not bags[kind]:  # each comes up before one comes up again
                bags[kind] = rng.sample(list(names), len(names))
            if names:
                troubles.append(bags[kind].pop())
        recovers = rng.random() < 0.6
        yield Blow(
            number,
            rng.choice(WAITS_S) * rng.random(),
            tuple(troubles),
            rng.randrange(10**6),
            rng.choice(HOLDS_S) * rng.uniform(0.5, 1.0),
            recovers,
            PEACE_S if recovers and rng.random() < 0.4 else 0.0,
        )
