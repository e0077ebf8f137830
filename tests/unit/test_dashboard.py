"""The Grafana dashboard: its queries name series and labels that exist, and leave none out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvferry.metrics import CacheMetrics

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "grafana" / "kvferry.json"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
SERIES = {
    family.name + suffix: family
    for family in CacheMetrics(stores=["redis"]).families()
    for suffix in SUFFIXES[family.kind]
}


@pytest.fixture
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]


def test_it_has_what_grafana_wants(dashboard: dict[str, Any]) -> None:
    assert dashboard["schemaVersion"] >= 39
    names = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert names == {"datasource", "instance"}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken
        taken |= cells
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"


def test_every_query_names_series_that_exist(dashboard: dict[str, Any]) -> None:
    for query in queries(dashboard):
        named = re.findall(r"\bkvferry_\w+", query)
        assert named, query
        assert set(named) <= SERIES.keys(), query
        assert query.count("(") == query.count(")")
        assert query.count("{") == query.count("}")


def test_every_label_of_a_query_is_one_of_its_series(dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            families = [SERIES[name] for name in re.findall(r"\bkvferry_\w+", target["expr"])]
            known = {family.label for family in families} | {"le", "instance"}
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            for by in re.findall(r"by \(([^)]*)\)", target["expr"]):
                used |= {label.strip() for label in by.split(",")}
            assert used <= known, target


def test_counters_are_shown_as_rates(dashboard: dict[str, Any]) -> None:
    for query in queries(dashboard):
        for name in re.findall(r"\bkvferry_\w+(?:_total|_bucket)", query):
            assert re.search(rf"(rate|increase)\({name}\{{", query), query


def test_every_family_is_on_it(dashboard: dict[str, Any]) -> None:
    shown = {SERIES[n].name for q in queries(dashboard) for n in re.findall(r"\bkvferry_\w+", q)}
    left_out = {family.name for family in SERIES.values()} - shown
    page = {"kvferry_prefill_saved_seconds"}  # which the controller's page shows
    assert left_out == {"kvferry_bytes_hit", "kvferry_write_queue_chunks"} | page


def test_the_guide_lists_every_series() -> None:
    guide = (ROOT / "docs" / "guides" / "metrics.md").read_text()
    listed = set(re.findall(r"`(kvferry_(?!server_)\w+)`", guide))
    names = {
        family.name + ("_total" if family.kind == "counter" else "") for family in SERIES.values()
    }
    assert listed == names
