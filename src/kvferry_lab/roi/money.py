"""What the requests of a day cost with a store and without one, and which store they need.

Units: seconds, bytes, tokens; money in the currency of the prices. A month has 30 days.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvferry_lab.roi.arithmetic import Case

__all__ = ["Day", "DayAccount", "Prices", "ServerNeed", "account", "need_of"]

DAY_S = 86_400
MONTH_DAYS = 30
# The allocator of Redis and Valkey bills a stripe of 4 MiB and its header as 5 MiB
# (docs/decisions/0005-stripes.md).
BILLED = 1.25


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Of one GPU for an hour, and of one GB (10^9 bytes) of the store's memory for a month."""

    gpu_hour: float = 2.0
    ram_gb_month: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Day:
    """The requests of a day.

    Attributes:
        hit_rate: Share of requests whose prompt is there, as far as its full chunks go.
        stored_bytes: What the store keeps.
    """

    requests: float
    prompt_tokens: int
    hit_rate: float
    stored_bytes: float


@dataclass(frozen=True, kw_only=True)
class DayAccount:
    """Of one day.

    Attributes:
        gpu_s_before, gpu_s_after: For prompts, all GPUs together.
        ram_bytes: As the servers bill it.
        saved_money: For GPUs, less what the memory costs.
        payback_days: Until a month of the memory is earned; infinite where it never is.
        read_bytes_s, written_bytes_s: On average over the day.
    """

    gpu_s_before: float
    gpu_s_after: float
    gpu_money_saved: float
    ram_bytes: float
    ram_money: float
    saved_money: float
    payback_days: float
    read_bytes_s: float
    written_bytes_s: float

    @property
    def gpus_freed(self) -> float:
        """GPUs that would be busy all day."""
        return (self.gpu_s_before - self.gpu_s_after) / DAY_S

    @property
    def traffic_bytes_s(self) -> float:
        """Read and written, on average over the day."""
        return self.read_bytes_s + self.written_bytes_s


def account(case: Case, day: Day, prices: Prices) -> DayAccount:
    """The day of requests of one length."""
    kept = case.kept_tokens(day.prompt_tokens)
    hits = day.requests * day.hit_rate * case.pays(day.prompt_tokens, kept)
    size = case.kv.prompt_bytes(kept)
    return account_of(
        before_s=day.requests * case.prefill.compute_s(day.prompt_tokens),
        saved_s=hits * case.saved_s(day.prompt_tokens, kept),
        read_bytes=hits * size,
        written_bytes=day.requests * (1 - day.hit_rate) * size,
        stored_bytes=day.stored_bytes,
        gpus=case.prefill.gpus,
        prices=prices,
    )


def account_of(
    *,
    before_s: float,
    saved_s: float,
    read_bytes: float,
    written_bytes: float,
    stored_bytes: float,
    gpus: int,
    prices: Prices,
) -> DayAccount:
    """The account of a day from its sums; seconds are the engine's, whatever its GPUs."""
    gpu_money = saved_s * gpus / 3600 * prices.gpu_hour
    ram_bytes = stored_bytes * BILLED
    ram_month = ram_bytes / 1e9 * prices.ram_gb_month
    return DayAccount(
        gpu_s_before=before_s * gpus,
        gpu_s_after=(before_s - saved_s) * gpus,
        gpu_money_saved=gpu_money,
        ram_bytes=ram_bytes,
        ram_money=ram_month / MONTH_DAYS,
        saved_money=gpu_money - ram_month / MONTH_DAYS,
        payback_days=ram_month / gpu_money if gpu_money > 0 else math.inf,
        read_bytes_s=read_bytes / DAY_S,
        written_bytes_s=written_bytes / DAY_S,
    )


@dataclass(frozen=True, kw_only=True)
class ServerNeed:
    """Servers for a working set.

    Attributes:
        for_memory: So many to hold it.
        for_bandwidth: So many to carry the day's traffic, and one load as fast as computing;
            ``None``: no bandwidth makes loading as fast.
        memory_bytes: Of each, as `maxmemory`.
    """

    for_memory: int
    for_bandwidth: int | None
    memory_bytes: float

    @property
    def shards(self) -> int:
        """The servers that memory and bandwidth need."""
        return max(self.for_memory, self.for_bandwidth or 1)


def need_of(
    case: Case, day: Day, bill: DayAccount, *, shard_bytes: float, shard_bytes_s: float
) -> ServerNeed:
    """The number of servers of such a size and bandwidth; the chunks of a prompt lie on all."""
    for_memory = max(1, math.ceil(bill.ram_bytes / shard_bytes))
    wanted = max(bill.traffic_bytes_s, case.break_even_bytes_s(day.prompt_tokens))
    for_bandwidth = max(1, math.ceil(wanted / shard_bytes_s)) if math.isfinite(wanted) else None
    shards = max(for_memory, for_bandwidth or 1)
    return ServerNeed(
        for_memory=for_memory,
        for_bandwidth=for_bandwidth,
        memory_bytes=bill.ram_bytes / shards,
    )
