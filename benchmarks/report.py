"""The table of all bars: which groups there are, and how their result is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.bars import Bar, Group, Lab
from benchmarks.cost import python_cost
from benchmarks.directory import directory_cost
from benchmarks.files import file_rates
from benchmarks.index import hash_cost, index_cost
from benchmarks.latency import distant_exists, distant_get, exists_beside_set
from benchmarks.node import node_small, node_values
from benchmarks.peers import peer_contact, peer_loads
from benchmarks.rival import rival_client
from benchmarks.server import server_control, server_copies
from benchmarks.throughput import get_redis, get_valkey, pure_client, set_redis, set_valkey
from benchmarks.tiered_cache import engine_loads, engine_memory
from kvferry.base.errors import UsageError
from kvferry.cli.table import table
from kvferry_lab.output import run_facts

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["GROUPS", "header", "say_bar", "say_table", "select"]

GROUPS: tuple[Group, ...] = (
    *(get_valkey, set_valkey, get_redis, set_redis, rival_client),
    *(distant_exists, distant_get, exists_beside_set, python_cost, pure_client),
    *(index_cost, hash_cost, directory_cost, engine_loads, engine_memory),
    *(node_values, node_small, peer_loads, peer_contact, file_rates),
    *(server_control, server_copies),
)


def select(only: Sequence[str]) -> list[Group]:
    """The groups whose name contains one of the words; all of them without words."""
    names = {group.__name__: group for group in GROUPS}
    for word in only:
        if not any(word in name for name in names):
            raise UsageError(f"no group is named like {word!r}; there are {', '.join(names)}")
    return [group for name, group in names.items() if not only or any(w in name for w in only)]


def header(lab: Lab) -> dict[str, Any]:
    """Command, machine, versions, and the servers with their settings."""
    servers = {}
    for name in lab.servers():
        with lab.probed(name, 0) as (_, probe):
            facts = probe.facts()
        servers[name] = ", ".join(f"{k} {v!r}" for k, v in facts.items() if k != "maxmemory")
    return run_facts(server=servers)


def say_bar(console: Console, bar: Bar, quick: bool) -> None:
    """One line as soon as it is known."""
    console.print(
        f"{_verdict(bar, quick):<11} {bar.name}: {_value(bar)} ({bar.detail or bar.why()})",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def say_table(console: Console, bars: Sequence[Bar], quick: bool) -> None:
    """All bars: name, target, measured, verdict."""
    skipped = sum(bar.skipped for bar in bars)
    title = f"{sum(bar.holds for bar in bars)} of {len(bars) - skipped} bars hold"
    for count, what in ((sum(bar.undecided for bar in bars), "undecided"), (skipped, "skipped")):
        title += f", {count} {what}" if count else ""
    if quick:
        title = "quick run: the programs work; these are no figures"
    rows = [
        (bar.name, str(bar.target), _value(bar), _verdict(bar, quick), bar.why()) for bar in bars
    ]
    console.print(title, highlight=False)
    columns = ("bar", "target", "measured", "verdict", "reason")
    console.print(table(columns, rows, right=False))


def _value(bar: Bar) -> str:
    if bar.value is None:
        return "not measured"
    within = f" ({bar.interval.low:.3g} to {bar.interval.high:.3g})" if bar.interval else ""
    return f"{bar.value:.3g}{within} {bar.target.unit}"


def _verdict(bar: Bar, quick: bool) -> str:
    if bar.skipped:
        return "skipped"
    if quick:
        return "failed" if bar.value is None else "runs"
    return "holds" if bar.holds else "undecided" if bar.undecided else "falls short"
