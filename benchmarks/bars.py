"""The bars: what kvferry promises about speed and recovery, each measured on one machine.

A bar is a name, a target and a measured value; it holds or falls short, and says which. One with an
interval falls short only if that lies on the wrong side as a whole: else it is undecided. Every
group starts its own servers, and compares inside one run. With `quick` everything is tiny: that
shows that the programs work, and claims nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvferry.base.errors import KVFerryError
from kvferry.config import ClientConfig
from kvferry.embedded.program import ServerBinary, find_server
from kvferry.embedded.store import embedded_store
from kvferry_lab.bench.intervals import Interval, ratios
from kvferry_lab.bench.server_probe import ServerProbe
from kvferry_lab.servers.same_host import tcp_config

__all__ = ["NOTES", "Bar", "Lab", "Target", "run_bars"]

_MIB = 1 << 20

# Known reasons for a bar that falls short: the beginning of its name -> the reason. The longest
# match is shown.
NOTES: dict[str, str] = {
    "retrieve of 313 x 4 MiB from Valkey 9, into buffers": "each chunk is copied from its page, "
    "0.07 s of CPU per GB; where server and client fill all cores, nothing hides that",
}


@dataclass(frozen=True)
class Target:
    """A bound on a value: at least, or at most."""

    sign: str  # ">=" or "<="
    bound: float
    unit: str

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g} {self.unit}"

    def holds(self, value: float) -> bool:
        """Whether the value is on the right side."""
        return value >= self.bound if self.sign == ">=" else value <= self.bound


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One measured promise. `value` is None when nothing could be measured: then it falls short,
    unless it was skipped because there is nothing here to measure it on."""

    name: str
    target: Target
    value: float | None
    interval: Interval | None = None  # in which the value lies with a confidence of 95 %
    detail: str = ""
    reason: str = ""  # why there is no value, or why it falls short where that is known
    skipped: bool = False

    @classmethod
    def of_median(cls, name: str, target: Target, values: Sequence[float], detail: str = "") -> Bar:
        """The median of what was measured again and again, with its interval."""
        found = Interval.of_median(values)
        return cls(name=name, target=target, value=found.middle, interval=found, detail=detail)

    @classmethod
    def of_pairs(
        cls,
        name: str,
        target: Target,
        ours: Sequence[float],
        theirs: Sequence[float],
        detail: str = "",
    ) -> Bar:
        """The median ratio of pairs of neighbours in time, with its interval."""
        return cls.of_median(name, target, ratios(ours, theirs), detail)

    @property
    def holds(self) -> bool:
        """Whether it was measured and meets its target."""
        return self.value is not None and self.target.holds(self.value)

    @property
    def undecided(self) -> bool:
        """Whether the value misses its target by less than its interval is wide."""
        ends = (self.interval.low, self.interval.high) if self.interval else ()
        return not self.holds and any(map(self.target.holds, ends))

    @property
    def falls_short(self) -> bool:
        """Whether it does not hold, and could have."""
        return not (self.holds or self.undecided or self.skipped)

    def why(self) -> str:
        """For a bar that falls short: the reason, as far as it is known."""
        if self.holds or self.reason:
            return self.reason
        matches = [begin for begin in NOTES if self.name.startswith(begin)]
        return NOTES[max(matches, key=len)] if matches else ""

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        verdict = {"holds": self.holds, "undecided": self.undecided, "reason": self.why()}
        return {**asdict(self), "target": str(self.target), "unit": self.target.unit, **verdict}


@dataclass(frozen=True)
class Lab:
    """How much to do, and the servers to do it on.

    Attributes:
        quick: Everything tiny.
        directory: Of files; None: that for temporary ones.
    """

    quick: bool = False
    directory: Path | None = None

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 9

    @property
    def pairs(self) -> int:
        """Rounds where the ratio of a pair is the figure."""
        return 1 if self.quick else 15

    @property
    def openings(self) -> int:
        """Servers, floors and clients started anew, which share the pairs: where the memory of a
        process happens to lie moves its rate by a tenth and more."""
        return 1 if self.quick else 5

    @property
    def batch(self) -> int:
        return 8 if self.quick else 64

    @property
    def connections(self) -> tuple[int, ...]:
        return (1, 2) if self.quick else (1, 2, 4, 8)

    def size_bytes(self, mib: float) -> int:
        """A value of `mib` MiB; a 64th of it when quick."""
        return int(mib * _MIB / (64 if self.quick else 1))

    def label(self, mib: float) -> str:
        """What to call that size."""
        return f"{mib:g} MiB / 64" if self.quick else f"{mib:g} MiB"

    def count(self, full: int) -> int:
        """A number of repetitions; a hundredth of it when quick."""
        return max(5, full // 100) if self.quick else full

    def servers(self) -> Sequence[str]:
        """Names of the servers that can be started here."""
        return ["Valkey 9", *(["Redis 7"] if shutil.which("redis-server") else [])]

    def binary(self, name: str) -> ServerBinary:
        """The program of such a server."""
        return find_server(shutil.which("redis-server") if name == "Redis 7" else None)

    @contextmanager
    def server(self, name: str = "Valkey 9", needs_bytes: int = 0) -> Iterator[ClientConfig]:
        """A fresh server with room for so many bytes, over TCP."""
        binary = self.binary(name).path
        room_mb = 256 + 3 * needs_bytes // _MIB
        with embedded_store(maxmemory_mb=room_mb, binary=binary) as store:
            yield tcp_config(store).replace(same_host="tcp")

    @contextmanager
    def probed(self, name: str, needs_bytes: int) -> Iterator[tuple[ClientConfig, ServerProbe]]:
        """The same with a probe."""
        with self.server(name, needs_bytes) as config, ServerProbe(config) as probe:
            yield config, probe


Group = Callable[[Lab], Iterator[Bar]]


def run_bars(
    groups: Sequence[Group], lab: Lab, say: Callable[[Bar], None] = lambda bar: None
) -> list[Bar]:
    """Measure group after group; a group that fails yields one bar without a value.

    Args:
        say: Gets each bar as soon as it is measured.
    """
    bars = []
    for group in groups:
        try:
            for bar in group(lab):
                bars.append(bar)
                say(bar)
        except (KVFerryError, OSError) as error:
            bar = Bar(
                name=(group.__doc__ or group.__name__).splitlines()[0].rstrip("."),
                target=Target(">=", 1, "measurement"),
                value=None,
                reason=f"{type(error).__name__}: {error}",
            )
            bars.append(bar)
            say(bar)
    return bars
