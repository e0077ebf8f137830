"""The toxics by name, for tests that want all of them, and storms that mix them.

    @pytest.mark.parametrize("name", TOXICS)
    def test_...(name):
        apply(name, proxy, seed=7)          # of FaultProxy; they add up
        ...
        proxy.heal()

    storm = Storm(cluster.proxies, seed=7)
    storm.step()                            # heals one proxy or poisons one; no clock of its own
    storm.heal(), storm.log                 # what was done, to be printed when a test fails

A toxic that alters bytes is only for those who can notice: frames with a checksum, or TLS.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from support.proxy import Direction, FaultProxy

Effect = Literal["slows", "breaks", "alters"]
SPAN_BYTES = 1 << 20  # where in the stream a fault strikes: 0 to so many bytes from now


@dataclass(frozen=True)
class Toxic:
    """``slows``: all still works. ``breaks``: connections or replies are lost. ``alters``: bytes
    are not those that were sent."""

    effect: Effect
    apply: Callable[[FaultProxy, Random], object]


def _latency(proxy: FaultProxy, rng: Random) -> None:
    proxy.up.delay_s, proxy.down.delay_s = rng.uniform(0, 0.02), rng.uniform(0, 0.02)


def _jitter(proxy: FaultProxy, rng: Random) -> None:
    proxy.up.jitter_s = proxy.down.jitter_s = rng.uniform(0.001, 0.02)


def _bandwidth(proxy: FaultProxy, rng: Random) -> None:
    proxy.up.bandwidth_bytes_per_s = proxy.down.bandwidth_bytes_per_s = rng.uniform(10e6, 50e6)


def _slices(proxy: FaultProxy, rng: Random) -> None:
    for shape in (proxy.up, proxy.down):
        shape.slice_bytes, shape.slice_random = rng.choice((500, 1448, 9000)), True


def _refuse(proxy: FaultProxy, _: Random) -> None:
    proxy.refuse()
    proxy.cut_now()


def _unread(proxy: FaultProxy, _: Random) -> None:
    proxy.up.reading = False


def _way(rng: Random) -> Direction:
    return "up" if rng.random() < 0.5 else "down"


def _at(rng: Random) -> int:
    return rng.choice((0, 1, rng.randrange(64), rng.randrange(SPAN_BYTES)))


def _flips(proxy: FaultProxy, rng: Random) -> None:
    proxy.down.flips_per_byte = 1 / rng.choice((1_000, 100_000, 2_000_000))


TOXICS: dict[str, Toxic] = {
    "latency": Toxic("slows", _latency),
    "jitter": Toxic("slows", _jitter),
    "bandwidth": Toxic("slows", _bandwidth),
    "slices": Toxic("slows", _slices),
    "reset": Toxic("breaks", lambda to, rng: to.cut_after(_at(rng), direction=_way(rng))),
    "end": Toxic("breaks", lambda to, rng: to.cut_after(_at(rng), "fin", direction=_way(rng))),
    "cut": Toxic("breaks", lambda to, rng: to.cut_now()),
    "stall": Toxic("breaks", lambda to, rng: to.stall_after(_at(rng), direction=_way(rng))),
    "black_hole": Toxic("breaks", lambda to, rng: to.black_hole()),
    "half_open": Toxic("breaks", lambda to, rng: to.half_open()),
    "refuse": Toxic("breaks", _refuse),
    "unread": Toxic("breaks", _unread),
    "flip": Toxic("alters", lambda to, rng: to.flip(_at(rng), 1 << rng.randrange(8))),
    "flips": Toxic("alters", _flips),
}


def names(*effects: Effect) -> tuple[str, ...]:
    """The toxics with one of these effects; of all, if none is named."""
    return tuple(name for name, toxic in TOXICS.items() if not effects or toxic.effect in effects)


def apply(name: str, proxy: FaultProxy, seed: int = 0) -> None:
    """Poison a proxy, in addition to what it has."""
    TOXICS[name].apply(proxy, Random(f"{seed} {name}"))


class Storm:
    """A seeded series of toxics over one or many proxies; the caller has the clock."""

    def __init__(
        self,
        proxies: Sequence[FaultProxy],
        seed: int,
        toxics: Collection[str] = names("slows", "breaks"),
        poisoned_max: int | None = None,
    ) -> None:
        self.log: list[str] = []
        self._proxies, self._toxics = tuple(proxies), sorted(toxics)
        self._poisoned_max = len(self._proxies) if poisoned_max is None else poisoned_max
        self.poisoned: set[int] = set()  # which of the proxies
        self._rng = Random(seed)

    def step(self) -> None:
        """Heal one proxy, or give one another toxic; at most ``poisoned_max`` are poisoned."""
        chosen = self._rng.randrange(len(self._proxies))
        full = len(self.poisoned) >= self._poisoned_max
        if chosen in self.poisoned and (full or self._rng.random() < 0.6):
            self._heal(chosen)
            return
        if full:
            self._heal(self._rng.choice(sorted(self.poisoned)))
        name, seed = self._rng.choice(self._toxics), self._rng.getrandbits(32)
        self.log.append(f"{name} on proxy {chosen}, seed {seed}")
        self.poisoned.add(chosen)
        apply(name, self._proxies[chosen], seed)

    def heal(self) -> None:
        """All of them."""
        for chosen in sorted(self.poisoned):
            self._heal(chosen)

    def _heal(self, chosen: int) -> None:
        self.log.append(f"heal proxy {chosen}")
        self.poisoned.discard(chosen)
        self._proxies[chosen].heal()
