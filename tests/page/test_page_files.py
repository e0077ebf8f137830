"""The page without a browser: how much it loads, what its policy is, and who may see it."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator

import pytest

from kvferry.sharing.controller.page import routes
from kvferry.sharing.controller.page.actions import prompt_of
from kvferry.sharing.controller.page.elements import el, joined
from support.page_cluster import PageCluster, page_cluster
from support.views import ask

WIRE_BYTES_MAX = 120_000
TOKEN = "t0ken-t0ken-t0ken"
needs_libraries = pytest.mark.skipif(
    not routes._files(), reason="npm was not there when the package was built: no page"
)


@pytest.fixture
def cluster() -> Iterator[PageCluster]:
    with page_cluster() as found:
        yield found


def fetch(url: str) -> tuple[bytes, dict[str, str]]:
    request = urllib.request.Request(url, headers={"accept-encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return reply.read(), {name.lower(): value for name, value in reply.headers.items()}


@needs_libraries
def test_the_page_is_at_most_120_kb_over_the_wire(cluster: PageCluster) -> None:
    document, _ = fetch(f"{cluster.url}/")
    files = sorted(set(re.findall(r'(?:src|href)="(page/[^"?]+)"', document.decode())))
    assert len(files) == 5
    sizes = {file: len(fetch(f"{cluster.url}/{file}")[0]) for file in files}
    assert len(document) + sum(sizes.values()) <= WIRE_BYTES_MAX, sizes


@needs_libraries
def test_nothing_on_the_page_is_inline_or_from_elsewhere(cluster: PageCluster) -> None:
    for view in ("overview", "nodes", "explain", "jobs", '"><script>x()</script>'):
        raw, headers = fetch(f"{cluster.url}/?view={view.replace(' ', '')}&q=%3Cscript%3E")
        text = raw.decode()
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"<style|\sstyle=|\son\w+=|https?://|<script>", text), view
        assert text.count("<script") == 3
        assert headers["x-content-type-options"] == "nosniff"


@needs_libraries
def test_a_token_is_wanted_for_data_and_not_for_the_empty_page() -> None:
    with page_cluster(http_token=TOKEN) as cluster:
        document, _ = fetch(f"{cluster.url}/?view=nodes&q=x")
        assert b"10.0.0.1" not in document
        for path in ("/page/live", "/page/view", "/v1/keys", "/v1/transfers"):
            assert ask(cluster.url + path)[0] == 401
        for path in ("/page/explain", "/page/jobs"):
            assert ask(cluster.url + path, "POST", {})[0] == 401


def test_without_its_libraries_the_page_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_files", dict)
    with page_cluster() as cluster:
        said, _ = fetch(f"{cluster.url}/")
        assert b"The page is not part of this installation" in said
        assert ask(f"{cluster.url}/v1/cluster")[0] == 200


def test_what_the_page_asks_for_is_described() -> None:
    with page_cluster() as cluster:
        described = set(ask(f"{cluster.url}/openapi.json")[1]["paths"])
    assert {"/v1/keys", "/v1/transfers"} <= described


def test_texts_are_escaped_and_elements_are_not_escaped_twice() -> None:
    inner = el("b", "<i>&", title='"x"')
    assert inner == '<b title="&quot;x&quot;">&lt;i&gt;&amp;</b>'
    assert joined(inner, "<") == f"{inner}&lt;"


def test_what_was_pasted_is_tokens_or_hashes_or_a_text() -> None:
    assert list(prompt_of("[1, 2,3 4]")["tokens"]) == [1, 2, 3, 4]
    digest = "ab" * 16
    assert prompt_of(f'["{digest}", {digest}]') == {"hashes": [digest, digest]}
    assert prompt_of(" \n") == {}
    assert prompt_of("What is 1, 2?") == {"text": "What is 1, 2?"}
