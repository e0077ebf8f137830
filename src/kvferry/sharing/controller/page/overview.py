"""The first view: what the caches give, what is wrong, and what happened last."""

from __future__ import annotations

from collections.abc import Callable

from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http import views
from kvferry.sharing.controller.http.answers import ClusterReport, WorkReport
from kvferry.sharing.controller.http.usage import WindowQuery
from kvferry.sharing.controller.page import figures
from kvferry.sharing.controller.page.elements import Html, Query, el, tile
from kvferry.sharing.controller.page.tables import events_table
from kvferry.sharing.controller.traffic import HELD_S, MEMORY, PEER, DoneTransfer

__all__ = ["WINDOWS", "overview", "window_of"]

WINDOWS = {"60": "1 min", "300": "5 min", "1800": "30 min"}
_POINTS_MAX = 90  # of a chart
_EVENTS_MAX = 8


def window_of(query: Query) -> float:
    """The window of time that was chosen, in seconds."""
    chosen = query.get("window", "")
    return float(chosen if chosen in WINDOWS else 300)


def overview(controller: Controller, query: Query) -> Html:
    """See the module."""
    seconds = window_of(query)
    found = views.cluster(controller, WindowQuery(seconds))
    window = f"last {WINDOWS[f'{seconds:g}']}"
    if found["work"]["window_s"] < 0.9 * seconds:
        window += f", {figures.duration(found['work']['window_s'])} so far"
    series = controller.members.traffic.series(HELD_S, _POINTS_MAX)
    events = list(reversed(controller.journal.since(0)))[:_EVENTS_MAX]
    return el(
        "div",
        _alarms(found["alarms"]),
        el(
            "div",
            _hits(found["work"], window),
            _saved(found["work"], window),
            _memory(found),
            _instances(found),
            class_="tiles",
        ),
        el("div", *_charts(series), class_="charts"),
        el("h2", "Last events", el("small", f"the last {_EVENTS_MAX}, times in UTC")),
        events_table(events),
    )


def _alarms(alarms: list[str]) -> Html:
    if not alarms:
        return el("p", "No alarms.", class_="calm", id="alarms")
    return el("ul", *(el("li", one) for one in alarms), class_="alarms", id="alarms", role="alert")


def _hits(work: WorkReport, window: str) -> Html:
    wanted, tokens = work["requested_tokens"], work["hit_tokens"]
    order = [one for one in (MEMORY, PEER) if one in tokens]
    order += sorted(one for one in tokens if one not in order)
    parts = {one: tokens[one] for one in order}
    legend = [
        el(
            "li",
            el("i", class_=f"tier-{min(number, 5)}"),
            f"{name} ",
            el("b", figures.share(count, wanted)),
        )
        for number, (name, count) in enumerate(parts.items())
    ]
    missing = max(0, wanted - sum(parts.values()))
    legend.append(el("li", el("i", class_="room"), "computed ", figures.share(missing, wanted)))
    return tile(
        "Hit share by tier",
        f"of tokens, {window}",
        figures.share(sum(parts.values()), wanted),
        figures.stack(parts, wanted, "hit share by tier"),
        el("ul", *legend, class_="legend"),
        el("p", f"{figures.count(wanted)} tokens were asked for.", class_="quiet"),
    )


def _saved(work: WorkReport, window: str) -> Html:
    rate = work["saved_s"] / work["window_s"] if work["window_s"] else 0.0
    return tile(
        "Prefill saved",
        f"seconds of engines, {window}",
        figures.duration(work["saved_s"]),
        el("p", f"{rate:.2f} s in each second, all instances together."),
        el("p", "As predicted from the steps that engines made.", class_="quiet"),
    )


def _memory(found: ClusterReport) -> Html:
    used, room = found["used_bytes"], found["capacity_bytes"]
    return tile(
        "Memory of instances",
        "now",
        figures.size(used),
        figures.bar(used, room, f"{figures.share(used, room)} used"),
        el("p", f"{figures.share(used, room)} of {figures.size(room)}."),
        el("p", f"{figures.count(found['entries'])} chunks are known here.", class_="quiet"),
    )


def _instances(found: ClusterReport) -> Html:
    states = found["states"]
    return tile(
        "Instances",
        "now",
        str(found["instances"]),
        el(
            "ul",
            *(
                el("li", el("i", class_=f"state-{name}"), f"{name} ", el("b", str(number)))
                for name, number in states.items()
            ),
            class_="legend",
        ),
        el("p", f"{found['synced']} processes have said all that they hold.", class_="quiet"),
    )


def _charts(series: list[DoneTransfer]) -> list[Html]:
    hits = [
        sum(one.tokens.values()) / one.requested_tokens * 100 if one.requested_tokens else 0.0
        for one in series
    ]
    saved = [one.saved_s / one.at if one.at else 0.0 for one in series]
    moved = [one.bytes[PEER] / one.at if one.at else 0.0 for one in series]
    span = figures.duration(sum(one.at for one in series))

    def line(
        title: str, values: list[float], text: Callable[[float], str], top: float | None = None
    ) -> Html:
        most = text(max(values, default=0.0))
        label = f"{title}, last {span}, at most {most}"
        return figures.chart(values, [text(one) for one in values], label, top)

    return [
        line("Hit share", hits, lambda one: f"{one:.1f} %", 100.0),
        line("Prefill saved", saved, lambda one: f"{one:.2f} s/s"),
        line("Read from peers", moved, figures.rate),
    ]
