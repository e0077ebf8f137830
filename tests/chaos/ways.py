"""What goes wrong on the way to a server: the toxics of its proxies, one or all at a time.

Toxics that alter bytes, and replies out of step, are only for lanes whose values are framed. (With
TLS all lanes can have the former, because its records tell.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from chaos.lanes import Lane
from chaos.troubles import Trouble, Troubles
from support.proxy import FaultProxy
from support.toxics import TOXICS, names

__all__ = ["damages", "toxics"]

Act = Callable[[FaultProxy, random.Random], object]
GARBAGE = (b"@1\r\n", b"$3\r\nab", b"*2\r\n:1\r\n", b"-ERR no\r\n", b"\0\xff\r\n")
REPLIES: dict[str, Act] = {
    "garbage": lambda way, rng: way.insert_before_reply(rng.choice(GARBAGE), rng.randrange(5)),
    "drop": lambda way, rng: way.drop_reply(rng.randrange(5), times=rng.randint(1, 2)),
    "duplicate": lambda way, rng: way.duplicate_reply(rng.randrange(5)),
}


def toxics(ways: Sequence[FaultProxy], opaque: bool = False) -> Troubles:
    """Those that any client must bear. `opaque`: what goes through is TLS."""
    chosen = names() if opaque else names("slows", "breaks")
    return {name: _trouble(TOXICS[name].apply, ways) for name in chosen}


def damages(ways: Sequence[FaultProxy], lane: Lane | None = None) -> Troubles:
    """Those that only values with frames can bear; those of the lane, if there is one."""
    acts = {name: TOXICS[name].apply for name in names("alters")} | REPLIES
    return {name: _trouble(act, ways, lane) for name, act in acts.items()}


def _trouble(act: Act, ways: Sequence[FaultProxy], damaged: Lane | None = None) -> Trouble:
    @contextmanager
    def trouble(rng: random.Random) -> Iterator[None]:
        chosen = list(ways) if rng.random() < 0.5 else [rng.choice(ways)]
        if damaged is not None:
            damaged.damaged = True
        for way in chosen:
            act(way, rng)
        try:
            yield
        finally:
            for way in chosen:
                way.heal()

    return trouble
