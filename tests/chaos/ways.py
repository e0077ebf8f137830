"""What goes wrong on the way to a server: the proxies of some lanes, one or all at a time.

Toxics shape or cut the way and change no byte. Damages change what is read, so only lanes with
`damaging` get them, whose values are framed. Through TLS they are toxics: the records tell.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

from chaos.lanes import Lane
from chaos.troubles import Trouble, Troubles
from support.flow import Ending
from support.proxy import Direction, FaultProxy

__all__ = ["way_troubles"]

OFFSET_BYTES_MAX = 3 << 20
GARBAGE = (b"@1\r\n", b"$3\r\nab", b"*2\r\n:1\r\n", b"-ERR no\r\n", b"\0\xff\r\n")
Act = Callable[[FaultProxy, random.Random], object]


def way_troubles(lanes: Sequence[Lane], opaque: bool = False) -> Troubles:
    """The troubles of these lanes' proxies; `opaque`: what goes through is TLS."""
    ways = [lane for lane in lanes if lane.way is not None]
    damaging = [lane for lane in ways if lane.damaging]
    made = {name: _trouble(act, ways) for name, act in TOXICS.items()} if ways else {}
    if opaque and ways:
        made |= {name: _trouble(act, ways) for name, act in FLIPS.items()}
    elif damaging:
        acts: Mapping[str, Act] = FLIPS | REPLIES
        made |= {name: _trouble(act, damaging, damages=True) for name, act in acts.items()}
    return made


def _trouble(act: Act, lanes: Sequence[Lane], damages: bool = False) -> Trouble:
    @contextmanager
    def trouble(rng: random.Random) -> Iterator[None]:
        chosen = rng.choice([list(lanes), [rng.choice(lanes)]])
        for lane in chosen:
            lane.damaged |= damages
            act(cast(FaultProxy, lane.way), rng)
        try:
            yield
        finally:
            for lane in chosen:
                cast(FaultProxy, lane.way).heal()

    return trouble


def _offset(rng: random.Random) -> int:
    return int(OFFSET_BYTES_MAX * rng.random() ** 4)  # most are near


def _ending(rng: random.Random) -> Ending:
    return "rst" if rng.random() < 0.5 else "fin"


def _direction(rng: random.Random) -> Direction:
    return "up" if rng.random() < 0.5 else "down"


def _shape(rng: random.Random, way: FaultProxy, **fields: float | bool) -> None:
    shape = way.up if _direction(rng) == "up" else way.down
    for name, value in fields.items():
        setattr(shape, name, value)


def _bandwidth(way: FaultProxy, rng: random.Random) -> None:
    _shape(rng, way, bandwidth_bytes_per_s=10 ** rng.uniform(4.5, 7.5))


def _latency(way: FaultProxy, rng: random.Random) -> None:
    _shape(rng, way, delay_s=rng.uniform(0, 0.1), jitter_s=rng.choice([0, 0.05]))


def _slicing(way: FaultProxy, rng: random.Random) -> None:
    size, interval_s = rng.choice([(1, 0.001), (1000, 0.0), (20_000, 0.001)])
    _shape(rng, way, slice_bytes=size, slice_interval_s=interval_s, slice_random=True)


def _cut(way: FaultProxy, rng: random.Random) -> None:
    way.cut_after(_offset(rng), _ending(rng), rng.randint(1, 5), _direction(rng))


def _stall(way: FaultProxy, rng: random.Random) -> None:
    way.stall_after(_offset(rng), rng.randint(1, 3), _direction(rng))


def _refuse(way: FaultProxy, rng: random.Random) -> None:
    way.refuse()
    way.cut_now(_ending(rng))


def _flip(way: FaultProxy, rng: random.Random) -> None:
    way.flip(_offset(rng), 1 << rng.randrange(8), rng.randint(1, 4), _direction(rng))


TOXICS: dict[str, Act] = {
    "bandwidth": _bandwidth,
    "latency": _latency,
    "slicing": _slicing,
    "cut": _cut,
    "cut_now": lambda way, rng: way.cut_now(_ending(rng)),
    "stall": _stall,
    "black_hole": lambda way, rng: way.black_hole(),
    "half_open": lambda way, rng: way.half_open(),
    "refuse": _refuse,
    "deaf": lambda way, rng: _shape(rng, way, reading=False),
}
FLIPS: dict[str, Act] = {
    "flip": _flip,
    "flips": lambda way, rng: _shape(rng, way, flips_per_byte=10 ** rng.uniform(-7, -4)),
}
REPLIES: dict[str, Act] = {
    "garbage": lambda way, rng: way.insert_before_reply(rng.choice(GARBAGE), rng.randrange(5)),
    "drop": lambda way, rng: way.drop_reply(rng.randrange(5), times=rng.randint(1, 2)),
    "duplicate": lambda way, rng: way.duplicate_reply(rng.randrange(5)),
}
