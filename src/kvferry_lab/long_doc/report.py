"""What a run over long documents says: where its hits were lost; to people, as JSON, CSV and PNG.

Of N rounds the first one cannot hit, so (N-1)/N of the tokens could. What is missing from that was
lost for one of three reasons:

- partial chunks: a cache keeps whole chunks, and one token at least is always computed;
- capacity: what no cache of that size could have kept, knowing the whole run before it begins;
- eviction order: the rest, which another policy could have kept, or which was not stored.

What could have been kept is found by evicting the document that is asked for last, its end first
(Belady, for prefixes), after each request. What is in flight does not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvferry.cli.table import number, table
from kvferry_lab.drawing import drawing
from kvferry_lab.long_doc.run import LongDocRun, Record, mean_ttft
from kvferry_lab.output import write_csv

__all__ = [
    "as_json",
    "best_hits",
    "hit_loss",
    "loss_lines",
    "missed_expectations",
    "plot_rounds",
    "result_lines",
    "round_table",
    "write_tables",
]
_COLUMNS = [*(each.name for each in fields(Record) if each.name != "text"), "ttft_time"]
# Told apart by their form, so that no colour is needed.
_POINTS = (("o", "none", "request start"), ("^", "0.6", "first token"), ("s", "0.0", "request end"))


@dataclass(frozen=True, kw_only=True)
class HitLoss:
    """Tokens of the prompts of a run, by what became of them.

    Attributes:
        asked: All of them.
        new: Those of documents that nobody had asked for, and that were not cached all the same.
        partial: Behind the last full chunk of the others.
        capacity: See the module; None: the capacity is not known, and `order` has both.
        order: See the module.
        hit: Those that were cached.
    """

    asked: int
    new: int
    partial: int
    capacity: int | None
    order: int
    hit: int

    @property
    def rate(self) -> float:
        """Hits of all tokens."""
        return self.hit / self.asked if self.asked else 0.0

    @property
    def possible(self) -> float:
        """The hit rate of an unlimited cache with chunks of one token."""
        return 1 - self.new / self.asked if self.asked else 0.0


def hit_loss(
    records: Sequence[Record], chunk_tokens: int, capacity_tokens: int | None
) -> HitLoss | None:
    """Of the requests in their order; None where the server does not say what it had cached."""
    fine = [r for r in records if r.successful and r.prompt_tokens is not None]
    if not fine or any(record.cached_tokens is None for record in fine):
        return None
    seen: set[int] = set()
    asked = new = partial = hit = again = usable = 0
    chunks = []
    for record in fine:
        tokens, cached = record.prompt_tokens or 0, record.cached_tokens or 0
        full = max(0, tokens - 1) // chunk_tokens
        asked, hit = asked + tokens, hit + cached
        if record.document in seen:
            most = max(full * chunk_tokens, cached)  # the server may have smaller chunks
            partial, usable, again = partial + tokens - most, usable + most, again + cached
        else:
            new += tokens - cached
        seen.add(record.document)
        chunks.append((record.document, full))
    kept, capacity = usable, None
    if capacity_tokens is not None:
        best = best_hits(chunks, capacity_tokens // chunk_tokens) * chunk_tokens
        kept = min(usable, max(best, again))
        capacity = usable - kept
    return HitLoss(
        asked=asked, new=new, partial=partial, capacity=capacity, order=kept - again, hit=hit
    )


def best_hits(asked: Sequence[tuple[int, int]], capacity: int) -> int:
    """The most chunks that a cache of `capacity` chunks can hit.

    Args:
        asked: Documents and how many chunks each has, in the order in which they are asked for.
        capacity: In chunks.
    """
    following = [math.inf] * len(asked)
    last: dict[int, int] = {}
    for at in reversed(range(len(asked))):
        following[at] = last.get(asked[at][0], math.inf)
        last[asked[at][0]] = at
    held: dict[int, int] = {}
    again: dict[int, float] = {}
    hits = 0
    for at, (document, size) in enumerate(asked):
        hits += min(held.get(document, 0), size)
        held[document], again[document] = size, following[at]
        over = sum(held.values()) - capacity
        for one in sorted(held, key=lambda one: again[one], reverse=True):
            cut = min(held[one], max(0, over))
            held[one], over = held[one] - cut, over - cut
    return hits


def result_lines(run: LongDocRun) -> list[str]:
    """The known lines."""
    lines = ["=== BENCHMARK RESULTS ==="]
    for part, records, seconds in run.parts:
        name = part.capitalize()
        lines += [
            f"{name} round mean TTFT: {mean_ttft(records):.3f}s",
            f"{name} round time: {seconds:.3f}s",
            f"{name} round prompt count: {len(records)}",
            f"{name} round successful prompt count: {sum(r.successful for r in records)}",
        ]
    return lines


def loss_lines(run: LongDocRun, loss: HitLoss | None) -> list[str]:
    """Hits against what is possible, what was lost, and what the cache saves of the time."""
    if loss is None:
        return ["The server does not say what it had cached (prompt_tokens_details)."]
    rounds, bound = run.plan.rounds, f"{loss.possible:.1%} possible"
    if rounds and run.plan.hit_miss_ratio is None:
        bound = f"(N-1)/N = {(rounds - 1) / rounds:.1%}"
    lines = [f"Hit rate: {loss.rate:.2%} of {loss.asked:,} prompt tokens; {bound}"]
    lost = [("asked for the first time", loss.new), ("partial chunks", loss.partial)]
    if loss.capacity is None:
        lost.append(("capacity or eviction order (--capacity-tokens tells them apart)", loss.order))
    else:
        lost += [("capacity", loss.capacity), ("eviction order", loss.order)]
    lines += [f"  lost, {why}: {tokens / loss.asked:.2%}" for why, tokens in lost]
    if any(record.cached_tokens for record in run.warmup):
        lines.append("The cache knew documents before the first round: empty it to compare times.")
    elif rounds and rounds > 1:
        again, whole = times_of_recompute(run)
        lines += [
            f"Round time with the cache: {again:.2f} of the first round, which computes all",
            f"All {rounds} rounds: {whole:.2f} of computing all {rounds} times "
            f"({abs(1 - whole):.0%} {'less' if whole <= 1 else 'more'})",
        ]
    return lines


def times_of_recompute(run: LongDocRun) -> tuple[float, float]:
    """The mean of the rounds behind the first, and of all rounds, as parts of the first one."""
    first, rest = run.round_s[0], run.round_s[1:]
    return sum(rest) / len(rest) / first, sum(run.round_s) / len(run.round_s) / first


def round_table(run: LongDocRun) -> Any:
    """A row for each round."""
    rows = []
    for number_, seconds in enumerate(run.round_s):
        records = [record for record in run.records if record.round == number_]
        asked = sum(record.prompt_tokens or 0 for record in records)
        cached = sum(record.cached_tokens or 0 for record in records)
        known = any(record.cached_tokens is not None for record in records)
        hits = 100 * cached / asked if asked and known else None
        failed = sum(not record.successful for record in records)
        rows.append(
            (
                *(str(number_ + 1), str(len(records)), str(failed), number(seconds, 3)),
                *(number(mean_ttft(records), 3), number(hits)),
            )
        )
    return table(["round", "requests", "failed", "time s", "mean TTFT s", "hit %"], rows)


def missed_expectations(
    run: LongDocRun,
    ttft_gain: float | None,
    latency_gain: float | None,
    latency_s: float | None,
) -> list[str]:
    """The expectations that are not met: gains as warm-up over query, for each prompt."""
    missed = []
    warm, query = mean_ttft(run.warmup), mean_ttft(run.query)
    got = warm / query if query else float("inf")
    if ttft_gain is not None and got < ttft_gain:
        missed.append(f"TTFT gain {got:.2f}x < expected {ttft_gain:.2f}x")
    each = run.query_s / max(1, len(run.query))
    got = run.round_s[0] / max(1, len(run.warmup)) / each if each else float("inf")
    if latency_gain is not None and got < latency_gain:
        missed.append(f"latency gain {got:.2f}x < expected {latency_gain:.2f}x")
    if latency_s is not None and run.query_s > latency_s:
        missed.append(f"query round time {run.query_s:.3f}s > expected {latency_s:.3f}s")
    return missed


def write_tables(run: LongDocRun, folder: Path) -> None:
    """A line for each request: warmup_round.csv and query_round.csv."""
    for name, records, _ in run.parts:
        rows = [
            {**asdict(record), "ttft_time": record.request_start + max(0.0, record.ttft)}
            for record in records
        ]
        write_csv(folder / f"{name}_round.csv", _COLUMNS, rows)


def as_json(run: LongDocRun, loss: HitLoss | None) -> dict[str, Any]:
    """Everything but the texts."""
    plan = {name: value for name, value in asdict(run.plan).items() if name != "words"}
    parts = {
        name: {
            "mean_ttft_s": mean_ttft(records),
            "time_s": seconds,
            "prompts": len(records),
            "successful": sum(record.successful for record in records),
        }
        for name, records, seconds in run.parts
    }
    made: dict[str, Any] = {"model": run.model, "plan": plan, **parts, "round_s": run.round_s}
    if loss is not None:
        made["hits"] = {**asdict(loss), "rate": loss.rate, "possible": loss.possible}
    if run.plan.rounds and run.plan.rounds > 1:
        made["round_of_recompute"], made["all_of_recompute"] = times_of_recompute(run)
    return made


def plot_rounds(run: LongDocRun, folder: Path, caption: str) -> None:
    """Draw warmup_round.png and query_round.png; the caption is the command."""
    for name, records, _ in run.parts:
        fine = [record for record in records if record.successful]
        times = (
            [record.request_start for record in fine],
            [record.request_start + record.ttft for record in fine],
            [record.request_end for record in fine],
        )
        with drawing(folder / f"{name}_round.png", size=(10, 5), caption=caption) as (axes,):
            for values, (marker, face, label) in zip(times, _POINTS, strict=True):
                ids = [record.prompt_id for record in fine]
                axes.scatter(ids, values, marker=marker, c=face, edgecolors="black", label=label)
            axes.set_xlabel("prompt")
            axes.set_ylabel("time since the beginning, s")
            axes.set_title(f"{name.capitalize()} round")
            axes.legend()
