"""`kvferry tune`: measures a server and says which settings are the best for it.

    result = Tune(config=config, budget_s=60).run(print)
    result.best, result.ratio      # the point, and its rate over that of the settings until now
    save_client_settings(path, result.client, others={"tuned": result.tuned})

Nothing is written here. What runs is bounded: the server holds `size_bytes` for each size of value,
and where that does not fit beside what it holds already the run is refused before it begins.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvferry.base.errors import CapacityError, UsageError
from kvferry.base.host import available_memory_bytes
from kvferry.config import CONNECTIONS_DEFAULT, WORKERS_DEFAULT, ClientConfig
from kvferry_lab.tune.points import Grid, TunePoint, TuneResult, TuneSample
from kvferry_lab.tune.sweep import Sweep
from kvferry_lab.tune.tune_meter import TuneMeter

__all__ = ["Tune", "check_room"]

_MIB = 1 << 20
_SHARE_SEARCH = 0.85  # of the budget; the rest compares the result with the settings until now


@dataclass(kw_only=True)
class Tune:
    """One run.

    Attributes:
        config: The server; its connections and workers are where the search begins.
        get_weight: Bytes that are read for each byte that is written.
        size_bytes: What a turn writes, and reads.
        budget_s: How long to search. A full sweep comes on top, and takes what it takes.
        allow_eviction: Measure although the server will evict other keys.
    """

    config: ClientConfig
    grid: Grid = field(default_factory=Grid)
    get_weight: float = 2.0
    size_bytes: int = 64 * _MIB
    budget_s: float = 60.0
    full: bool = False
    allow_eviction: bool = False
    seed: int = 0

    def run(self, say: Callable[[str], None]) -> TuneResult:
        """Measure; `say` gets a word about what is being done.

        Raises:
            UsageError: The run does not fit into our memory.
            CapacityError: It does not fit into the server's.
            UnavailableError, AuthError: The server cannot be used.
            CorruptError: A wrong byte was read.
        """
        began = time.monotonic()
        need_bytes = self.size_bytes * len(self.grid.chunk_bytes)
        if 2 * need_bytes > 0.8 * available_memory_bytes():
            raise UsageError(f"the buffers need {2 * need_bytes // _MIB} MiB here; lower --mib")
        with TuneMeter(self.config, self.size_bytes) as meter:
            info = meter.info()
            check_room(info, need_bytes, self.allow_eviction)
            sweep = Sweep(
                self.grid, meter.turn, self._score, time.monotonic, seed=self.seed, say=say
            )
            before = self._before()
            best = sweep.search(before, _SHARE_SEARCH * self.budget_s)
            rest_s = (1 - _SHARE_SEARCH) * self.budget_s
            sweep_best, sweep_ratio = None, None
            if self.full:
                sweep_best = sweep.full(best)
                say(f"found without the full sweep: {best}; by it: {sweep_best}")
                sweep_ratio = 1.0
                if best != sweep_best:
                    sweep_ratio = sweep.against(best, sweep_best, rest_s)[0].ratio
                best = best if sweep_ratio >= 1 else sweep_best
            say(f"the best, {best}, against the settings until now")
            entry, reference = sweep.against(best, before, rest_s)
            if best == before or entry.ratio < 1:
                best, entry.ratios, entry.samples = before, [1.0], reference.samples
            return TuneResult(
                best=best,
                before=before,
                ratio=entry.ratio,
                sample=_median(entry.samples),
                before_sample=_median(reference.samples),
                get_weight=self.get_weight,
                server=_server(info),
                address=self.config.address,
                round_trip_s=meter.round_trip_s,
                turns=sweep.turns,
                verified_bytes=meter.verified_bytes,
                elapsed_s=time.monotonic() - began,
                failed=sweep.failed,
                sweep_best=sweep_best,
                sweep_ratio=sweep_ratio,
            )

    def _before(self) -> TunePoint:
        point = TunePoint(
            connections=self.config.connections or CONNECTIONS_DEFAULT,
            workers=self.config.workers or WORKERS_DEFAULT,
        )
        return self.grid.at(point)

    def _score(self, sample: TuneSample) -> float:
        return sample.mix_gbps(self.get_weight)


def check_room(info: Mapping[str, str], need_bytes: int, allow_eviction: bool = False) -> None:
    """Refuse what does not fit beside what the server holds.

    Args:
        info: Its INFO; one that says nothing of its memory is taken to have room.
        need_bytes: What it will hold of ours; the same again passes through while it is replaced.

    Raises:
        CapacityError: With what to do.
    """
    limit = int(info.get("maxmemory", 0))
    whose = "maxmemory"
    if limit == 0:
        limit, whose = int(info.get("total_system_memory", 0)), "memory of its host"
    free = limit - int(info.get("used_memory", 0))
    evicts = limit > 0 and info.get("maxmemory_policy", "noeviction") != "noeviction"
    room = limit if evicts and allow_eviction else free
    if limit and 2 * need_bytes > room:
        advice = (
            "allow that other keys are evicted (--allow-eviction)"
            if evicts and not allow_eviction
            else "give it more"
        )
        raise CapacityError(
            f"tuning needs {2 * need_bytes // _MIB} MiB and the {whose} has {room // _MIB} MiB "
            f"left; lower --mib, or {advice}"
        )


def _median(samples: Sequence[TuneSample]) -> TuneSample:
    return TuneSample(
        get_gbps=statistics.median(sample.get_gbps for sample in samples),
        set_gbps=statistics.median(sample.set_gbps for sample in samples),
    )


def _server(info: Mapping[str, str]) -> str:
    kind = "valkey" if "valkey_version" in info else "redis"
    return f"{kind} {info.get(f'{kind}_version', 'of unknown version')}"
