"""Series of a controller, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from kvferry.base.threads import failures
from kvferry.metrics.collector import text_of
from kvferry.metrics.series import Family, family_of
from kvferry.sharing.controller.controller import Controller

__all__ = ["metrics_text"]


def _families(controller: Controller) -> list[Family]:
    """All families as they are now."""
    members = controller.members.all()
    living = [one for one in members if one.state != "dead"]
    stats, counts = controller.members.directory.stats(), controller.counts
    states = dict.fromkeys(("alive", "suspect", "dead"), 0)
    for one in members:
        states[one.state] += 1
    chunks = {one.name: controller.members.chunks(one) for one in living}
    used = {one.name: one.usage.used_bytes for one in living}
    capacity = {one.name: one.usage.capacity_bytes for one in living}
    return [
        _family("members", "gauge", "Processes of instances, by state.", states, "state"),
        _family(
            "synced",
            "gauge",
            "Those whose snapshot is complete.",
            sum(one.synced and not one.gap for one in living),
        ),
        _family("entries", "gauge", "Chunks in the directory.", stats["entries"]),
        _family("directory_bytes", "gauge", "Memory of it.", stats["memory_bytes"]),
        _family("chunks", "gauge", "Chunks of a process.", chunks, "member"),
        _family("used_bytes", "gauge", "Memory that a process uses.", used, "member"),
        _family("capacity_bytes", "gauge", "Memory of a process.", capacity, "member"),
        _family("connections", "gauge", "Of instances.", counts["connections"]),
        _family("messages", "counter", "Of instances.", counts["messages"]),
        _family("refused", "counter", "Connections and messages.", counts["refused"]),
        _family("gaps", "counter", "Times that updates were lost.", counts["gaps"]),
        _family("snapshots", "counter", "That were taken.", counts["resyncs"]),
        _family("deaths", "counter", "Processes that fell silent.", counts["deaths"]),
        _family("thread_failures", "counter", "Faults in threads.", failures(), "thread"),
    ]


def metrics_text(controller: Controller) -> str:
    """All series in Prometheus' text format."""
    return text_of(_families(controller))


def _family(
    name: str, kind: str, text: str, values: Mapping[str, float] | float, label: str = ""
) -> Family:
    return family_of(f"kvferry_controller_{name}", kind, text, values, label)
