"""What the dashboard of Grafana would show of a ``/metrics`` page.

    dark(text)    # titles of the panels of which nothing is above zero

A panel is lit when all series that one of its queries names are: counters and histograms that have
moved, gauges above zero.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

__all__ = ["PANELS", "dark", "page", "samples"]

_FILE = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "kvferry.json"
PANELS: dict[str, list[set[str]]] = {
    panel["title"]: [set(re.findall(r"\bkvferry_\w+", one["expr"])) for one in panel["targets"]]
    for panel in json.loads(_FILE.read_text())["panels"]
}
_SAMPLE = re.compile(r"^(\w[\w:]*)(?:\{(.*)\})? ([-+.\w]+)$")


def page(url: str) -> str:
    """The page at the ``/metrics`` of a server."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as reply:
        text: str = reply.read().decode()
    return text


def samples(text: str) -> Iterator[tuple[str, str, float]]:
    """Names, labels as they are written, values."""
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            yield match[1], match[2] or "", float(match[3])


def dark(text: str) -> set[str]:
    """See the head of this module."""
    moved = {name for name, _, value in samples(text) if value > 0}
    return {title for title, queries in PANELS.items() if not any(q <= moved for q in queries)}
