"""The views that are tables: processes, prefixes, transfers, memory, events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http import usage, views
from kvferry.sharing.controller.http.answers import AgeRow, HeldPrefix, NodeRow, PrefixRow
from kvferry.sharing.controller.page import figures
from kvferry.sharing.controller.page.elements import Column, Html, Query, chosen, el, joined, table
from kvferry.sharing.controller.traffic import TransferRow

__all__ = ["events", "events_table", "memory", "nodes", "prefixes", "transfers"]

_MATRIX_MAX = 24  # instances
_PREFIXES_MAX = 200
_ALWAYS = "since the controller began"
R = TypeVar("R")


def nodes(controller: Controller, query: Query) -> Html:
    """Processes beside each other, with totals."""
    found = views.nodes(controller)["nodes"]
    shown = [
        one
        for one in sorted(found, key=lambda each: (each["instance"], each["rank"]))
        if chosen(query, one["instance"], one["host"], one["address"], one["state"], _models(one))
    ]
    living = [one for one in shown if one["state"] != "dead"]
    used, room = (sum(one[name] for one in living) for name in ("used_bytes", "capacity_bytes"))
    hits = sum(sum(one["hit_tokens"].values()) for one in living)
    wanted = sum(one["requested_tokens"] for one in living)
    foot = (
        *(f"{len(living)} that live", "", "", figures.count(sum(o["chunks"] for o in living))),
        *(figures.size(used), figures.size(room), "", figures.bar(used, room, "all")),
        *(figures.share(used, room), figures.share(hits, wanted)),
        *("", "", ""),
    )
    return table(_NODES, shown, "No process is like that.", foot, lambda one: one["state"])


def _models(one: NodeRow) -> str:
    return ", ".join(sorted({each["model"] for each in one["identities"]}))


def _health(one: NodeRow) -> Html:
    return el("span", el("i", class_=f"state-{one['state']}"), one["state"])


def _full(one: NodeRow) -> str:
    return figures.share(one["used_bytes"], one["capacity_bytes"])


def _hits(one: NodeRow) -> str:
    return figures.share(sum(one["hit_tokens"].values()), one["requested_tokens"])


def _address(one: NodeRow) -> Html:
    return el("span", one["address"] or "lends nothing", title=one["software"])


def _quota(limits: Mapping[str, int]) -> Html | str:
    """The limit of all models, or the lowest of one; all of them where one points at it."""
    if not limits:
        return "none"
    model, least = min(limits.items(), key=lambda one: (one[0] != "", one[1]))
    every = (f"{name or 'all models'}: {figures.size(size)}" for name, size in limits.items())
    return el("span", figures.size(least) + ("" if not model else " *"), title=", ".join(every))


_NODES: Sequence[Column[NodeRow]] = (
    Column("Process", lambda one: el("b", f"{one['instance']}/{one['rank']}"), "instance/rank"),
    Column("Health", _health, "now"),
    Column("Heartbeat", lambda one: figures.duration(one["heartbeat_age_s"]), "age", True),
    Column("Chunks", lambda one: figures.count(one["chunks"]), "now", True),
    Column("Used", lambda one: figures.size(one["used_bytes"]), "now", True),
    Column("Capacity", lambda one: figures.size(one["capacity_bytes"]), "", True),
    Column("Quota", lambda one: _quota(one["quota_bytes"]), "of a process", True),
    Column("", lambda one: figures.bar(one["used_bytes"], one["capacity_bytes"], _full(one))),
    Column("Full", _full, "now", True),
    Column("Hits", _hits, "since it began", True),
    Column("Known", lambda one: "complete" if one["synced"] else "partly", "what it holds"),
    Column("Models", lambda one: el("span", _models(one), class_="long", title=_models(one))),
    Column("Address", _address, "of its node"),
)


def prefixes(controller: Controller, query: Query) -> Html:
    """What was looked up most."""
    rows = [
        one
        for one in views.prefixes(controller, views.PrefixesBody(_PREFIXES_MAX))["prefixes"]
        if chosen(query, one["root"], *one["holders"])
    ]
    return table(_PREFIXES, rows, _NO_PREFIX)


def _lookups(one: PrefixRow) -> str:
    error = f" \N{MINUS SIGN}{one['lookups_error']}" if one["lookups_error"] else ""
    return figures.count(one["lookups"]) + error


_NO_PREFIX = "No prefix was looked up yet: routers do so with /v1/lookup."
_PREFIXES: Sequence[Column[PrefixRow]] = (
    Column("Prefix", lambda one: el("code", one["root"][:16]), "hash of its first chunk"),
    Column("Look-ups", _lookups, _ALWAYS, True),
    Column("Held", lambda one: figures.count(one["chunks"]), "chunks, now", True),
    Column("Held", lambda one: figures.count(one["tokens"]), "tokens, now", True),
    Column("Last look-up", lambda one: figures.ago(one["last"]), "", True),
    Column("Copies", lambda one: len(one["holders"]), "now", True),
    Column("Held by", lambda one: ", ".join(one["holders"]) or "nobody"),
)


def transfers(controller: Controller, query: Query) -> Html:
    """Who reads from whom: live rates as a matrix, and all pairs below it."""
    found = usage.transfers(controller)["transfers"]
    found = [one for one in found if chosen(query, one["from"], one["to"])]
    if not found:
        return el("p", "No instance has read from another one yet.", class_="quiet")
    window = f"last {figures.duration(found[0]['window_s'])}"
    columns: Sequence[Column[TransferRow]] = (
        Column("Read from", lambda one: one["from"]),
        Column("By", lambda one: one["to"]),
        Column("Rate", lambda one: figures.rate(one["bytes_s"]), window, True),
        Column("Bytes", lambda one: figures.size(one["window_bytes"]), window, True),
        Column("Bytes", lambda one: figures.size(one["bytes"]), _ALWAYS, True),
        Column("Tokens", lambda one: figures.count(one["tokens"]), _ALWAYS, True),
    )
    return joined(
        _matrix(found, window),
        el("h2", "All pairs", el("small", "the most first")),
        table(columns, found, ""),
    )


def _matrix(found: Sequence[TransferRow], window: str) -> Html:
    sources = sorted({one["from"] for one in found[: _MATRIX_MAX * 4]})[:_MATRIX_MAX]
    targets = sorted({one["to"] for one in found[: _MATRIX_MAX * 4]})[:_MATRIX_MAX]
    cells = {(one["from"], one["to"]): one for one in found}
    most = max((one["bytes_s"] for one in found), default=0) or 1

    def cell(target: str, source: str) -> str:
        one = cells.get((source, target))
        if one is None:
            return "\N{MIDDLE DOT}"
        heat = -(-4 * one["bytes_s"] // most) if one["bytes_s"] else 0
        total = f"{figures.size(one['bytes'])} {_ALWAYS}"
        return el("span", figures.rate(one["bytes_s"]), class_=f"heat-{heat:.0f}", title=total)

    head = Column[str]("from \N{RIGHTWARDS ARROW} to", partial(el, "b"), window)
    columns = [Column[str](one, partial(cell, one), "", True) for one in targets]
    return table([head, *columns], sources, "")


def memory(controller: Controller, query: Query) -> Html:
    """What fills the memory: by model, by prefix, by age."""
    found = usage.keys(controller)
    rows = [one for one in found["keys"] if chosen(query, one["model"], one["instance"])]
    total = sum(one["bytes"] for one in rows)
    models: dict[str, list[int]] = {}
    holders: dict[str, set[tuple[str, int]]] = {}
    for one in rows:
        sums = models.setdefault(one["model"], [0, 0])
        sums[0] += one["bytes"]
        sums[1] += one["chunks"]
        holders.setdefault(one["model"], set()).add((one["instance"], one["rank"]))
    every = sum(one["bytes"] for one in found["ages"])
    prefixes = [one for one in found["prefixes"] if chosen(query, one["model"], one["root"])]
    return joined(
        _headed("By model", "memory of all living processes, now", "keys"),
        table(
            (
                Column("Model", lambda name: el("b", name)),
                *_amount(lambda name: (name, models[name][0]), total),
                Column("Chunks", lambda name: figures.count(models[name][1]), "now", True),
                Column("Processes", lambda name: len(holders[name]), "now", True),
            ),
            sorted(models, key=lambda name: -models[name][0]),
            "No process holds anything.",
            (
                *("all", figures.size(total), "", ""),
                figures.count(sum(one["chunks"] for one in rows)),
                len(set().union(*holders.values())),
            ),
        ),
        _headed("By age", "time since a prefix was last looked up here", "ages"),
        table(
            (
                Column[AgeRow]("Age", lambda one: one["age"]),
                *_amount(lambda one: (one["age"], one["bytes"]), every),
            ),
            found["ages"],
            "",
        ),
        _headed("By prefix", "of those that were looked up here, all copies", "prefixes"),
        table(_HELD, prefixes, _NO_PREFIX),
    )


def _amount(of: Callable[[R], tuple[str, int]], whole: int) -> Sequence[Column[R]]:
    """Bytes of a row, which `of` names and counts, and their part of a whole."""
    return (
        Column("Bytes", lambda row: figures.size(of(row)[1]), "now", True),
        Column("", lambda row: figures.bar(of(row)[1], whole, of(row)[0])),
        Column("Share", lambda row: figures.share(of(row)[1], whole), "now", True),
    )


_HELD: Sequence[Column[HeldPrefix]] = (
    Column("Prefix", lambda one: el("code", one["root"][:16]), "hash of its first chunk"),
    Column("Model", lambda one: one["model"]),
    Column("Bytes", lambda one: figures.size(one["bytes"]), "now", True),
    Column("Chunks", lambda one: figures.count(one["chunks"]), "of the longest", True),
    Column("Copies", lambda one: one["copies"], "now", True),
    Column("Last look-up", lambda one: f"{figures.duration(one['age_s'])} ago", "", True),
)


def _headed(title: str, text: str, name: str) -> Html:
    path = f"v1/keys?format=csv&table={name}"
    load = el("button", "CSV", type="button", class_="load", data_path=path)
    return el("h2", title, el("small", text), load)


def events(controller: Controller, query: Query) -> Html:
    """What happened, the youngest first."""
    every = [
        one
        for one in reversed(controller.journal.since(0))
        if chosen(query, one["type"], one["text"])
    ]
    return events_table(every)


def events_table(every: Sequence[Mapping[str, Any]]) -> Html:
    """Events as rows."""
    columns: Sequence[Column[Mapping[str, Any]]] = (
        Column("Time", lambda one: figures.clock(one["time"]), "UTC"),
        Column("Kind", lambda one: one["type"]),
        Column("What", lambda one: one["text"]),
    )
    return table(columns, every, "Nothing has happened yet.", (), lambda o: f"event-{o['type']}")
