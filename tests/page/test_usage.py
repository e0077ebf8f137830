"""What the page shows, over REST: hits, saved prefill, transfers and bytes."""

from __future__ import annotations

import csv
import io
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from kvferry.metrics import CacheMetrics
from kvferry.sharing.controller.page import tables
from kvferry.sharing.membership.messages import HITS_MAX, Hits
from kvferry.sharing.peers.instance import work_of
from support.holdings import tokens
from support.page_cluster import CHUNK_BYTES, PageCluster, page_cluster
from support.views import ask


@pytest.fixture
def cluster() -> Iterator[PageCluster]:
    with page_cluster() as found:
        yield found


def get(cluster: PageCluster, path: str) -> Any:
    status, body = ask(cluster.url + path)
    assert status == 200, body
    return body


def test_hits_and_saved_prefill_are_those_of_all_instances_by_tier(cluster: PageCluster) -> None:
    cluster.works(2)
    cluster.beats()
    work = get(cluster, "/v1/cluster?window_s=60")["work"]
    assert work["requested_tokens"] == 4000
    assert work["hit_tokens"] == {"memory": 1200, "peers": 600, "redis": 200}
    assert work["saved_s"] == 4.0
    assert 0 < work["window_s"] <= 60
    one, two = get(cluster, "/v1/nodes")["nodes"]
    assert one["hit_tokens"] == {"l1": 1200}
    assert two["hit_tokens"] == {"peer one": 600, "redis": 200}
    for wrong in ("0", "x", "1e9"):
        assert ask(f"{cluster.url}/v1/cluster?window_s={wrong}")[0] == 400


def test_transfers_are_pairs_with_a_rate_and_its_window(cluster: PageCluster) -> None:
    assert get(cluster, "/v1/transfers")["transfers"] == []
    cluster.works(3)
    cluster.beats()
    [pair] = get(cluster, "/v1/transfers")["transfers"]
    assert (pair["from"], pair["to"]) == ("one", "two")
    assert (pair["tokens"], pair["bytes"]) == (900, 9_000_000)
    assert pair["window_bytes"] == 9_000_000
    assert pair["bytes_s"] * pair["window_s"] == pytest.approx(9_000_000, rel=0.1)
    shown = tables.transfers(cluster.ctl, {})
    assert re.search(r"last \d+\.\d s<", shown), "a window of half a second is none of a second"


def test_who_has_no_quota_is_shown_with_none(cluster: PageCluster) -> None:
    assert tables.nodes(cluster.ctl, {}).count(">none<") == 2


def test_bytes_are_counted_by_model_and_by_prefix(cluster: PageCluster) -> None:
    before = get(cluster, "/v1/keys")
    held = {one["instance"]: one["bytes"] for one in before["keys"] if one["model"] == "tiny"}
    assert held == {"two": 7 * CHUNK_BYTES, "one": 4 * CHUNK_BYTES}
    assert before["prefixes"] == []
    assert before["ages"][-1] == {"age": "not looked up", "bytes": 11 * CHUNK_BYTES}
    ask(f"{cluster.url}/v1/lookup", "POST", {"tokens": tokens(9)})
    after = get(cluster, "/v1/keys")
    [prefix] = after["prefixes"]
    assert (prefix["bytes"], prefix["chunks"], prefix["copies"]) == (11 * CHUNK_BYTES, 7, 2)
    assert {one["age"]: one["bytes"] for one in after["ages"]}["not looked up"] == 0


@pytest.mark.parametrize(
    ("path", "head"),
    [
        ("/v1/keys?", "instance"),
        ("/v1/keys?table=prefixes&", "bytes"),
        ("/v1/keys?table=ages&", "age"),
        ("/v1/nodes?", "instance"),
        ("/v1/prefixes?", "root"),
        ("/v1/transfers?", "from"),
    ],
)
def test_tables_come_as_csv_too(cluster: PageCluster, path: str, head: str) -> None:
    cluster.works(1)
    cluster.beats()
    ask(f"{cluster.url}/v1/lookup", "POST", {"tokens": tokens(9)})
    with urllib.request.urlopen(f"{cluster.url}{path}format=csv", timeout=30) as reply:
        assert reply.headers["content-type"].startswith("text/csv")
        rows = list(csv.DictReader(io.StringIO(reply.read().decode())))
    assert rows
    assert head in rows[0]


def test_of_more_tiers_than_fit_always_the_same_are_told() -> None:
    metrics = CacheMetrics()
    for number in range(HITS_MAX + 50):
        metrics.hit(f"peer {number:03}", 1, 10)
    metrics.hit("l1", 3, 30)
    metrics.requested(1000)
    first = work_of([metrics])
    assert len(first.hits) == HITS_MAX
    assert first.hits[0] == Hits("l1", 3, 30)
    assert first.requested_tokens == 1000
    metrics.hit(f"peer {HITS_MAX + 10:03}", 9999, 10)  # it gives more than others now
    second = work_of([metrics, metrics])
    assert [one.tier for one in second.hits] == [one.tier for one in first.hits]
    assert second.hits[0] == Hits("l1", 6, 60)


def test_a_table_that_is_not_there_is_said(cluster: PageCluster) -> None:
    assert ask(f"{cluster.url}/v1/keys?format=csv&table=x")[0] == 400
