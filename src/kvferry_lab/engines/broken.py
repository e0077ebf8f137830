"""What a store that is gone costs a real vLLM: the time to the first token, with and without it.

    rows = run_broken(plan, say=print)

For each integration an engine is started over a good store and warmed up, beside one without a
cache. Then the store, or the cache server of an integration that has one, is killed or stopped, and
new prompts go to the two engines in turn. The first one finds out; the others should cost what they
cost the engine without a cache.

Threads: the caller's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from kvferry.cli.table import number, table
from kvferry_lab.engines.bench import WORDS, EnginePlan, attempted, open_engine
from kvferry_lab.engines.engine_process import EngineProcess
from kvferry_lab.servers.lab_server import LabServer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["run_broken", "say_broken_rows"]

WAYS = {"killed": signal.SIGKILL, "silent": signal.SIGSTOP}
_WARM_UP = 12
_REQUESTS = 60
_MORE_TOKENS = 7  # than one chunk


def run_broken(plan: EnginePlan, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure; one object for each integration and way, times in milliseconds."""
    rows = []
    with LabServer(plan.server) as idle, open_engine(plan, "none", idle.port) as (plain, _):
        for integration in plan.names:
            for way in WAYS if integration != "none" else [""]:
                say(f"broken store: {integration} {way}")
                found = attempted(partial(_one, plan, integration, way, plain), say)
                rows.append({"integration": integration, "way": way, **found})
    return rows


def say_broken_rows(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """A table for people."""
    names = ("plain_ms", "first_added_ms", "added_ms", "added_p90_ms")
    cells = [
        [row["integration"], row["way"], *(number(row.get(name), 2) for name in names)]
        for row in rows
    ]
    columns = ("integration", "store", "without ms", "first +ms", "later +ms", "later p90 +ms")
    console.print(table(columns, cells))
    console.print(
        "TTFT after the store, or the cache server, was killed or stopped, beyond that of an "
        f"engine without a cache that gets the same {_REQUESTS} prompts in turn (medians, and p90)",
        highlight=False,
    )


def _one(plan: EnginePlan, integration: str, way: str, plain: EngineProcess) -> dict[str, float]:
    draw = Random(f"kvferry {integration} {way}")
    with (
        LabServer(plan.server) as store,
        open_engine(plan, integration, store.port) as (engine, opened),
    ):
        for _ in range(_WARM_UP):
            _ttfts_ms(plan, draw, engine, plain)
        victim = opened.server_pid or store.pid
        if way:
            os.kill(victim, WAYS[way])
        try:
            times = [_ttfts_ms(plan, draw, engine, plain) for _ in range(1 + _REQUESTS)]
        finally:
            if way == "silent":
                os.kill(victim, signal.SIGCONT)
    ours, theirs = ([pair[side] for pair in times] for side in (0, 1))
    usual = median(theirs)
    return {
        "plain_ms": usual,
        "first_added_ms": ours[0] - usual,
        "added_ms": median(ours[1:]) - usual,
        "added_p90_ms": quantiles(ours[1:], n=10)[-1] - quantiles(theirs, n=10)[-1],
    }


def _ttfts_ms(plan: EnginePlan, draw: Random, *engines: EngineProcess) -> list[float]:
    """Of one new prompt, by each engine in turn."""
    prompt = draw.choices(WORDS, k=plan.chunk_tokens + _MORE_TOKENS)
    said = [engine.generate([prompt], 1) for engine in engines]
    return [(one.outputs[0].ttft_s or one.seconds) * 1000 for one in said]
