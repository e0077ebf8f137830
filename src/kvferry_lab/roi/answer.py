"""Everything that `kvferry roi` says of one case: in seconds, in bytes and in money.

Units: seconds, bytes, tokens; `Day` and `DayAccount` are of one day.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from kvferry_lab.doctor.model import ModelShape
from kvferry_lab.roi.arithmetic import Case
from kvferry_lab.roi.money import Day, DayAccount, Prices, ServerNeed, account, need_of

__all__ = ["LENGTHS", "RULE_BYTES_S", "Length", "RoiAnswer", "RoiQuestion", "answer", "finite"]

# Of the curves.
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
# The rule of thumb: a store beats a GPU from here on. Source: the post on the client of LMCache.
RULE_BYTES_S = 2e9


@dataclass(frozen=True, kw_only=True)
class RoiQuestion:
    """What is asked.

    Attributes:
        shard_bytes, shard_bytes_s: Memory and bandwidth of one server.
    """

    model: ModelShape
    case: Case
    day: Day
    prices: Prices
    shard_bytes: float
    shard_bytes_s: float


@dataclass(frozen=True, kw_only=True)
class Length:
    """A prompt of one length.

    Attributes:
        kept_tokens: Its full chunks, which are loaded in a hit.
        miss_s, hit_s: Times to the first token: nothing there, or loaded.
        break_even_bytes_s: Of a store that is as quick as computing; infinite: none can be.
    """

    tokens: int
    kv_bytes: float
    kept_tokens: int
    compute_s: float
    load_s: float
    miss_s: float
    hit_s: float
    break_even_bytes_s: float


@dataclass(frozen=True, kw_only=True)
class RoiAnswer:
    """What there is to say.

    Attributes:
        bytes_per_token: All layers and shards.
        at: The prompt that was asked for.
        curve: Others.
        crossover_tokens: Longer prefixes are loaded sooner than computed; infinite: none.
        store_bytes_s: What the store gives.
    """

    bytes_per_token: float
    at: Length
    curve: tuple[Length, ...]
    crossover_tokens: float
    store_bytes_s: float
    bill: DayAccount
    need: ServerNeed

    @property
    def sooner(self) -> bool:
        """Whether a hit has its first token sooner than a miss."""
        return self.at.hit_s < self.at.compute_s

    @property
    def earns(self) -> bool:
        """Whether the GPU time that is saved costs more than the memory."""
        return self.bill.saved_money > 0

    @property
    def carried(self) -> bool:
        """Whether the store can move what a day needs, if only spread evenly."""
        return self.bill.traffic_bytes_s <= self.store_bytes_s

    def to_dict(self) -> dict[str, Any]:
        """For programs; what is infinite is null."""
        found = {**asdict(self), "sooner": self.sooner, "earns": self.earns}
        found["carried"] = self.carried
        found["bill"]["gpus_freed"] = self.bill.gpus_freed
        found["need"]["shards"] = self.need.shards
        return dict(finite(found))


def answer(question: RoiQuestion) -> RoiAnswer:
    """Do the arithmetic."""
    case, day = question.case, question.day
    bill = account(case, day, question.prices)
    return RoiAnswer(
        bytes_per_token=case.kv.whole_bytes + case.kv.window_bytes,
        at=_length(case, day.prompt_tokens),
        curve=tuple(_length(case, tokens) for tokens in LENGTHS),
        crossover_tokens=case.crossover_tokens(),
        store_bytes_s=case.store.bytes_s,
        bill=bill,
        need=need_of(
            case,
            day,
            bill,
            shard_bytes=question.shard_bytes,
            shard_bytes_s=question.shard_bytes_s,
        ),
    )


def _length(case: Case, tokens: int) -> Length:
    kept = case.kept_tokens(tokens)
    return Length(
        tokens=tokens,
        kv_bytes=case.kv.prompt_bytes(tokens),
        kept_tokens=kept,
        compute_s=case.prefill.compute_s(tokens),
        load_s=case.store.load_s(case.kv.prompt_bytes(kept)),
        miss_s=case.miss_s(tokens),
        hit_s=case.loaded_s(tokens, kept),
        break_even_bytes_s=case.break_even_bytes_s(tokens),
    )


def finite(value: Any) -> Any:
    """The same with null for what is infinite: JSON has no word for that."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
