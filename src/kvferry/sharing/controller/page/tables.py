"""The views that are tables: processes, prefixes, transfers, memory, events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http import usage, views
from kvferry.sharing.controller.page import figures
from kvferry.sharing.controller.page.elements import Column, Html, Query, chosen, el, joined, table

__all__ = ["events", "events_table", "memory", "nodes", "prefixes", "transfers"]

_MATRIX_MAX = 24  # instances
_PREFIXES_MAX = 200


def nodes(controller: Controller, query: Query) -> Html:
    """Processes beside each other, with totals."""
    rows, marks, shown = [], [], []
    found = views.nodes(controller)["nodes"]
    for one in sorted(found, key=lambda each: (each["instance"], each["rank"])):
        models = ", ".join(sorted({each["model"] for each in one["identities"]}))
        if not chosen(query, one["instance"], one["host"], one["address"], one["state"], models):
            continue
        shown.append(one)
        marks.append(one["state"])
        used, room = one["used_bytes"], one["capacity_bytes"]
        hits = sum(one["hit_tokens"].values())
        rows.append(
            (
                el("b", f"{one['instance']}/{one['rank']}"),
                el("span", el("i", class_=f"state-{one['state']}"), one["state"]),
                figures.duration(one["heartbeat_age_s"]),
                figures.count(one["chunks"]),
                figures.size(used),
                figures.size(room),
                _quota(one["quota_bytes"]),
                figures.bar(used, room, figures.share(used, room)),
                figures.share(used, room),
                figures.share(hits, one["requested_tokens"]),
                "complete" if one["synced"] else "partly",
                el("span", models, class_="long", title=models),
                el("span", one["address"] or "lends nothing", title=one["software"]),
            )
        )
    living = [one for one in shown if one["state"] != "dead"]
    used, room = (sum(one[name] for one in living) for name in ("used_bytes", "capacity_bytes"))
    hits = sum(sum(one["hit_tokens"].values()) for one in living)
    wanted = sum(one["requested_tokens"] for one in living)
    columns = (
        Column("Process", "instance/rank"),
        Column("Health", "now"),
        Column("Heartbeat", "age", True),
        Column("Chunks", "now", True),
        Column("Used", "now", True),
        Column("Capacity", "", True),
        Column("Quota", "of a process", True),
        Column("", ""),
        Column("Full", "now", True),
        Column("Hits", "since it began", True),
        Column("Known", "what it holds"),
        Column("Models"),
        Column("Address", "of its node"),
    )
    foot = (
        *(f"{len(living)} that live", "", "", figures.count(sum(o["chunks"] for o in living))),
        *(figures.size(used), figures.size(room), "", figures.bar(used, room, "all")),
        *(figures.share(used, room), figures.share(hits, wanted)),
        *("", "", ""),
    )
    return table(columns, rows, "No process is like that.", foot, marks)


def _quota(limits: Mapping[str, int]) -> Html | str:
    """The limit of all models, or the lowest of one; all of them where one points at it."""
    if not limits:
        return "none"
    model, least = min(limits.items(), key=lambda one: (one[0] != "", one[1]))
    every = (f"{name or 'all models'}: {figures.size(size)}" for name, size in limits.items())
    return el("span", figures.size(least) + ("" if not model else " *"), title=", ".join(every))


def prefixes(controller: Controller, query: Query) -> Html:
    """What was looked up most."""
    rows = []
    for one in views.prefixes(controller, views.PrefixesBody(_PREFIXES_MAX))["prefixes"]:
        if not chosen(query, one["root"], *one["holders"]):
            continue
        error = f" \N{MINUS SIGN}{one['lookups_error']}" if one["lookups_error"] else ""
        rows.append(
            (
                el("code", one["root"][:16]),
                figures.count(one["lookups"]) + error,
                figures.count(one["chunks"]),
                figures.count(one["tokens"]),
                figures.ago(one["last"]),
                len(one["holders"]),
                ", ".join(one["holders"]) or "nobody",
            )
        )
    columns = (
        Column("Prefix", "hash of its first chunk"),
        Column("Look-ups", "since the controller began", True),
        Column("Held", "chunks, now", True),
        Column("Held", "tokens, now", True),
        Column("Last look-up", "", True),
        Column("Copies", "now", True),
        Column("Held by"),
    )
    empty = "No prefix was looked up yet: routers do so with /v1/lookup."
    return table(columns, rows, empty)


def transfers(controller: Controller, query: Query) -> Html:
    """Who reads from whom: live rates as a matrix, and all pairs below it."""
    found = usage.transfers(controller)["transfers"]
    found = [one for one in found if chosen(query, one["from"], one["to"])]
    if not found:
        return el("p", "No instance has read from another one yet.", class_="quiet")
    window = f"last {figures.duration(found[0]['window_s'])}"
    rows = [
        (
            one["from"],
            one["to"],
            figures.rate(one["bytes_s"]),
            figures.size(one["window_bytes"]),
            figures.size(one["bytes"]),
            figures.count(one["tokens"]),
        )
        for one in found
    ]
    columns = (
        Column("Read from"),
        Column("By"),
        Column("Rate", window, True),
        Column("Bytes", window, True),
        Column("Bytes", "since the controller began", True),
        Column("Tokens", "since the controller began", True),
    )
    return joined(
        _matrix(found, window),
        el("h2", "All pairs", el("small", "the most first")),
        table(columns, rows, ""),
    )


def _matrix(found: Sequence[Mapping[str, Any]], window: str) -> Html:
    sources = sorted({one["from"] for one in found[: _MATRIX_MAX * 4]})[:_MATRIX_MAX]
    targets = sorted({one["to"] for one in found[: _MATRIX_MAX * 4]})[:_MATRIX_MAX]
    cells = {(one["from"], one["to"]): one for one in found}
    most = max((one["bytes_s"] for one in found), default=0) or 1
    columns = [Column("from \N{RIGHTWARDS ARROW} to", window)]
    columns += [Column(one, "", True) for one in targets]
    rows: list[list[str | int | None]] = []
    for source in sources:
        row: list[str | int | None] = [el("b", source)]
        for target in targets:
            one = cells.get((source, target))
            if one is None:
                row.append("\N{MIDDLE DOT}")
                continue
            heat = -(-4 * one["bytes_s"] // most) if one["bytes_s"] else 0
            total = f"{figures.size(one['bytes'])} since the controller began"
            row.append(
                el("span", figures.rate(one["bytes_s"]), class_=f"heat-{heat:.0f}", title=total)
            )
        rows.append(row)
    return table(columns, rows, "")


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
    by_model = [
        (
            el("b", name),
            figures.size(size),
            figures.bar(size, total, name),
            figures.share(size, total),
            figures.count(chunks),
            len(holders[name]),
        )
        for name, (size, chunks) in sorted(models.items(), key=lambda o: -o[1][0])
    ]
    ages = {one["age"]: one["bytes"] for one in found["ages"]}
    every = sum(ages.values())
    by_age = [
        (name, figures.size(size), figures.bar(size, every, name), figures.share(size, every))
        for name, size in ages.items()
    ]
    by_prefix = [
        (
            el("code", one["root"][:16]),
            one["model"],
            figures.size(one["bytes"]),
            figures.count(one["chunks"]),
            one["copies"],
            f"{figures.duration(one['age_s'])} ago",
        )
        for one in found["prefixes"]
        if chosen(query, one["model"], one["root"])
    ]
    amount = (Column("Bytes", "now", True), Column(""), Column("Share", "now", True))
    return joined(
        _headed("By model", "memory of all living processes, now", "keys"),
        table(
            (
                Column("Model"),
                *amount,
                Column("Chunks", "now", True),
                Column("Processes", "now", True),
            ),
            by_model,
            "No process holds anything.",
            (
                *("all", figures.size(total), "", ""),
                figures.count(sum(one["chunks"] for one in rows)),
                len(set().union(*holders.values())),
            ),
        ),
        _headed("By age", "time since a prefix was last looked up here", "ages"),
        table((Column("Age"), *amount), by_age, ""),
        _headed("By prefix", "of those that were looked up here, all copies", "prefixes"),
        table(
            (
                Column("Prefix", "hash of its first chunk"),
                Column("Model"),
                Column("Bytes", "now", True),
                Column("Chunks", "of the longest", True),
                Column("Copies", "now", True),
                Column("Last look-up", "", True),
            ),
            by_prefix,
            "No prefix was looked up yet: routers do so with /v1/lookup.",
        ),
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
    rows = [(figures.clock(one["time"]), one["type"], one["text"]) for one in every]
    marks = [f"event-{one['type']}" for one in every]
    columns = (Column("Time", "UTC"), Column("Kind"), Column("What"))
    return table(columns, rows, "Nothing has happened yet.", (), marks)
